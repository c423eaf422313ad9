package bundle

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func sealed(t *testing.T) (string, Origin) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "snapshot")
	tmp := dir + ".tmp"
	if err := os.Mkdir(tmp, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"pages.img":      bytes.Repeat([]byte("0123456789abcdef"), 700_000), // several chunks and a part
		"checkpoint.img": []byte("state"),
		"empty.img":      nil,
	} {
		if err := os.WriteFile(filepath.Join(tmp, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	origin := Origin{Engine: "v1", CPU: "cpu", Spec: "spec"}
	if err := Seal(tmp, dir, origin); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(tmp); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is still there", tmp)
	}
	return dir, origin
}

func TestSealAndVerify(t *testing.T) {
	dir, origin := sealed(t)
	meta, err := ReadMeta(dir)
	if err != nil {
		t.Fatal(err)
	}
	if meta.Origin != origin {
		t.Errorf("origin %+v, want %+v", meta.Origin, origin)
	}
	if want := int64(16*700_000 + 5); meta.Size() != want {
		t.Errorf("size %d, want %d", meta.Size(), want)
	}
	if err := Verify(dir, meta); err != nil {
		t.Error(err)
	}
}

func TestDamageIsFound(t *testing.T) {
	pages := func(dir string) string { return filepath.Join(dir, "pages.img") }
	flip := func(offset int64) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			t.Helper()
			f, err := os.OpenFile(pages(dir), os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.WriteAt([]byte{'x'}, offset); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, damage := range map[string]func(*testing.T, string){
		"first byte":  flip(0),
		"chunk end":   flip(chunkSize - 1),
		"chunk start": flip(chunkSize),
		"last byte":   flip(16*700_000 - 1),
		"cut short": func(t *testing.T, dir string) {
			t.Helper()
			if err := os.Truncate(pages(dir), 100); err != nil {
				t.Fatal(err)
			}
		},
		"longer": func(t *testing.T, dir string) {
			t.Helper()
			if err := os.Truncate(pages(dir), 16*700_000+1); err != nil {
				t.Fatal(err)
			}
		},
		"swapped chunks": func(t *testing.T, dir string) {
			t.Helper()
			raw, err := os.ReadFile(pages(dir))
			if err != nil {
				t.Fatal(err)
			}
			raw[0] = 'y' // so that the chunks differ
			if err := os.WriteFile(pages(dir), append(append(raw[chunkSize:2*chunkSize:2*chunkSize], raw[:chunkSize]...), raw[2*chunkSize:]...), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"missing": func(t *testing.T, dir string) {
			t.Helper()
			if err := os.Remove(pages(dir)); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, _ := sealed(t)
			damage(t, dir)
			meta, err := ReadMeta(dir)
			if err != nil {
				t.Fatal(err)
			}
			if err := Verify(dir, meta); !errors.Is(err, ErrDamaged) {
				t.Errorf("Verify: %v, want ErrDamaged", err)
			}
		})
	}
}

// TestUntouchedIsNotRead: a file counts as unchanged only if it was written long enough before it
// was sealed, in this boot of the host, and is still in memory.
func TestUntouchedIsNotRead(t *testing.T) {
	dir, _ := sealed(t)
	meta, err := ReadMeta(dir)
	if err != nil {
		t.Fatal(err)
	}
	for i := range meta.Files {
		meta.Files[i].Sum++ // any read fails now
	}
	for _, f := range meta.Files {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(dir, f.Name), &st); err != nil {
			t.Fatal(err)
		}
		meta.Sealed = min(meta.Sealed, st.Ctim.Nano()) // a busy machine may have taken its time
	}
	if err := Verify(dir, meta); !errors.Is(err, ErrDamaged) {
		t.Errorf("sealed as soon as it was written: %v, want ErrDamaged", err)
	}
	meta.Sealed += clockTick + int64(time.Hour)
	var probe unix.Cachestat_t
	if err := unix.Cachestat(^uint(0)>>1, &unix.CachestatRange{}, &probe, 0); errors.Is(err, unix.ENOSYS) {
		t.Skip("this kernel cannot tell what is in memory")
	}
	if err := Verify(dir, meta); err != nil {
		t.Errorf("untouched: %v", err)
	}
	elsewhen := meta
	elsewhen.Boot = "another"
	if err := Verify(dir, elsewhen); !errors.Is(err, ErrDamaged) {
		t.Errorf("sealed in another boot: %v, want ErrDamaged", err)
	}
	now := time.Now()
	if err := os.Chtimes(filepath.Join(dir, "pages.img"), now, now); err != nil {
		t.Fatal(err)
	}
	if err := Verify(dir, meta); !errors.Is(err, ErrDamaged) {
		t.Errorf("touched: %v, want ErrDamaged", err)
	}
}

func TestReadMetaRefuses(t *testing.T) {
	for name, content := range map[string]string{
		"nonsense": "{", "other format": `{"format":2,"files":[{"name":"a"}]}`, "no files": `{"format":1}`,
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, MetaFile), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadMeta(dir); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v, want ErrDamaged", name, err)
		}
	}
	if _, err := ReadMeta(t.TempDir()); !errors.Is(err, ErrDamaged) {
		t.Errorf("nothing: %v, want ErrDamaged", err)
	}
	if err := Verify(t.TempDir(), Meta{Files: []File{{Name: "../etc/passwd"}}}); !errors.Is(err, ErrDamaged) {
		t.Errorf("a name that leaves the directory: %v, want ErrDamaged", err)
	}
}

// A process that may open no more descriptors knows nothing about the snapshot.
func TestReadMetaWithoutDescriptors(t *testing.T) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	_, err := ReadMeta("/nowhere")
	if restored := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); restored != nil {
		t.Fatal(restored)
	}
	if !errors.Is(err, unix.EMFILE) || errors.Is(err, ErrDamaged) {
		t.Errorf("read: %v", err)
	}
}

// TestUnreadable: what the file system says of a snapshot is damage of it, and what this process lacks is not.
func TestUnreadable(t *testing.T) {
	for err, damaged := range map[error]bool{
		unix.ENOENT: true, unix.EIO: true, unix.EUCLEAN: true, unix.EBADMSG: true, io.ErrUnexpectedEOF: true,
		unix.EMFILE: false, unix.ENFILE: false, unix.ENOMEM: false,
	} {
		if got := errors.Is(unreadable(&fs.PathError{Op: "read", Path: "memory", Err: err}), ErrDamaged); got != damaged {
			t.Errorf("%v: damaged %v, want %v", err, got, damaged)
		}
	}
}

func TestReadExit(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, ExitFile)
	if _, err := ReadExit(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("none: %v, want ErrNotExist", err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadExit(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("empty: %v, want ErrNotExist", err)
	}
	if err := os.WriteFile(path, []byte(`{"ws":1792,"at":"2026-01-02T03:04:05Z"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := ReadExit(dir)
	if want := (ExitRecord{WaitStatus: 7 << 8, At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}); err != nil || got != want {
		t.Errorf("ReadExit = %+v, %v, want %+v", got, err, want)
	}
	if err := os.WriteFile(path, []byte(`{"ws":17`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadExit(dir); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("cut short: %v", err)
	}
}

func BenchmarkVerify(b *testing.B) {
	const size = 256 << 20
	path := filepath.Join(b.TempDir(), "pages.img")
	if err := os.WriteFile(path, bytes.Repeat([]byte("0123456789abcdef"), size/16), 0o600); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(size)
	for b.Loop() {
		if _, err := sum(path); err != nil {
			b.Fatal(err)
		}
	}
}
