package tail

import (
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/replica/database"
)

// asked are databases of which none exists. It sends the names that it is asked for.
type asked struct{ names chan string }

func (asked) Database(string, bool) (*database.DB, error) { return nil, nil }
func (asked) Writable() bool                              { return false }

func (a asked) Named(name string) bool {
	a.names <- name
	return false
}

// TestOverflow: after the kernel has dropped events, files are found that were made meanwhile.
func TestOverflow(t *testing.T) {
	dir := t.TempDir()
	touch := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	touch("early.db")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	names := make(chan string)
	tail := New(Config{Dir: dir, Databases: asked{names}, Log: slog.New(slog.DiscardHandler)})
	ended := make(chan error, 1)
	go func() { ended <- tail.follow(t.Context(), &watch{f: r}) }()
	if got := <-names; got != "early.db" {
		t.Error(got)
	}
	if err := os.Remove(filepath.Join(dir, "early.db")); err != nil {
		t.Fatal(err)
	}
	touch("late.db")
	event := make([]byte, unix.SizeofInotifyEvent)
	binary.NativeEndian.PutUint32(event, ^uint32(0)) // no watch
	binary.NativeEndian.PutUint32(event[4:], unix.IN_Q_OVERFLOW)
	if _, err := w.Write(event); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for found := false; ; {
		select {
		case got := <-names:
			found = found || got == "late.db"
		case err := <-ended:
			if !found || !errors.Is(err, io.EOF) {
				t.Errorf("found: %t, %v", found, err)
			}
			return
		}
	}
}
