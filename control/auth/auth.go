// Package auth authenticates callers of the API: it makes tokens, and turns the tokens of a request
// into a principal.
//
// Promises. A token is shown once; only its SHA-256 digest is kept, so that a reader of the state
// learns no token. Requests are verified from memory, which follows the state: a valid token keeps
// working while the state cannot be reached, and a token revoked on another server is void as soon
// as the change arrives, on this server at once. An unreadable record grants nothing. A token that
// belongs to a user allows only what both it and the user's current memberships allow; so the
// memory follows the records of users, too, and an unreadable one grants nothing either. The admin
// token is in the file before its digest is in the state, so that the next start repairs a crash
// between the two. To replace the admin token, remove its file and start again: the old one is then
// void.
//
// Concurrency. Tokens is safe for concurrent use once Open has returned. Run follows
// the state; without it, what other servers do goes unnoticed.
//
// Work that outlasts a request follows the Life of its tokens, too, and so ends with the first of
// them. The package does not authorize: the services decide what a principal may do, including
// making and revoking tokens.
package auth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/internal/durable"
)

// AdminFile is the name of the file, in the data directory, that holds the admin
// token.
const AdminFile = "admin.token"

// AdminName is the id and the name of the admin token of a server that is the first or alone.
const AdminName = "admin"

// Prefix is where the state keeps the records, each under its id.
const Prefix = "/tokens/"

// usesPrefix is where the state keeps when tokens were used last, by id.
const usesPrefix = "/token-uses/"

const (
	tokenPrefix   = "hgr_" // lets people and secret scanners recognize a token, as the others do
	accessPrefix  = "fo1_" // of hangar.TokenOAuth
	sessionPrefix = "hgs_" // of hangar.TokenSession
	tokenBytes    = 32
	maxTokenText  = 16 << 10 // of a credential, in bytes
	maxParts      = 32       // of a credential

	keyKey   = "key"
	keyError = "error"
)

// Record is what is kept of a token.
type Record struct {
	hangar.Token
	Digest []byte `json:"digest"` // SHA-256 of the token
	// OrgID and AppIDs are those of the grant. One without them allows nothing, but for
	// hangar.TokenLogin.
	OrgID  hangar.OrgID   `json:"org_id,omitempty"`
	AppIDs []hangar.AppID `json:"app_ids,omitempty"`
	Tie    string         `json:"tie,omitempty"` // the one of the user's Account that it depends on
	OAuth  *OAuth         `json:"oauth,omitempty"`
}

// OAuth is what is kept beside of a token that a client got in exchange for a code. With
// hangar.TokenOAuth the record is all of a grant: its access token is the token, and a
// refresh replaces that and the refresh token in one write.
type OAuth struct {
	Client hangar.OAuthClientID `json:"client"`
	Code   []byte               `json:"code"` // SHA-256 of the code

	// What follows is of hangar.TokenOAuth alone.
	SignIns      string    `json:"sign_ins,omitempty"` // the second tie that it depends on: that of signing in
	Scope        string    `json:"scope,omitempty"`
	Family       []byte    `json:"family,omitempty"`  // SHA-256 of what all refresh tokens of the grant have in common
	Refresh      []byte    `json:"refresh,omitempty"` // SHA-256 of the refresh token that counts
	RefreshUntil time.Time `json:"refresh_until,omitzero"`
}

// UnmarshalJSON reads a record, and completes its grant.
func (r *Record) UnmarshalJSON(b []byte) error {
	type plain Record
	if err := json.Unmarshal(b, (*plain)(r)); err != nil {
		return err
	}
	r.Grant.OrgID, r.Grant.AppIDs = r.OrgID, r.AppIDs
	if r.Admin {
		return nil
	}
	return r.checkIDs()
}

