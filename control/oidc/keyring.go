package oidc

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
)

const (
	algorithm = string(jose.RS256)
	keyBits   = 2048
)

// NewKey makes a private key.
type NewKey func() (*rsa.PrivateKey, error)

func newRSA() (*rsa.PrivateKey, error) { return rsa.GenerateKey(rand.Reader, keyBits) }

// record is what is encrypted in the state. Keys are sorted by NotBefore, and each
// signs until the one after it does.
type record struct {
	Keys []key `json:"keys"`
}

// key signs tokens for a while.
type key struct {
	ID        string    `json:"kid"`
	CreatedAt time.Time `json:"created_at"`
	Ready     time.Time `json:"ready"`      // all verifiers have seen it by then
	NotBefore time.Time `json:"not_before"` // it signs from then on
	Private   []byte    `json:"private"`    // PKCS #8
}

// keyring is a record that was read. It never changes.
type keyring struct {
	record

	revision  state.Revision
	signers   []jose.Signer // of the keys
	documents [][]byte      // the set of the keys from each on
}

// parse reads a record.
func parse(plain []byte, revision state.Revision) (*keyring, error) {
	r := &keyring{revision: revision}
	if err := json.Unmarshal(plain, &r.record); err != nil {
		return nil, err
	}
	if len(r.Keys) == 0 || !slices.IsSortedFunc(r.Keys, func(a, b key) int { return a.NotBefore.Compare(b.NotBefore) }) {
		return nil, errors.New("no keys, or not in order")
	}
	var set jose.JSONWebKeySet
	for _, k := range r.Keys {
		parsed, err := x509.ParsePKCS8PrivateKey(k.Private)
		if err != nil {
			return nil, fmt.Errorf("key %s: %w", k.ID, err)
		}
		private, ok := parsed.(*rsa.PrivateKey)
		if !ok {
			return nil, fmt.Errorf("key %s is a %T", k.ID, parsed)
		}
		signer, err := jose.NewSigner(
			jose.SigningKey{Algorithm: jose.RS256, Key: jose.JSONWebKey{Key: private, KeyID: k.ID}}, (&jose.SignerOptions{}).WithType("JWT"),
		)
		if err != nil {
			return nil, fmt.Errorf("key %s: %w", k.ID, err)
		}
		r.signers = append(r.signers, signer)
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: private.Public(), KeyID: k.ID, Algorithm: algorithm, Use: "sig"})
	}
	for from := range set.Keys {
		document, err := json.Marshal(jose.JSONWebKeySet{Keys: set.Keys[from:]})
		if err != nil {
			return nil, err
		}
		r.documents = append(r.documents, document)
	}
	return r, nil
}

// sign returns a payload as a JSON Web Token, signed by the key of a time.
func (r *keyring) sign(payload []byte, now time.Time) (string, error) {
	signed, err := r.signers[r.current(now)].Sign(payload)
	if err != nil {
		return "", fmt.Errorf("sign an identity token: %w", err)
	}
	return signed.CompactSerialize()
}

// document is the set of keys that are shown at a time.
func (r *keyring) document(p Policy, now time.Time) []byte {
	return r.documents[p.shown(r.record, now)]
}

// list says what is known of the keys that are shown at a time.
func (r *keyring) list(p Policy, now time.Time) []hangar.SigningKey {
	list := []hangar.SigningKey{}
	current := r.current(now)
	for at := p.shown(r.record, now); at < len(r.Keys); at++ {
		k := hangar.SigningKey{ID: r.Keys[at].ID, CreatedAt: r.Keys[at].CreatedAt, NotBefore: r.Keys[at].NotBefore, NotAfter: r.until(at)}
		switch {
		case at < current:
			k.State = hangar.SigningKeyRetired
		case at == current:
			k.State = hangar.SigningKeyCurrent
		default:
			k.State = hangar.SigningKeyNext
		}
		list = append(list, k)
	}
	return list
}

// current is the place of the key that signs at a time: of the last one whose time has
// come or, if a clock went back, of the first.
func (r record) current(now time.Time) int {
	for at := range slices.Backward(r.Keys) {
		if !r.Keys[at].NotBefore.After(now) {
			return at
		}
	}
	return 0
}

// until is when a key stops signing; zero: it has none after it.
func (r record) until(at int) time.Time {
	if at+1 == len(r.Keys) {
		return time.Time{}
	}
	return r.Keys[at+1].NotBefore
}

// add appends a key that signs from a time on.
func (r *record) add(fresh NewKey, created, ready, notBefore time.Time) error {
	private, err := fresh()
	if err != nil {
		return fmt.Errorf("make a key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return fmt.Errorf("encode a key: %w", err)
	}
	r.Keys = append(r.Keys, key{ID: strings.ToLower(rand.Text()), CreatedAt: created, Ready: ready, NotBefore: notBefore, Private: der})
	return nil
}
