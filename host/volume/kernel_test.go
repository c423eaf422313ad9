package volume

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/volume/luks"
	"github.com/hangar-platform/hangar/internal/extent"
	"github.com/hangar-platform/hangar/internal/finish/finishtest"
	"github.com/hangar-platform/hangar/internal/loopdev"
)

const mib = 1 << 20

// needKernel skips a test without the device mapper.
func needKernel(t *testing.T, k *kernelBackend) {
	t.Helper()
	if err := k.check(t.Context()); err != nil {
		t.Skipf("volumes by dm-crypt and dm-snapshot are not tested: %v. `make vm` tests them in a machine whose kernel has it", err)
	}
}

// kernelRig is the backend with images to open.
type kernelRig struct {
	*kernelBackend
	key []byte
}

func newKernelRig(t *testing.T) *kernelRig {
	t.Helper()
	k := newKernelBackend(New(Options{Dir: t.TempDir(), Run: t.TempDir(), Instance: "k" + string(hangar.NewVolumeID())[4:8], Log: slog.New(slog.DiscardHandler)}))
	needKernel(t, k)
	r := &kernelRig{kernelBackend: k, key: bytes.Repeat([]byte{1, 2, 3, 4}, 8)}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		ids, err := k.list(ctx)
		if err != nil {
			t.Error(err)
		}
		for _, id := range ids {
			if err := k.release(finishtest.Context(t), id); err != nil {
				t.Error(err)
			}
		}
		r.nothingLeft(t)
	})
	return r
}

func (r *kernelRig) nothingLeft(t *testing.T) {
	t.Helper()
	states, err := r.mapper.List(context.WithoutCancel(t.Context()), r.names())
	if err != nil {
		t.Error(err)
	}
	for _, s := range states {
		t.Errorf("left behind: %+v", s)
	}
	loops, err := loopdev.List(func(string) bool { return true })
	if err != nil {
		t.Error(err)
	}
	for _, l := range loops {
		if strings.HasPrefix(l.Label, r.names()) {
			t.Errorf("left behind: %+v", l)
		}
	}
	copies, err := filepath.Glob(filepath.Join(r.v.o.Dir, "*", cowFile))
	if err != nil || len(copies) > 0 {
		t.Errorf("left behind: %v %v", copies, err)
	}
}

