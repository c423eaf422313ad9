package main

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
	"github.com/hangar-platform/hangar/daemon"
)

// The files by which commands find the local daemon, in its data directory.
const (
	defaultDir    = "/var/lib/hangar"
	tokenFile     = "admin.token" // mode 0600, written on the first start
	unixURLPrefix = "unix://"
)

// target is the platform that the invocation means: by the global flags, the environment and
// the contexts.
type target struct {
	url      string
	token    string
	context  string
	insecure bool
	dir      string
	getenv   func(string) string
	keyring  keyring

	used endpoint // the API that the command has used
}

// dataDir is the data directory that the invocation means: of the flag, the environment,
// or the configuration file.
func (t *target) dataDir() (string, error) {
	dir := cmp.Or(t.dir, t.getenv("HANGAR_DIR"))
	if dir == "" {
		var err error
		if dir, err = t.configuredDir(); err != nil {
			return "", err
		}
	}
	return filepath.Abs(cmp.Or(dir, defaultDir))
}

// endpoint is where the API is and what opens it.
type endpoint struct {
	url      string
	token    string
	context  string         // by which it was found; empty: none
	org      hangar.OrgSlug // default of commands that make something; empty: none
	roots    *x509.CertPool // who may sign its certificate; nil: the system's authorities
	insecure bool           // plain HTTP is allowed
	saved    *savedContext  // the context itself, or nil
}

// endpoint finds the API: by flags, then the environment, then the context in use, then
// the files of the local daemon. A token goes only where it belongs: the local daemon's to
// the local daemon, a context's to its URL.
func (t *target) endpoint() (endpoint, error) {
	e, err := t.locate()
	if err != nil {
		return endpoint{}, err
	}
	if err := checkURL(e.url); err != nil {
		return endpoint{}, err
	}
	e.insecure = e.insecure || t.insecure || t.getenv("HANGAR_INSECURE") == "1"
	if err := e.checkPlain(); err != nil {
		return endpoint{}, err
	}
	t.used = e
	switch {
	case e.token != "":
	case e.saved != nil:
		e.token, err = e.saved.token(t.keyring)
	default:
		e.token, err = t.tokenOfLocal(e.url)
	}
	return e, err
}

// tokenOfLocal is the local daemon's token if at is its URL, and else empty.
func (t *target) tokenOfLocal(at string) (string, error) {
	dir, err := t.dataDir()
	if err != nil || at != localURL(dir) {
		return "", err
	}
	return localToken(dir)
}

// locate finds the URL, and the token unless it is the context's own or the local daemon's.
func (t *target) locate() (endpoint, error) {
	env := t.getenv
	switch {
	case t.url != "" && t.context != "":
		return endpoint{}, usageErrorf("--url and --context exclude one another")
	case t.url != "":
		return t.atURL(t.url)
	case t.context != "":
		return t.atContext(t.context, t.token)
	case t.dir != "":
		return t.atLocal()
	case env("HANGAR_URL") != "" && env("HANGAR_CONTEXT") != "":
		return endpoint{}, usageErrorf("HANGAR_URL and HANGAR_CONTEXT exclude one another: unset one")
	case env("HANGAR_URL") != "":
		return t.atURL(env("HANGAR_URL"))
	case env("HANGAR_CONTEXT") != "":
		return t.atContext(env("HANGAR_CONTEXT"), cmp.Or(t.token, env("HANGAR_TOKEN")))
	case env("HANGAR_DIR") != "":
		return t.atLocal()
	}
	all, err := t.contexts()
	if err != nil {
		return endpoint{}, err
	}
	if all.Current != "" {
		return t.atContext(all.Current, cmp.Or(t.token, env("HANGAR_TOKEN")))
	}
	return t.atLocal()
}

// atURL is the API at a URL that was named.
func (t *target) atURL(text string) (endpoint, error) {
	return endpoint{url: completeURL(text), token: cmp.Or(t.token, t.getenv("HANGAR_TOKEN"))}, nil
}

