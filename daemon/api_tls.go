package daemon

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/hint"
)

// validateAPI refuses an API that would speak plain HTTP with other computers unless the
// operator says so: requests carry tokens.
func (c *Config) validateAPI() error {
	files := c.TLSCert != "" || c.TLSKey != ""
	switch {
	case (c.TLSCert == "") != (c.TLSKey == ""):
		return fmt.Errorf("--api-cert and --api-key: each needs the other")
	case files && c.APITLS:
		return fmt.Errorf("--api-tls: --api-cert names another certificate already")
	case c.APIInsecure && (files || c.APITLS):
		return fmt.Errorf("--api-insecure: the API speaks TLS")
	case !c.APIInsecure && !files && !c.APITLS && !onLoopback(c.API):
		return hint.With(fmt.Errorf("--api %s: other computers would send their tokens in plain HTTP", c.API),
			"they reach the API at https://api."+c.Domain+" already; or give it --api-tls, or --api-cert and --api-key, or --api-insecure if the network is trusted")
	}
	return nil
}

// onLoopback reports whether an address to listen on is one that other computers cannot reach.
func onLoopback(address string) bool {
	host := hostOf(address)
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

// apiTLS returns how the API speaks TLS, or nil if it does not. public finds the certificate of
// its public name, and is not called before requests are served.
func (c *Config) apiTLS(public func(*tls.ClientHelloInfo) (*tls.Certificate, error), log *slog.Logger) (*tls.Config, error) {
	find := public
	switch {
	case c.TLSCert != "":
		files := &certFiles{cert: c.TLSCert, key: c.TLSKey, log: log}
		if err := files.load(); err != nil {
			return nil, fmt.Errorf("--api-cert: %w", err)
		}
		find = files.get
	case !c.APITLS:
		return nil, nil //nolint:nilnil // there is none
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}, GetCertificate: find}, nil
}

// publicCertificate finds the certificate of the API's public name, whatever name the client
// calls it by, and for one that calls it by an address, and so sends no name, what find has.
func publicCertificate(name hangar.Hostname, find func(*tls.ClientHelloInfo) (*tls.Certificate, error)) func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		if hello.ServerName == "" {
			return find(hello)
		}
		named := *hello
		named.ServerName = string(name)
		return find(&named)
	}
}

// certFiles is a certificate in files, which are read again when they have changed. What cannot
// be used leaves the one before in place, as cert and key are rarely replaced at once.
type certFiles struct {
	cert, key string
	log       *slog.Logger

	mu   sync.Mutex // guards what follows
	seen [2]fileVersion
	pair *tls.Certificate
}

// fileVersion tells versions of a file apart.
type fileVersion struct {
	modified time.Time
	bytes    int64
}

// get implements tls.Config.GetCertificate.
func (f *certFiles) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.refresh(); err != nil {
		f.log.Warn("the certificate of the API stays as it was", "path", f.cert, "error", err)
	}
	return f.pair, nil
}

func (f *certFiles) load() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.refresh()
}

// refresh reads files that have changed. An error is told once for each version. f.mu is held.
func (f *certFiles) refresh() error {
	var now [2]fileVersion
	var errs [2]error
	for i, path := range []string{f.cert, f.key} {
		info, err := os.Stat(path)
		if errs[i] = err; err == nil {
			now[i] = fileVersion{info.ModTime(), info.Size()}
		}
	}
	if now == f.seen && f.pair != nil {
		return nil
	}
	f.seen = now
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err == nil {
		f.pair = &pair
	}
	return err
}

// tlsBeyond speaks TLS on connections from other computers. Those that do not leave this server
// stay as they are, for the commands on it.
type tlsBeyond struct {
	net.Listener
	config *tls.Config
}

// Accept implements net.Listener.
func (l tlsBeyond) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil || staysHere(conn) {
		return conn, err
	}
	return tls.Server(conn, l.config), nil
}

// comesFromElsewhere reports whether a connection is one from another computer, or a Machine.
func comesFromElsewhere(conn net.Conn) bool { return !staysHere(conn) }

// staysHere reports whether both ends of a connection are on this server. Another computer
// cannot pretend: answers to one of the server's own addresses never leave it.
func staysHere(conn net.Conn) bool {
	local, remote := conn.LocalAddr().(*net.TCPAddr), conn.RemoteAddr().(*net.TCPAddr)
	return local.IP.Equal(remote.IP) || local.IP.IsLoopback() && remote.IP.IsLoopback()
}
