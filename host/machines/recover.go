package machines

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"github.com/oklog/ulid/v2"
	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/internal/background"
	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/internal/pause"
)

// recoverers bounds how many Machines are recovered concurrently.
const recoverers = 8

// Open makes the Machines of the journal known. Reattach, Sweep and Run follow, in that order,
// so that no step of a worker meets leftovers of another Machine.
func (s *Store) Open(ctx context.Context) (err error) {
	// Machines write here, with owners and modes of their choice, including setuid programs. No
	// other user of the server may have access.
	dir := filepath.Join(s.o.Dir, "machines")
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.Chmod(dir, 0o700)); err != nil { //nolint:gosec // a directory
		return err
	}
	s.work = background.New(ctx)
	s.effects, s.abandon = finish.Lifetime(ctx)
	if s.found, err = s.o.Driver.List(ctx); err != nil {
		return err
	}
	return s.readJournal(s.found)
}

// Reattach takes back running sandboxes.
func (s *Store) Reattach(ctx context.Context) {
	var group errgroup.Group
	group.SetLimit(recoverers)
	for _, m := range s.all() {
		group.Go(func() error {
			m.worker.reattach(ctx)
			return nil
		})
	}
	_ = group.Wait() // its functions return no errors
}

// Run starts the workers of the Machines, and the Store's own background work, until Stop.
func (s *Store) Run() {
	for _, m := range s.all() {
		m.mu.Lock()
		m.checkHealth(nil, m.rec.Load())
		m.setGate(m.rec.Load())
		m.wake()
		m.mu.Unlock()
	}
	for _, run := range []func(context.Context){s.health.checks.Run, s.health.keep, s.schedules.keep, s.roles.keep, s.gates.Run, s.writeEdgeLog} {
		s.work.Go(func() { run(s.work.Context) })
	}
}

// readJournal loads the Machines. sandboxes are those with something on the host.
func (s *Store) readJournal(sandboxes []hangar.MachineID) error {
	left := make(map[hangar.MachineID]bool, len(sandboxes))
	for _, id := range sandboxes {
		left[id] = true
	}
	var newest uint64
	err := s.o.Journal.Machines(func(rec *journal.Record) error {
		if rec.Machine.State == hangar.MachineDestroyed { // left by an earlier version
			return s.o.Journal.Commit(func(tx *journal.Tx) error { return tx.PutDestroyed(rec) })
		}
		events, err := s.o.Journal.Events(rec.Machine.ID, 1)
		if err != nil {
			return err
		}
		newest = max(newest, timeOf(string(rec.Machine.InstanceID)))
		for _, e := range events {
			newest = max(newest, timeOf(string(e.ID)))
		}
		lease, err := s.o.Journal.Lease(rec.Machine.ID)
		if err != nil {
			return err
		}
		busy, err := s.o.Journal.Busy(rec.Machine.ID)
		if err != nil {
			return err
		}
		m := s.newMachine(rec, lease, rec.Handle == nil && !left[rec.Machine.ID] && !layerMounted(s.o.Layers, rec.Machine.ID))
		m.busy = busy
		m.worker.unrecorded = rec.Handle == nil && rec.Machine.State == hangar.MachineStarting && left[m.id]
		s.add(m)
		return nil
	})
	if err != nil {
		return err
	}
	// New ids of events and versions must sort after those in the journal, even if the clock was
	// set back or has not advanced.
	hangar.NewEventID(ulid.Time(newest + 1))
	return s.findUnread()
}

// timeOf returns the time in an id of an event or a version, in milliseconds.
func timeOf(id string) uint64 {
	parsed, err := ulid.ParseStrict(id)
	if err != nil {
		return 0
	}
	return parsed.Time()
}

// newMachine returns the Machine of a record, with its lease, if it has one; clean means that
// nothing of a sandbox can be on the host.
func (s *Store) newMachine(rec *journal.Record, lease *hangar.Lease, clean bool) *machine {
	m := &machine{store: s, id: rec.Machine.ID, lease: lease}
	m.worker = worker{machine: m, clean: clean}
	m.rec.Store(rec)
	return m
}

// reattach adopts the sandbox of a record, if there is one. A failure must not block other
// Machines: the step of its state meets the fault again and handles it.
func (w *worker) reattach(ctx context.Context) {
	rec := w.rec.Load()
	if rec.Handle == nil || rec.Machine.State == hangar.MachineDestroying {
		return
	}
	// The output is captured first: it includes what a sandbox wrote without a reader.
	w.retake(func() error { return w.store.o.Logs.Capture(rec.Machine.Ref(), w.path(outputFile)) })
	if !rec.Ended {
		w.reopenLocal(rec)
		w.resumeRole()
	}
	if err := w.recoverHandle(ctx, rec); err != nil {
		w.store.o.Log.Error("take back machine", keyMachine, w.id, keyError, err)
	}
}

