package state_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/internal/diskspace"
	"github.com/hangar-platform/hangar/internal/diskspace/disktest"
)

// TestFullDisk writes to the state while others repeatedly fill the disk to the last byte. Writes
// are durable or refused with the reason; the process survives, and starts on the full disk; reads
// continue.
func TestFullDisk(t *testing.T) {
	kinds, writes := disktest.Kinds(), 2000
	if testing.Short() {
		kinds, writes = kinds[:1], 1200
	}
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			dir := disktest.Mount(t, kind, 1<<30)
			open := func() (*state.Etcd, *diskspace.Space) {
				log := slog.New(slog.DiscardHandler)
				space := diskspace.New(diskspace.Options{Dir: dir, Reserve: 256 << 20, Log: log, Now: time.Now})
				if err := space.Open(); err != nil {
					t.Fatal(err)
				}
				s, err := state.OpenEtcd(t.Context(), state.EtcdConfig{Dir: filepath.Join(dir, "state"), Space: space, Log: log})
				if err != nil {
					t.Fatal(err)
				}
				return s, space
			}
			value := make([]byte, 64<<10)
			acked := 0
			full := func(err error) bool { return hangar.ReasonOf(err) == hangar.ReasonDiskFull }
			write := func(s *state.Etcd, n int) (refused int) {
				for range n {
					var err error
					for range 10 { // a disk that stalls is not full
						put := state.Put(fmt.Sprintf("/key/%04d", acked), value)
						if _, err = s.Txn(t.Context(), state.Txn{Then: []state.Op{put}}); err == nil || full(err) {
							break
						}
					}
					switch {
					case err == nil:
						acked++
					case hangar.CodeOf(err) != hangar.CodeUnavailable || !full(err):
						t.Fatalf("the write on a full disk: %v", err)
					default:
						refused++
					}
				}
				return refused
			}
			check := func(s *state.Etcd) {
				items, _, err := state.All(t.Context(), s, "/key/", true)
				if err != nil || len(items) != acked {
					t.Fatalf("%d of %d keys are there: %v", len(items), acked, err)
				}
			}
			s, space := open()
			if refused := write(s, 16); refused > 0 {
				t.Fatalf("%d writes were refused on an empty disk", refused)
			}
			first := disktest.Fill(t, dir, 0)
			if _, err := space.Status(); err != nil { // the ballast goes
				t.Fatal(err)
			}
			if refused := write(s, 16); refused > 0 {
				t.Errorf("%d writes were refused with the room of the ballast", refused)
			}
			second := disktest.Fill(t, dir, 0)
			if refused := write(s, 64); refused < 64 {
				t.Errorf("%d writes were admitted on a disk without any room", 64-refused)
			}
			check(s)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(second); err != nil {
				t.Fatal(err)
			}
			s, _ = open() // in the room of the ballast
			check(s)
			if err := os.Remove(first); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for write(s, 1) > 0 {
				if ctx.Err() != nil {
					t.Fatal("there is room, and writes are refused still")
				}
			}
			if refused := write(s, writes); refused > 0 { // over several files of the log
				t.Errorf("%d writes were refused on an empty disk", refused)
			}
			check(s)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestStartNeedsNoFile: the file that etcd creates at each start exists before, because a full disk
// may have no room for another file.
func TestStartNeedsNoFile(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		s := openEtcd(t, dir)
		if _, err := s.Txn(t.Context(), state.Txn{Then: []state.Op{state.Put("/key", nil)}}); err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(dir, "member", ".touch")); err != nil {
			t.Error(err)
		}
	}
}
