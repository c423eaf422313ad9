package secretkey

import (
	"crypto/aes"
	"crypto/cipher"

	"github.com/hangar-platform/hangar/internal/random"
)

// xaes is XAES-256-GCM according to https://c2sp.org/XAES-256-GCM, with the nonce before the
// ciphertext. The first half of a nonce selects a key of AES-256-GCM and the second is its nonce, so
// that random nonces do not collide.
type xaes struct {
	block cipher.Block
	mask  [aes.BlockSize]byte // K1 of CMAC
}

const (
	xaesNonceBytes = 24
	halfNonceBytes = xaesNonceBytes / 2
	// cmacReduction is the polynomial that reduces an overflow in the field of CMAC.
	cmacReduction = 0b10000111
)

func loadXAES(value []byte) (any, error) {
	block, _ := aes.NewCipher(value) // fails for other sizes only
	x := xaes{block: block}
	block.Encrypt(x.mask[:], x.mask[:])
	x.mask = doubled(x.mask)
	return x, nil
}

// doubled multiplies a block by x in the field of CMAC. Its time does not depend on the block.
func doubled(b [aes.BlockSize]byte) [aes.BlockSize]byte {
	var carry byte
	for i := len(b) - 1; i >= 0; i-- {
		b[i], carry = b[i]<<1|carry, b[i]>>7
	}
	b[len(b)-1] ^= carry * cmacReduction
	return b
}

// derived returns the AES-256-GCM that a nonce selects. Each half of its key is the CMAC of a single
// block, which contains the number of the half, a label and the first half of the nonce.
func (x xaes) derived(nonce []byte) cipher.AEAD {
	key := make([]byte, 0, 2*aes.BlockSize)
	for half := byte(1); half <= 2; half++ {
		block := [aes.BlockSize]byte{0, half, 'X', 0}
		copy(block[4:], nonce[:halfNonceBytes])
		for i, m := range x.mask {
			block[i] ^= m
		}
		x.block.Encrypt(block[:], block[:])
		key = append(key, block[:]...)
	}
	block, _ := aes.NewCipher(key) // fails for other sizes only
	gcm, _ := cipher.NewGCM(block) // fails for other block sizes only
	return gcm
}

func (xaes) binds() {}

func (x xaes) seal(plaintext, associated []byte) []byte {
	return x.sealAt(random.Bytes(xaesNonceBytes), plaintext, associated)
}

// sealAt encrypts with a nonce, which must never be used twice.
func (x xaes) sealAt(nonce, plaintext, associated []byte) []byte {
	return x.derived(nonce).Seal(nonce, nonce[halfNonceBytes:], plaintext, associated)
}

func (x xaes) open(ciphertext, associated []byte) ([]byte, bool) {
	if len(ciphertext) < xaesNonceBytes {
		return nil, false
	}
	nonce := ciphertext[:xaesNonceBytes]
	plaintext, err := x.derived(nonce).Open([]byte{}, nonce[halfNonceBytes:], ciphertext[xaesNonceBytes:], associated)
	return plaintext, err == nil
}
