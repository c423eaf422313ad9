package main

import (
	"errors"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
)

// The files by which commands find the local daemon, in its data directory.
const (
	defaultDir    = "/var/lib/hangar"
	addressFile   = "api.addr"    // host:port of the API, written by the daemon once it serves
	tokenFile     = "admin.token" // mode 0600, written on the first start
	unixURLPrefix = "unix://"
)

// dataDir is the data directory that the invocation means.
func (c *cli) dataDir() (string, error) {
	dir := c.dir
	if dir == "" {
		dir = c.getenv("HANGAR_DIR")
	}
	if dir == "" {
		dir = defaultDir
	}
	return filepath.Abs(dir)
}

// endpoint is where the API is and what opens it.
type endpoint struct {
	url   string
	token string
}

// endpoint finds the API: flags, then the environment, then the local daemon. The
// local daemon's token goes to the local daemon only, never to another URL.
func (c *cli) endpoint() (endpoint, error) {
	dir, err := c.dataDir()
	if err != nil {
		return endpoint{}, err
	}
	e := endpoint{url: firstOf(c.url, c.getenv("HANGAR_URL")), token: firstOf(c.token, c.getenv("HANGAR_TOKEN"))}
	local := localURL(dir)
	if e.url == "" {
		if local == "" {
			return endpoint{}, withHint(hangar.Errorf(hangar.CodeUnavailable, "", "no daemon has used %s on this server", dir),
				"start one with `hangar up`, name its directory with --dir, or reach a remote one with --url and --token")
		}
		e.url = local
	}
	e.url = strings.TrimSuffix(e.url, "/")
	if !strings.Contains(e.url, "://") {
		e.url = "http://" + e.url
	}
	if err := checkURL(e.url); err != nil {
		return endpoint{}, err
	}
	if e.token == "" && e.url == local {
		e.token, err = localToken(dir)
	}
	return e, err
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
	b, err := os.ReadFile(filepath.Join(dir, addressFile))
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
func (c *cli) connect() (*client.Client, error) {
	e, err := c.endpoint()
	if err != nil {
		return nil, err
	}
	return client.New(e.url, e.token), nil
}

func firstOf(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}
