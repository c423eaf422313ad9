package machines

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/guest"
	"github.com/hangar-platform/hangar/host/image"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/host/network"
)

// boot brings a Machine from starting to started: from its memory if it has a snapshot, else from
// its image.
func (w *worker) boot(ctx context.Context, rec *journal.Record) error {
	began := w.store.o.Now()
	switch handle, err := w.takeOver(ctx, rec); {
	case err == nil:
		return w.booted(rec, handle, startKind(rec, true), w.store.o.Now().Sub(began))
	case !errors.Is(err, driver.ErrNotFound):
		return fmt.Errorf("take over an unrecorded sandbox: %w", err)
	}
	if err := w.clearUnlessKept(ctx, rec); err != nil {
		return err
	}
	img, err := w.pull(ctx, rec)
	if err == nil {
		rec, err = w.beginLaunch(rec, img)
	}
	if err == nil && ctx.Err() == nil {
		var handle driver.Handle
		limit := w.store.limits.boot
		if len(rec.Machine.Config.Mounts) > 0 {
			limit += w.store.limits.repair
		}
		bounded, cancel := w.patiently(ctx, limit)
		handle, rec, err = w.launch(bounded, rec, img)
		cancel()
		if err == nil {
			return w.booted(rec, handle, startKind(rec, false), w.store.o.Now().Sub(began))
		}
	}
	if ctx.Err() != nil || errors.Is(err, errOvertaken) {
		return errOvertaken
	}
	return w.notBooted(rec, err)
}

// notBooted records a failed boot or resume and its consequences.
func (w *worker) notBooted(rec *journal.Record, cause error) error {
	w.note("error", "Machine failed to start: %s", hangar.MessageOf(cause))
	w.store.counts.failures.WithLabelValues(startKind(rec, false)).Inc()
	r := nextRestart(rec, true, w.store.o.Now())
	// The policy decides only on boots that it started, and not on failures that another attempt
	// would repeat.
	retrying := r.wanted && len(rec.Restarts) > 0 && !errors.Is(cause, driver.ErrCommandNotFound) &&
		hangar.ReasonOf(cause) != hangar.ReasonVolumeDamaged && hangar.ReasonOf(cause) != hangar.ReasonRootfsDamaged
	return w.advance(rec, func(next *journal.Record) []hangar.Event {
		if w.untouched {
			next.Resuming = false // the next start resumes the memory
		}
		if next.Resuming {
			forgetMemory(next, withoutDir(w.store.o.Dir, hangar.MessageOf(cause)))
		}
		next.Machine.State = hangar.MachineFailed
		next.Handle, next.Ended = nil, false
		e := failure(hangar.EventStart, cause)
		if retrying {
			next.Machine.State = hangar.MachineRestarting
			next.Restarts, next.RestartAt = r.times, r.at
			e.Request.RestartCount = len(r.times)
		}
		return []hangar.Event{e}
	})
}

// clear removes everything of an earlier sandbox, even of one that has ended or whose start was
// never recorded.
func (w *worker) clear(ctx context.Context, rec *journal.Record) error {
	if w.clean && rec.Handle == nil {
		return nil
	}
	if err := w.store.release(ctx, w.id); err != nil {
		return fmt.Errorf("release the sandbox of machine %s, which is %s: %w", w.id, rec.Machine.State, err)
	}
	if err := errors.Join(w.store.o.Volumes.Unmount(ctx, w.id, &rec.Machine.Config), w.unmountLayer()); err != nil {
		return err
	}
	w.clean, w.kept, w.unrecorded = true, false, false
	return nil
}

// clearUnlessKept is clear, except for a Machine that this daemon has suspended: what the driver
// keeps makes the resume fast.
func (w *worker) clearUnlessKept(ctx context.Context, rec *journal.Record) error {
	if w.kept && rec.Snapshot {
		return nil
	}
	return w.clear(ctx, rec)
}

// beginLaunch records the start of a launch. It clears the handle, so that a sandbox found after a crash
// can only belong to this launch, and sets the image, so that the collector keeps it.
func (w *worker) beginLaunch(rec *journal.Record, img *image.Image) (*journal.Record, error) {
	if rec.Handle == nil && rec.Machine.ImageRef.Digest == img.Ref.Digest {
		return rec, nil
	}
	return w.proceed(rec, func(next *journal.Record) []hangar.Event {
		next.Handle, next.Ended = nil, false
		next.Machine.ImageRef = img.Ref
		return nil
	})
}