// checkIDs refuses a grant that says by names alone what it is for.
func (r *Record) checkIDs() error {
	whole := wholeUser(r.Kind)
	switch g := r.Grant; {
	case whole && (r.UserID == "" || g.Org != "" || g.OrgID != "" || len(g.Apps) > 0 || len(g.Machines) > 0):
		return errors.New("token from signing in that is limited to a target, or has no user")
	case r.Kind == hangar.TokenOAuth && (r.UserID == "" || r.OAuth == nil || r.OAuth.SignIns == "" || len(r.OAuth.Refresh) != sha256.Size || len(r.OAuth.Family) != sha256.Size):
		return errors.New("grant to a third party that is incomplete")
	case !whole && (g.OrgID == "" || len(g.AppIDs) != len(g.Apps)):
		return errors.New("token without the ids of what it is for")
	case r.UserID != "" && r.Tie == "":
		return errors.New("token of a user that depends on nothing")
	default:
		return nil
	}
}

// Config is what Tokens need.
type Config struct {
	Store state.Store
	Dir   string           // data directory; the admin token is in its AdminFile
	Name  string           // of this server's admin token among those of its cluster; empty: AdminName
	Log   *slog.Logger     // nil: none
	Now   func() time.Time // nil: time.Now
}

// Tokens implements hangar.Authenticator.
type Tokens struct {
	cfg Config
	memory
}

var _ hangar.Authenticator = (*Tokens)(nil)

// New returns Tokens that accept nothing until Open.
func New(cfg Config) *Tokens {
	if cfg.Name == "" {
		cfg.Name = AdminName
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Tokens{cfg: cfg, memory: newMemory()}
}

// AdminPath is where the admin token can be read.
func (t *Tokens) AdminPath() string { return filepath.Join(t.cfg.Dir, AdminFile) }

// Open loads the records and, on the first start, makes the admin token.
func (t *Tokens) Open(ctx context.Context) error {
	token, err := t.adminToken()
	if err != nil {
		return fmt.Errorf("admin token: %w", err)
	}
	if err := t.load(ctx); err != nil {
		return fmt.Errorf("load tokens: %w", err)
	}
	if err := t.loadAccounts(ctx); err != nil {
		return fmt.Errorf("load users: %w", err)
	}
	admin := Record{Token: hangar.Token{
		ID: hangar.TokenID(t.cfg.Name), Name: t.cfg.Name, Kind: hangar.TokenCustom, User: "admin", Admin: true,
		CreatedBy: "admin", CreatedAt: t.cfg.Now().UTC().Truncate(time.Second),
	}, Digest: Digest(token)}
	known, ok := t.Find(admin.ID)
	if ok && known.Admin && subtle.ConstantTimeCompare(known.Digest, admin.Digest) == 1 {
		return nil
	}
	// There is none, or its file was replaced.
	if err := t.put(ctx, admin); err != nil {
		return fmt.Errorf("register the admin token: %w", err)
	}
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
	token := newText(NewID(), hangar.TokenCustom)
	return token, durable.WriteFile(t.AdminPath(), []byte(token+"\n"), 0o600)
}

// NewID returns an id that no other token has: 12 characters of a-z and 2-7.
func NewID() hangar.TokenID { return hangar.TokenID(strings.ToLower(rand.Text()[:12])) }

// wholeUser reports whether tokens of a kind stand for all that a user may do.
func wholeUser(k hangar.TokenKind) bool {
	return k == hangar.TokenLogin || k == hangar.TokenSession
}

// newText returns the text of a token of a kind with an id.
func newText(id hangar.TokenID, kind hangar.TokenKind) string {
	var b [tokenBytes]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand.Read aborts the program instead
	prefix := tokenPrefix
	switch kind {
	case hangar.TokenOAuth:
		prefix = accessPrefix
	case hangar.TokenSession:
		prefix = sessionPrefix
	default:
	}
	return prefix + string(id) + "_" + base64.RawURLEncoding.EncodeToString(b[:])
}

// Issue makes a token without a user that is valid when it returns, in one transaction with
// others; state.ErrConflict says that a compare of those failed.
func (t *Tokens) Issue(ctx context.Context, token hangar.Token, with ...state.Txn) (*hangar.NewToken, error) {
	return t.IssueTied(ctx, token, "", with...)
}

// IssueTied is Issue for a token that may belong to a user, with the tie of the user's Account that
// it depends on; see Tie.
func (t *Tokens) IssueTied(ctx context.Context, token hangar.Token, tie string, with ...state.Txn) (*hangar.NewToken, error) {
	return t.issue(ctx, Record{Token: token, Tie: tie}, with...)
}

// IssueFor is IssueTied for a client. The token has the id that it is given with, and so replaces what there
// was of that id; NewID makes one.
func (t *Tokens) IssueFor(ctx context.Context, token hangar.Token, tie string, client OAuth, with ...state.Txn) (*hangar.NewToken, error) {
	return t.issue(ctx, Record{Token: token, Tie: tie, OAuth: &client}, with...)
}

// issue makes the token of a record that has neither digest nor, maybe, id.
func (t *Tokens) issue(ctx context.Context, r Record, with ...state.Txn) (*hangar.NewToken, error) {
	if r.ID == "" {
		r.ID = NewID()
	}
	r.CreatedAt = t.cfg.Now().UTC().Truncate(time.Second)
	text := newText(r.ID, r.Kind)
	r.Digest, r.OrgID, r.AppIDs = Digest(text), r.Grant.OrgID, r.Grant.AppIDs
	if err := r.checkIDs(); err != nil {
		return nil, err
	}
	if err := t.put(ctx, r, with...); err != nil {
		return nil, err
	}
	return &hangar.NewToken{Token: r.Token, Text: text}, nil
}

// joined is one transaction with the operations of all.
func joined(all []state.Txn, ops ...state.Op) (txn state.Txn) {
	for _, t := range all {
		txn.If, txn.Then = append(txn.If, t.If...), append(txn.Then, t.Then...)
	}
	txn.Then = append(txn.Then, ops...)
	return txn
}

func (t *Tokens) put(ctx context.Context, r Record, with ...state.Txn) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	put := state.Put(Prefix+string(r.ID), raw)
	revision, err := t.cfg.Store.Txn(ctx, joined(with, put))
	if err != nil {
		return err
	}
	t.learn(&r, revision)
	return nil
}

