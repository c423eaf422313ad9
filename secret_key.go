package hangar

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"time"
)

// SecretKeyType says what a secret key does, and by which algorithm.
type SecretKeyType string

// The types of secret keys.
const (
	// SecretKeyHS256, SecretKeyHS384 and SecretKeyHS512 sign and verify with HMAC.
	SecretKeyHS256 SecretKeyType = "hs256"
	SecretKeyHS384 SecretKeyType = "hs384"
	SecretKeyHS512 SecretKeyType = "hs512"
	// SecretKeyES256 signs and verifies with ECDSA on P-256; a signature is r and s, 32
	// bytes each.
	SecretKeyES256 SecretKeyType = "es256"
	// SecretKeyXAES256GCM encrypts and decrypts, with associated data.
	SecretKeyXAES256GCM SecretKeyType = "xaes256gcm"
	// SecretKeyNaClAuth signs and verifies with HMAC-SHA-512-256.
	SecretKeyNaClAuth SecretKeyType = "nacl_auth" //nolint:gosec // the name of an algorithm
	// SecretKeyNaClBox decrypts what its public key encrypts.
	SecretKeyNaClBox SecretKeyType = "nacl_box"
	// SecretKeyNaClSecretBox encrypts and decrypts.
	SecretKeyNaClSecretBox SecretKeyType = "nacl_secretbox"
	// SecretKeyNaClSign signs and verifies with Ed25519.
	SecretKeyNaClSign SecretKeyType = "nacl_sign"
)

// SecretKeyTypes lists every type.
func SecretKeyTypes() []SecretKeyType {
	return []SecretKeyType{
		SecretKeyES256, SecretKeyHS256, SecretKeyHS384, SecretKeyHS512, SecretKeyNaClAuth, SecretKeyNaClBox, SecretKeyNaClSecretBox,
		SecretKeyNaClSign, SecretKeyXAES256GCM,
	}
}

// Validate answers CodeInvalid and lists the valid types.
func (t SecretKeyType) Validate() error { return t.validate("type") }

func (t SecretKeyType) validate(field string) error {
	types := SecretKeyTypes()
	if slices.Contains(types, t) {
		return nil
	}
	names := make([]string, 0, len(types))
	for _, known := range types {
		names = append(names, string(known))
	}
	return Errorf(CodeInvalid, "", "invalid %s: %.100q is none of %s", field, string(t), strings.Join(names, ", "))
}

// SecretKey is key material of an App. The platform stores and uses it, but never shows it. Machines do
// not find it in their environment.
type SecretKey struct {
	Name string        `json:"name"`
	Type SecretKeyType `json:"type"`
	// PublicKey is the uncompressed point of 65 bytes for es256, and 32 bytes for nacl_box and
	// nacl_sign. It is empty for symmetric types.
	PublicKey []byte    `json:"public_key,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
}

// SecretKeyRef names a secret key.
type SecretKeyRef struct {
	App  AppName
	Name string
}

// SecretKeySet is key material that the caller provides.
type SecretKeySet struct {
	Type SecretKeyType
	// Value is the bytes of the key as they are, not text. hs256, hs384 and hs512 need at least as many
	// as the hash has (32, 48, 64) and at most MaxHMACKey. es256 needs the private number in 32 bytes,
	// the most significant first. nacl_sign needs the seed of 32 bytes, followed by the public key. All
	// others need 32 bytes.
	Value Sensitive
}

// SecretKeyQuery says which secret keys are listed.
type SecretKeyQuery struct {
	// MinVersion is the least acceptable version of the App's secrets.
	MinVersion int
	// Types are the listed types; none: all.
	Types []SecretKeyType
}

// Validate answers CodeInvalid for an unknown type.
func (q SecretKeyQuery) Validate() error {
	for _, t := range q.Types {
		if err := t.validate("types"); err != nil {
			return err
		}
	}
	return nil
}

// The bounds of secret keys, in bytes. Their names and values count towards MaxSecretsSize, together
// with secrets.
const (
	MaxSecretKeyName = 255
	MaxHMACKey       = 1024
	MaxSecretKeyData = 64 << 10 // of a plaintext, and of associated data
)

var secretKeyName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)

// ValidateSecretKeyName answers CodeInvalid.
func ValidateSecretKeyName(name string) error {
	if len(name) <= MaxSecretKeyName && secretKeyName.MatchString(name) {
		return nil
	}
	return Errorf(CodeInvalid, "", "invalid name: %.100q is not the name of a secret key: letters, digits, _, - and ., neither of the last two first, at most %d",
		name, MaxSecretKeyName)
}

// SecretKeyService keeps the secret keys of Apps and works with them. They share the version of the
// App's secrets, which every change of a key raises. Every method answers CodeNotFound with
// ReasonAppNotFound, and CodeForbidden.
//
// A minVersion is the least acceptable version of the App's secrets: below it the answer is
// CodeFailedPrecondition with ReasonSecretsVersion. Methods for one key answer CodeNotFound with
// ReasonSecretKeyNotFound. Methods that use a key answer CodeInvalid with ReasonUnsupported when its
// type does not support them, and CodeInvalid for data of more than MaxSecretKeyData.
type SecretKeyService interface {
	// SecretKeys returns them sorted by name.
	SecretKeys(ctx context.Context, app AppName, q SecretKeyQuery) ([]SecretKey, error)
	SecretKey(ctx context.Context, key SecretKeyRef, minVersion int) (SecretKey, error)
	// SetSecretKey creates or replaces a key, and returns it with the new version. A call that changes
	// nothing keeps the version. It answers CodeInvalid for a name, a type or a value that is not
	// allowed, and when secrets and keys would exceed MaxSecretsSize.
	SetSecretKey(ctx context.Context, key SecretKeyRef, in SecretKeySet) (SecretKey, int, error)
	// GenerateSecretKey is SetSecretKey with a random value that is never shown. Data
	// that only the replaced value decrypts is lost.
	GenerateSecretKey(ctx context.Context, key SecretKeyRef, t SecretKeyType) (SecretKey, int, error)
	// DeleteSecretKey returns the new version.
	DeleteSecretKey(ctx context.Context, key SecretKeyRef) (version int, err error)
	// EncryptWithKey returns a different ciphertext each time. It answers CodeInvalid for associated
	// data with a type that does not bind any.
	EncryptWithKey(ctx context.Context, key SecretKeyRef, minVersion int, plaintext, associated []byte) (ciphertext []byte, err error)
	// DecryptWithKey needs the right to change the key. It answers CodeInvalid with
	// ReasonCiphertextMismatch for a ciphertext that was not made with the key and the same associated
	// data.
	DecryptWithKey(ctx context.Context, key SecretKeyRef, minVersion int, ciphertext, associated []byte) (plaintext []byte, err error)
	// SignWithKey needs the right to change the key.
	SignWithKey(ctx context.Context, key SecretKeyRef, minVersion int, plaintext []byte) (signature []byte, err error)
	// VerifyWithKey answers CodeInvalid with ReasonSignatureMismatch unless the signature
	// is one of the plaintext with the key.
	VerifyWithKey(ctx context.Context, key SecretKeyRef, minVersion int, plaintext, signature []byte) error
}
