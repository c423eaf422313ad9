package secretkey

import (
	"bytes"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"hash"
	"math/big"

	"golang.org/x/crypto/nacl/auth"
	"golang.org/x/crypto/nacl/box"
	"golang.org/x/crypto/nacl/secretbox"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/random"
)

// kind describes a type of key.
type kind struct {
	least, most int           // bytes of a value
	generate    func() []byte // nil: least random bytes
	load        func(value []byte) (any, error)
}

const (
	symmetricBytes = 32
	scalarBytes    = 32 // of P-256, and half of a signature
	naclNonceBytes = 24
)

// array is a key in the form of package nacl.
type array = [symmetricBytes]byte

var kinds = map[hangar.SecretKeyType]kind{
	hangar.SecretKeyHS256:         macOf(sha256.New, sha256.Size),
	hangar.SecretKeyHS384:         macOf(sha512.New384, sha512.Size384),
	hangar.SecretKeyHS512:         macOf(sha512.New, sha512.Size),
	hangar.SecretKeyES256:         {scalarBytes, scalarBytes, newECDSA, loadECDSA},
	hangar.SecretKeyXAES256GCM:    {symmetricBytes, symmetricBytes, nil, loadXAES},
	hangar.SecretKeyNaClAuth:      {symmetricBytes, symmetricBytes, nil, func(value []byte) (any, error) { return naclAuth{array(value)}, nil }},
	hangar.SecretKeyNaClBox:       {symmetricBytes, symmetricBytes, nil, loadNaClBox},
	hangar.SecretKeyNaClSecretBox: {symmetricBytes, symmetricBytes, nil, func(value []byte) (any, error) { return naclSecretBox{array(value)}, nil }},
	hangar.SecretKeyNaClSign:      {ed25519.PrivateKeySize, ed25519.PrivateKeySize, newEd25519, loadEd25519},
}

// mac is HMAC according to RFC 7518, 3.2, which requires keys at least as long as the hash.
type mac struct {
	hash func() hash.Hash
	key  []byte
}

func macOf(h func() hash.Hash, size int) kind {
	return kind{size, hangar.MaxHMACKey, nil, func(value []byte) (any, error) { return mac{h, bytes.Clone(value)}, nil }}
}

func (m mac) sign(plaintext []byte) []byte {
	h := hmac.New(m.hash, m.key)
	_, _ = h.Write(plaintext) // a hash never fails
	return h.Sum(nil)
}

func (m mac) verify(plaintext, signature []byte) bool {
	return hmac.Equal(m.sign(plaintext), signature)
}

// es256 is ECDSA according to RFC 7518, 3.4: with SHA-256, and a signature of r followed by s.
type es256 struct{ key *ecdsa.PrivateKey }

func newECDSA() []byte {
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader) // fails for other curves only
	value, _ := key.Bytes()                                   // fails for other curves only
	return value
}

func loadECDSA(value []byte) (any, error) {
	key, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), value)
	if err != nil { // its text is not passed on, because it is about a secret
		return nil, invalid("value", "a key of type %s is a number from 1 to below the order of P-256, the most significant byte first", hangar.SecretKeyES256)
	}
	return es256{key}, nil
}

func (e es256) public() []byte {
	point, _ := e.key.PublicKey.Bytes() // fails for other curves only
	return point
}

func (e es256) sign(plaintext []byte) []byte {
	digest := sha256.Sum256(plaintext)
	r, s, _ := ecdsa.Sign(rand.Reader, e.key, digest[:]) // fails for keys that ParseRawPrivateKey refuses
	signature := make([]byte, 2*scalarBytes)
	r.FillBytes(signature[:scalarBytes])
	s.FillBytes(signature[scalarBytes:])
	return signature
}

func (e es256) verify(plaintext, signature []byte) bool {
	if len(signature) != 2*scalarBytes {
		return false
	}
	digest := sha256.Sum256(plaintext)
	r, s := new(big.Int).SetBytes(signature[:scalarBytes]), new(big.Int).SetBytes(signature[scalarBytes:])
	return ecdsa.Verify(&e.key.PublicKey, digest[:], r, s)
}

// ed is crypto_sign of NaCl, with signatures separate from the plaintext.
type ed struct{ key ed25519.PrivateKey }

func newEd25519() []byte { return ed25519.NewKeyFromSeed(random.Bytes(ed25519.SeedSize)) }

func loadEd25519(value []byte) (any, error) {
	key := ed25519.NewKeyFromSeed(value[:ed25519.SeedSize])
	if !bytes.Equal(key[ed25519.SeedSize:], value[ed25519.SeedSize:]) {
		return nil, invalid("value", "a key of type %s is a seed of %d bytes followed by its public key", hangar.SecretKeyNaClSign, ed25519.SeedSize)
	}
	return ed{key}, nil
}

func (e ed) public() []byte { return bytes.Clone(e.key[ed25519.SeedSize:]) }

func (e ed) sign(plaintext []byte) []byte { return ed25519.Sign(e.key, plaintext) }

func (e ed) verify(plaintext, signature []byte) bool {
	return ed25519.Verify(e.public(), plaintext, signature)
}

// naclAuth is crypto_auth.
type naclAuth struct{ key array }

func (a naclAuth) sign(plaintext []byte) []byte {
	sum := auth.Sum(plaintext, &a.key)
	return sum[:]
}

func (a naclAuth) verify(plaintext, signature []byte) bool {
	return auth.Verify(signature, plaintext, &a.key)
}

// naclSecretBox is crypto_secretbox, with the nonce before the box.
type naclSecretBox struct{ key array }

func (b naclSecretBox) seal(plaintext, _ []byte) []byte {
	nonce := [naclNonceBytes]byte(random.Bytes(naclNonceBytes))
	return secretbox.Seal(nonce[:], plaintext, &nonce, &b.key)
}

func (b naclSecretBox) open(ciphertext, _ []byte) ([]byte, bool) {
	if len(ciphertext) < naclNonceBytes {
		return nil, false
	}
	nonce := [naclNonceBytes]byte(ciphertext)
	return secretbox.Open([]byte{}, ciphertext[naclNonceBytes:], &nonce, &b.key)
}

// naclBox is crypto_box_seal: boxes for the key, from anonymous senders.
type naclBox struct{ private, theirs array }

func loadNaClBox(value []byte) (any, error) {
	private, _ := ecdh.X25519().NewPrivateKey(value) // fails for other sizes only
	return naclBox{array(value), array(private.PublicKey().Bytes())}, nil
}

func (b naclBox) public() []byte { return bytes.Clone(b.theirs[:]) }

func (b naclBox) seal(plaintext, _ []byte) []byte {
	sealed, _ := box.SealAnonymous(nil, plaintext, &b.theirs, rand.Reader) // fails when rand.Reader does, which is never
	return sealed
}

func (b naclBox) open(ciphertext, _ []byte) ([]byte, bool) {
	return box.OpenAnonymous([]byte{}, ciphertext, &b.theirs, &b.private)
}
