package cli

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	system "github.com/zalando/go-keyring"
)

// Keyring keeps the tokens of contexts outside of files, each behind the URL of its platform and a space.
type Keyring interface {
	// Here reports whether there is a keyring.
	Here() bool
	Get(context string) (string, error)
	Set(context, urlAndToken string) error
	// Remove removes a token. A missing token is not an error.
	Remove(context string) error
}

// keyringService is the name under which the system's keyring has the tokens.
const keyringService = "hangar"

// keyringPatience is how long the user has to unlock the keyring.
const keyringPatience = time.Minute

// systemKeyring is the Secret Service of the user's session, on D-Bus.
type systemKeyring struct{ getenv func(string) string }

// Here implements Keyring. It looks for the session bus first, because the library would start one.
func (k systemKeyring) Here() bool {
	if k.getenv("DBUS_SESSION_BUS_ADDRESS") == "" {
		dir := k.getenv("XDG_RUNTIME_DIR")
		if dir == "" {
			return false
		}
		if _, err := os.Stat(filepath.Join(dir, "bus")); err != nil {
			return false
		}
	}
	// ErrNotFound shows that there is a keyring. The user may have to unlock it for this answer.
	_, err := k.Get("no context is called so")
	return err == nil || errors.Is(err, system.ErrNotFound)
}

func (k systemKeyring) Get(context string) (string, error) {
	token := ""
	err := bounded(func() error {
		got, err := system.Get(keyringService, context)
		if err == nil {
			token = got
		}
		return err
	})
	if err != nil {
		return "", err // without reading token, which the library may still write
	}
	return token, nil
}

func (k systemKeyring) Set(context, token string) error {
	return bounded(func() error { return system.Set(keyringService, context, token) })
}

func (k systemKeyring) Remove(context string) error {
	err := bounded(func() error { return system.Delete(keyringService, context) })
	if errors.Is(err, system.ErrNotFound) {
		return nil
	}
	return err
}

// bounded returns an error if the keyring does not answer in time. The library takes no context, so the
// call may continue until the process ends.
func bounded(ask func() error) error {
	answered := make(chan error, 1)
	go func() { answered <- ask() }()
	select {
	case err := <-answered:
		return err
	case <-time.After(keyringPatience):
		return errors.New("the keyring does not answer")
	}
}
