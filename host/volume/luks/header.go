package luks

import (
	"bytes"
	"crypto/pbkdf2"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	magic        = "LUKS\xba\xbe"
	headerSize   = 592
	slotEnabled  = 0x00AC71F3
	masterSize   = 64 // bytes of two AES-256 keys
	maxSlotWords = 1 << 16
)

// header is a LUKS1 header as on disk, big endian.
type header struct {
	Magic      [6]byte
	Version    uint16
	CipherName [32]byte
	CipherMode [32]byte
	Hash       [32]byte
	Payload    uint32 // sectors
	KeyBytes   uint32
	Digest     [20]byte
	Salt       [32]byte
	Iterations uint32
	UUID       [40]byte
	Slots      [8]slot
}

// slot contains the master key, encrypted with a passphrase.
type slot struct {
	Active     uint32
	Iterations uint32
	Salt       [32]byte
	Offset     uint32 // sectors
	Stripes    uint32
}

func parse(raw []byte) (*header, error) {
	var h header
	if _, err := binary.Decode(raw, binary.BigEndian, &h); err != nil {
		return nil, err
	}
	text := func(b [32]byte) string { return string(bytes.TrimRight(b[:], "\x00")) }
	switch {
	case string(h.Magic[:]) != magic || h.Version != 1:
		return nil, ErrNoHeader
	case text(h.CipherName) != "aes" || text(h.CipherMode) != "xts-plain64" || text(h.Hash) != "sha256" || h.KeyBytes != masterSize:
		return nil, fmt.Errorf("%w: cipher %s-%s, hash %s, %d bytes of key", ErrFormat, text(h.CipherName), text(h.CipherMode),
			text(h.Hash), h.KeyBytes)
	case int64(h.Payload)*SectorSize != Payload:
		return nil, fmt.Errorf("%w: content begins in sector %d", ErrFormat, h.Payload)
	}
	return &h, nil
}

// unlock tries a passphrase on every slot.
func (h *header) unlock(r io.ReaderAt, passphrase []byte) (*Cipher, error) {
	for _, s := range h.Slots {
		if s.Active != slotEnabled {
			continue
		}
		master, err := s.open(r, passphrase)
		if err != nil {
			return nil, err
		}
		digest, err := pbkdf2.Key(sha256.New, string(master), h.Salt[:], int(h.Iterations), len(h.Digest))
		if err != nil {
			return nil, err
		}
		if subtle.ConstantTimeCompare(digest, h.Digest[:]) == 1 {
			return newCipher(master)
		}
	}
	return nil, ErrWrongKey
}

// open returns the decrypted content of a slot, which is noise if the passphrase is wrong.
func (s slot) open(r io.ReaderAt, passphrase []byte) ([]byte, error) {
	if s.Stripes == 0 || s.Stripes > maxSlotWords || s.Iterations == 0 {
		return nil, fmt.Errorf("%w: %d stripes, %d iterations", ErrFormat, s.Stripes, s.Iterations)
	}
	key, err := pbkdf2.Key(sha256.New, string(passphrase), s.Salt[:], int(s.Iterations), masterSize)
	if err != nil {
		return nil, err
	}
	c, err := newCipher(key)
	if err != nil {
		return nil, err
	}
	material := make([]byte, int(s.Stripes)*masterSize)
	if _, err := r.ReadAt(material, int64(s.Offset)*SectorSize); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	c.Decrypt(material, 0)
	return merge(material), nil
}

// merge undoes the anti-forensic splitter, which makes every stripe necessary to recover any part of
// the key.
func merge(material []byte) []byte {
	d := make([]byte, masterSize)
	last := len(material) - masterSize
	for at := 0; at < last; at += masterSize {
		subtle.XORBytes(d, d, material[at:at+masterSize])
		diffuse(d)
	}
	subtle.XORBytes(d, d, material[last:])
	return d
}

func diffuse(d []byte) {
	block := make([]byte, 4+sha256.Size)
	for i := range len(d) / sha256.Size {
		part := d[i*sha256.Size : (i+1)*sha256.Size]
		binary.BigEndian.PutUint32(block, uint32(i))
		copy(block[4:], part)
		sum := sha256.Sum256(block)
		copy(part, sum[:])
	}
}
