// Package volumes owns the volumes of a host: their records, the operations on them, and the life
// of their snapshots.
//
// A volume is a record of the journal, which names the Machine that has it: that is decided
// together with the life of the Machine, in the same commit (Claim, Release). It is open on the
// host while that Machine runs or a reader needs it, and closed with all data on the disk before
// the Machine is at rest (Mount, Unmount). A volume that is lost under a running Machine ends it; a
// damaged one is never mounted. A change is recorded before it is made, so that a kill at any
// moment leaves a record from which the next start finishes or undoes what was under way.
//
// All methods of a Store may be called from many goroutines. A Machine's lock is taken before
// those of volumes, and those of several volumes in the order of their ids.
//
// The package does not know how a volume is stored or opened, which is package volume's part, nor
// more of Machines than the interface Machines says.
package volumes

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/host/logs"
	"github.com/hangar-platform/hangar/internal/background"
	"github.com/hangar-platform/hangar/internal/diskspace"
	"github.com/hangar-platform/hangar/internal/fairsem"
	"github.com/hangar-platform/hangar/internal/keyset"
)

// Machines is what a Store needs of the Machines that have its volumes.
type Machines interface {
	// MountOf returns how a Machine mounts a volume; false: there is no such Machine, or it does
	// not mount it.
	MountOf(id hangar.MachineID, volume hangar.VolumeID) (hangar.Mount, bool)
	// DescribeVolume updates a volume in the Machine that it is attached to.
	DescribeVolume(volume *hangar.Volume) error
	// AwaitEnd waits, within limits, for the end of a Machine that is being destroyed, and
	// for no other.
	AwaitEnd(ctx context.Context, ref hangar.MachineRef)
	// Owns reports whether a Machine may own things on the host, because there is a record of it.
	Owns(id hangar.MachineID) bool
	// MayRun reports whether the sandbox of a Machine may still be there and use its volumes.
	MayRun(id hangar.MachineID) bool
	// First returns the first Machine of an App; empty: it has none.
	First(app hangar.AppID) hangar.MachineID
	// Memory is how many bytes of memory the host has for Machines, and has left.
	Memory() (capacity, left int64)
}

// Options are the dependencies of a Store. Fields with a documented zero value are optional.
type Options struct {
	Host      hangar.HostID
	Driver    string // the name of the driver of Machines, for errors about what it cannot do
	Machines  Machines
	Devices   Devices
	Journal   *journal.Journal
	Logs      *logs.Store
	Keys      *keyset.Keyset // encrypts the keys of volumes in the journal
	Publisher hangar.VolumePublisher
	Archive   Archive               // of snapshots; nil: there are none
	Space     *diskspace.Space      // of the disk of the volumes; nil: its room is not looked at
	Metrics   prometheus.Registerer // nil: none
	Log       *slog.Logger
	Now       func() time.Time
	// Overcommit is how many times its room the disk is promised to volumes; 0: once.
	Overcommit float64
	// PerMachine is how many volumes a Machine may mount; 0: one.
	PerMachine int
	// ArchivePatience is how long callers wait for an archive that cannot be opened. FillPatience
	// is how long a volume that cannot be filled is retried. 0: DefaultArchivePatience,
	// DefaultFillPatience.
	ArchivePatience, FillPatience time.Duration
}

// The defaults of Options.
const (
	DefaultArchivePatience = time.Minute
	DefaultFillPatience    = 10 * time.Minute
)

// Store implements hangar.VolumeAgent. The verbs are its own.
type Store struct {
	*index    // its volumes
	*rows     // what the other planes see of them
	*keys     // encrypts their keys
	*promises // room of the disk that is promised to them
	*archiver // stores their snapshots
	*drills   // of their snapshots
	*rounds   // scheduled work on their snapshots

	o       Options
	expiry  *expiry
	creates singleflight.Group
	metrics metrics

	// Semaphores for work that competes with Machines for the disk, by organization.
	snapshots *fairsem.Semaphore[hangar.OrgID] // being taken
	fills     *fairsem.Semaphore[hangar.OrgID] // of volumes

	work *background.Group // set by Open
}

