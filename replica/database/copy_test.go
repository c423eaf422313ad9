package database_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/hangar-platform/hangar/replica/database"
	"github.com/hangar-platform/hangar/replica/sqlite"
)

// TestSpool refuses pages that no database has, also after valid ones.
func TestSpool(t *testing.T) {
	dir := t.TempDir()
	db, err := database.Open(database.Config{Name: "a.db", Dir: dir, Log: dir + "/log"})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	s, err := db.NewSpool()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, c := range []struct {
		page uint32
		size int
		err  error
	}{{0, 512, sqlite.ErrNotDatabase}, {1, 512, nil}, {0, 512, sqlite.ErrNotDatabase}, {2, 500, sqlite.ErrNotDatabase}, {2, 1024, nil}} {
		if err := s.Add(c.page, make([]byte, c.size)); !errors.Is(err, c.err) {
			t.Errorf("page %d of %d bytes: %v, want %v", c.page, c.size, err, c.err)
		}
	}
}

// TestOpenRemovesUnfinishedFile: the new file of an import that ended with its process takes no room.
func TestOpenRemovesUnfinishedFile(t *testing.T) {
	dir := t.TempDir()
	left := filepath.Join(dir, ".a.db-new")
	if err := os.WriteFile(left, make([]byte, 512), 0o600); err != nil {
		t.Fatal(err)
	}
	db, err := database.Open(database.Config{Name: "a.db", Dir: dir, Log: dir + "/log"})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Error("it is still there: ", err)
	}
}
