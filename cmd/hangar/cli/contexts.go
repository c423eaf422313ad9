package cli

import (
	"cmp"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/durable"
)

// LocalContext is the name of the daemon on this server, which needs no login.
const LocalContext = "local"

const contextsFile = "contexts.json"

// SavedContext is a platform at which `hangar login` has signed in.
type SavedContext struct {
	Name     string         `json:"name"`
	URL      string         `json:"url"`
	Org      hangar.OrgSlug `json:"org,omitempty"`      // in which commands create things
	CA       string         `json:"ca,omitempty"`       // PEM of its authorities; empty: the system's
	Token    string         `json:"token,omitempty"`    // empty: in the keyring, or signed out
	Keyring  bool           `json:"keyring,omitempty"`  // the token is in the system's keyring
	Insecure bool           `json:"insecure,omitempty"` // plain HTTP is allowed
}

// Contexts are the platforms at which the user has signed in.
type Contexts struct {
	Current  string         `json:"current,omitempty"` // empty: the local daemon
	Contexts []SavedContext `json:"contexts"`
}

// contextName matches names of contexts, such as a host with or without a port.
var contextName = regexp.MustCompile(`^[A-Za-z0-9\[][A-Za-z0-9._:\[\]-]{0,127}$`)

// ValidContextName reports whether a context may have a name.
func ValidContextName(name string) bool { return name != LocalContext && contextName.MatchString(name) }

// configDir returns the directory of the user's own files of hangar.
func (t *Target) configDir() (string, error) {
	if dir := t.Getenv("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "hangar"), nil
	}
	home := t.Getenv("HOME")
	if home == "" {
		return "", errors.New("neither XDG_CONFIG_HOME nor HOME is set: there is no place for contexts")
	}
	return filepath.Join(home, ".config", "hangar"), nil
}

// Contexts reads the file of contexts. A missing file is not an error.
func (t *Target) Contexts() (Contexts, error) {
	dir, err := t.configDir()
	if err != nil {
		return Contexts{}, nil //nolint:nilerr // a user without a home has no contexts
	}
	return readContexts(filepath.Join(dir, contextsFile))
}

func readContexts(path string) (Contexts, error) {
	var all Contexts
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	if err != nil {
		return all, err
	}
	if info.Mode()&0o077 != 0 {
		return all, WithHint(fmt.Errorf("other users can read or write %s, which holds tokens", path), "chmod 600 "+path)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return all, err
	}
	if err := json.Unmarshal(raw, &all); err != nil {
		return all, WithHint(fmt.Errorf("%s is damaged: %w", path, err), "remove it and sign in again with `hangar login`")
	}
	return all, nil
}

// ChangeContexts applies change to the file, which it locks against other processes. If change fails, the
// file is not written.
func (t *Target) ChangeContexts(change func(*Contexts) error) error {
	dir, err := t.configDir()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	lock, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", dir, err)
	}
	path := filepath.Join(dir, contextsFile)
	all, err := readContexts(path)
	if err != nil {
		return err
	}
	if err := change(&all); err != nil {
		return err
	}
	raw, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	return durable.WriteFile(path, append(raw, '\n'), 0o600)
}

// Find returns a context by its name. It answers CodeNotFound.
func (all *Contexts) Find(name string) (*SavedContext, error) {
	i := all.index(name)
	if i < 0 {
		return nil, WithHint(hangar.Errorf(hangar.CodeNotFound, "", "there is no context %q", name), "see `hangar context list`, or make it with `hangar login URL`")
	}
	return &all.Contexts[i], nil
}

func (all *Contexts) index(name string) int {
	return slices.IndexFunc(all.Contexts, func(x SavedContext) bool { return x.Name == name })
}

// put adds a context, or replaces the one with its name.
func (all *Contexts) put(x SavedContext) {
	if i := all.index(x.Name); i >= 0 {
		all.Contexts[i] = x
		return
	}
	all.Contexts = append(all.Contexts, x)
	slices.SortFunc(all.Contexts, func(a, b SavedContext) int { return strings.Compare(a.Name, b.Name) })
}

// Remove removes a context. If it was in use, the local daemon is in use afterwards.
func (all *Contexts) Remove(name string) {
	all.Contexts = slices.DeleteFunc(all.Contexts, func(x SavedContext) bool { return x.Name == name })
	if all.Current == name {
		all.Current = ""
	}
}

