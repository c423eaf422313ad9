// Package oidc issues the identity tokens of Machines, and keeps the keys that sign
// them.
//
// Promises. There is one set of keys for all servers that share a state: one record,
// encrypted, and replaced by compare-and-swap, so that after a kill at any moment there
// is the set before a change or the one after it. A key signs only after it was
// published for Policy.Lead, and stays published until everything that it has signed
// has expired. So a verifier whose set of keys is not older than Policy.MaxAge knows
// the key of every token that was signed since. Signing needs neither the network nor
// the state: on a store that answers from memory, keys keep signing while the state
// cannot be reached, and the next one takes over on time.
//
// Concurrency. An Issuer is safe for concurrent use once Open has returned. Run makes
// and drops keys on time; without it, the last key stays in use. The first server does
// it for all; the others follow.
//
// It does not decide who may have a token, nor what a Machine is: it signs what the
// caller gives it. It speaks no HTTP.
package oidc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
)

// Prefix is where the state keeps the keys.
const Prefix = "/identity/"

// recordKey is the one record of all keys.
const recordKey = Prefix + "keys"

// Keys of log records.
const (
	keyError = "error"
	keyKey   = "key" // that signs
	keyCount = "keys"
)

// Vault encrypts records of the state.
type Vault interface {
	// Open returns what is in a record that Put has stored.
	Open(item state.Item) ([]byte, error)
	// Put stores a record. It returns state.ErrConflict if unchanged does not hold.
	Put(ctx context.Context, key string, plain []byte, unchanged state.Compare) error
}

// Config is what an Issuer needs.
type Config struct {
	Store state.Store
	Vault Vault // of the same state
	// Issuer is the address below which every organization has its issuer, and
	// Audience that below which it has its name as an audience. They end without a
	// slash.
	Issuer   string
	Audience string
	Policy   Policy           // zero: DefaultPolicy
	Log      *slog.Logger     // nil: none
	Now      func() time.Time // nil: time.Now
	NewKey   NewKey           // nil: RSA with 2048 bits
}

// Issuer issues tokens.
type Issuer struct {
	cfg   Config
	known atomic.Pointer[keyring] // nil until keys were read

	mu      sync.Mutex     // held while known is replaced
	refused state.Revision // guarded by mu: of a record that cannot be read
}

