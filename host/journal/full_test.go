package journal_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/internal/diskspace/disktest"
	"github.com/hangar-platform/hangar/internal/racetest"
)

// TestFullDisk commits on a disk that others have filled to the last byte. Commits first succeed in
// the room that the journal has reserved. Then they are refused without damage, and work again when
// there is room. Committed records are never lost.
func TestFullDisk(t *testing.T) {
	racetest.Skip(t)
	for _, kind := range disktest.Kinds() {
		t.Run(kind, func(t *testing.T) {
			dir := disktest.Mount(t, kind, 320<<20)
			path := filepath.Join(dir, "journal.db")
			j, err := journal.Open(path, journal.Options{})
			if err != nil {
				t.Fatal(err)
			}
			put := func(n int) error {
				r := record(machineID(n), "m")
				r.Machine.Config.Env = map[string]string{"PAYLOAD": strings.Repeat("x", 1<<20)}
				return j.Commit(func(tx *journal.Tx) error { return tx.PutMachine(r) })
			}
			if err := put(0); err != nil {
				t.Fatal(err)
			}
			fill := disktest.Fill(t, dir, 0)
			const enough, inARow = 1000, 3
			acked, refused, failures := 1, 0, uint64(0)
			for acked < enough && refused < inARow {
				err := put(acked)
				switch {
				case err == nil: // also after a refusal, whose blocks the file system gives back a moment later
					acked++
					refused = 0
				case hangar.CodeOf(err) != hangar.CodeUnavailable || hangar.ReasonOf(err) != hangar.ReasonDiskFull || errors.Is(err, journal.ErrBroken):
					t.Fatalf("the commit on a full disk: %v", err)
				default:
					refused++
					failures++
				}
			}
			if got := j.Stats().Failures; got != failures {
				t.Errorf("%d commits were refused, and %d are counted", failures, got)
			}
			if acked < 4 || refused < inARow {
				t.Errorf("%d commits were possible on a full disk, and then %d were refused", acked, refused)
			}
			mustHold(t, j, acked)

			// A process that starts on the full disk can read the journal.
			if err := j.Close(); err != nil {
				t.Fatal(err)
			}
			if j, err = journal.Open(path, journal.Options{}); err != nil {
				t.Fatal(err)
			}
			defer j.Close()
			mustHold(t, j, acked)
			if err := os.Remove(fill); err != nil {
				t.Fatal(err)
			}
			if err := put(acked); err != nil {
				t.Fatalf("the commit after there was room: %v", err)
			}
			mustHold(t, j, acked+1)
		})
	}
}

func mustHold(t *testing.T, j *journal.Journal, machines int) {
	t.Helper()
	for n := range machines {
		if _, err := j.Machine(machineID(n)); err != nil {
			t.Fatalf("machine %d of %d: %v", n, machines, err)
		}
	}
}
