package cli

import (
	"cmp"
	"crypto/x509"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
)

// How commands find the local daemon.
const (
	DefaultDir    = "/var/lib/hangar" // default of the data directory
	TokenFile     = "admin.token"     // in the data directory; mode 0600, written on the first start
	unixURLPrefix = "unix://"
)

// Target finds the platform of an invocation, from the global flags, the environment and the contexts.
type Target struct {
	URL      string // of --url
	Token    string // of --token
	Context  string // of --context: a name
	Insecure bool   // of --insecure
	Dir      string // of --dir
	Getenv   func(string) string
	Keyring  Keyring

	Used Endpoint // the API that the command has used
}

// OrgOr returns the organization of a command: the named one, or else that of the used context, or else
// hangar.OrgPersonal.
func (t *Target) OrgOr(named string) hangar.OrgSlug {
	return hangar.OrgSlug(cmp.Or(named, string(t.Used.Org), string(hangar.OrgPersonal)))
}

// Endpoint is the address of an API with its credentials.
type Endpoint struct {
	URL      string
	Token    string
	Context  string         // name of its context; empty: none
	Org      hangar.OrgSlug // in which commands create things; empty: not set
	Roots    *x509.CertPool // authorities of its certificate; nil: the system's
	Insecure bool           // plain HTTP is allowed
	saved    *SavedContext  // the context itself, or nil
}

// Endpoint finds the API: from the flags, then the environment, then the context in use, then the files
// of the local daemon. The token of the local daemon is sent only to the local daemon, and the token of a
// context only to its URL.
func (t *Target) Endpoint() (Endpoint, error) {
	e, err := t.Locate()
	if err != nil {
		return Endpoint{}, err
	}
	if err := CheckURL(e.URL); err != nil {
		return Endpoint{}, err
	}
	e.Insecure = e.Insecure || t.Insecure || t.Getenv("HANGAR_INSECURE") == "1"
	if err := e.CheckPlain(); err != nil {
		return Endpoint{}, err
	}
	t.Used = e
	switch {
	case e.Token != "":
	case e.saved != nil:
		e.Token, err = e.saved.token(t.Keyring)
	default:
		e.Token, err = t.tokenOfLocal(e.URL)
	}
	return e, err
}

// tokenOfLocal returns the local daemon's token if at is its URL, and otherwise "".
func (t *Target) tokenOfLocal(at string) (string, error) {
	dir, err := t.DataDir()
	if err != nil || at != LocalURL(dir) {
		return "", err
	}
	return localToken(dir)
}

// Locate finds the URL, and the token if a flag or the environment has it.
func (t *Target) Locate() (Endpoint, error) {
	env := t.Getenv
	switch {
	case t.URL != "" && t.Context != "":
		return Endpoint{}, UsageErrorf("--url and --context exclude one another")
	case t.URL != "":
		return t.atURL(t.URL)
	case t.Context != "":
		return t.atContext(t.Context, t.Token)
	case t.Dir != "":
		return t.atLocal()
	case env("HANGAR_URL") != "" && env("HANGAR_CONTEXT") != "":
		return Endpoint{}, UsageErrorf("HANGAR_URL and HANGAR_CONTEXT exclude one another: unset one")
	case env("HANGAR_URL") != "":
		return t.atURL(env("HANGAR_URL"))
	case env("HANGAR_CONTEXT") != "":
		return t.atContext(env("HANGAR_CONTEXT"), cmp.Or(t.Token, env("HANGAR_TOKEN")))
	case env("HANGAR_DIR") != "":
		return t.atLocal()
	}
	all, err := t.Contexts()
	if err != nil {
		return Endpoint{}, err
	}
	if all.Current != "" {
		return t.atContext(all.Current, cmp.Or(t.Token, env("HANGAR_TOKEN")))
	}
	return t.atLocal()
}

// atURL returns the API at a URL.
func (t *Target) atURL(text string) (Endpoint, error) {
	return Endpoint{URL: AddScheme(text), Token: cmp.Or(t.Token, t.Getenv("HANGAR_TOKEN"))}, nil
}

