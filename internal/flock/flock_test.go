package flock_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/flock"
)

func TestWait(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	open := func() *os.File {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	first, second := open(), open()
	if err := flock.Wait(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	cancel(enough)
	if err := flock.Wait(ctx, second); !errors.Is(err, enough) {
		t.Errorf("while it is locked: %v", err)
	}
	waited := make(chan error)
	go func() { waited <- flock.Wait(t.Context(), second) }()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; err != nil {
		t.Error(err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if err := flock.Wait(t.Context(), second); !errors.Is(err, unix.EBADF) {
		t.Errorf("of a closed file: %v", err)
	}
}
