package volume

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/internal/finish/finishtest"
)

var errRelease = errors.New("not yet")

// stubborn is a backend with one volume. Its device never closes, and its release succeeds after a
// number of failures.
type stubborn struct {
	backend
	handle

	device   string
	failures int
	releases int
}

func (s *stubborn) path() string { return s.device }

func (s *stubborn) err() error { return nil }

func (s *stubborn) leave() error { return nil }

func (s *stubborn) close(ctx finish.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func (s *stubborn) release(ctx finish.Context, _ hangar.VolumeID) error {
	s.releases++
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.failures--; s.failures >= 0 {
		return errRelease
	}
	return nil
}

// TestLocksEnd: an unused volume has no lock.
func TestLocksEnd(t *testing.T) {
	v, id := New(Options{}), hangar.NewVolumeID()
	unlock, err := v.lock(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := v.lock(ended, id); err == nil || len(v.locks) != 1 {
		t.Errorf("%d locks, and a second one of the same volume: %v", len(v.locks), err)
	}
	unlock()
	if len(v.locks) != 0 {
		t.Errorf("%d locks are left", len(v.locks))
	}
}

// TestForcedRelease: a forced release still has time after closing has used up its own, and the
// volume counts as open until the release succeeds.
func TestForcedRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, failures := range []int{0, 1} {
			id := hangar.NewVolumeID()
			s := &stubborn{device: filepath.Join(t.TempDir(), "device"), failures: failures}
			if err := os.WriteFile(s.device, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			v := New(Options{Dir: t.TempDir(), Run: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
			v.backend = backends{s}
			d := &Device{v: v, image: image{id: id}, handle: s}
			v.devices[id] = d
			if failures > 0 {
				if err := d.Close(finishtest.Context(t)); !errors.Is(err, errRelease) {
					t.Fatalf("closed: %v", err)
				}
				if err := d.Err(); !errors.Is(err, ErrLost) {
					t.Errorf("released in part, it has the error %v", err)
				}
				if err := v.Remove(finishtest.Context(t), id); err == nil {
					t.Error("removed while a part of it is open")
				}
			}
			for range 2 { // it may be repeated
				if err := d.Close(finishtest.Context(t)); err != nil {
					t.Fatal(err)
				}
			}
			if s.releases != 1+failures {
				t.Errorf("released %d times", s.releases)
			}
			if err := v.Remove(finishtest.Context(t), id); err != nil {
				t.Error(err)
			}
		}
	})
}
