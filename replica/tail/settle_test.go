package tail

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/hangar-platform/hangar/replica/database"
)

// noDatabases are the databases of a node that knows none yet.
type noDatabases struct{}

func (noDatabases) Database(string, bool) (*database.DB, error) { return nil, nil } //nolint:nilnil // it is not known
func (noDatabases) Named(name string) bool                      { return filepath.Ext(name) == ".db" }
func (noDatabases) Writable() bool                              { return true }

// TestSettledBeforeItIsSeen: Settled waits for a database that programs have just created until it is captured.
func TestSettledBeforeItIsSeen(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"app.db", "notes.txt"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, want := range map[string]error{"app.db": context.Canceled, "other.db": nil, "notes.txt": nil} {
		if err := New(Config{Dir: dir, Databases: noDatabases{}}).Settled(ctx, name); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
}
