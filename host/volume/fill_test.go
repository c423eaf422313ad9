package volume_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/hangar-platform/hangar/host/volume"
)

// TestFill: a target keeps writes of any size.
func TestFill(t *testing.T) {
	w := newWorld(t)
	spec := encrypted(16 * mib)
	w.create(spec)
	d := w.attach(spec)
	target, err := d.Fill(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := make([]byte, 16*mib)
	rng := rand.New(rand.NewPCG(1, 2))
	if _, err := target.WriteAt(want, 0); err != nil {
		t.Fatal(err)
	}
	for range 300 {
		from := rng.IntN(len(want))
		n := min(1+rng.IntN(3*mib>>rng.IntN(22)), len(want)-from)
		part := bytes.Repeat([]byte{byte(rng.Int())}, n)
		copy(want[from:], part)
		if written, err := target.WriteAt(part, int64(from)); err != nil || written != n {
			t.Fatalf("%d of %d bytes at %d: %v", written, n, from, err)
		}
	}
	if _, err := target.WriteAt([]byte{1, 2}, int64(len(want))-1); err == nil {
		t.Error("wrote past the end")
	}
	want[len(want)-1] = 1
	if err := target.Flush(); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if _, err := target.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
		t.Errorf("content differs, %v", err)
	}
	if err := target.Close(); err != nil {
		t.Fatal(err)
	}
	w.close(d)
	d = w.attach(spec)
	f := freeze(t, d, "")
	if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
		t.Errorf("content differs in a view, %v", err)
	}
	endView(t, f)
	w.close(d)
}

// TestFillEnds: a target that writes into the image is exclusive, ends with the device, and its
// data is on the device.
func TestFillEnds(t *testing.T) {
	kinds(t, 16*mib, func(t *testing.T, w *world, spec volume.Spec) {
		w.create(spec)
		d := w.attach(spec)
		read := func() []byte {
			b := make([]byte, 8192)
			f, err := os.Open(d.Path())
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.ReadAt(b, 4096); err != nil {
				t.Fatal(err)
			}
			return b
		}
		read()
		target, err := d.Fill(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		read()
		want := bytes.Repeat([]byte("text"), 2048)
		if _, err := target.WriteAt(want, 4096); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Fill(t.Context()); err == nil {
			t.Error("filled by two at once")
		}
		if _, err := d.Mount(t.Context()); err == nil {
			t.Error("mounted while it is filled")
		}
		if err := target.Close(); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(read(), want) {
			t.Error("the device has something else")
		}
		if target, err = d.Fill(t.Context()); err != nil {
			t.Fatal(err)
		}
		if counts(d) {
			if _, err := d.Freeze(t.Context(), ""); !errors.Is(err, volume.ErrFilling) {
				t.Errorf("frozen while it is filled: %v", err)
			}
			w.close(d)
			if _, err := target.WriteAt(want, 0); !errors.Is(err, os.ErrClosed) {
				t.Errorf("wrote to what is closed: %v", err)
			}
			return
		}
		if err := target.Close(); err != nil {
			t.Fatal(err)
		}
		w.close(d)
	})
}
