package certs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/caddyserver/certmagic"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/durable"
)

// disk is where a Certs keeps what it has:
//
//	ca.pem, ca.key.pem      the server's own authority
//	wanted.json             the names of the feed that are to have an issued certificate
//	custom/<name>.pem       what was uploaded, chain and key
//	attempts/<name>.json    what kept the ACME server from issuing, and when to ask again
//	acme/                   certmagic's storage: accounts, certificates, keys
type disk struct{ dir string }

func (d disk) acme() string     { return filepath.Join(d.dir, "acme") }
func (d disk) custom() string   { return filepath.Join(d.dir, "custom") }
func (d disk) attempts() string { return filepath.Join(d.dir, "attempts") }
func (d disk) wanted() string   { return filepath.Join(d.dir, "wanted.json") }

const (
	customExt  = ".pem"
	attemptExt = ".json"
)

// fileOf is the name of a Hostname's file. No Hostname has an underscore.
func fileOf(name hangar.Hostname, ext string) string {
	return strings.Replace(string(name), "*", "_", 1) + ext
}

func nameOf(file, ext string) (hangar.Hostname, bool) {
	name, ok := strings.CutSuffix(file, ext)
	return hangar.Hostname(strings.Replace(name, "_", "*", 1)), ok
}

// write makes a file, and its folder.
func write(dir, file string, data []byte) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(dir, file), data, 0o600)
}

// each calls do with every file of a folder and the Hostname in its name.
func each(dir, ext string, do func(name hangar.Hostname, data []byte, err error)) error {
	files, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, f := range files {
		if name, ok := nameOf(f.Name(), ext); ok {
			data, err := os.ReadFile(filepath.Join(dir, f.Name()))
			do(name, data, err)
		}
	}
	return nil
}

func (d disk) readWanted() ([]hangar.WantedCertificate, error) {
	b, err := os.ReadFile(d.wanted())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []hangar.WantedCertificate
	if err := json.Unmarshal(b, &names); err != nil {
		return nil, fmt.Errorf("%s: %w", d.wanted(), err)
	}
	return names, nil
}

func (d disk) writeWanted(wanted map[hangar.Hostname]hangar.OrgID) error {
	list := make([]hangar.WantedCertificate, 0, len(wanted))
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		list = append(list, hangar.WantedCertificate{Hostname: name, Org: wanted[name]})
	}
	b, err := json.Marshal(list)
	if err != nil {
		return err
	}
	return write(d.dir, filepath.Base(d.wanted()), b)
}

// storage is certmagic's, with locks in memory. certmagic's own locks are files that it refreshes
// all the time, for directories shared by several processes. The key of a certificate, which is stored before its
// chain, replaces the old key once the chain is there, so that there is a pair at any time: see readFiles.
type storage struct {
	certmagic.FileStorage

	mu   sync.Mutex               // guards held
	held map[string]chan struct{} // closed when the lock is released
}

var _ certmagic.Storage = (*storage)(nil)

func newStorage(dir string) *storage {
	return &storage{FileStorage: certmagic.FileStorage{Path: dir}, held: map[string]chan struct{}{}}
}

// nextExt ends the file of a key whose chain is not there yet.
const nextExt = ".next"

// takePlace replaces a key by the next one, if there is one.
func takePlace(key string) error {
	if err := os.Rename(key+nextExt, key); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// ofSite returns the name of a certificate's file of a kind without its extension.
func ofSite(key, ext string) (string, bool) {
	if !strings.HasPrefix(key, sitesPrefix) {
		return "", false
	}
	return strings.CutSuffix(key, ext)
}

const (
	sitesPrefix = "certificates/"
	keyExt      = ".key"
	chainExt    = ".crt"
)

// Store implements certmagic.Storage. What it has stored survives a power cut.
func (s *storage) Store(ctx context.Context, key string, value []byte) error {
	if _, private := ofSite(key, keyExt); private {
		key += nextExt
	}
	dir := filepath.Dir(s.Filename(key)) // certmagic syncs no directory
	if err := durable.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := s.FileStorage.Store(ctx, key, value); err != nil {
		return err
	}
	if site, chain := ofSite(key, chainExt); chain {
		if err := takePlace(s.Filename(site + keyExt)); err != nil {
			return err
		}
	}
	return durable.SyncDir(dir)
}

// Delete implements certmagic.Storage. Of a key whose chain could not be stored, it removes what was to replace the old
// one.
func (s *storage) Delete(ctx context.Context, key string) error {
	if _, private := ofSite(key, keyExt); private && s.Exists(ctx, key+nextExt) {
		key += nextExt
	}
	return s.FileStorage.Delete(ctx, key)
}

// Lock implements certmagic.Locker.
func (s *storage) Lock(ctx context.Context, name string) error {
	for {
		s.mu.Lock()
		released, taken := s.held[name]
		if !taken {
			s.held[name] = make(chan struct{})
			s.mu.Unlock()
			return nil
		}
		s.mu.Unlock()
		select {
		case <-released:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Unlock implements certmagic.Locker.
func (s *storage) Unlock(_ context.Context, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	released, taken := s.held[name]
	if !taken {
		return fmt.Errorf("lock %q is not held", name)
	}
	delete(s.held, name)
	close(released)
	return nil
}
