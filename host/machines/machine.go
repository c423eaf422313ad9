package machines

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/gate"
	"github.com/hangar-platform/hangar/host/journal"
)

// The files of a Machine, below its own directory.
const (
	sandboxDir  = "sandbox"  // the driver's
	snapshotDir = "snapshot" // memory, while suspended
	usedDir     = "used"     // a snapshot that was resumed from, about to be removed
	outputFile  = "output"   // FIFO of stdout and stderr
	roleFile    = "role"     // the Machine assumes a role
)

// The content of the writable layer of a Machine: all that it can write, and so all that has to
// count against the size of the layer.
const (
	upperDir = "root"  // its root file system, as far as it is not the image's; the driver's
	etcDir   = "etc"   // hosts, hostname and resolv.conf
	localDir = "local" // what it finds in hangar.GuestDir
	tokenNew = "token" // the token of its role, until it is in localDir
)

// machine is one Machine in memory: its record, how that changes, and its waiters. Its worker
// makes the record true.
type machine struct {
	store *Store
	id    hangar.MachineID

	rec    atomic.Pointer[journal.Record] // replaced under mu, never changed in place
	recent atomic.Pointer[[]hangar.Event] // see newest; replaced under mu, never changed in place
	ended  atomic.Pointer[ended]          // see lastExit; the same

	health atomic.Pointer[journal.Health] // that was journaled last by this daemon; nil: none was

	gate          *gate.Gate  // set when the Machine becomes known
	unsuspendable atomic.Bool // it could not be suspended for being idle since it was started
	noRoom        atomic.Bool // the disk had none to suspend it when that was last tried
	probes        probes      // of ports, for those that wake the Machine
	files         openFiles
	meter         meter

	roleMu sync.Mutex // held while the token of the Machine's role is given, renewed or removed

	mu        sync.Mutex              // held while a change is decided and committed
	interrupt context.CancelCauseFunc // ends the step under way; guarded by mu
	working   bool                    // the worker runs; guarded by mu
	dirty     bool                    // the worker has to look again; guarded by mu
	began     *journal.Record         // what the worker's step is about, or what has overtaken that; guarded by mu
	lease     *hangar.Lease           // nil: none, never changed in place; it may have expired; guarded by mu
	crowded   bool                    // the host lacked room for a run that is due by its schedule; guarded by mu
	busy      time.Time               // until when it has said that it is busy; zero: it is not; guarded by mu

	worker   worker // that makes the record true
	watchers watchers
}

// path returns a file of the Machine.
func (m *machine) path(name string) string {
	return filepath.Join(m.store.o.Dir, "machines", string(m.id), name)
}

// layer returns a file of the Machine's writable layer.
func (m *machine) layer(name string) string { return filepath.Join(m.store.o.Layers.Path(m.id), name) }

// errOvertaken ends a step whose Machine got another request meanwhile.
var errOvertaken = errors.New("overtaken by another request")

// change alters a copy of a Machine's record and says what happened.
type change func(next *journal.Record) []hangar.Event

// commit makes a change durable and then visible, and returns the new record. Each
// event is stamped with the state that the change brought. m.mu is held.
func (m *machine) commit(alter change) (*journal.Record, error) {
	return m.commitWith(m.lease, nil, alter)
}

func wholeSecond(t time.Time) time.Time { return t.UTC().Truncate(time.Second) }

// wake makes the worker read the record again, ending its current step. m.mu is held.
func (m *machine) wake() {
	m.dirty = true
	if m.interrupt != nil {
		m.interrupt(errOvertaken)
	}
	if !m.working {
		m.working = m.store.work.Go(m.worker.work)
	}
}

// note writes a line of the platform's own into the Machine's log.
func (m *machine) note(level, format string, args ...any) {
	m.store.o.Logs.Append(m.rec.Load().Machine.Ref(), hangar.LogRunner, level, fmt.Sprintf(format, args...))
}
