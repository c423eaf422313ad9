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
	"github.com/hangar-platform/hangar/internal/pause"
)

// The files of a Machine, below its own directory.
const (
	sandboxDir  = "sandbox"  // the driver's
	snapshotDir = "snapshot" // memory, while suspended
	usedDir     = "used"     // a snapshot that was resumed from, about to be removed
	outputFile  = "output"   // FIFO of stdout and stderr
	roleFile    = "role"     // the Machine assumes a role
)

// What is in the writable layer of a Machine: all that it can write, and so all that has to
// count against the size of the layer.
const (
	upperDir = "root"  // its root file system, as far as it is not the image's; the driver's
	etcDir   = "etc"   // hosts, hostname and resolv.conf
	localDir = "local" // what it finds in hangar.GuestDir
	tokenNew = "token" // the token of its role, until it is in localDir
)

// machine is one Machine in the agent's memory: its record, and the goroutine that
// makes the record true.
type machine struct {
	store *Store
	id    hangar.MachineID

	rec    atomic.Pointer[journal.Record] // replaced under mu, never changed in place
	recent atomic.Pointer[[]hangar.Event] // see newest; replaced under mu, never changed in place

	health atomic.Pointer[journal.Health] // that was journaled last by this daemon; nil: none was

	gate          *gate.Gate  // set when the Machine becomes known
	unsuspendable atomic.Bool // it could not be suspended for being idle since it was started
	noRoom        atomic.Bool // the disk had none to suspend it when that was last tried
	probes        probes      // of ports, for those who wake the Machine
	files         openFiles

	roleMu sync.Mutex // held while the token of the Machine's role is given, renewed or removed

	mu        sync.Mutex              // held while a change is decided and committed
	interrupt context.CancelCauseFunc // ends the step under way; guarded by mu
	working   bool                    // the worker runs; guarded by mu
	dirty     bool                    // the worker has to look again; guarded by mu
	began     *journal.Record         // what the worker's step is about, or what has overtaken that; guarded by mu
	lease     *hangar.Lease           // nil: none, never changed in place; it may have expired; guarded by mu
	crowded   bool                    // the host had no room for a run that is due by its schedule; guarded by mu
	busy      time.Time               // until when it has said that it is; zero: it has not; guarded by mu

	// What follows is the worker's alone, once it runs.

	clean      bool // nothing of an earlier sandbox can be on the host
	kept       bool // all that can be there is what the driver keeps for a resume
	known      bool // the driver was asked to recover the record's handle, and has answered
	unrecorded bool // a sandbox may run whose handle did not get into the record
	tidied     bool // a Machine at rest holds nothing that it does not need

	watchers watchers
}

// path returns a file of the Machine.
func (m *machine) path(name string) string {
	return filepath.Join(m.store.o.Dir, "machines", string(m.id), name)
}

// layer returns a file of the Machine's writable layer.
func (m *machine) layer(name string) string { return filepath.Join(m.store.o.Layers.Path(m.id), name) }

// errOvertaken ends a step whose Machine was asked something else meanwhile.
var errOvertaken = errors.New("overtaken by another request")

// change alters a copy of a Machine's record and says what happened.
type change func(next *journal.Record) []hangar.Event

// commit makes a change durable and then visible, and returns the new record. Each
// event is stamped with the state that the change brought. m.mu is held.
func (m *machine) commit(alter change) (*journal.Record, error) {
	return m.commitWith(m.lease, nil, alter)
}

