package locks_test

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/hangar-platform/hangar/replica/locks"
)

// TestTableIsTheKernel sends random requests of several owners to a table and to the kernel, which
// must agree on each.
func TestTableIsTheKernel(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(5, 5))
	var kernel []locks.OFD
	for range 4 {
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		kernel = append(kernel, locks.OFD{File: f})
	}
	var table locks.Table
	for i := range 20_000 {
		owner := rng.IntN(len(kernel))
		start, n := rng.Uint64N(20), 1+rng.Uint64N(8)
		mode := locks.Mode(rng.IntN(3))
		want := kernel[owner].Set(mode, start, n)
		got := table.Set(locks.Lock{Range: locks.Range{First: start, Last: start + n - 1}, Owner: uint64(owner), Mode: mode})
		if errors.Is(got, locks.ErrBusy) != errors.Is(want, locks.ErrBusy) {
			t.Fatalf("request %d of owner %d, mode %d, %d bytes from %d: %v, the kernel says %v", i, owner, mode, n, start, got, want)
		}
	}
	for owner := range kernel {
		table.ReleaseOwner(uint64(owner))
	}
	if n := table.Len(); n != 0 {
		t.Errorf("%d locks left", n)
	}
}

// TestWait: a request waits until another owner releases the lock.
func TestWait(t *testing.T) {
	var table locks.Table
	l := locks.Lock{Range: locks.Range{First: 1, Last: locks.ToEnd}, Owner: 1, Handle: 9, Mode: locks.Exclusive}
	if err := table.Set(l); err != nil {
		t.Fatal(err)
	}
	other := l
	other.Owner, other.Mode = 2, locks.Shared
	changed, err := table.SetOrWait(other)
	if !errors.Is(err, locks.ErrBusy) {
		t.Fatal(err)
	}
	if held, busy := table.Test(other); !busy || held.Owner != 1 {
		t.Errorf("%+v", held)
	}
	table.ReleaseHandle(9)
	<-changed
	if _, err := table.SetOrWait(other); err != nil {
		t.Error(err)
	}
	if !table.Holds(2, locks.Shared, locks.Range{First: 5, Last: 6}) || table.Holds(2, locks.Exclusive, locks.Range{First: 5, Last: 6}) {
		t.Error("what the owner holds")
	}
}

// TestFiles: locks of an open file and of this process exclude each other, like those of two
// programs.
func TestFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	open := func() *os.File {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	file, process := locks.OFD{File: open()}, locks.Process{File: open()}
	for _, step := range []struct {
		by   locks.Ranges
		mode locks.Mode
		want error
	}{
		{file, locks.Shared, nil},
		{process, locks.Exclusive, locks.ErrBusy},
		{process, locks.Shared, nil},
		{file, locks.None, nil},
		{file, locks.Exclusive, locks.ErrBusy},
		{process, locks.None, nil},
		{file, locks.Exclusive, nil},
		{process, locks.Shared, locks.ErrBusy},
		{file, locks.Shared, nil},
	} {
		if err := step.by.Set(step.mode, 128, 1); !errors.Is(err, step.want) {
			t.Errorf("%T %d: %v, want %v", step.by, step.mode, err, step.want)
		}
	}
}