// token returns the token of the context; empty: signed out. One that the keyring has for another URL is not the
// context's: a sign-in there under the same name ended before it saved its context.
func (x *SavedContext) token(k Keyring) (string, error) {
	if !x.Keyring {
		return x.Token, nil
	}
	kept, err := k.Get(x.Name)
	if err != nil {
		return "", WithHint(fmt.Errorf("read the token of context %s from the keyring: %w", x.Name, err),
			"unlock the keyring, or keep the token in a file: hangar login --context "+x.Name+" --no-keyring")
	}
	url, token, _ := strings.Cut(kept, " ")
	if url != x.URL {
		return "", nil
	}
	return token, nil
}

// Roots returns the authorities of the server's certificate; nil means the system's.
func (x *SavedContext) Roots() (*x509.CertPool, error) {
	if x.CA == "" {
		return nil, nil //nolint:nilnil // for x509, nil means the system's
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(x.CA)) {
		return nil, fmt.Errorf("the authority of context %s is damaged: sign in again with --ca", x.Name)
	}
	return pool, nil
}

// Authority describes the authorities of the server's certificate; empty: the system's.
func (x *SavedContext) Authority() (string, error) {
	if x.CA == "" {
		return "", nil
	}
	certs, err := authorities(x.CA)
	if err != nil {
		return "", err
	}
	return authorityText(certs...), nil
}

// KeepContext saves x as the context in use. It saves the token in the keyring, or in the file if inFile is
// set, there is no keyring or the keyring fails. where describes that place.
func (t *Target) KeepContext(x *SavedContext, token string, inFile bool) (where string, err error) {
	dir, err := t.configDir()
	if err != nil {
		return "", err
	}
	where = dir + "/" + contextsFile + " (there is no keyring here)"
	if inFile {
		where = dir + "/" + contextsFile
	}
	if !inFile && t.Keyring.Here() {
		if err := t.Keyring.Set(x.Name, x.URL+" "+token); err == nil {
			x.Keyring, where = true, "the keyring"
		} else {
			where = fmt.Sprintf("%s/%s (the keyring refused it: %v)", dir, contextsFile, err)
		}
	}
	if !x.Keyring {
		x.Token = token
	}
	var before SavedContext
	err = t.ChangeContexts(func(all *Contexts) error {
		if i := all.index(x.Name); i >= 0 {
			before = all.Contexts[i]
		}
		all.put(*x)
		all.Current = x.Name
		return nil
	})
	if err == nil && before.Keyring && !x.Keyring {
		err = t.Keyring.Remove(x.Name) // the old token
	}
	return where, err
}

// TokenOf returns the token of a context; empty: signed out.
func (t *Target) TokenOf(x *SavedContext) (string, error) { return x.token(t.Keyring) }

// ForgetToken removes the token of a context.
func (t *Target) ForgetToken(x *SavedContext) error {
	if x.Keyring {
		if err := t.Keyring.Remove(x.Name); err != nil {
			return fmt.Errorf("remove the token from the keyring: %w", err)
		}
	}
	x.Token, x.Keyring = "", false
	return nil
}

// ContextInUse returns the name of the context that commands without flags use, or LocalContext. It is empty if
// HANGAR_URL is set.
func (t *Target) ContextInUse(all Contexts) string {
	if t.Getenv("HANGAR_URL") != "" {
		return ""
	}
	if name := t.Getenv("HANGAR_CONTEXT"); name != "" {
		return name
	}
	if t.Getenv("HANGAR_DIR") != "" {
		return LocalContext
	}
	return cmp.Or(all.Current, LocalContext)
}

// ChosenContext returns the context that an argument names, or else that of the flags, or else the one in use. It
// answers a UsageError if the platform of the invocation is not a saved context.
func (t *Target) ChosenContext(all *Contexts, args []string) (*SavedContext, error) {
	name := cmp.Or(t.Context, t.ContextInUse(*all))
	switch {
	case len(args) > 0:
		name = args[0]
	case t.URL != "":
		name = ""
	case t.Context == "" && t.Dir != "":
		name = LocalContext
	}
	switch name {
	case "":
		return nil, WithHint(UsageErrorf("a URL is in use, which is not a saved context"), "name a context, see `hangar context list`")
	case LocalContext:
		return nil, WithHint(UsageErrorf("the daemon of this server is in use, which is not a saved context"), "name one, see `hangar context list`")
	}
	return all.Find(name)
}
