// Package auth knows who may call the API: it makes tokens, and turns the token
// of a request into a principal.
//
// Promises. A token is shown once; only its SHA-256 digest is kept, so that
// whoever reads the state learns no token. A valid token goes on working while
// the state cannot be reached, because requests are verified from memory. The
// admin token is in the file before its digest is in the state, so that a crash
// between the two is mended by the next start. To replace the admin token,
// remove its file and start again: the old one is then void.
//
// Concurrency. Tokens is safe for concurrent use once Open has returned.
//
// It is not authorization: what a principal may do is decided by the services.
package auth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/atomicfile"
)

// AdminFile is the name of the file, in the data directory, that holds the admin
// token.
const AdminFile = "admin.token"

const (
	tokenPrefix  = "hgr_" // lets people and secret scanners recognize a token
	tokenBytes   = 32
	maxTokenText = 16 << 10 // of a credential, in bytes
	maxParts     = 32       // of a credential
)

// Record is what is kept of a token.
type Record struct {
	Name      string           `json:"name"`   // unique; a new record replaces the one of the same name
	Digest    []byte           `json:"digest"` // SHA-256 of the token
	Principal hangar.Principal `json:"principal"`
	CreatedAt time.Time        `json:"created_at"`
}

// Store keeps the records.
type Store interface {
	Tokens(ctx context.Context) ([]Record, error)
	PutToken(ctx context.Context, r Record) error
}

// Config is what Tokens need.
type Config struct {
	Store Store
	Dir   string           // data directory; the admin token is in its AdminFile
	Name  string           // of this server's admin token among those of its cluster; empty: "admin"
	Now   func() time.Time // nil: time.Now
}

// Tokens implements hangar.Authenticator.
type Tokens struct {
	cfg Config

	mu      sync.RWMutex // guards records
	records []Record
}

// New returns Tokens that accept nothing until Open.
func New(cfg Config) *Tokens {
	if cfg.Name == "" {
		cfg.Name = "admin"
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Tokens{cfg: cfg}
}

// AdminPath is where the admin token can be read.
func (t *Tokens) AdminPath() string { return filepath.Join(t.cfg.Dir, AdminFile) }

// Open loads the records and, on the first start, makes the admin token.
func (t *Tokens) Open(ctx context.Context) error {
	token, err := t.adminToken()
	if err != nil {
		return fmt.Errorf("admin token: %w", err)
	}
	records, err := t.cfg.Store.Tokens(ctx)
	if err != nil {
		return fmt.Errorf("load tokens: %w", err)
	}
	admin := Record{Name: t.cfg.Name, Digest: digest(token), Principal: hangar.Principal{Subject: "admin", Admin: true}, CreatedAt: t.cfg.Now().UTC()}
	known := false
	for i, r := range records {
		if r.Name != admin.Name {
			continue
		}
		if known = subtle.ConstantTimeCompare(r.Digest, admin.Digest) == 1; !known {
			records = append(records[:i:i], records[i+1:]...) // the file was replaced
		}
		break
	}
	if !known {
		if err := t.cfg.Store.PutToken(ctx, admin); err != nil {
			return fmt.Errorf("register the admin token: %w", err)
		}
		records = append(records, admin)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.records = records
	return nil
}

// adminToken reads the file, or makes it.
func (t *Tokens) adminToken() (string, error) {
	b, err := os.ReadFile(t.AdminPath())
	if err == nil {
		if token := strings.TrimSpace(string(b)); len(token) >= tokenBytes {
			return token, os.Chmod(t.AdminPath(), 0o600)
		}
		return "", fmt.Errorf("%s holds no token; remove it to have a new one made", t.AdminPath())
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	token := newToken()
	return token, atomicfile.Write(t.AdminPath(), []byte(token+"\n"), 0o600)
}

func newToken() string {
	var b [tokenBytes]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand.Read aborts the program instead
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(b[:])
}

// Authenticate implements hangar.Authenticator. A credential may be a list of
// tokens with commas between them, as existing clients send; the first that is
// valid counts.
func (t *Tokens) Authenticate(_ context.Context, credential string) (hangar.Principal, error) {
	if len(credential) <= maxTokenText {
		n := 0
		for part := range strings.SplitSeq(credential, ",") {
			if part = strings.TrimSpace(part); part == "" {
				continue
			}
			if n++; n > maxParts {
				break
			}
			if p, ok := t.lookup(digest(part)); ok {
				return p, nil
			}
		}
	}
	return hangar.Principal{}, &hangar.Error{Code: hangar.CodeUnauthenticated, Message: "Authenticate: token validation error"}
}

// lookup compares with every record, in a time that does not depend on which of
// them matches or how far.
func (t *Tokens) lookup(digest []byte) (p hangar.Principal, ok bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, r := range t.records {
		if subtle.ConstantTimeCompare(r.Digest, digest) == 1 {
			p, ok = r.Principal, true
		}
	}
	return p, ok
}

func digest(token string) []byte {
	d := sha256.Sum256([]byte(token))
	return d[:]
}