// commitWith is commit that also makes lease the Machine's and keeps the secrets of
// the version that alter makes. A Machine that is destroyed has neither, and leaves memory.
func (m *machine) commitWith(lease *hangar.Lease, secrets *journal.SealedSecrets, alter change) (*journal.Record, error) {
	current := m.rec.Load()
	if current.Machine.State == hangar.MachineDestroyed {
		return nil, refusal(hangar.VerbUpdate, current.Machine.State)
	}
	next := *current
	now := m.store.o.Now()
	events := alter(&next)
	stamp(events, next.Machine.State, now)
	if from, to := current.Machine.State, next.Machine.State; from != to && !from.CanBecome(to) {
		return nil, fmt.Errorf("machine %s cannot turn from %s into %s", m.id, from, to)
	}
	if len(events) > 0 {
		next.Machine.UpdatedAt = wholeSecond(now)
	}
	if current.Machine.State != next.Machine.State {
		next.Since = now
	}
	if current.Machine.Config.Schedule != next.Machine.Config.Schedule {
		next.Scheduled = now // what was due by another schedule is none of this one's
	}
	destroyed := next.Machine.State == hangar.MachineDestroyed
	if destroyed {
		lease = nil
	}
	if keepsConnections(current) && !keepsConnections(&next) {
		next.Losses++
	}
	newVersion := next.Machine.InstanceID > current.Machine.InstanceID
	err := m.store.o.Journal.Pool().Seal(&next.Machine.Config)
	if err != nil {
		return nil, notRecorded(m.id, err)
	}
	before, err := m.store.room.Admit(m.id, loadOf(&next))
	if err != nil {
		return nil, err
	}
	var freed Claims
	if destroyed {
		freed = m.store.o.Volumes.Release(m.id, &current.Machine.Config)
		defer freed.Done()
	}
	if next.Machine.State != hangar.MachineStarted {
		m.gate.Shut() // before it is told to stop, so that nobody is let in meanwhile
	}
	busy := m.busyAfter(&next)
	// From here on, a version of before will not boot again.
	fewerVersions := current.Previous != nil && next.Previous == nil
	err = m.store.o.Journal.Commit(func(tx *journal.Tx) error {
		if destroyed {
			return errors.Join(tx.PutDestroyed(&next), freed.Put(tx), appendEvents(tx, m.id, events))
		}
		if err := errors.Join(tx.PutMachine(&next), putSecrets(tx, secrets)); err != nil {
			return err
		}
		if fewerVersions {
			if err := keepSecrets(tx, &next); err != nil {
				return err
			}
		}
		if newVersion {
			version := hangar.MachineVersion{Version: next.Machine.InstanceID, Config: next.Machine.Config}
			if err := tx.PutVersion(m.id, version); err != nil {
				return err
			}
		}
		if busy != m.busy {
			if err := tx.PutBusy(m.id, busy); err != nil {
				return err
			}
		}
		if lease != m.lease {
			if err := tx.PutLease(m.id, lease); err != nil {
				return err
			}
		}
		return appendEvents(tx, m.id, events)
	})
	if err != nil {
		m.store.room.Set(m.id, before)
		m.setGate(current)
		return nil, notRecorded(m.id, err)
	}
	m.store.room.Set(m.id, loadOf(&next))
	if destroyed {
		freed.Settle()
	}
	m.lease, m.busy = lease, busy
	m.rec.Store(&next)
	m.remember(events)
	m.began = &next
	m.observe(current, &next)
	m.watchers.happened(&next.Machine, events)
	if destroyed {
		m.store.remove(m)
	}
	return &next, nil
}

// observe lets what follows the record from outside know that it changed. m.mu is
// held.
func (m *machine) observe(before, now *journal.Record) {
	m.checkHealth(before, now)
	if before.Machine.State == hangar.MachineStarting && now.Machine.State == hangar.MachineStarted {
		m.unsuspendable.Store(false)
	}
	if now.Machine.State != hangar.MachineStarted {
		m.files.close()
		m.probes.drop()
	}
	m.setGate(now)
	if before.Machine.Config.Schedule != now.Machine.Config.Schedule {
		m.store.rescheduled()
	}
}

// notRecorded is the error of a change that did not get into the journal.
func notRecorded(id hangar.MachineID, err error) error {
	if errors.Is(err, journal.ErrClosed) {
		return &hangar.Error{Code: hangar.CodeUnavailable, Message: "the server is shutting down", Err: err}
	}
	return fmt.Errorf("commit machine %s: %w", id, err)
}

// stamp gives events their ids, the time and the state that they brought.
func stamp(events []hangar.Event, state hangar.MachineState, now time.Time) {
	for i := range events {
		events[i].ID = hangar.NewEventID(now)
		events[i].Status = string(state)
		events[i].Timestamp = now.UnixMilli()
	}
}

func appendEvents(tx *journal.Tx, id hangar.MachineID, events []hangar.Event) error {
	for _, e := range events {
		if err := tx.AppendEvent(id, e); err != nil {
			return err
		}
	}
	return nil
}

func wholeSecond(t time.Time) time.Time { return t.UTC().Truncate(time.Second) }