// atContext returns the API of a context. A token that is not empty replaces the context's.
func (t *Target) atContext(name, token string) (Endpoint, error) {
	if name == LocalContext {
		return t.atLocal()
	}
	all, err := t.Contexts()
	if err != nil {
		return Endpoint{}, err
	}
	x, err := all.Find(name)
	if err != nil {
		return Endpoint{}, err
	}
	e := Endpoint{URL: x.URL, Token: token, Context: x.Name, Org: x.Org, Insecure: x.Insecure, saved: x}
	e.Roots, err = x.Roots()
	return e, err
}

// atLocal returns the API of the daemon on this server.
func (t *Target) atLocal() (Endpoint, error) {
	dir, err := t.DataDir()
	if err != nil {
		return Endpoint{}, err
	}
	e := Endpoint{URL: LocalURL(dir), Token: cmp.Or(t.Token, t.Getenv("HANGAR_TOKEN"))}
	if e.URL == "" {
		return Endpoint{}, WithHint(hangar.Errorf(hangar.CodeUnavailable, "", "no daemon has used %s on this server", dir),
			"start one with `hangar up`, name its directory with --dir, or sign in at a remote one with `hangar login https://api.example.com`")
	}
	return e, nil
}

// AddScheme adds a scheme to an address without one: http for this computer, https for others.
func AddScheme(text string) string {
	text = strings.TrimSuffix(text, "/")
	if text == "" || strings.Contains(text, "://") {
		return text
	}
	if u, err := url.Parse("http://" + text); err == nil && IsLoopback(u.Hostname()) {
		return "http://" + text
	}
	return "https://" + text
}

// IsLoopback reports whether the name of a host always means this computer (RFC 6761, section 6.3).
func IsLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback() || host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// isOwn reports whether a host is an address of this computer, so that traffic to it does not leave the
// computer.
func isOwn(host string) bool {
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	own, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(own, func(a net.Addr) bool {
		p, ok := a.(*net.IPNet)
		return ok && p.IP.Equal(ip.Unmap().AsSlice())
	})
}

// plain reports whether requests to e cross a network without TLS.
func (e Endpoint) plain() bool {
	u, err := url.Parse(e.URL)
	return err == nil && u.Scheme == "http" && !IsLoopback(u.Hostname()) && !isOwn(u.Hostname())
}

// CheckPlain returns an error if tokens and secrets would be sent in the clear.
func (e Endpoint) CheckPlain() error {
	if !e.plain() || e.Insecure {
		return nil
	}
	return WithHint(hangar.Errorf(hangar.CodeInvalid, "", "%s is not this computer, and plain HTTP would send tokens and secrets in the clear", e.URL),
		"use its https:// address, or --insecure (HANGAR_INSECURE=1) if every network between is trusted")
}

// CheckURL returns an error for a URL that cannot be that of an API.
func CheckURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return UsageErrorf("invalid URL %q: %v", text, errors.Unwrap(err))
	case u.Scheme == "unix" && u.Path != "":
		return nil
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return UsageErrorf("invalid URL %q: must be like http://HOST:PORT, https://HOST or unix:///PATH", text)
	}
	return nil
}

// LocalURL returns the URL of the daemon of a data directory, or "".
func LocalURL(dir string) string {
	b, err := os.ReadFile(filepath.Join(dir, hangar.AddressFile))
	if err != nil {
		return ""
	}
	addr := strings.TrimSpace(string(b))
	if addr == "" || strings.HasPrefix(addr, unixURLPrefix) {
		return addr
	}
	return "http://" + Reachable(addr)
}

// Reachable returns the address to connect to for an address to listen on.
func Reachable(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

func localToken(dir string) (string, error) {
	path := filepath.Join(dir, TokenFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrPermission) {
		return "", WithHint(errors.New("the token in "+path+" is readable by root only"), "run the command with sudo, or set HANGAR_TOKEN")
	}
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil // the server says that a token is missing
	}
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(b)), nil
}

// Connect returns a client of the platform of the invocation.
func (t *Target) Connect() (*client.Client, error) {
	e, err := t.Endpoint()
	if err != nil {
		return nil, err
	}
	return e.Connect(), nil
}

// Connect returns a client of the API.
func (e Endpoint) Connect() *client.Client {
	return client.New(e.URL, e.Token, client.WithRootCAs(e.Roots))
}