func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(context.WithoutCancel(t.Context()), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (r *kernelRig) image(t *testing.T, size int64, encrypted bool) image {
	t.Helper()
	im := image{id: hangar.NewVolumeID(), size: size}
	im.path = filepath.Join(r.v.o.Dir, string(im.id), "image")
	if err := os.Mkdir(filepath.Dir(im.path), 0o700); err != nil {
		t.Fatal(err)
	}
	if encrypted {
		im.payload = 2 * mib
	}
	if err := os.WriteFile(im.path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(im.path, im.payload+size); err != nil {
		t.Fatal(err)
	}
	if encrypted {
		keyFile := filepath.Join(t.TempDir(), "key")
		if err := os.WriteFile(keyFile, luks.Passphrase(r.key), 0o600); err != nil {
			t.Fatal(err)
		}
		command(t, "cryptsetup", "luksFormat", "-q", "--type", "luks1", "--key-file", keyFile, "--pbkdf-force-iterations", "1000",
			"--hash", "sha256", "--cipher", "aes-xts-plain64", "--key-size", "512", im.path)
	}
	return im
}

func mount(t *testing.T, device string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount(device, dir, "ext4", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil && !errors.Is(err, unix.EINVAL) {
			t.Error(err)
		}
	})
	return dir
}

// freeze returns a function that runs another one while a mounted file system is frozen, and stores
// the duration.
func freeze(t *testing.T, dir string, waited *time.Duration) func(func() error) error {
	t.Helper()
	return func(do func() error) error {
		d := must(os.Open(dir))(t)
		defer d.Close()
		if err := unix.IoctlSetInt(int(d.Fd()), fiFreeze, 0); err != nil {
			return err
		}
		began := time.Now()
		err := do()
		*waited = time.Since(began)
		return errors.Join(err, unix.IoctlSetInt(int(d.Fd()), fiThaw, 0))
	}
}

const (
	fiFreeze = 0xc0045877
	fiThaw   = 0xc0045878
)

func unmountDir(t *testing.T, dir string) {
	t.Helper()
	if err := unix.Unmount(dir, 0); err != nil {
		t.Fatal(err)
	}
}

// must returns the value if there is no error.
func must[V any](v V, err error) func(*testing.T) V {
	return func(t *testing.T) V {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func digest(t *testing.T, v view, data extent.List) string {
	t.Helper()
	h := sha256.New()
	for _, e := range data {
		if _, err := io.Copy(h, io.NewSectionReader(v, e.Offset, e.Length)); err != nil {
			t.Fatal(err)
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

func eachKind(t *testing.T, test func(t *testing.T, encrypted bool)) {
	t.Helper()
	for name, encrypted := range map[string]bool{"plain": false, "encrypted": true} {
		t.Run(name, func(t *testing.T) { test(t, encrypted) })
	}
}

// TestKernelView: a view has everything written before it and nothing written later, and the file
// for copies contains no plaintext.
func TestKernelView(t *testing.T) {
	eachKind(t, func(t *testing.T, encrypted bool) {
		r := newKernelRig(t)
		im := r.image(t, 64*mib, encrypted)
		began := time.Now()
		h := must(r.open(t.Context(), im, r.key))(t)
		t.Logf("opened in %v", time.Since(began))
		command(t, "mke2fs", "-q", "-t", "ext4", "-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1", h.path())
		dir := mount(t, h.path())
		secret := bytes.Repeat([]byte("a secret of the volume. "), 2<<20/24)
		if err := os.WriteFile(filepath.Join(dir, "a"), secret, 0o600); err != nil {
			t.Fatal(err)
		}
		// A writer writes all the time.
		stop, stopped := make(chan struct{}), make(chan struct{})
		var longest time.Duration
		go func() {
			defer close(stopped)
			for {
				select {
				case <-stop:
					return
				default:
				}
				began := time.Now()
				if err := os.WriteFile(filepath.Join(dir, "busy"), secret[:64<<10], 0o600); err != nil {
					t.Error(err)
				}
				longest = max(longest, time.Since(began))
				<-time.After(10 * time.Millisecond)
			}
		}()
		unix.Sync()
		var waited time.Duration
		v := must(h.cut(t.Context(), "", freeze(t, dir, &waited)))(t)
		data := must(v.data(t.Context()))(t)
		t.Logf("the cut took %v, and a writer waited %v at most; %d extents, %d MiB", waited, longest, len(data), data.Length()/mib)
		first := digest(t, v, data)
		a := must(os.OpenFile(filepath.Join(dir, "a"), os.O_WRONLY, 0))(t)
		if _, err := a.WriteAt(bytes.Repeat([]byte("another one. "), 2<<20/13), 0); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(a.Sync(), a.Close()); err != nil {
			t.Fatal(err)
		}
		if again := digest(t, v, data); again != first {
			t.Error("the view has changed")
		}
		copied := must(os.ReadFile(r.copies(im.id)))(t)
		if bytes.Contains(copied, secret[:24*100]) == encrypted {
			t.Errorf("there is plaintext among the copies: %v", !encrypted)
		}
		if must(allocated(r.copies(im.id)))(t).Length() == 0 {
			t.Error("nothing was copied")
		}
		// The view is a file system as after a power failure.
		restored := filepath.Join(t.TempDir(), "restored")
		f := must(os.Create(restored))(t)
		for _, e := range data {
			b := make([]byte, e.Length)
			if _, err := v.ReadAt(b, e.Offset); err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt(b, e.Offset); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(f.Truncate(im.size), f.Close()); err != nil {
			t.Fatal(err)
		}
		command(t, "e2fsck", "-fn", restored)
		if out := command(t, "debugfs", "-R", "cat a", restored); !strings.Contains(out, string(secret)) {
			t.Error("the file is not in the view as it was")
		}
		close(stop)
		<-stopped
		if err := v.close(finishtest.Context(t)); err != nil {
			t.Fatal(err)
		}
		if states := must(r.states(t.Context(), im.id))(t); len(states) != 1 {
			t.Errorf("left of the view: %v", states)
		}
		command(t, "e2fsck", "-fn", restored)
		unmountDir(t, dir)
		command(t, "e2fsck", "-fn", h.path())
		if err := h.close(finishtest.Context(t)); err != nil {
			t.Fatal(err)
		}
		r.nothingLeft(t)
	})
}

// TestKernelGrow: a volume grows while it is in use, and during a view.
func TestKernelGrow(t *testing.T) {
	eachKind(t, func(t *testing.T, encrypted bool) {
		r := newKernelRig(t)
		im := r.image(t, 64*mib, encrypted)
		h := must(r.open(t.Context(), im, r.key))(t)
		command(t, "mke2fs", "-q", "-t", "ext4", h.path())
		dir := mount(t, h.path())
		var waited time.Duration
		v := must(h.cut(t.Context(), "", freeze(t, dir, &waited)))(t)
		data := must(v.data(t.Context()))(t)
		first := digest(t, v, data)
		for range 2 { // it may be repeated
			if err := h.grow(finishtest.Context(t), 160*mib); err != nil {
				t.Fatal(err)
			}
		}
		command(t, "resize2fs", h.path())
		if err := os.WriteFile(filepath.Join(dir, "big"), make([]byte, 100*mib), 0o600); err != nil {
			t.Fatal(err)
		}
		unix.Sync()
		if again := digest(t, v, data); again != first {
			t.Error("the view has changed")
		}
		if err := v.close(finishtest.Context(t)); err != nil {
			t.Fatal(err)
		}
		unmountDir(t, dir)
		command(t, "e2fsck", "-fn", h.path())
		if err := h.close(finishtest.Context(t)); err != nil {
			t.Fatal(err)
		}
		if info := must(os.Stat(im.path))(t); info.Size() != im.payload+160*mib {
			t.Errorf("the image has %d bytes", info.Size())
		}
	})
}