// advance commits a step's result, unless the Machine is no longer what the step
// began with.
func (m *machine) advance(from *journal.Record, alter change) error {
	_, err := m.proceed(from, alter)
	return err
}

// proceed is advance for a step that goes on with the record that it made.
func (m *machine) proceed(from *journal.Record, alter change) (*journal.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.began != from {
		return from, errOvertaken
	}
	next, err := m.commit(alter)
	if err != nil {
		return from, err
	}
	return next, nil
}

// wake makes the worker look at the record again, ending what it is doing. m.mu is
// held.
func (m *machine) wake() {
	m.dirty = true
	if m.interrupt != nil {
		m.interrupt(errOvertaken)
	}
	if !m.working {
		m.working = m.store.work.Go(m.work)
	}
}

// patiently returns a context for an effect that had better be finished, because
// something is lost when it is cut off. It ends when the Machine was asked something
// else, or after limit; the end of the daemon it outlives for a while.
func (m *machine) patiently(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	patient, cancel := context.WithTimeout(m.store.effects, limit)
	stop := context.AfterFunc(ctx, func() {
		if errors.Is(context.Cause(ctx), errOvertaken) {
			cancel()
		}
	})
	return patient, func() { stop(); cancel() }
}

// The pauses between attempts of a step that fails.
const (
	minStepPause = 200 * time.Millisecond
	maxStepPause = 10 * time.Second
)

// work runs one step after the other until there is nothing to do.
func (m *machine) work() {
	delay := minStepPause
	for {
		rec, ctx := m.begin()
		if rec == nil {
			return
		}
		err := m.step(ctx, rec)
		switch {
		case err == nil, errors.Is(err, errOvertaken):
			delay = minStepPause
			continue
		case ctx.Err() != nil:
			continue
		}
		m.store.o.Log.Error("machine step", keyMachine, m.id, keyState, rec.Machine.State, keyError, err)
		m.mu.Lock()
		m.dirty = true
		m.mu.Unlock()
		_ = pause.For(ctx, delay)
		delay = min(2*delay, maxStepPause)
	}
}

// begin returns the record to work on and a context that ends when the record is
// overtaken, or nil when the worker may end.
func (m *machine) begin() (*journal.Record, context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.interrupt != nil {
		m.interrupt(nil)
		m.interrupt = nil
	}
	rec := m.rec.Load()
	if m.store.work.Context.Err() != nil || !m.dirty && m.idle(rec) {
		m.working = false
		return nil, nil
	}
	m.dirty = false
	m.began = rec
	ctx, cancel := context.WithCancelCause(m.store.work.Context)
	m.interrupt = cancel
	return rec, ctx
}

// idle reports whether nothing is left to do for the record.
func (m *machine) idle(rec *journal.Record) bool {
	switch rec.Machine.State {
	case hangar.MachineStopped, hangar.MachineSuspended, hangar.MachineFailed:
		return rec.Handle == nil && m.tidied
	case hangar.MachineDestroyed:
		return true
	default:
		return false
	}
}

// step does what the record's state asks for. It returns when that is committed,
// or when ctx ended.
func (m *machine) step(ctx context.Context, rec *journal.Record) error {
	switch rec.Machine.State {
	case hangar.MachineCreated:
		return m.prepare(ctx, rec)
	case hangar.MachineStarting:
		return m.boot(ctx, rec)
	case hangar.MachineStarted:
		return m.watch(ctx, rec)
	case hangar.MachineStopping:
		return m.end(ctx, rec)
	case hangar.MachineSuspending:
		return m.suspend(ctx, rec)
	case hangar.MachineRestarting:
		return m.again(ctx, rec)
	case hangar.MachineReplacing:
		return m.replace(ctx, rec)
	case hangar.MachineDestroying:
		return m.destroy(ctx, rec)
	case hangar.MachineStopped, hangar.MachineSuspended, hangar.MachineFailed:
		return m.tidy(ctx, rec)
	case hangar.MachineDestroyed:
		return nil
	default:
		return fmt.Errorf("machine %s is in unknown state %q", m.id, rec.Machine.State)
	}
}

// note writes a line of the platform's own into the Machine's log.
func (m *machine) note(level, format string, args ...any) {
	m.store.o.Logs.Append(m.rec.Load().Machine.Ref(), hangar.LogRunner, level, fmt.Sprintf(format, args...))
}
