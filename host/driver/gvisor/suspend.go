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

// Above these sizes, in bytes, it is faster to write a snapshot around the page
// cache, because the kernel throttles who dirties much of it; and to let the guest
// run while its memory is being read.
const (
	directAbove     = 1536 << 20
	backgroundAbove = 384 << 20
)

// endPatience bounds the end of a sandbox whose memory is on the disk. The kernel may take long to
// free what it had, and to give up there would fail a suspension that is complete.
const endPatience = 10 * time.Minute

// Suspend implements driver.Suspender. The snapshot is written and sealed by the
// engine, so that it is complete or absent even if this process dies meanwhile.
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
	// While this file exists, the end of the sandbox may mean that it is suspended.
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
	limit, err := d.cgroup.memoryLimit(string(s.ID))
	if err != nil {
		return err
	}
	// The kernel counts what the sandbox writes against its limit, too, until it is on
	// disk. The guest, which is stopped meanwhile, cannot use what is added.
	if err := d.cgroup.setMemoryLimit(string(s.ID), 2*limit); err != nil {
		return err
	}
	if _, err := d.engine(ctx, nil, append(args, string(s.ID))...); err != nil {
		// An engine that was killed leaves a partial snapshot; a sealed snapshot stays sealed if
		// only its answer was lost.
		if _, statErr := os.Lstat(dir); statErr != nil {
			restored := d.cgroup.setMemoryLimit(string(s.ID), limit)
			if s.ended() {
				restored = nil // nor is there anything to limit
			}
			return errors.Join(err, restored, os.RemoveAll(dir+".tmp"), removeFiles(s.Dir, bundle.SuspendFile))
		}
	}
	return finish.Do(ctx, endPatience, func(ctx finish.Context) error { return d.endSuspended(ctx, s) })
}

// endSuspended ends a sandbox whose memory is on the disk. Its only remaining work is to free its
// memory, which the kernel does as well.
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
	// The root file system stays mounted for Resume. Before it unmounts it, the kernel writes all
	// dirty data of the file system below to disk: the snapshot above all.
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
	h, err := d.resume(ctx, &spec, dir)
	if err != nil {
		left := func(ctx finish.Context) error { return d.destroy(ctx, string(spec.ID), spec.Dir) } // by Suspend
		err = errors.Join(err, finish.Do(ctx, undoPatience, left))
		return nil, fmt.Errorf("resume machine %s: %w", spec.ID, err)
	}
	return h, nil
}

func (d *Driver) resume(ctx context.Context, spec *driver.Spec, dir string) (driver.Handle, error) {
	meta, err := bundle.ReadMeta(dir)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", driver.ErrSnapshotUnusable, err)
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
	// The digest also covers the parts of the root file system.
	h, err := d.boot(ctx, spec, func() error {
		if d.takeRoot(spec.ID, spec.Dir) {
			return nil
		}
		return d.mountRoot(spec)
	}, resumeHeadroom, "resume", args...)
	if err != nil {
		return nil, err
	}
	s, err := d.lookup(h)
	if err != nil {
		return nil, err
	}
	d.lowerLimit(ctx, s, guestMemory(spec)+sentryHeadroom)
	return h, nil
}

// lowerLimit takes away the memory that only the loading needed, once it is over.
func (d *Driver) lowerLimit(ctx context.Context, s *sandbox, limit int64) {
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
		defer cancel()
		err := s.call(ctx, methodRestored, &struct{}{}, nil)
		if err == nil {
			err = d.cgroup.setMemoryLimit(string(s.ID), limit)
		}
		if err != nil && !s.ended() {
			d.log.LogAttrs(ctx, slog.LevelDebug, "memory limit not lowered after resume",
				slog.String("machine", string(s.ID)), slog.Any("error", err))
		}
	})
}
