package volumes_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/host/logs"
	"github.com/hangar-platform/hangar/host/volumes"
	"github.com/hangar-platform/hangar/host/volumes/volumestest"
	"github.com/hangar-platform/hangar/internal/keyset"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// noMachines is a host without Machines, for which it has memory.
type noMachines struct{ records bool }

func (noMachines) MountOf(hangar.MachineID, hangar.VolumeID) (hangar.Mount, bool) {
	return hangar.Mount{}, false
}
func (noMachines) DescribeVolume(*hangar.Volume) error         { return nil }
func (noMachines) AwaitEnd(context.Context, hangar.MachineRef) {}
func (m noMachines) Owns(hangar.MachineID) bool                { return m.records }
func (noMachines) MayRun(hangar.MachineID) bool                { return false }
func (noMachines) First(hangar.AppID) hangar.MachineID         { return "" }
func (noMachines) Memory() (capacity, left int64)              { return 8 << 30, 8 << 30 }

// rig is a Store on a pretend disk, which outlives it.
type rig struct {
	volumestest.Rig
	dir     string
	disk    *volumestest.Disk
	session *volumestest.Session // of the disk, the Store's
	store   *volumestest.Archive
	vols    *volumestest.Rows
	journal *journal.Journal // the Store's
	ahead   atomic.Int64     // nanoseconds by which the Store's clock is

	archivePatience time.Duration   // set before open
	none            volumes.Devices // instead of the disk; set before open
	machines        noMachines      // set before open

	*volumes.Store
	close func()
	crash func() // as close, but as a kill does it
}

func newRig(tb testing.TB) *rig {
	tb.Helper()
	r := &rig{Rig: volumestest.Rig{TB: tb}, dir: tb.TempDir(), disk: volumestest.NewDisk(tb.TempDir()), store: volumestest.NewArchive(), vols: &volumestest.Rows{}}
	r.open()
	tb.Cleanup(func() {
		r.close()
		if misuses := r.disk.Misuses(); len(misuses) > 0 {
			tb.Errorf("the Store misused its images: %v", misuses)
		}
	})
	return r
}

// open opens a Store on what the one before has left, and does with it what an agent does.
func (r *rig) open() {
	r.Helper()
	ctx := context.Background()
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	j, err := journal.Open(filepath.Join(r.dir, "journal.db"), journal.Options{Log: log})
	r.must(err)
	l := logs.New(logs.Options{Dir: filepath.Join(r.dir, "logs"), Region: "loc", Log: log, Now: time.Now})
	r.must(l.Open(ctx))
	path := filepath.Join(r.dir, keyset.File)
	keys, err := keyset.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		keys, err = keyset.Create(path)
	}
	r.must(err)
	session := r.disk.Session()
	disk := volumes.Devices(session)
	if r.none != nil {
		disk = r.none
	}
	r.Counts = prometheus.NewRegistry()
	s := volumes.New(volumes.Options{
		Host: "0000aaaa", Driver: "fake", Machines: r.machines, Devices: disk, Journal: j, Logs: l, Keys: keys, Publisher: r.vols, Archive: r.store,
		Metrics: r.Counts, Log: log, Now: func() time.Time { return time.Now().Add(time.Duration(r.ahead.Load())) }, PerMachine: 2,
		ArchivePatience: r.archivePatience,
	})
	r.must(s.Open(ctx))
	r.must(s.Sweep(ctx))
	r.must(s.Run())
	r.Store, r.Volumes, r.session, r.journal = s, s, session, j
	working, stop := context.WithCancel(ctx)
	var work sync.WaitGroup
	work.Go(func() { s.Purge(working) })
	work.Go(func() {
		for working.Err() == nil {
			if sent, err := s.PublishSome(working); sent > 0 || err != nil {
				continue
			}
			select {
			case <-j.Changed():
			case <-working.Done():
			}
		}
	})
	var once sync.Once
	r.close = func() {
		once.Do(func() {
			stop()
			work.Wait()
			for _, err := range []error{s.Close(), l.Close(), j.Close()} {
				r.check(err)
			}
		})
	}
	r.crash = func() {
		once.Do(func() {
			session.Kill() // nothing is done to the disk from now on, and nothing recorded
			stop()
			for _, err := range []error{j.Close(), l.Close()} {
				r.check(err)
			}
			work.Wait()
			r.check(s.Close())
		})
	}
}

func (r *rig) check(err error) {
	r.Helper()
	if err != nil {
		r.Error(err)
	}
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// restart replaces the Store, as when the daemon is restarted.
func (r *rig) restart() {
	r.Helper()
	r.close()
	r.open()
}

// until waits for a condition without an event.
func (r *rig) until(true func() bool) {
	r.Helper()
	for deadline := time.Now().Add(time.Minute); !true(); <-time.After(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.Fatal("it did not happen")
		}
	}
}
