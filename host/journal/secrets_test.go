package journal_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	bolt "go.etcd.io/bbolt"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
)

func putSecrets(t *testing.T, j *journal.Journal, id hangar.MachineID, version hangar.InstanceID, text string) {
	t.Helper()
	commit(t, j, func(tx *journal.Tx) error {
		return tx.PutSecrets(journal.SealedSecrets{Machine: id, Version: version, Sealed: []byte(text)})
	})
}

// wantSecrets checks the secrets of a version; an empty text: it has none.
func wantSecrets(t *testing.T, j *journal.Journal, id hangar.MachineID, version hangar.InstanceID, want string) {
	t.Helper()
	got, err := j.Secrets(id, version)
	if want == "" && errors.Is(err, journal.ErrNotFound) {
		return
	}
	if err != nil || string(got) != want {
		t.Errorf("secrets of %s/%s are %q, %v; want %q", id, version, got, err, want)
	}
}

func TestSecretsOfVersions(t *testing.T) {
	j := open(t, journal.Options{NoSync: true})
	a, b := machineID(1), machineID(2)
	if has, err := j.HasSecrets(); err != nil || has {
		t.Errorf("a new journal has secrets: %t, %v", has, err)
	}
	putSecrets(t, j, a, "01", "one")
	putSecrets(t, j, a, "02", "two")
	putSecrets(t, j, b, "01", "other")
	putSecrets(t, j, a, "01", "first")
	wantSecrets(t, j, a, "01", "first")
	wantSecrets(t, j, a, "02", "two")
	wantSecrets(t, j, a, "03", "")
	if has, err := j.HasSecrets(); err != nil || !has {
		t.Errorf("has secrets: %t, %v", has, err)
	}
	commit(t, j, func(tx *journal.Tx) error { return tx.KeepSecrets(a, "02", "03") })
	wantSecrets(t, j, a, "01", "")
	wantSecrets(t, j, a, "02", "two")
	commit(t, j, func(tx *journal.Tx) error {
		return errors.Join(
			tx.ReplaceSecrets([]byte("other"), journal.SealedSecrets{Machine: a, Version: "02", Sealed: []byte("wrong")}),
			tx.ReplaceSecrets([]byte("other"), journal.SealedSecrets{Machine: a, Version: "01", Sealed: []byte("gone")}),
			tx.ReplaceSecrets([]byte("other"), journal.SealedSecrets{Machine: b, Version: "01", Sealed: []byte("right")}),
		)
	})
	wantSecrets(t, j, a, "01", "")
	wantSecrets(t, j, a, "02", "two")
	wantSecrets(t, j, b, "01", "right")
	commit(t, j, func(tx *journal.Tx) error { return tx.PutDestroyed(record(a, "m")) })
	wantSecrets(t, j, a, "02", "")
	wantSecrets(t, j, b, "01", "right")
}

func TestAllSecrets(t *testing.T) {
	j := open(t, journal.Options{NoSync: true})
	const machines = 150
	for i := range machines {
		putSecrets(t, j, machineID(i), "01", fmt.Sprint(i))
	}
	seen := map[hangar.MachineID]string{}
	err := j.AllSecrets(func(batch []journal.SealedSecrets) error {
		for _, s := range batch {
			if seen[s.Machine] != "" || s.Version != "01" {
				t.Errorf("%s/%s is yielded, had %q", s.Machine, s.Version, seen[s.Machine])
			}
			seen[s.Machine] = string(s.Sealed)
			putSecrets(t, j, s.Machine, s.Version, "again") // as a caller that yields to it does
		}
		return nil
	})
	if err != nil || len(seen) != machines || seen[machineID(7)] != "7" {
		t.Errorf("%d of %d were yielded, %v", len(seen), machines, err)
	}
	stop := errors.New("enough")
	if err := j.AllSecrets(func([]journal.SealedSecrets) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("went on after %v", err)
	}
}

// TestOlderJournal opens a journal from before secrets existed.
func TestOlderJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j := reopen(t, path, journal.Options{NoSync: true})
	put(t, j, record(machineID(1), "old"))
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	alter(t, path, func(tx *bolt.Tx) error { return tx.DeleteBucket([]byte("secrets")) })
	for range 2 {
		j = reopen(t, path, journal.Options{NoSync: true})
		if r, err := j.Machine(machineID(1)); err != nil || r.Machine.Name != "old" {
			t.Errorf("the record is %+v, %v", r, err)
		}
		putSecrets(t, j, machineID(1), "01", "one")
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
