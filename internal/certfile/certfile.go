// Package certfile has a TLS certificate from files, and reads them again when they change.
package certfile

import (
	"crypto/tls"
	"errors"
	"io/fs"
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
	load      func(cert, key string) (tls.Certificate, error)

	mu   sync.Mutex     // guards what follows
	seen [2]fileVersion // that was read
	told [2]fileVersion // of which an error was logged
	pair *tls.Certificate
}

// fileVersion identifies the version of a file.
type fileVersion struct {
	modified time.Time
	bytes    int64
}

// Open reads the PEM files of a certificate, with its chain, and of its key.
func Open(cert, key string, log *slog.Logger) (*Pair, error) {
	p := &Pair{cert: cert, key: key, log: log, load: tls.LoadX509KeyPair}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := p.refresh(); err != nil {
		return nil, err
	}
	return p, nil
}

// Get implements tls.Config.GetCertificate.
func (p *Pair) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now, err := p.refresh(); err != nil && now != p.told {
		p.told = now
		p.log.Warn("cannot read a changed certificate; the previous one stays in use", "path", p.cert, "error", err)
	}
	return p.pair, nil
}

// refresh reads files that have changed, whose versions it returns. Files that could not be read, as for lack of a
// descriptor, are read again at the next call. p.mu is held.
func (p *Pair) refresh() (now [2]fileVersion, err error) {
	var errs [2]error
	for i, path := range []string{p.cert, p.key} {
		info, err := os.Stat(path)
		if errs[i] = err; err == nil {
			now[i] = fileVersion{info.ModTime(), info.Size()}
		}
	}
	if now == p.seen && p.pair != nil {
		return now, nil
	}
	if err = errors.Join(errs[:]...); err != nil {
		p.seen = now
		return now, err
	}
	pair, err := p.load(p.cert, p.key)
	if err == nil {
		p.pair = &pair
	}
	if !errors.As(err, new(*fs.PathError)) {
		p.seen = now
	}
	return now, err
}
