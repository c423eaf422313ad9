// Package luks makes and reads the headers of encrypted images in the format LUKS1, which
// the kernel, QEMU and cryptsetup all open.
//
// A key is 32 random bytes; its passphrase is their hexadecimal form, because QEMU only accepts text.
// A key never appears in a file or in an argument of a program. LUKS1 has no checksum of its header,
// so Format adds one after the key slots, in a place that no other program uses. It distinguishes a
// damaged header from a wrong key.
//
// Callers read and write the data after the header, for example with the Cipher of an unlocked
// header. Functions may be called from many goroutines.
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

// Program is the program that makes headers.
const Program = "cryptsetup"

// Payload is the offset of an image's content after the header, in bytes.
const Payload = 2 << 20

// KeySize is the size of a key in bytes.
const KeySize = 32

// Errors of Unlock.
var (
	ErrNoHeader = errors.New("no LUKS1 header")
	ErrFormat   = errors.New("the LUKS1 header was not made by this program")
	ErrDamaged  = errors.New("the LUKS1 header is damaged")
	ErrWrongKey = errors.New("the key opens no slot of the LUKS1 header")
)

// The checksum is in the last page before the payload, where no key slot reaches.
const (
	sealAt    = Payload - 4096
	sealMagic = "hangar1\n"
)

// iterations of the key derivation: the minimum of cryptsetup, because a random key needs no
// stretching.
const iterations = 1000

// Passphrase is the passphrase of the images with a key.
func Passphrase(key []byte) []byte { return hex.AppendEncode(nil, key) }

// Format writes a header with one slot for the key at the beginning of a file, which must exist and
// have at least Payload bytes.
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

// Begun reports whether a file begins like an image, with a header or at least with its checksum. It
// ignores the rest.
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

// Unlock tries a key on a header and returns the cipher of the data after it. It returns ErrNoHeader,
// ErrFormat, ErrDamaged or ErrWrongKey if it cannot, and changes nothing.
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
