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

// Files of a Machine, below its own directory.
const (
	sandboxDir  = "sandbox"  // the driver's
	snapshotDir = "snapshot" // memory, while suspended
	usedDir     = "used"     // a resumed snapshot, to be removed
	outputFile  = "output"   // FIFO of stdout and stderr
	roleFile    = "role"     // marks that the Machine assumes a role
)

// Content of the writable layer of a Machine: everything that it can write, which counts against
// the size of the layer (ADR 30).
const (
	upperDir = "root"  // changes to the image's root file system; the driver's
	etcDir   = "etc"   // hosts, hostname and resolv.conf
	localDir = "local" // mounted at hangar.GuestDir
	tokenNew = "token" // the new token of its role, before it is moved to localDir
)

// machine is one Machine in memory: its record, changes of it, and its waiters. Its worker carries
// out the record.
type machine struct {
	store *Store
	id    hangar.MachineID

	rec    atomic.Pointer[journal.Record] // replaced under mu, never changed in place
	recent atomic.Pointer[[]hangar.Event] // see newest; replaced under mu, never changed in place
	ended  atomic.Pointer[ended]          // see lastExit; the same

	health atomic.Pointer[journal.Health] // last journaled by this daemon; nil: none was

	gate          *gate.Gate  // set when the Machine is added
	unsuspendable atomic.Bool // a suspend for being idle has failed since it was started
	noRoom        atomic.Bool // at the last attempt, the disk had no room to suspend it
	probes        probes      // of ports, for requests that wake the Machine
	files         openFiles
	meter         meter

	roleMu sync.Mutex // held while the role's token is written, renewed or removed

	mu        sync.Mutex              // held while a change is decided and committed
	interrupt context.CancelCauseFunc // ends the current step; guarded by mu
	working   bool                    // the worker is running; guarded by mu
	dirty     bool                    // the worker has to read the record again; guarded by mu
	began     *journal.Record         // record of the worker's current step, or the one that superseded it; guarded by mu
	lease     *hangar.Lease           // nil: none, never changed in place; it may have expired; guarded by mu
	crowded   bool                    // the host lacked room for a scheduled run; guarded by mu
	busy      time.Time               // until when it has declared itself busy; zero: it is not; guarded by mu

	worker   worker // carries out the record
	watchers watchers
}

// path returns a file of the Machine.
func (m *machine) path(name string) string {
	return filepath.Join(m.store.o.Dir, "machines", string(m.id), name)
}

// layer returns a file of the Machine's writable layer.
func (m *machine) layer(name string) string { return filepath.Join(m.store.o.Layers.Path(m.id), name) }

// errOvertaken ends a step that another request has superseded.
var errOvertaken = errors.New("overtaken by another request")

// change alters a copy of a Machine's record and returns the events.
type change func(next *journal.Record) []hangar.Event

// commit makes a change durable and then visible, and returns the new record. Each event is stamped
// with the state after the change. m.mu is held.
func (m *machine) commit(alter change) (*journal.Record, error) {
	return m.commitWith(m.lease, nil, alter)
}

func wholeSecond(t time.Time) time.Time { return t.UTC().Truncate(time.Second) }

// wake makes the worker read the record again, and ends its current step. m.mu is held.
func (m *machine) wake() {
	m.dirty = true
	if m.interrupt != nil {
		m.interrupt(errOvertaken)
	}
	if !m.working {
		m.working = m.store.work.Go(m.worker.work)
	}
}

// note writes a line of the platform into the Machine's log.
func (m *machine) note(level, format string, args ...any) {
	m.store.o.Logs.Append(m.rec.Load().Machine.Ref(), hangar.LogRunner, level, fmt.Sprintf(format, args...))
}
