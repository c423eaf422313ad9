package volume_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/host/volume"
	"github.com/hangar-platform/hangar/internal/finish/finishtest"
)

// TestDamage: a file that is not an image of the volume is refused with its own reason, and left
// unchanged.
func TestDamage(t *testing.T) {
	const size = 8 * mib
	flip := func(at int64) func(*testing.T, *os.File) {
		return func(t *testing.T, f *os.File) {
			t.Helper()
			b := make([]byte, 1)
			if _, err := f.ReadAt(b, at); err != nil {
				t.Fatal(err)
			}
			b[0] ^= 0x10
			if _, err := f.WriteAt(b, at); err != nil {
				t.Fatal(err)
			}
		}
	}
	truncate := func(size int64) func(*testing.T, *os.File) {
		return func(t *testing.T, f *os.File) {
			t.Helper()
			if err := f.Truncate(size); err != nil {
				t.Fatal(err)
			}
		}
	}
	overwrite := func(t *testing.T, f *os.File) {
		t.Helper()
		if _, err := f.WriteAt(bytes.Repeat([]byte("foreign"), 2*mib/7+1), 0); err != nil {
			t.Fatal(err)
		}
	}
	secret, open := encrypted(size), plain(size)
	otherKey := secret
	otherKey.Key = bytes.Repeat([]byte{7}, 32)
	noKey := secret
	noKey.Key = nil
	aKey := open
	aKey.Key = otherKey.Key
	for name, tt := range map[string]struct {
		made, opened volume.Spec
		damage       func(*testing.T, *os.File)
		want         error
	}{
		"wrong key":             {secret, otherKey, nil, volume.ErrWrongKey},
		"encrypted, not plain":  {secret, noKey, nil, volume.ErrForeign},
		"plain, not encrypted":  {open, aKey, truncate(size + 2*mib), volume.ErrForeign},
		"magic flipped":         {secret, secret, flip(0), volume.ErrDamaged},
		"version flipped":       {secret, secret, flip(7), volume.ErrDamaged},
		"payload flipped":       {secret, secret, flip(107), volume.ErrDamaged},
		"salt flipped":          {secret, secret, flip(140), volume.ErrDamaged},
		"slot flipped":          {secret, secret, flip(212), volume.ErrDamaged},
		"key material flipped":  {secret, secret, flip(5000), volume.ErrDamaged},
		"unused space flipped":  {secret, secret, flip(1*mib + 5), volume.ErrDamaged},
		"checksum flipped":      {secret, secret, flip(2*mib - 4096 + 9), volume.ErrDamaged},
		"overwritten":           {secret, secret, overwrite, volume.ErrForeign},
		"truncated content":     {secret, secret, truncate(2*mib + size - 1), volume.ErrTruncated},
		"truncated header":      {secret, secret, truncate(5000), volume.ErrTruncated},
		"truncated to nothing":  {secret, secret, truncate(0), volume.ErrForeign},
		"truncated plain":       {open, open, truncate(size / 2), volume.ErrTruncated},
		"odd size":              {open, open, truncate(size + 4096), volume.ErrForeign},
		"larger, as extended":   {secret, secret, truncate(2*mib + size + mib), nil},
		"larger plain, as well": {open, open, truncate(size + mib), nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.create(tt.made)
			image := w.image(tt.made)
			if tt.damage != nil {
				f, err := os.OpenFile(image, os.O_RDWR, 0)
				if err != nil {
					t.Fatal(err)
				}
				tt.damage(t, f)
				_ = f.Close()
			}
			before, err := os.ReadFile(image)
			if err != nil {
				t.Fatal(err)
			}
			if err := w.Verify(t.Context(), tt.opened); !errors.Is(err, tt.want) {
				t.Errorf("verify: %v, want %v", err, tt.want)
			}
			d, err := w.Attach(t.Context(), tt.opened)
			if !errors.Is(err, tt.want) {
				t.Errorf("attach: %v, want %v", err, tt.want)
			}
			if tt.want == nil && err == nil {
				w.close(d)
			}
			if ids, err := w.List(t.Context()); err != nil || len(ids) != 0 {
				t.Errorf("open: %v, %v", ids, err)
			}
			after, err := os.ReadFile(image)
			if err != nil || !bytes.Equal(before, after) {
				t.Errorf("the image was changed, %v", err)
			}
		})
	}
}

// TestImageIsNoLink: an image must be a file in the directory.
func TestImageIsNoLink(t *testing.T) {
	w := newWorld(t)
	spec := plain(8 * mib)
	w.create(spec)
	image := w.image(spec)
	if err := errors.Join(os.Rename(image, image+"2"), os.Symlink(image+"2", image)); err != nil {
		t.Fatal(err)
	}
	if err := w.Verify(t.Context(), spec); !errors.Is(err, unix.ELOOP) {
		t.Errorf("a symbolic link: %v", err)
	}
	if err := errors.Join(os.Remove(image), os.Mkdir(image, 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := w.Verify(t.Context(), spec); !errors.Is(err, volume.ErrForeign) {
		t.Errorf("a directory: %v", err)
	}
}

// TestRemoveDestroysTheKey: after Remove, nothing of the key is left on the disk.
func TestRemoveDestroysTheKey(t *testing.T) {
	w := newWorld(t)
	spec := encrypted(8 * mib)
	w.create(spec)
	image := w.image(spec)
	kept := filepath.Join(t.TempDir(), "kept") // as a file system may keep the blocks of a removed file
	if err := os.Link(image, kept); err != nil {
		t.Skip("no hard links: ", err)
	}
	if err := w.Remove(finishtest.Context(t), spec.ID); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(filepath.Dir(image), 0o700), os.Rename(kept, image)); err != nil {
		t.Fatal(err)
	}
	if err := w.Verify(t.Context(), spec); !errors.Is(err, volume.ErrForeign) {
		t.Errorf("the key still opens what is left: %v", err)
	}
}

// TestUnfinishedImage: a crash during the creation of an image leaves none.
func TestUnfinishedImage(t *testing.T) {
	w := newWorld(t)
	spec := encrypted(8 * mib)
	unfinished := w.image(spec) + ".tmp"
	if err := os.Mkdir(filepath.Dir(unfinished), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(unfinished, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := w.Verify(t.Context(), spec); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("half an image: %v", err)
	}
	w.create(spec)
	if err := w.Verify(t.Context(), spec); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(unfinished); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what was unfinished: %v", err)
	}
}