// launch starts the sandbox, and returns its handle and the current record.
func (w *worker) launch(ctx context.Context, rec *journal.Record, img *image.Image) (driver.Handle, *journal.Record, error) {
	w.clean = false // spec mounts file systems, which must be unmounted
	spec, err := w.spec(ctx, rec, img)
	if errors.Is(err, errUnclean) {
		if rec, err = w.startAfresh(rec, err); err == nil {
			spec, err = w.spec(ctx, rec, img)
		}
	}
	if err != nil {
		return nil, rec, err
	}
	if err := w.capture(rec); err != nil {
		return nil, rec, err
	}
	if spec.SwapMB > 0 && !w.store.o.Driver.Capabilities().Swap {
		w.note("warn", "swap_size_mb %d has no effect: this server has no swap to give", spec.SwapMB)
	}
	w.noteCounters(rec)
	w.kept, w.known = false, true
	if rec.Snapshot {
		handle, resuming, err := w.resume(ctx, rec, spec)
		rec = resuming
		if !errors.Is(err, driver.ErrSnapshotUnusable) {
			return handle, rec, err
		}
		if rec, err = w.startAfresh(rec, err); err != nil {
			return nil, rec, err
		}
		// The sandbox that failed to resume has taken the addresses.
		at, err := w.attach(ctx, rec)
		if err != nil {
			return nil, rec, err
		}
		spec.NetNS = at.NetNS
	}
	handle, err := w.store.o.Driver.Start(ctx, spec)
	return handle, rec, err
}

// startAfresh records that the memory cannot be resumed, so that after a crash a cold boot does not
// look like a resume.
func (w *worker) startAfresh(rec *journal.Record, cause error) (*journal.Record, error) {
	why := withoutDir(w.store.o.Dir, cause.Error())
	w.note("warn", "Cannot resume from memory, starting afresh: %s", why)
	return w.proceed(rec, func(next *journal.Record) []hangar.Event {
		forgetMemory(next, why)
		return nil
	})
}

// withoutDir removes the server's directory from a text for users.
func withoutDir(dir, text string) string {
	return strings.ReplaceAll(text, filepath.Clean(dir)+string(filepath.Separator), "")
}

// capture starts reading the Machine's output.
func (w *worker) capture(rec *journal.Record) error {
	if err := w.makeDirs(); err != nil {
		return err
	}
	w.released, w.missing = false, nil
	return w.store.o.Logs.Capture(rec.Machine.Ref(), w.path(outputFile))
}

// forgetMemory makes the next start a cold boot that keeps the root file system, because the
// matching memory is lost.
func forgetMemory(next *journal.Record, why string) {
	dropSnapshot(next)
	next.ColdBoot, next.KeepRoot = why, true
}

// resume continues from the snapshot. It journals the resume first: memory may be resumed only
// once, because the root file system changes afterwards.
func (w *worker) resume(ctx context.Context, rec *journal.Record, spec driver.Spec) (driver.Handle, *journal.Record, error) {
	suspender, ok := w.store.o.Driver.(driver.Suspender)
	if !ok {
		return nil, rec, fmt.Errorf("%w: the driver cannot resume", driver.ErrSnapshotUnusable)
	}
	if rec.Resuming && !w.untouched {
		return nil, rec, fmt.Errorf("%w: the daemon was interrupted while resuming from it", driver.ErrSnapshotUnusable)
	}
	rec, err := w.proceed(rec, func(next *journal.Record) []hangar.Event {
		next.Resuming = true
		return nil
	})
	if err != nil {
		return nil, rec, err
	}
	handle, err := suspender.Resume(ctx, spec, w.path(snapshotDir))
	if w.untouched = errors.Is(err, driver.ErrNotBegun); w.untouched {
		// Also for the next daemon: this one may be ending, and this step not be repeated.
		after, recorded := w.proceed(rec, func(next *journal.Record) []hangar.Event {
			next.Resuming = false
			return nil
		})
		return nil, after, errors.Join(err, recorded)
	}
	return handle, rec, err
}

// booted records that the sandbox runs. If that fails, the next attempt adopts the sandbox, whose
// memory may exist nowhere else.
func (w *worker) booted(rec *journal.Record, handle driver.Handle, kind string, took time.Duration) (err error) {
	defer func() { w.unrecorded = err != nil && !errors.Is(err, errOvertaken) }()
	// The snapshot is moved before the record is written: where the next suspend writes there must
	// never be an older snapshot, which would be mistaken for the new one.
	if err := w.retireSnapshot(); err != nil {
		return err
	}
	how := "started"
	if rec.Snapshot {
		how = "resumed"
	}
	// Written first, so that a user who waits for the start finds it in the log.
	w.note("info", "Machine %s in %s", how, took.Round(time.Millisecond))
	err = w.advance(rec, func(next *journal.Record) []hangar.Event {
		next.Machine.State = hangar.MachineStarted
		next.Handle, next.Ended = handle, false
		next.Prepared, next.HasRoot = true, true
		next.KeepRoot, next.FreshVersion = false, false
		dropSnapshot(next)
		e := hangar.Event{Type: hangar.EventStart, Source: hangar.SourceAgent}
		if rec.ColdBoot != "" {
			e.Request = &hangar.EventRequest{ColdBoot: rec.ColdBoot}
		}
		return []hangar.Event{e}
	})
	if err != nil {
		return err
	}
	w.store.counts.started(kind, took)
	w.reserveLayer()
	if err := os.RemoveAll(w.path(usedDir)); err != nil {
		w.store.o.Log.Warn("remove a used snapshot", keyMachine, w.id, keyError, err)
	}
	return nil
}

