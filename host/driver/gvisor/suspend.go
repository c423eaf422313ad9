package gvisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/driver/gvisor/bundle"
	"github.com/hangar-platform/hangar/internal/finish"
)

// Above directAbove bytes, a snapshot is written faster around the page cache, because the kernel
// throttles a process that dirties much of it. Above backgroundAbove bytes, the snapshot completes
// sooner if the guest runs while its memory is read.
const (
	directAbove     = 1536 << 20
	backgroundAbove = 384 << 20
)

// endPatience limits the wait for the end of a sandbox whose memory is on disk. It is long because
// the kernel may take long to free the memory, and giving up would fail a complete suspension.
const endPatience = 10 * time.Minute

// Suspend implements driver.Suspender. The engine writes and seals the snapshot, so that it is
// complete or absent even if this process dies meanwhile.
func (d *Driver) Suspend(ctx context.Context, h driver.Handle, dir string) error {
	s, err := d.running(h)
	if err != nil {
		return err
	}
	if err := d.suspend(ctx, s, dir); err != nil {
		return fmt.Errorf("suspend machine %s: %w", s.ID, err)
	}
	return nil
}

func (d *Driver) suspend(ctx context.Context, s *sandbox, dir string) error {
	if _, err := os.Lstat(dir); err == nil {
		return fmt.Errorf("snapshot %s: %w", dir, os.ErrExist)
	}
	spec, err := os.ReadFile(filepath.Join(s.Dir, specDigestFile))
	if err != nil {
		return err
	}
	usual, err := s.usualLimit()
	if err != nil {
		return err
	}
	if err := s.memory.Acquire(ctx, 1); err != nil {
		return err
	}
	defer s.memory.Release(1)
	// While this file exists, the end of the sandbox may mean that it was suspended.
	lock := filepath.Join(s.Dir, bundle.SuspendFile)
	if err := os.WriteFile(lock, []byte(dir), 0o600); err != nil {
		return err
	}
	args := []string{
		"suspend", "--dir=" + dir, "--lock=" + lock,
		"--origin-cpu=" + d.origin.cpu, "--origin-spec=" + strings.TrimSpace(string(spec)),
	}
	if used, err := d.cgroup.memory(string(s.ID)); err == nil && used > directAbove {
		args = append(args, "--direct")
	}
	// The kernel counts the snapshot's unwritten pages against the sandbox's limit, too. The guest is
	// stopped, so it cannot use the added memory.
	if err := d.cgroup.setMemoryLimit(string(s.ID), 2*usual); err != nil {
		return err
	}
	if _, err := d.engine(ctx, new(bool), nil, append(args, string(s.ID))...); err != nil {
		// A killed engine leaves a partial snapshot. A sealed snapshot stays valid even if its answer
		// was lost.
		if _, statErr := os.Lstat(dir); statErr != nil {
			restored := d.cgroup.setMemoryLimit(string(s.ID), usual)
			if s.ended() {
				restored = nil // an ended sandbox has no limit to restore
			}
			return errors.Join(err, restored, os.RemoveAll(dir+".tmp"), removeFiles(s.Dir, bundle.SuspendFile))
		}
	}
	return finish.Do(ctx, endPatience, func(ctx finish.Context) error { return d.endSuspended(ctx, s) })
}

// endSuspended ends a sandbox whose memory is on disk. It kills the sandbox, which would otherwise
// only free its memory; the kernel does that as well.
func (d *Driver) endSuspended(ctx finish.Context, s *sandbox) error {
	if err := d.end(ctx, s); err != nil {
		return err
	}
	if err := d.removeCgroup(ctx, string(s.ID)); err != nil {
		return err
	}
	if err := errors.Join(d.removeRuntimeFiles(string(s.ID)), removeFiles(s.Dir, bundle.ResultFile)); err != nil {
		return err
	}
	// The root file system stays mounted for Resume. To unmount it, the kernel would first write all
	// dirty data of the underlying file system to disk, including the snapshot.
	d.mu.Lock()
	defer d.mu.Unlock()
	d.kept[s.ID] = true
	return nil
}