var _ hangar.VolumeAgent = (*Store)(nil)

// New returns a Store that knows no volumes yet.
func New(o Options) *Store {
	o.ArchivePatience = cmp.Or(o.ArchivePatience, DefaultArchivePatience)
	if o.Overcommit <= 0 {
		o.Overcommit = 1
	}
	o.PerMachine = max(1, o.PerMachine)
	o.FillPatience = cmp.Or(o.FillPatience, DefaultFillPatience)
	s := &Store{
		o: o, index: &index{known: make(map[hangar.VolumeID]*volume)},
		snapshots: fairsem.New[hangar.OrgID](snapshotsAtOnce), fills: fairsem.New[hangar.OrgID](fillsAtOnce),
	}
	s.rows = &rows{index: s.index, journal: o.Journal, to: o.Publisher, host: o.Host, log: o.Log}
	s.keys = &keys{index: s.index, keyset: o.Keys, log: o.Log}
	s.promises = &promises{index: s.index, o: &s.o, purging: semaphore.NewWeighted(1)}
	s.archiver = newArchiver(&s.o)
	s.expiry = newExpiry(o.Now, o.Log)
	s.drills = newDrills(s)
	s.metrics = newMetrics(o.Metrics, s)
	s.rounds = &rounds{index: s.index, drills: s.drills, soon: make(chan struct{}, 1), now: o.Now, log: o.Log}
	return s
}

// Open makes the volumes of the journal known. Sweep and Run follow, once the Machines are
// known, too.
func (s *Store) Open(ctx context.Context) error {
	s.work = background.New(ctx)
	s.archiver.lifetime = s.work.Context
	return s.load()
}

// Run continues the work of an earlier daemon, and starts the background work on volumes, until
// Stop.
func (s *Store) Run() error {
	if err := s.recoverSnapshots(); err != nil {
		return err
	}
	left := s.all() // without volumes that are created from here on
	s.work.Go(func() { s.keepUsage(s.work.Context, left) })
	if s.o.Archive != nil {
		s.work.Go(func() { s.rounds.keep(s.work.Context) })
		s.work.Go(func() { s.archiver.keep(s.work.Context) })
	}
	return nil
}

// Stop ends background work and requested work, without waiting for that. Requests of Machines are
// still served. It may be repeated.
func (s *Store) Stop() {
	if s.work != nil {
		s.work.Stop()
	}
}

// Close waits for everything that Stop ends, and releases the archive. It may be repeated.
func (s *Store) Close() error {
	if s.work == nil {
		return nil
	}
	s.Stop()
	s.work.Wait()
	return s.archiver.close()
}

func (s *Store) newVolume(rec *journal.VolumeRecord) *volume {
	v := &volume{store: s, id: rec.Volume.ID, claims: semaphore.NewWeighted(1), still: semaphore.NewWeighted(1)}
	v.open.v = v
	v.rec.Store(rec)
	return v
}

// forget removes the record of a volume that is gone. Nothing changes it any more.
func (s *Store) forget(v *volume) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	ref := v.rec.Load().Volume.Ref()
	err := s.o.Journal.Commit(func(tx *journal.Tx) error { return tx.DeleteVolume(ref) })
	if err != nil {
		return notRecorded(v.id, err)
	}
	v.forgotten = true
	s.remove(v)
	return nil
}

// note writes a line of the platform's own into the log of a Machine of the volume's App.
func (v *volume) note(id hangar.MachineID, level, format string, args ...any) {
	of := &v.rec.Load().Volume
	v.store.o.Logs.Append(hangar.MachineRef{App: of.App, AppID: of.AppID, ID: id}, hangar.LogRunner, level, fmt.Sprintf(format, args...))
}

// Keys of log lines.
const (
	keyApp      = "app"
	keyVolume   = "volume"
	keySnapshot = "snapshot"
	keyStep     = "step"
	keyState    = "state"
	keyError    = "error"
)
