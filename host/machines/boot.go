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

// boot brings a Machine from starting to started: from its memory if there is any,
// else from its image.
func (w *worker) boot(ctx context.Context, rec *journal.Record) error {
	began := w.store.o.Now()
	if handle := w.takeOver(ctx, rec); handle != nil {
		return w.booted(rec, handle, startKind(rec, true), w.store.o.Now().Sub(began))
	}
	if err := w.clearUnlessKept(ctx, rec); err != nil {
		return err
	}
	img, err := w.pull(ctx, rec)
	if err == nil {
		rec, err = w.ready(rec, img)
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

// notBooted records that a boot or a resume failed, and its consequences.
func (w *worker) notBooted(rec *journal.Record, cause error) error {
	w.note("error", "Machine failed to start: %s", hangar.MessageOf(cause))
	w.store.counts.failures.WithLabelValues(startKind(rec, false)).Inc()
	r := nextRestart(rec, true, w.store.o.Now())
	// The policy decides only on a boot that it began, and not where another attempt is bound to
	// fail in the same way.
	retrying := r.wanted && len(rec.Restarts) > 0 && !errors.Is(cause, driver.ErrCommandNotFound) &&
		hangar.ReasonOf(cause) != hangar.ReasonVolumeDamaged && hangar.ReasonOf(cause) != hangar.ReasonRootfsDamaged
	return w.advance(rec, func(next *journal.Record) []hangar.Event {
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

// clear makes sure that nothing of an earlier sandbox is left, even of one that has ended or whose
// start was never recorded.
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
	w.clean, w.kept = true, false
	return nil
}

// clearUnlessKept is clear, except for a Machine whose memory this daemon has written to disk:
// the driver's remains make the resume quick.
func (w *worker) clearUnlessKept(ctx context.Context, rec *journal.Record) error {
	if w.kept && rec.Snapshot {
		return nil
	}
	return w.clear(ctx, rec)
}

// ready records the start of a launch: no sandbox, so that one that is found after a crash can
// only be of this launch, and the image, so that it is not removed meanwhile.
func (w *worker) ready(rec *journal.Record, img *image.Image) (*journal.Record, error) {
	if rec.Handle == nil && rec.Machine.ImageRef.Digest == img.Ref.Digest {
		return rec, nil
	}
	return w.proceed(rec, func(next *journal.Record) []hangar.Event {
		next.Handle, next.Ended = nil, false
		next.Machine.ImageRef = img.Ref
		return nil
	})
}

// launch starts the sandbox, and returns the record that it left.
func (w *worker) launch(ctx context.Context, rec *journal.Record, img *image.Image) (driver.Handle, *journal.Record, error) {
	w.clean = false // what spec mounts is to be unmounted
	spec, err := w.spec(ctx, rec, img)
	if errors.Is(err, errRepaired) {
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
		// Addresses went into the sandbox that could not be resumed.
		at, err := w.attach(ctx, rec)
		if err != nil {
			return nil, rec, err
		}
		spec.NetNS = at.NetNS
	}
	handle, err := w.store.o.Driver.Start(ctx, spec)
	return handle, rec, err
}

// startAfresh records that memory cannot be resumed from: a crash must not make a cold
// boot look like a resume.
func (w *worker) startAfresh(rec *journal.Record, cause error) (*journal.Record, error) {
	why := withoutDir(w.store.o.Dir, cause.Error())
	w.note("warn", "Cannot resume from memory, starting afresh: %s", why)
	return w.proceed(rec, func(next *journal.Record) []hangar.Event {
		forgetMemory(next, why)
		return nil
	})
}

// withoutDir is a text for users that does not reveal where the server keeps its files.
func withoutDir(dir, text string) string {
	return strings.ReplaceAll(text, filepath.Clean(dir)+string(filepath.Separator), "")
}

// capture begins to read what the Machine prints.
func (w *worker) capture(rec *journal.Record) error {
	if err := w.makeDirs(); err != nil {
		return err
	}
	w.tidied = false
	return w.store.o.Logs.Capture(rec.Machine.Ref(), w.path(outputFile))
}

// forgetMemory makes the next start a cold boot that keeps the root file system, because the memory
// that belongs to it is lost.
func forgetMemory(next *journal.Record, why string) {
	dropSnapshot(next)
	next.ColdBoot, next.KeepRoot = why, true
}

// resume continues from the snapshot. The resume is journaled first: memory may be resumed only
// once, because the root file system moves on with it.
func (w *worker) resume(ctx context.Context, rec *journal.Record, spec driver.Spec) (driver.Handle, *journal.Record, error) {
	suspender, ok := w.store.o.Driver.(driver.Suspender)
	if !ok {
		return nil, rec, fmt.Errorf("%w: the driver cannot resume", driver.ErrSnapshotUnusable)
	}
	if rec.Resuming {
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
	return handle, rec, err
}

// booted records that the sandbox runs. When that fails, the next attempt takes the sandbox
// over, with the memory that may be nowhere else.
func (w *worker) booted(rec *journal.Record, handle driver.Handle, kind string, took time.Duration) (err error) {
	defer func() { w.unrecorded = err != nil && !errors.Is(err, errOvertaken) }()
	// Out of the way before the record: where the next suspend writes there must never be an older
	// snapshot, which would be mistaken for the new one.
	if err := w.retireSnapshot(); err != nil {
		return err
	}
	how := "started"
	if rec.Snapshot {
		how = "resumed"
	}
	// A user who waits for the start finds it in the log.
	w.note("info", "Machine %s in %s", how, took.Round(time.Millisecond))
	err = w.advance(rec, func(next *journal.Record) []hangar.Event {
		next.Machine.State = hangar.MachineStarted
		next.Handle, next.Ended = handle, false
		next.Prepared = true
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

// retireSnapshot moves the snapshot away, if there is one. That is quick, while freeing its room
// may not be.
func (w *worker) retireSnapshot() error {
	if err := os.RemoveAll(w.path(usedDir)); err != nil {
		return err
	}
	if err := os.Rename(w.path(snapshotDir), w.path(usedDir)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// attach gives the Machine its network namespace with its addresses.
func (w *worker) attach(ctx context.Context, rec *journal.Record) (network.Attachment, error) {
	return w.store.o.Network.Attach(ctx, network.Endpoint{ID: w.id, IPv6: rec.Machine.PrivateIP, Number: rec.Number})
}

// spec works out everything that the driver needs, and writes the files that the
// Machine finds in /etc.
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

// resetsRoot says whether the boot begins with the image's root file system.
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