// Revoke voids a token, in one transaction with others, see Issue. To revoke one that
// is not there is no error.
func (t *Tokens) Revoke(ctx context.Context, id hangar.TokenID, with ...state.Txn) error {
	revision, err := t.cfg.Store.Txn(ctx, joined(with, state.Delete(Prefix+string(id)), state.Delete(usesPrefix+string(id))))
	if err != nil {
		return err
	}
	t.forget(id, revision)
	return nil
}

// Authenticate implements hangar.Authenticator. A credential may be a list of
// tokens with commas between them, as existing clients send; invalid ones are ignored.
func (t *Tokens) Authenticate(_ context.Context, credential string) (hangar.Principal, error) {
	var who hangar.Principal
	valid, parts := false, 0
	if len(credential) > maxTokenText {
		return who, hangar.Unauthenticated()
	}
	now := t.cfg.Now()
	for part := range strings.SplitSeq(credential, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		if parts++; parts > maxParts {
			break
		}
		if r, p, ok := t.lookup(Digest(part), now); ok && r.Kind != hangar.TokenSession {
			who, valid = who.Join(p), true
		}
	}
	if !valid {
		return hangar.Principal{}, hangar.Unauthenticated()
	}
	return who, nil
}

// Life implements hangar.Authenticator. It takes the time that is left from now on, so
// that a clock that is set while the context lives has no effect on it.
func (t *Tokens) Life(id hangar.TokenID) context.Context { return t.life(id, t.cfg.Now()) }

// Lookup returns the record of one token, of any kind, and its principal; false: it is not valid.
func (t *Tokens) Lookup(text string) (Record, hangar.Principal, bool) {
	if len(text) > maxTokenText {
		return Record{}, hangar.Principal{}, false
	}
	return t.lookup(Digest(text), t.cfg.Now())
}

// Digest is what is kept of a token, a code or a part of one.
func Digest(token string) []byte {
	d := sha256.Sum256([]byte(token))
	return d[:]
}
