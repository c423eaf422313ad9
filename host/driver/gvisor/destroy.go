package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver/gvisor/bundle"
	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/internal/pause"
)

// undoPatience limits the cleanup after a failed start, resume or command.
const undoPatience = time.Minute

// Destroy implements driver.Driver.
func (d *Driver) Destroy(ctx finish.Context, id hangar.MachineID, dir string) error {
	if err := d.destroy(ctx, string(id), dir); err != nil {
		return fmt.Errorf("destroy machine %s: %w", id, err)
	}
	return nil
}

func (d *Driver) destroy(ctx finish.Context, id, dir string) error {
	d.mu.Lock()
	s := d.sandboxes[hangar.MachineID(id)]
	d.mu.Unlock()
	if s != nil {
		if err := d.end(ctx, s); err != nil {
			return err
		}
	}
	// Without the bundle, Recover does not find the sandbox any more.
	files := []string{bundle.ConfigFile, bundle.TotalMemFile, bundle.ExitFile, bundle.SuspendFile, bundle.PreparedFile, bundle.ResultFile, specDigestFile}
	if s == nil {
		// A start was interrupted, perhaps by the death of the daemon: its engine may still run, and
		// its sandbox may be incomplete.
		if err := killStrays(ctx, dir); err != nil {
			return err
		}
	}
	if err := removeFiles(dir, files...); err != nil {
		return err
	}
	if err := d.release(ctx, id, dir); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sandboxes[hangar.MachineID(id)] == s {
		delete(d.sandboxes, hangar.MachineID(id))
	}
	return nil
}

// release frees the resources on the host of a sandbox without processes.
func (d *Driver) release(ctx finish.Context, id, dir string) error {
	if err := d.removeCgroup(ctx, id); err != nil {
		return err
	}
	d.mu.Lock()
	delete(d.kept, hangar.MachineID(id))
	d.mu.Unlock()
	unmountAll(rootfsDir(dir))
	return errors.Join(removeFiles(dir, "rootfs"), d.removeRuntimeFiles(id))
}

// end kills the sandbox and returns when it has ended.
func (d *Driver) end(ctx context.Context, s *sandbox) error {
	s.killed.Store(true)
	if !s.ended() {
		switch f, err := s.Sentry.open(); {
		case err == nil:
			kill(f)
			_ = f.Close()
		case !errors.Is(err, errGone):
			return err
		}
	}
	select {
	case <-s.done:
		return nil
	case <-d.closing:
		return errClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// killStrays ends every process that was started for the Machine in dir. It repeats until none is
// left, because an engine command may have started others before it was killed.
func killStrays(ctx finish.Context, dir string) error {
	for {
		procs, err := processesOf(dir)
		if err != nil {
			return err
		}
		if len(procs) == 0 {
			return nil
		}
		if err := killAll(ctx, procs); err != nil {
			return err
		}
	}
}

// removeCgroup removes the groups of a sandbox. It retries, because the kernel considers them empty
// only a moment after the last process was reaped.
func (d *Driver) removeCgroup(ctx finish.Context, id string) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		err := d.cgroup.remove(id)
		if !errors.Is(err, unix.EBUSY) {
			return err
		}
		var left []process
		for _, pid := range d.cgroup.processes(id) {
			if p, err := find(pid); err == nil {
				left = append(left, p)
			}
		}
		if err := killAll(ctx, left); err != nil {
			return err
		}
		if ended := pause.For(ctx, wait); ended != nil {
			return errors.Join(err, ended)
		}
	}
}

// List implements driver.Driver.
func (d *Driver) List(context.Context) ([]hangar.MachineID, error) {
	seen := make(map[hangar.MachineID]bool)
	add := func(id string) {
		if m := hangar.MachineID(id); m.Valid() {
			seen[m] = true
		}
	}
	for _, id := range d.cgroup.ids() {
		add(id)
	}
	entries, err := os.ReadDir(d.opts.Root)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if id, _, ok := strings.Cut(e.Name(), "_sandbox:"); ok {
			add(id)
		}
	}
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("overlay"))
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		if id, ok := strings.CutPrefix(m.Source, d.mountMark("")); ok {
			add(id)
		}
	}
	out := make([]hangar.MachineID, 0, len(seen))
	for id := range seen {
		out = append(out, id)
	}
	return out, nil
}
