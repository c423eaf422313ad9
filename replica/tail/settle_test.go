package tail

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar/replica/database"
	"github.com/hangar-platform/hangar/replica/sqlite"
)

// noDatabases are the databases of a node that knows none yet.
type noDatabases struct{}

func (noDatabases) Database(string, bool) (*database.DB, error) { return nil, nil } //nolint:nilnil // it is not known
func (noDatabases) Named(name string) bool                      { return filepath.Ext(name) == ".db" }
func (noDatabases) Writable() bool                              { return true }

// TestSettledBeforeItIsSeen: Settled waits for a database that programs have just created until it is captured, but
// not for a file that has no commits.
func TestSettledBeforeItIsSeen(t *testing.T) {
	dir := t.TempDir()
	header := "SQLite format 3\x00\x10\x00" + strings.Repeat("\x00", sqlite.HeaderSize)
	for name, content := range map[string]string{"app.db": header, "empty.db": "", "text.db": strings.Repeat("text", 99), "notes.txt": header} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, want := range map[string]error{
		"app.db": context.Canceled, "empty.db": nil, "text.db": nil, "other.db": nil, "notes.txt": nil,
	} {
		if err := New(Config{Dir: dir, Databases: noDatabases{}}).Settled(ctx, name); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
}

// TestForget: a name that is no database is not watched any more, unless a program is about to make one.
func TestForget(t *testing.T) {
	dir := t.TempDir()
	header := "SQLite format 3\x00\x10\x00" + strings.Repeat("\x00", sqlite.HeaderSize)
	for name, content := range map[string]string{"app.db": header, "empty.db": "", "text.db": "text", "again.db": "text"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "sub.db"), 0o700); err != nil {
		t.Fatal(err)
	}
	tail := New(Config{Dir: dir, Databases: noDatabases{}})
	for name, want := range map[string]bool{
		"app.db": false, "empty.db": false, "again.db": false, "text.db": true, "sub.db": true, "removed.db": true,
	} {
		wake := make(chan struct{}, 1)
		tail.wake[name] = wake
		if name == "again.db" {
			wake <- struct{}{} // it was written
		}
		if got := tail.forget(name); got != want || (tail.wake[name] == nil) != want {
			t.Errorf("%s: %t, want %t", name, got, want)
		}
	}
}