// atContext is the API of a context; token, unless empty, is used instead of its own.
func (t *target) atContext(name, token string) (endpoint, error) {
	if name == localContext {
		return t.atLocal()
	}
	all, err := t.contexts()
	if err != nil {
		return endpoint{}, err
	}
	x, err := all.find(name)
	if err != nil {
		return endpoint{}, err
	}
	e := endpoint{url: x.URL, token: token, context: x.Name, org: x.Org, insecure: x.Insecure, saved: x}
	e.roots, err = x.roots()
	return e, err
}

// atLocal is the API of the daemon on this server.
func (t *target) atLocal() (endpoint, error) {
	dir, err := t.dataDir()
	if err != nil {
		return endpoint{}, err
	}
	e := endpoint{url: localURL(dir), token: cmp.Or(t.token, t.getenv("HANGAR_TOKEN"))}
	if e.url == "" {
		return endpoint{}, withHint(hangar.Errorf(hangar.CodeUnavailable, "", "no daemon has used %s on this server", dir),
			"start one with `hangar up`, name its directory with --dir, or sign in at a remote one with `hangar login https://api.example.com`")
	}
	return e, nil
}

// completeURL adds the scheme to an address that has none: HTTPS to another computer.
func completeURL(text string) string {
	text = strings.TrimSuffix(text, "/")
	if text == "" || strings.Contains(text, "://") {
		return text
	}
	if u, err := url.Parse("http://" + text); err == nil && isLoopback(u.Hostname()) {
		return "http://" + text
	}
	return "https://" + text
}

// isLoopback reports whether a host is this computer by its very name (RFC 6761, section
// 6.3), whatever a resolver says.
func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback() || host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// isOwn reports whether a host is an address of this computer: what is sent there never
// leaves it.
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
func (e endpoint) plain() bool {
	u, err := url.Parse(e.url)
	return err == nil && u.Scheme == "http" && !isLoopback(u.Hostname()) && !isOwn(u.Hostname())
}

// checkPlain refuses what would send tokens and secrets in the clear.
func (e endpoint) checkPlain() error {
	if !e.plain() || e.insecure {
		return nil
	}
	return withHint(hangar.Errorf(hangar.CodeInvalid, "", "%s is not this computer, and plain HTTP would send tokens and secrets in the clear", e.url),
		"use its https:// address, or --insecure (HANGAR_INSECURE=1) if every network between is trusted")
}

func checkURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return usageErrorf("invalid URL %q: %v", text, errors.Unwrap(err))
	case u.Scheme == "unix" && u.Path != "":
		return nil
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return usageErrorf("invalid URL %q: must be like http://HOST:PORT, https://HOST or unix:///PATH", text)
	}
	return nil
}

// localURL is where the daemon of a data directory serves, or empty.
func localURL(dir string) string {
	b, err := os.ReadFile(filepath.Join(dir, daemon.AddressFile))
	if err != nil {
		return ""
	}
	addr := strings.TrimSpace(string(b))
	if addr == "" || strings.HasPrefix(addr, unixURLPrefix) {
		return addr
	}
	return "http://" + reachable(addr)
}

// reachable turns an address to listen on into one to connect to.
func reachable(addr string) string {
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
	path := filepath.Join(dir, tokenFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrPermission) {
		return "", withHint(errors.New("the token in "+path+" is readable by root only"), "run the command with sudo, or set HANGAR_TOKEN")
	}
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil // the server says that a token is missing
	}
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(b)), nil
}

// connect returns the platform that the invocation means.
func (t *target) connect() (*client.Client, error) {
	e, err := t.endpoint()
	if err != nil {
		return nil, err
	}
	return e.connect(), nil
}

// connect returns the platform whose API is there.
func (e endpoint) connect() *client.Client {
	return client.New(e.url, e.token, client.WithRootCAs(e.roots))
}
