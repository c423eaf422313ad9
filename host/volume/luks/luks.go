// Package luks makes and reads the headers of encrypted images in the format LUKS1, which
// the kernel, QEMU and cryptsetup all open.
//
// A key is 32 random bytes; its passphrase is their hexadecimal form, because QEMU takes nothing
// but text. No key is ever in a file or an argument of a program. Since LUKS1 has no checksum of
// its header, Format adds one behind the key slots, where no other program looks, so that a
// damaged header can be told from a wrong key.
//
// The package does no more than that: its callers read and write the data behind the header, with
// the Cipher of an unlocked header if they like. Functions may be called from many goroutines.
package luks

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
)

// Program makes headers.
const Program = "cryptsetup"

// Payload is where the content of an image begins, in bytes, behind the header.
const Payload = 2 << 20

// KeySize is how many bytes a key has.
const KeySize = 32

// Errors of Unlock.
var (
	ErrNoHeader = errors.New("no LUKS1 header")
	ErrFormat   = errors.New("the LUKS1 header is not as this program makes them")
	ErrDamaged  = errors.New("the LUKS1 header is damaged")
	ErrWrongKey = errors.New("the key opens no slot of the LUKS1 header")
)

// The checksum is in the last page before the payload, where no key slot reaches.
const (
	sealAt    = Payload - 4096
	sealMagic = "hangar1\n"
)

// iterations of the key derivation: the minimum of cryptsetup, because a random key needs none.
const iterations = 1000

// Passphrase is the passphrase of a key's image.
func Passphrase(key []byte) []byte { return hex.AppendEncode(nil, key) }

// Format writes a header with one slot for the key at the beginning of a file, which has to exist
// and be at least Payload bytes long.
func Format(ctx context.Context, file string, key []byte) error {
	if len(key) != KeySize {
		return fmt.Errorf("format %s: a key has %d bytes, not %d", file, KeySize, len(key))
	}
	cmd := exec.CommandContext(ctx, Program, "luksFormat", "--batch-mode", "--type", "luks1", "--key-file", "-",
		"--pbkdf-force-iterations", strconv.Itoa(iterations), "--hash", "sha256", "--cipher", "aes-xts-plain64",
		"--key-size", "512", "--use-urandom", file)
	cmd.Stdin = bytes.NewReader(Passphrase(key))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("format %s: %w: %s", file, err, bytes.TrimSpace(out))
	}
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(seal(f), f.Close())
}

// seal writes the checksum.
func seal(f *os.File) error {
	sum, err := checksum(f)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(append([]byte(sealMagic), sum...), sealAt)
	return err
}

func checksum(r io.ReaderAt) ([]byte, error) {
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(r, 0, sealAt)); err != nil {
		return nil, err
	}
	return h.Sum(nil), nil
}

// Begun reports whether a file begins as an image does, regardless of the rest: with a header, or
// with a checksum where one was.
func Begun(r io.ReaderAt) (bool, error) {
	begin := make([]byte, len(magic))
	if _, err := r.ReadAt(begin, 0); err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	sealed := make([]byte, len(sealMagic))
	if _, err := r.ReadAt(sealed, sealAt); err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	return string(begin) == magic || string(sealed) == sealMagic, nil
}

// Unlock tries a key on a header and returns the cipher of the data behind it. It answers
// ErrNoHeader, ErrFormat, ErrDamaged and ErrWrongKey, and changes nothing.
func Unlock(r io.ReaderAt, key []byte) (*Cipher, error) {
	raw := make([]byte, headerSize)
	if _, err := r.ReadAt(raw, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	sealed := make([]byte, len(sealMagic)+sha256.Size)
	if _, err := r.ReadAt(sealed, sealAt); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	isSealed := bytes.HasPrefix(sealed, []byte(sealMagic))
	if isSealed {
		sum, err := checksum(r)
		if err != nil {
			return nil, err
		}
		if !bytes.Equal(sum, sealed[len(sealMagic):]) {
			return nil, ErrDamaged
		}
	}
	h, err := parse(raw)
	if err != nil {
		return nil, err
	}
	return h.unlock(r, Passphrase(key))
}

// Destroy overwrites the header with all key slots, durably: from then on no key opens the image.
func Destroy(f *os.File) error {
	noise := make([]byte, Payload)
	_, _ = rand.Read(noise) // never fails: crypto/rand.Read aborts the program instead
	if _, err := f.WriteAt(noise, 0); err != nil {
		return err
	}
	return f.Sync()
}
