// Package secretkey does the cryptography of secret keys: it makes and validates key material,
// and encrypts, decrypts, signs and verifies with it.
//
// The package stores nothing and does not know Apps. Errors are *hangar.Error and name the invalid
// property; none contains a value, a plaintext or a ciphertext.
package secretkey

import (
	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/random"
)

// Key is key material that is ready for use. It never changes.
type Key struct {
	kind     hangar.SecretKeyType
	material any // implements the abilities of the type: signer, sealer, published
}

// signer is key material that signs and verifies.
type signer interface {
	sign(plaintext []byte) []byte
	verify(plaintext, signature []byte) bool
}

// sealer is key material that encrypts and decrypts.
type sealer interface {
	seal(plaintext, associated []byte) []byte
	open(ciphertext, associated []byte) ([]byte, bool)
}

// binder is a sealer that binds associated data.
type binder interface{ binds() }

// published is key material with a public part.
type published interface{ public() []byte }

// maxOverhead is the most bytes by which a ciphertext is longer than its plaintext.
const maxOverhead = 64

// Generate returns a valid random value of a type. It returns CodeInvalid for an unknown type.
func Generate(t hangar.SecretKeyType) ([]byte, error) {
	k, ok := kinds[t]
	if !ok {
		return nil, t.Validate()
	}
	if k.generate != nil {
		return k.generate(), nil
	}
	return random.Bytes(k.least), nil
}

// Parse returns the key with a value. It returns CodeInvalid for an unknown type, and for a value
// that violates a rule of its type.
func Parse(t hangar.SecretKeyType, value []byte) (Key, error) {
	k, ok := kinds[t]
	switch {
	case !ok:
		return Key{}, t.Validate()
	case k.least == k.most && len(value) != k.least:
		return Key{}, invalid("value", "a key of type %s has %d bytes, not %d", t, k.least, len(value))
	case len(value) < k.least || len(value) > k.most:
		return Key{}, invalid("value", "a key of type %s has %d to %d bytes, not %d", t, k.least, k.most, len(value))
	}
	material, err := k.load(value)
	return Key{t, material}, err
}

// Public returns the public key, or nil for a symmetric type; see hangar.SecretKey.
func (k Key) Public() []byte {
	if p, ok := k.material.(published); ok {
		return p.public()
	}
	return nil
}

// Encrypt implements hangar.SecretKeyService.EncryptWithKey for one key.
func (k Key) Encrypt(plaintext, associated []byte) ([]byte, error) {
	s, err := k.sealer("encrypt", associated)
	if err == nil {
		err = bounded("plaintext", plaintext, hangar.MaxSecretKeyData)
	}
	if err != nil {
		return nil, err
	}
	return s.seal(plaintext, associated), nil
}

// Decrypt implements hangar.SecretKeyService.DecryptWithKey for one key.
func (k Key) Decrypt(ciphertext, associated []byte) ([]byte, error) {
	s, err := k.sealer("decrypt", associated)
	if err == nil {
		err = bounded("ciphertext", ciphertext, hangar.MaxSecretKeyData+maxOverhead)
	}
	if err != nil {
		return nil, err
	}
	plaintext, ok := s.open(ciphertext, associated)
	if !ok {
		return nil, hangar.Errorf(hangar.CodeInvalid, hangar.ReasonCiphertextMismatch,
			"invalid ciphertext: it was not encrypted with this key and this associated data, or was changed since")
	}
	return plaintext, nil
}

// Sign implements hangar.SecretKeyService.SignWithKey for one key.
func (k Key) Sign(plaintext []byte) ([]byte, error) {
	s, err := k.signer("sign", plaintext)
	if err != nil {
		return nil, err
	}
	return s.sign(plaintext), nil
}

// Verify implements hangar.SecretKeyService.VerifyWithKey for one key.
func (k Key) Verify(plaintext, signature []byte) error {
	s, err := k.signer("verify", plaintext)
	if err != nil {
		return err
	}
	if !s.verify(plaintext, signature) {
		return hangar.Errorf(hangar.CodeInvalid, hangar.ReasonSignatureMismatch, "invalid signature: it is not one of this plaintext with this key")
	}
	return nil
}

func (k Key) signer(operation string, plaintext []byte) (signer, error) {
	s, ok := k.material.(signer)
	if !ok {
		return nil, k.cannot(operation)
	}
	return s, bounded("plaintext", plaintext, hangar.MaxSecretKeyData)
}

func (k Key) sealer(operation string, associated []byte) (sealer, error) {
	s, ok := k.material.(sealer)
	if !ok {
		return nil, k.cannot(operation)
	}
	if _, binds := s.(binder); !binds && len(associated) > 0 {
		return nil, invalid("associated_data", "a key of type %s takes none", k.kind)
	}
	return s, bounded("associated_data", associated, hangar.MaxSecretKeyData)
}

func (k Key) cannot(operation string) error {
	return hangar.Errorf(hangar.CodeInvalid, hangar.ReasonUnsupported, "invalid operation: a key of type %s does not %s", k.kind, operation)
}

func bounded(field string, data []byte, most int) error {
	if len(data) > most {
		return invalid(field, "has %d bytes, more than the %d that are allowed", len(data), most)
	}
	return nil
}

func invalid(field, rule string, args ...any) error {
	return hangar.Errorf(hangar.CodeInvalid, "", "invalid "+field+": "+rule, args...)
}
