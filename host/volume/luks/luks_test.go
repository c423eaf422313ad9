package luks_test

import (
	"bytes"
	"crypto/aes"
	"crypto/rand"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/crypto/xts"

	"github.com/hangar-platform/hangar/host/volume/luks"
)

func format(t *testing.T, key []byte) *os.File {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(t.TempDir(), "image"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if err := f.Truncate(luks.Payload + 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := luks.Format(t.Context(), f.Name(), key); err != nil {
		t.Fatal(err)
	}
	return f
}

func newKey() []byte {
	key := make([]byte, luks.KeySize)
	_, _ = rand.Read(key)
	return key
}

// TestDecrypt decrypts QEMU's ciphertext, whole or in part.
func TestDecrypt(t *testing.T) {
	key := newKey()
	f := format(t, key)
	c, err := luks.Unlock(f, key)
	if err != nil {
		t.Fatal(err)
	}
	content := make([]byte, 1<<20)
	_, _ = rand.Read(content)
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, content, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "qemu-img", "convert", "-n", "--object", "secret,id=k,file=/dev/stdin", "--target-image-opts",
		"-f", "raw", plain, "driver=luks,key-secret=k,file.driver=file,file.filename="+f.Name())
	cmd.Stdin = bytes.NewReader(luks.Passphrase(key))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("qemu-img: %v: %s", err, out)
	}
	for _, part := range [][2]int64{{0, 2048}, {0, 1}, {1, 64}, {100, 65}, {2047, 1}, {63, 3}} {
		b := make([]byte, part[1]*luks.SectorSize)
		if _, err := f.ReadAt(b, luks.Payload+part[0]*luks.SectorSize); err != nil {
			t.Fatal(err)
		}
		c.Decrypt(b, uint64(part[0]))
		if !bytes.Equal(b, content[part[0]*luks.SectorSize:][:len(b)]) {
			t.Errorf("%d sectors from %d on are wrong", part[1], part[0])
		}
	}
}

func TestUnlock(t *testing.T) {
	key := newKey()
	f := format(t, key)
	if _, err := luks.Unlock(f, newKey()); !errors.Is(err, luks.ErrWrongKey) {
		t.Errorf("another key: %v", err)
	}
	if begun, err := luks.Begun(f); err != nil || !begun {
		t.Errorf("begun: %t, %v", begun, err)
	}
	if err := luks.Destroy(f); err != nil {
		t.Fatal(err)
	}
	if _, err := luks.Unlock(f, key); !errors.Is(err, luks.ErrNoHeader) {
		t.Errorf("destroyed: %v", err)
	}
	if begun, err := luks.Begun(f); err != nil || begun {
		t.Errorf("begun after it was destroyed: %t, %v", begun, err)
	}
	if err := luks.Format(t.Context(), f.Name(), key[:5]); err == nil {
		t.Error("took a short key")
	}
}

// TestForeignHeaders: an image made by cryptsetup alone has no checksum but opens; another kind of
// image does not.
func TestForeignHeaders(t *testing.T) {
	key := newKey()
	for name, tt := range map[string]struct {
		args []string
		want error
	}{
		"same kind": {[]string{"--type", "luks1", "--pbkdf-force-iterations", "1000", "--hash", "sha256", "--key-size", "512", "--cipher", "aes-xts-plain64"}, nil},
		"cbc":       {[]string{"--type", "luks1", "--pbkdf-force-iterations", "1000", "--hash", "sha256", "--key-size", "256", "--cipher", "aes-cbc-essiv:sha256"}, luks.ErrFormat},
		"luks2":     {[]string{"--type", "luks2", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"}, luks.ErrNoHeader},
	} {
		t.Run(name, func(t *testing.T) {
			f := format(t, newKey())
			if err := errors.Join(f.Truncate(0), f.Truncate(32<<20)); err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), "cryptsetup", append([]string{"luksFormat", "-q", "--key-file", "-", f.Name()}, tt.args...)...)
			cmd.Stdin = bytes.NewReader(luks.Passphrase(key))
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("cryptsetup: %v: %s", err, out)
			}
			if _, err := luks.Unlock(f, key); !errors.Is(err, tt.want) {
				t.Errorf("unlock: %v, want %v", err, tt.want)
			}
		})
	}
}

// TestEncrypt: encrypted data decrypts to the same, in any parts.
func TestEncrypt(t *testing.T) {
	c := unlocked(t)
	plain := make([]byte, 200<<10)
	for i := range plain {
		plain[i] = byte(i >> 9)
	}
	b := bytes.Clone(plain)
	c.Encrypt(b[:512], 5)
	c.Encrypt(b[512:], 6)
	if bytes.Contains(b, plain[:64]) {
		t.Error("something is as it was")
	}
	c.Decrypt(b, 5)
	if !bytes.Equal(b, plain) {
		t.Error("it comes back otherwise")
	}
}

// unlocked is the cipher of a new header.
func unlocked(tb testing.TB) *luks.Cipher {
	tb.Helper()
	key := newKey()
	f, err := os.OpenFile(filepath.Join(tb.TempDir(), "image"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	if err := errors.Join(f.Truncate(luks.Payload), luks.Format(tb.Context(), f.Name(), key)); err != nil {
		tb.Fatal(err)
	}
	c, err := luks.Unlock(f, key)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// BenchmarkCipher shows why Cipher does not use the library's XTS.
func BenchmarkCipher(b *testing.B) {
	c := unlocked(b)
	library, err := xts.NewCipher(aes.NewCipher, append(newKey(), newKey()...))
	if err != nil {
		b.Fatal(err)
	}
	for name, do := range map[string]func([]byte, uint64){
		"decrypt": c.Decrypt, "encrypt": c.Encrypt,
		"library": func(buffer []byte, sector uint64) {
			for ; len(buffer) > 0; buffer = buffer[luks.SectorSize:] {
				library.Decrypt(buffer[:luks.SectorSize], buffer[:luks.SectorSize], sector)
				sector++
			}
		},
	} {
		b.Run(name, func(b *testing.B) {
			buffer := make([]byte, 1<<20)
			b.SetBytes(int64(len(buffer)))
			for b.Loop() {
				do(buffer, 0)
			}
		})
	}
}