// retireSnapshot moves an existing snapshot away, which is fast, while freeing its room may not be.
func (w *worker) retireSnapshot() error {
	if err := os.RemoveAll(w.path(usedDir)); err != nil {
		return err
	}
	if err := os.Rename(w.path(snapshotDir), w.path(usedDir)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// attach gives the Machine its network namespace and addresses.
func (w *worker) attach(ctx context.Context, rec *journal.Record) (network.Attachment, error) {
	return w.store.o.Network.Attach(ctx, network.Endpoint{ID: w.id, IPv6: rec.Machine.PrivateIP, Number: rec.Number})
}

// spec assembles the driver's input, and writes the files in the Machine's /etc.
func (w *worker) spec(ctx context.Context, rec *journal.Record, img *image.Image) (driver.Spec, error) {
	secrets, err := w.store.secrets.reveal(&rec.Machine)
	if err != nil {
		return driver.Spec{}, err
	}
	processes, err := guest.Resolve(asGuest(img), &rec.Machine, secrets, w.store.o.PublicIP)
	if err != nil {
		return driver.Spec{}, err
	}
	files, err := guest.Files(&rec.Machine, secrets)
	if err != nil {
		return driver.Spec{}, err
	}
	if err := w.makeDirs(); err != nil {
		return driver.Spec{}, err
	}
	at, err := w.attach(ctx, rec)
	if err != nil {
		return driver.Spec{}, err
	}
	if err := w.mountLayer(ctx, rec); err != nil {
		return driver.Spec{}, err
	}
	mounts, own, err := w.writeEtc(rec, img, at, files)
	if err != nil {
		return driver.Spec{}, err
	}
	volumes, err := w.mountVolumes(ctx, rec, processes[0])
	if err != nil {
		return driver.Spec{}, err
	}
	local, err := w.prepareLocal(rec)
	if err != nil {
		return driver.Spec{}, err
	}
	database, err := databaseMounts(w.store.o.DatabaseProgram, processes)
	if err != nil {
		return driver.Spec{}, err
	}
	if err := w.giveRole(ctx, rec, processes); err != nil {
		return driver.Spec{}, err
	}
	config := rec.Machine.Config
	spec := driver.Spec{
		ID: w.id, Instance: rec.Machine.InstanceID, Dir: w.path(sandboxDir), Hostname: guest.Hostname(&rec.Machine),
		Root:    driver.Root{Layers: img.Layers, Writable: w.layer(upperDir)},
		Command: asCommand(processes[0]), StopSignal: config.StopSignal(), StopGrace: config.StopTimeout(),
		Mounts: slices.Concat(volumes, mounts, local, database), Files: own, CPUs: config.Guest.CPUs, MemoryMB: config.Guest.Memory(), SwapMB: config.SwapMB(),
		NetNS: at.NetNS, Output: w.path(outputFile), TTY: config.Init.TTY,
	}
	for _, p := range processes[1:] {
		spec.Others = append(spec.Others, asCommand(p))
	}
	return spec, nil
}

// resetsRoot reports whether the boot starts with the image's root file system.
func resetsRoot(rec *journal.Record) bool {
	switch rec.Machine.Config.Persist() {
	case hangar.PersistAlways:
		return false
	case hangar.PersistRestart:
		return rec.FreshVersion
	case hangar.PersistNever:
		return !rec.KeepRoot && !rec.Snapshot
	default:
		return true
	}
}

func asGuest(img *image.Image) guest.Image {
	c := img.Config
	return guest.Image{
		Entrypoint: c.Entrypoint, Cmd: c.Cmd, Env: c.Env, User: c.User, WorkDir: c.WorkingDir, Layers: img.Layers,
	}
}

func asCommand(p guest.Process) driver.Command {
	return driver.Command{Args: p.Args, Env: p.Env, Dir: p.Dir, UID: p.UID, GID: p.GID, Groups: p.Groups}
}

// process resolves the main process of a running Machine.
func (s *Store) process(rec *journal.Record) (guest.Process, error) {
	img, err := s.o.Images.Get(rec.Machine.ImageRef.Digest)
	if err != nil {
		return guest.Process{}, err
	}
	secrets, err := s.secrets.reveal(&rec.Machine)
	if err != nil {
		return guest.Process{}, err
	}
	processes, err := guest.Resolve(asGuest(img), &rec.Machine, secrets, s.o.PublicIP)
	if err != nil {
		return guest.Process{}, err
	}
	return processes[0], nil
}
