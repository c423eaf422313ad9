package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/driver/gvisor/bundle"
	guestinit "github.com/hangar-platform/hangar/host/guest/init"
	"github.com/hangar-platform/hangar/internal/pidfd"
)

// Adopt implements driver.Adopter. If its daemon dies, an engine finishes its command and records the
// result in the bundle before it answers.
func (d *Driver) Adopt(ctx context.Context, id hangar.MachineID, dir string) (driver.Handle, error) {
	h, err := d.adopt(ctx, id, dir)
	if err != nil {
		return nil, fmt.Errorf("adopt machine %s: %w", id, err)
	}
	return h, nil
}

func (d *Driver) adopt(ctx context.Context, id hangar.MachineID, dir string) (driver.Handle, error) {
	if err := awaitEngine(ctx, dir); errors.Is(err, context.DeadlineExceeded) {
		return nil, driver.ErrNotFound
	} else if err != nil {
		return nil, err
	}
	r, err := bundle.ReadResult(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, driver.ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	if r.HostBoot != boot {
		return nil, driver.ErrNotFound
	}
	// A process that has ended keeps start time 0 in the handle, which no running process has. So it
	// counts as ended, and its exit is in the bundle.
	h := handle{ID: id, Dir: dir, Boot: boot, Socket: r.ControlSocket}
	if h.Others, err = othersIn(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, driver.ErrNotFound // Destroy was interrupted
	} else if err != nil {
		return nil, err
	}
	h.Sentry, h.Gofer = process{PID: r.SentryPID}, process{PID: r.GoferPID}
	procs, err := processesOf(dir)
	if err != nil {
		return nil, err
	}
	for _, p := range procs {
		switch p.PID {
		case r.SentryPID:
			h.Sentry = p
		case r.GoferPID:
			h.Gofer = p
		}
	}
	return d.take(ctx, h)
}

// othersIn returns the number of commands beside the main one of the bundle in dir.
func othersIn(dir string) (int, error) {
	raw, err := os.ReadFile(filepath.Join(dir, bundle.ConfigFile))
	if err != nil {
		return 0, err
	}
	var spec specs.Spec
	if err := json.Unmarshal(raw, &spec); err != nil || spec.Process == nil {
		return 0, fmt.Errorf("read %s of the bundle: %w", bundle.ConfigFile, err)
	}
	return max(guestinit.Count(spec.Process.Args)-1, 0), nil
}

// awaitEngine returns when no command of the engine works on the bundle in dir.
func awaitEngine(ctx context.Context, dir string) error {
	procs, err := processesOf(dir)
	if err != nil {
		return err
	}
	for _, p := range procs {
		name, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(p.PID), "cmdline"))
		if arg0, _, _ := strings.Cut(string(name), "\x00"); err != nil || arg0 != engineName {
			continue
		}
		f, err := p.open()
		if errors.Is(err, errGone) {
			continue
		}
		if err != nil {
			return err
		}
		err = pidfd.AwaitContext(ctx, f)
		reap(p.PID)
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}