// Resume implements driver.Suspender.
func (d *Driver) Resume(ctx context.Context, spec driver.Spec, dir string) (driver.Handle, error) {
	if err := d.checkSpec(&spec); err != nil {
		return nil, err
	}
	begun := false
	h, err := d.resume(ctx, &begun, &spec, dir)
	if err != nil {
		if !begun && !errors.Is(err, driver.ErrSnapshotUnusable) {
			err = fmt.Errorf("%w: %w", driver.ErrNotBegun, err)
		}
		left := func(ctx finish.Context) error { return d.destroy(ctx, string(spec.ID), spec.Dir) } // of the Suspend
		err = errors.Join(err, finish.Do(ctx, undoPatience, left))
		return nil, fmt.Errorf("resume machine %s: %w", spec.ID, err)
	}
	return h, nil
}

func (d *Driver) resume(ctx context.Context, begun *bool, spec *driver.Spec, dir string) (driver.Handle, error) {
	meta, err := bundle.ReadMeta(dir)
	if errors.Is(err, bundle.ErrDamaged) {
		return nil, fmt.Errorf("%w: %w", driver.ErrSnapshotUnusable, err)
	}
	if err != nil {
		return nil, err
	}
	sum, err := d.specDigest(spec)
	if err != nil {
		return nil, err
	}
	if want := (bundle.Origin{Engine: d.origin.engine, CPU: d.origin.cpu, Spec: sum}); meta.Origin != want {
		return nil, fmt.Errorf("%w: it was made by %+v, this is %+v", driver.ErrSnapshotUnusable, meta.Origin, want)
	}
	args := []string{"--dir=" + dir}
	if meta.Size() > backgroundAbove {
		args = append(args, "--background")
	}
	// The digest also covers the layers of the root file system.
	return d.boot(ctx, begun, spec, func() error {
		if d.takeRoot(spec.ID, spec.Dir) {
			return nil
		}
		return d.mountRoot(spec)
	}, resumeHeadroom, "resume", args...)
}

// usualLimit is the limit of a sandbox's memory, in bytes, while it is neither suspended nor resumed.
func (s *sandbox) usualLimit() (int64, error) {
	guest, err := number(filepath.Join(s.Dir, bundle.TotalMemFile))
	return guest + sentryHeadroom, err
}

// lowerLimit takes back the memory that a new sandbox needs only while its pages are loaded or, if an earlier daemon
// died while it suspended the sandbox, while the snapshot is written. Until then no Suspend begins.
func (d *Driver) lowerLimit(ctx context.Context, s *sandbox) {
	usual, err := s.usualLimit()
	if limit, limitErr := d.cgroup.memoryLimit(string(s.ID)); err != nil || limitErr == nil && limit == usual {
		return
	}
	s.memory.TryAcquire(1) // succeeds, because no caller has the sandbox yet
	ctx, cancel := finish.Lifetime(ctx)
	d.watchers.Go(func() {
		defer cancel()
		select {
		case <-s.done:
		case <-d.closing:
		case <-ctx.Done():
		}
	})
	d.watchers.Go(func() {
		defer s.memory.Release(1)
		defer cancel()
		err := s.moved(ctx)
		if err == nil {
			err = d.cgroup.setMemoryLimit(string(s.ID), usual)
		}
		if err != nil && !s.ended() {
			d.log.LogAttrs(ctx, slog.LevelDebug, "memory limit not lowered",
				slog.String("machine", string(s.ID)), slog.Any("error", err))
		}
	})
}

// moved waits until no snapshot of a running sandbox is written, and the one that it continues from has been read.
func (s *sandbox) moved(ctx context.Context) error {
	if _, err := os.Lstat(filepath.Join(s.Dir, bundle.SuspendFile)); err == nil {
		if err := awaitEngine(ctx, s.Dir); err != nil {
			return err
		}
	}
	err := s.call(ctx, methodRestored, &struct{}{}, nil)
	if errors.As(err, new(refusal)) {
		return nil // it continues from none
	}
	return err
}