// New returns an Issuer that has no keys yet.
func New(cfg Config) *Issuer {
	if cfg.Policy == (Policy{}) {
		cfg.Policy = DefaultPolicy()
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.NewKey == nil {
		cfg.NewKey = newRSA
	}
	return &Issuer{cfg: cfg}
}

// Open reads the keys or, on the first start of all, makes them.
func (i *Issuer) Open(ctx context.Context) error {
	if _, err := i.tend(ctx, nil); err != nil {
		return fmt.Errorf("open the keys of identity tokens: %w", err)
	}
	return nil
}

// Issue returns a token with claims, to which it adds the issuer, the audience, the id
// and the times.
func (i *Issuer) Issue(ctx context.Context, claims hangar.IdentityClaims, in hangar.IdentityTokenRequest) (string, error) {
	keys, err := i.keys(ctx)
	if err != nil {
		return "", err
	}
	now := i.cfg.Now()
	claims.Issuer = i.issuer(claims.OrgName)
	if claims.Audience = in.Audience; claims.Audience == "" {
		claims.Audience = i.cfg.Audience + "/" + string(claims.OrgName)
	}
	if in.AWSPrincipalTags {
		claims.AWSTags = claims.Tags()
	}
	claims.ID = uuid.NewString()
	claims.IssuedAt, claims.NotBefore, claims.Expiry = now.Unix(), now.Unix(), now.Add(hangar.IdentityTokenLifetime).Unix()
	payload, err := json.Marshal(claims)
	if err != nil {
		return "", fmt.Errorf("encode claims: %w", err)
	}
	return keys.sign(payload, now)
}

// Keys returns what is known of the keys.
func (i *Issuer) Keys(ctx context.Context) ([]hangar.SigningKey, error) {
	keys, err := i.keys(ctx)
	if err != nil {
		return nil, err
	}
	return keys.list(i.cfg.Policy, i.cfg.Now()), nil
}

// Rotate has the next key sign from now on, or from when it has been shown for long
// enough, and makes another. Unlike the keys themselves, it needs the state.
func (i *Issuer) Rotate(ctx context.Context) ([]hangar.SigningKey, error) {
	if _, err := i.tend(ctx, func(r record, now time.Time) bool { return i.cfg.Policy.rotate(r, now) }); err != nil {
		return nil, err
	}
	return i.Keys(ctx)
}

func (i *Issuer) issuer(org hangar.OrgSlug) string { return i.cfg.Issuer + "/" + string(org) }

// metadata is the document of OpenID Connect Discovery. There is no sign-in, so its
// only endpoint is that of the keys.
type metadata struct {
	Issuer        string   `json:"issuer"`
	KeysURL       string   `json:"jwks_uri"`
	ResponseTypes []string `json:"response_types_supported"`
	SubjectTypes  []string `json:"subject_types_supported"`
	Algorithms    []string `json:"id_token_signing_alg_values_supported"`
	Scopes        []string `json:"scopes_supported"`
	Claims        []string `json:"claims_supported"`
}

// Metadata is what OpenID Connect Discovery says of the issuer of an organization.
func (i *Issuer) Metadata(org hangar.OrgSlug) (hangar.IssuerDocument, error) {
	body, err := json.Marshal(metadata{
		Issuer: i.issuer(org), KeysURL: i.issuer(org) + "/.well-known/jwks",
		ResponseTypes: []string{"id_token"}, SubjectTypes: []string{"public"}, Algorithms: []string{algorithm}, Scopes: []string{"openid"},
		Claims: []string{
			"app_id", "app_name", "aud", "exp", "iat", "image", "image_digest", "iss", "jti", "machine_id", "machine_name",
			"machine_version", "nbf", "org_id", "org_name", "region", "sub",
		},
	})
	return hangar.IssuerDocument{Body: body, MaxAge: i.cfg.Policy.MaxAge}, err
}

// KeySet is the set of public keys, the same for all organizations.
func (i *Issuer) KeySet(ctx context.Context) (hangar.IssuerDocument, error) {
	keys, err := i.keys(ctx)
	if err != nil {
		return hangar.IssuerDocument{}, err
	}
	return hangar.IssuerDocument{Body: keys.document(i.cfg.Policy, i.cfg.Now()), MaxAge: i.cfg.Policy.MaxAge}, nil
}

// keys returns the keys as the state has them or, while that cannot be read, as they
// were known last.
func (i *Issuer) keys(ctx context.Context) (*keyring, error) {
	item, err := i.cfg.Store.Get(ctx, recordKey)
	if err == nil {
		err = i.learn(item)
	}
	known := i.known.Load()
	switch {
	case known == nil:
		return nil, &hangar.Error{Code: hangar.CodeUnavailable, Message: "The keys that sign identity tokens cannot be read", Err: err}
	case errors.Is(err, errUnreadable):
		i.cfg.Log.Error("new keys of identity tokens cannot be read, the ones before stay in use", keyError, err)
	}
	return known, nil
}

// The errors of learn.
var (
	errUnreadable = errors.New("oidc: the record of the keys cannot be read")
	errRefused    = errors.New("oidc: the record of the keys could not be read before")
)

// learn makes a record the keys that are known. Of one that cannot be read it returns
// errUnreadable once, and errRefused after that; what was known before stays.
func (i *Issuer) learn(item state.Item) error {
	if known := i.known.Load(); known != nil && known.revision >= item.Revision {
		return nil
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if known := i.known.Load(); known != nil && known.revision >= item.Revision {
		return nil
	}
	if i.refused == item.Revision {
		return errRefused
	}
	plain, err := i.cfg.Vault.Open(item)
	var keys *keyring
	if err == nil {
		keys, err = parse(plain, item.Revision)
	}
	if err != nil {
		i.refused = item.Revision
		return fmt.Errorf("%w: %w", errUnreadable, err)
	}
	i.known.Store(keys)
	return nil
}
