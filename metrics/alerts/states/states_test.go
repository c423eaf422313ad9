package states_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/metrics/alerts/states"
)

func open(t *testing.T, path string) *states.Store {
	t.Helper()
	s, err := states.Open(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func load(t *testing.T, s *states.Store, kind states.Kind, org hangar.OrgID) map[string]string {
	t.Helper()
	values, err := s.Load(kind, org)
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{}
	for k, v := range values {
		texts[k] = string(v)
	}
	return texts
}

func TestStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "alerts.db")
	s := open(t, path)
	save := func(kind states.Kind, org hangar.OrgID, values map[string][]byte) {
		t.Helper()
		if err := s.Save(kind, org, values); err != nil {
			t.Fatal(err)
		}
	}
	save(states.Alerts, "a", map[string][]byte{"x": []byte("1"), "y": []byte("2")})
	save(states.Alerts, "a", map[string][]byte{"x": nil, "z": []byte("3")})
	save(states.Notices, "a", map[string][]byte{"x": []byte("4")})
	save(states.Alerts, "b", map[string][]byte{"x": []byte("5")})
	save(states.Alerts, "c", nil)

	// Copies the current file without Close, as SIGKILL would leave it.
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(t.TempDir(), "copy.db")
	if err := os.WriteFile(copied, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	s = open(t, copied)
	if diff := cmp.Diff(map[string]string{"y": "2", "z": "3"}, load(t, s, states.Alerts, "a")); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]string{"x": "5"}, load(t, s, states.Alerts, "b")); diff != "" {
		t.Error(diff)
	}
	orgs, err := s.Orgs()
	slices.Sort(orgs)
	if err != nil || !slices.Equal(orgs, []hangar.OrgID{"a", "b"}) {
		t.Errorf("organizations %v, %v", orgs, err)
	}
	for range 2 {
		if err := s.Forget("a"); err != nil {
			t.Fatal(err)
		}
	}
	if got := load(t, s, states.Notices, "a"); len(got) > 0 {
		t.Errorf("%v is left of a", got)
	}
	if got := load(t, s, states.Alerts, "b"); len(got) != 1 {
		t.Errorf("%v is left of b", got)
	}
}

func TestLocked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "alerts.db")
	open(t, path)
	if _, err := states.Open(path, slog.New(slog.DiscardHandler)); err != states.ErrLocked { //nolint:errorlint // as it is
		t.Errorf("a second Open: %v", err)
	}
}

func TestDamaged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "alerts.db")
	broken := bytes.Repeat([]byte("no database "), 4096)
	if err := os.WriteFile(path, broken, 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, path)
	if got := load(t, s, states.Alerts, "a"); len(got) > 0 {
		t.Errorf("a new file has %v", got)
	}
	if aside, err := os.ReadFile(path + ".damaged"); err != nil || !bytes.Equal(aside, broken) {
		t.Errorf("the damaged file is not put aside: %v", err)
	}
}

// TestUnreadable: while the disk does not read a part of the file, calls fail, and the next Open puts it aside.
func TestUnreadable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "alerts.db")
	s := open(t, path)
	if err := s.Save(states.Alerts, "a", map[string][]byte{"x": make([]byte, 100_000)}); err != nil {
		t.Fatal(err)
	}
	// Reading beyond the end of a file that is mapped into memory faults, as a failed read does.
	if err := os.Truncate(path, int64(2*os.Getpagesize())); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Load(states.Alerts, "a"); err == nil {
		t.Error("loaded what cannot be read")
	}
	if err := s.Save(states.Alerts, "a", map[string][]byte{"x": nil}); err == nil {
		t.Error("saved where nothing can be read")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	s = open(t, path)
	if got := load(t, s, states.Alerts, "a"); len(got) > 0 {
		t.Errorf("a new file has %v", got)
	}
	if _, err := os.Stat(path + ".damaged"); err != nil {
		t.Errorf("the damaged file is not put aside: %v", err)
	}
}

func TestConcurrentWriters(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "alerts.db"))
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			org := hangar.OrgID(fmt.Sprint(i % 4))
			for j := range 5 {
				if err := s.Save(states.Alerts, org, map[string][]byte{fmt.Sprint(i, j): []byte("x")}); err != nil {
					t.Error(err)
				}
				if got := load(t, s, states.Alerts, org)[fmt.Sprint(i, j)]; got != "x" {
					t.Errorf("a value that was saved is %q", got)
				}
			}
		})
	}
	wg.Wait()
	for _, org := range []hangar.OrgID{"0", "1", "2", "3"} {
		if got := load(t, s, states.Alerts, org); len(got) != 25 {
			t.Errorf("%s has %d values", org, len(got))
		}
	}
	s.Close()
	if err := s.Save(states.Alerts, "0", map[string][]byte{"x": nil}); err == nil {
		t.Error("saved after Close")
	}
}
