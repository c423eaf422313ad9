package main

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
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

const (
	contextsFile = "contexts.json"
	// localContext is the name of the daemon on this server, which needs no login.
	localContext = "local"
)

// savedContext is a platform that `hangar login` has signed in at.
type savedContext struct {
	Name     string         `json:"name"`
	URL      string         `json:"url"`
	Org      hangar.OrgSlug `json:"org,omitempty"`      // default of commands that make something
	CA       string         `json:"ca,omitempty"`       // PEM of its authorities; empty: the system's
	Token    string         `json:"token,omitempty"`    // empty: in the keyring, or signed out
	Keyring  bool           `json:"keyring,omitempty"`  // the token is in the system's keyring
	Insecure bool           `json:"insecure,omitempty"` // plain HTTP is allowed
}

// contexts are the platforms that the user has signed in at.
type contexts struct {
	Current  string         `json:"current,omitempty"` // empty: the local daemon
	Contexts []savedContext `json:"contexts"`
}

// contextName is what a context may be called: a host with or without a port is one.
var contextName = regexp.MustCompile(`^[A-Za-z0-9\[][A-Za-z0-9._:\[\]-]{0,127}$`)

// validContextName reports whether a context may be called so.
func validContextName(name string) bool { return name != localContext && contextName.MatchString(name) }

// configDir is where the user's own files of hangar are.
func (t *target) configDir() (string, error) {
	if dir := t.getenv("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "hangar"), nil
	}
	home := t.getenv("HOME")
	if home == "" {
		return "", errors.New("neither XDG_CONFIG_HOME nor HOME is set: there is no place for contexts")
	}
	return filepath.Join(home, ".config", "hangar"), nil
}

// contexts reads what is there; no file is no contexts.
func (t *target) contexts() (contexts, error) {
	dir, err := t.configDir()
	if err != nil {
		return contexts{}, nil //nolint:nilerr // a user without a home has no contexts
	}
	return readContexts(filepath.Join(dir, contextsFile))
}

func readContexts(path string) (contexts, error) {
	var all contexts
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	if err != nil {
		return all, err
	}
	if info.Mode()&0o077 != 0 {
		return all, withHint(fmt.Errorf("other users can read or write %s, which holds tokens", path), "chmod 600 "+path)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return all, err
	}
	if err := json.Unmarshal(raw, &all); err != nil {
		return all, withHint(fmt.Errorf("%s is damaged: %w", path, err), "remove it and sign in again with `hangar login`")
	}
	return all, nil
}

// changeContexts replaces the file with what change makes of it. Another `hangar` that
// changes it meanwhile waits.
func (t *target) changeContexts(change func(*contexts) error) error {
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

// find returns a context by its name. It answers CodeNotFound.
func (all *contexts) find(name string) (*savedContext, error) {
	i := all.index(name)
	if i < 0 {
		return nil, withHint(hangar.Errorf(hangar.CodeNotFound, "", "there is no context %q", name), "see `hangar context list`, or make it with `hangar login URL`")
	}
	return &all.Contexts[i], nil
}

func (all *contexts) index(name string) int {
	return slices.IndexFunc(all.Contexts, func(x savedContext) bool { return x.Name == name })
}

// put adds a context or replaces that of its name.
func (all *contexts) put(x savedContext) {
	if i := all.index(x.Name); i >= 0 {
		all.Contexts[i] = x
		return
	}
	all.Contexts = append(all.Contexts, x)
	slices.SortFunc(all.Contexts, func(a, b savedContext) int { return strings.Compare(a.Name, b.Name) })
}

// remove takes a context away. If it was in use, the local daemon is.
func (all *contexts) remove(name string) {
	all.Contexts = slices.DeleteFunc(all.Contexts, func(x savedContext) bool { return x.Name == name })
	if all.Current == name {
		all.Current = ""
	}
}

// token is what opens the platform; empty: signed out.
func (x *savedContext) token(k keyring) (string, error) {
	if !x.Keyring {
		return x.Token, nil
	}
	token, err := k.get(x.Name)
	if err != nil {
		return "", withHint(fmt.Errorf("read the token of context %s from the keyring: %w", x.Name, err),
			"unlock the keyring, or keep the token in a file: hangar login --context "+x.Name+" --no-keyring")
	}
	return token, nil
}

// roots are who may sign the server's certificate; nil: the system's authorities.
func (x *savedContext) roots() (*x509.CertPool, error) {
	if x.CA == "" {
		return nil, nil //nolint:nilnil // x509 takes it for the system's
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(x.CA)) {
		return nil, fmt.Errorf("the authority of context %s is damaged: sign in again with --ca", x.Name)
	}
	return pool, nil
}

// authority shows who signs the server's certificate to a person; empty: the system's
// authorities.
func (x *savedContext) authority() (string, error) {
	if x.CA == "" {
		return "", nil
	}
	certs, err := authorities(x.CA)
	if err != nil {
		return "", err
	}
	return authorityText(certs...), nil
}

// readAuthorities reads the certificates of a file in PEM.
func readAuthorities(path string) (string, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("--ca: %w", err)
	}
	certs, err := authorities(string(raw))
	if err != nil {
		return "", usageErrorf("--ca %s: %w", path, err)
	}
	// Only the certificates: a file that has a key, too, leaves it where it is.
	var out strings.Builder
	for _, cert := range certs {
		out.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}))
	}
	return out.String(), nil
}

// authorities are the certificates of a text in PEM, one at least.
func authorities(text string) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for rest := []byte(text); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		certs = append(certs, cert)
	}
	if len(certs) == 0 {
		return nil, errors.New("has no certificate in PEM")
	}
	return certs, nil
}

// authorityText shows certificates to a person: the name and the SHA-256 fingerprint, as
// openssl x509 -fingerprint -sha256 prints it.
func authorityText(certs ...*x509.Certificate) string {
	var lines []string
	for _, cert := range certs {
		sum := sha256.Sum256(cert.Raw)
		pairs := make([]string, len(sum))
		for i, b := range sum {
			pairs[i] = fmt.Sprintf("%02X", b)
		}
		lines = append(lines, cert.Subject.String()+", SHA-256 "+strings.Join(pairs, ":"))
	}
	return strings.Join(lines, "; ")
}
