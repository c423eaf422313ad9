// Package certfile has a TLS certificate from files, and reads them again when they change.
package certfile

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"
)

// Pair is a certificate and its key in two files. The previous pair stays in use while the files do
// not match, because they are rarely replaced at the same moment. All methods may be called from
// many goroutines.
type Pair struct {
	cert, key string
	log       *slog.Logger

	mu   sync.Mutex // guards what follows
	seen [2]fileVersion
	pair *tls.Certificate
}

// fileVersion identifies the version of a file.
type fileVersion struct {
	modified time.Time
	bytes    int64
}

// Open reads the PEM files of a certificate, with its chain, and of its key.
func Open(cert, key string, log *slog.Logger) (*Pair, error) {
	p := &Pair{cert: cert, key: key, log: log}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.refresh(); err != nil {
		return nil, err
	}
	return p, nil
}

// Get implements tls.Config.GetCertificate.
func (p *Pair) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.refresh(); err != nil {
		p.log.Warn("cannot read a changed certificate; the previous one stays in use", "path", p.cert, "error", err)
	}
	return p.pair, nil
}

// refresh reads files that have changed. An error is logged once for each version. p.mu is held.
func (p *Pair) refresh() error {
	var now [2]fileVersion
	var errs [2]error
	for i, path := range []string{p.cert, p.key} {
		info, err := os.Stat(path)
		if errs[i] = err; err == nil {
			now[i] = fileVersion{info.ModTime(), info.Size()}
		}
	}
	if now == p.seen && p.pair != nil {
		return nil
	}
	p.seen = now
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(p.cert, p.key)
	if err == nil {
		p.pair = &pair
	}
	return err
}