// retake takes back a part of a running Machine. A failure must not prevent its recovery; watch then
// tries again.
func (w *worker) retake(take func() error) {
	if err := take(); err != nil {
		w.store.o.Log.Error("take back a part of a machine", keyMachine, w.id, keyError, err)
		w.missing = append(w.missing, take)
	}
}

// retakeMissing takes back the missing parts of a running Machine, until ctx ends.
func (w *worker) retakeMissing(ctx context.Context) {
	for delay := minStepPause; len(w.missing) > 0 && pause.For(ctx, delay) == nil; delay = min(2*delay, maxStepPause) {
		w.missing = slices.DeleteFunc(w.missing, func(take func() error) bool { return take() == nil })
	}
}

// retakeVolumes repeats Volumes.Retake until that has taken back the volumes of a running Machine or
// found one lost, and reports that; or until ctx ends.
func retakeVolumes(ctx context.Context, volumes Volumes, rec *journal.Record) bool {
	for delay := minStepPause; pause.For(ctx, delay) == nil; delay = min(2*delay, maxStepPause) {
		err := volumes.Retake(ctx, rec.Machine.ID, &rec.Machine.Config)
		if err == nil || errors.As(err, new(VolumeLost)) {
			return true
		}
	}
	return false
}

// recoverHandle makes the driver recover the record's handle, even if nothing of the sandbox is left.
// Otherwise the driver's answer that there is no such sandbox would mean nothing.
func (w *worker) recoverHandle(ctx context.Context, rec *journal.Record) error {
	if w.known {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, w.store.limits.recover)
	defer cancel()
	switch err := w.store.o.Driver.Recover(bounded, rec.Handle); {
	case errors.Is(err, driver.ErrNotFound):
		w.store.o.Log.Warn("machine left no sandbox", keyMachine, w.id, keyState, rec.Machine.State)
	case err != nil:
		return err
	}
	w.known = true
	return nil
}

// takeOver returns the handle of a running sandbox that was never recorded, because the daemon was
// killed between the start and its answer. It returns driver.ErrNotFound if there is none, and with
// any other error there may still be one.
func (w *worker) takeOver(ctx context.Context, rec *journal.Record) (driver.Handle, error) {
	adopter, ok := w.store.o.Driver.(driver.Adopter)
	if !ok || !w.unrecorded {
		return nil, driver.ErrNotFound
	}
	if err := w.capture(rec); err != nil {
		return nil, err
	}
	bounded, cancel := w.patiently(ctx, w.store.limits.boot)
	defer cancel()
	handle, err := adopter.Adopt(bounded, w.id, w.path(sandboxDir))
	if err != nil {
		return nil, err
	}
	w.known = true
	w.reopenLocal(rec)
	w.resumeRole()
	return handle, nil
}

// Sweep destroys everything on the host that no record claims. A failure does not stop it.
func (s *Store) Sweep(ctx context.Context) error {
	for _, id := range s.found {
		if s.Owns(id) {
			continue
		}
		s.o.Log.Warn("sweeping a sandbox that no record claims", keyMachine, id)
		s.swept(id, s.release(ctx, id))
	}
	endpoints, err := s.o.Network.List(ctx)
	if err != nil {
		return err
	}
	for _, id := range endpoints {
		if !s.Owns(id) {
			s.swept(id, s.o.Network.Detach(id))
		}
	}
	dirs, err := os.ReadDir(filepath.Join(s.o.Dir, "machines"))
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if id := hangar.MachineID(dir.Name()); !s.Owns(id) {
			// Mounts are removed before files; release also removes mounts of an earlier daemon.
			err := s.release(ctx, id)
			if err == nil {
				err = os.RemoveAll(filepath.Join(s.o.Dir, "machines", dir.Name()))
			}
			s.swept(id, err)
		}
	}
	return s.sweepLayers(ctx)
}

func (s *Store) swept(id hangar.MachineID, err error) {
	if err != nil {
		s.o.Log.Error("leftovers of a machine stay until the next start", keyMachine, id, keyError, err)
	}
}

// release ends the sandbox of a Machine, if it has not ended, and frees its resources.
func (s *Store) release(ctx context.Context, id hangar.MachineID) error {
	return finish.Do(ctx, s.limits.release, func(ctx finish.Context) error { return s.o.Driver.Destroy(ctx, id, s.sandboxDir(id)) })
}
