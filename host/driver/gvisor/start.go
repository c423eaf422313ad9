package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/driver/gvisor/bundle"
	guestinit "github.com/hangar-platform/hangar/host/guest/init"
	"github.com/hangar-platform/hangar/internal/finish"
)

// engineFlags are the runsc flags of every command, which docs/adr/0002-engine-binary.md explains.
func (d *Driver) engineFlags() []string {
	return []string{
		"--root=" + d.opts.Root,
		"--platform=systrap",
		"--network=sandbox",
		"--directfs=true",
		"--overlay2=none",
		"--host-uds=open",
		"--allow-suid=true",
		"--net-raw=true",
		"--allow-connected-on-save=true",
		"--sidecar-usage-policy=LEGACY_DEPRECATED_SLOW_EMBEDDED_FALLBACK",
		"--host-settings=ignore",
	}
}

// Start implements driver.Driver.
func (d *Driver) Start(ctx context.Context, spec driver.Spec) (driver.Handle, error) {
	if err := d.checkSpec(&spec); err != nil {
		return nil, err
	}
	h, err := d.boot(ctx, new(bool), &spec, func() error {
		if err := d.mountRoot(&spec); err != nil {
			return err
		}
		root, err := unix.Open(rootfsDir(spec.Dir), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(root) }()
		if err := prepareRoot(root); err != nil {
			return err
		}
		// A command may be one of the files.
		if err := writeFiles(root, spec.Files); err != nil {
			return err
		}
		return findCommands(root, &spec)
	}, sentryHeadroom, "start")
	if err != nil {
		return nil, fmt.Errorf("start machine %s: %w", spec.ID, err)
	}
	return h, nil
}

func (d *Driver) checkSpec(spec *driver.Spec) error {
	switch {
	case !spec.ID.Valid(): // ids are prefix-matched, so all must have the same length
		return fmt.Errorf("invalid machine id %q", spec.ID)
	case !filepath.IsAbs(spec.Dir), !filepath.IsAbs(spec.Root.Writable):
		return fmt.Errorf("machine %s: directories must be absolute", spec.ID)
	case spec.CPUs < 1 || spec.MemoryMB < 1:
		return fmt.Errorf("machine %s: %d cores and %d MiB of memory", spec.ID, spec.CPUs, spec.MemoryMB)
	case len(spec.Others) >= guestinit.MaxCommands, len(spec.Others) > 0 && (spec.TTY || spec.StopSignal < 1):
		return fmt.Errorf("machine %s: %d commands beside the main one", spec.ID, len(spec.Others))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.sandboxes[spec.ID]; s != nil && !s.ended() {
		return fmt.Errorf("machine %s runs already", spec.ID)
	}
	return nil
}

// boot makes a sandbox by the given engine command, after root has mounted its root file system. On
// an error nothing is left. begun is set once the engine has received the command.
func (d *Driver) boot(ctx context.Context, begun *bool, spec *driver.Spec, root func() error, headroom int64, command string, args ...string) (_ driver.Handle, err error) {
	d.watchers.Go(d.cgroup.quicken)
	// Remove what an earlier sandbox left: the lock file of a killed engine, or a socket that would
	// make gVisor silently use another directory.
	d.forget(spec.ID)
	if err := errors.Join(d.removeRuntimeFiles(string(spec.ID)), removeFiles(spec.Dir, bundle.ResultFile)); err != nil {
		return nil, err
	}
	// From here on an error must undo the start, even if ctx has ended.
	defer func() {
		if err != nil {
			err = errors.Join(err, finish.Do(ctx, undoPatience, func(ctx finish.Context) error { return d.Destroy(ctx, spec.ID, spec.Dir) }))
		}
	}()
	if err := root(); err != nil {
		return nil, err
	}
	if err := d.writeBundle(spec, headroom); err != nil {
		return nil, err
	}
	out, held, err := openOutput(spec.Output)
	if err != nil {
		return nil, err
	}
	defer held.Close()
	defer out.Close()
	args = append([]string{command, "--bundle=" + spec.Dir}, args...)
	r, err := d.engine(ctx, begun, out, append(args, string(spec.ID))...)
	if err != nil {
		return nil, err
	}
	h := handle{ID: spec.ID, Dir: spec.Dir, Boot: r.HostBoot, Socket: r.ControlSocket, Others: len(spec.Others)}
	if h.Sentry, err = find(r.SentryPID); err != nil {
		return nil, fmt.Errorf("find sandbox: %w", err)
	}
	if r.GoferPID > 0 {
		if h.Gofer, err = find(r.GoferPID); err != nil && !errors.Is(err, errGone) {
			return nil, fmt.Errorf("find gofer: %w", err)
		}
	}
	return d.take(ctx, h)
}

// take starts to watch a sandbox and returns its handle for the journal.
func (d *Driver) take(ctx context.Context, h handle) (driver.Handle, error) {
	encoded, err := h.encode()
	if err != nil {
		return nil, err
	}
	if err := d.watch(ctx, h); err != nil {
		return nil, err
	}
	return encoded, nil
}

// forget drops an ended sandbox before the next one of the Machine starts.
func (d *Driver) forget(id hangar.MachineID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.sandboxes, id)
}

// openOutput opens the FIFO for the guest. From its start on, the sandbox keeps the FIFO open for
// reading; until then held does. Close held after the start.
func openOutput(path string) (out, held *os.File, err error) {
	if path == "" {
		path = os.DevNull
	}
	// Blocking, as the guest expects of its standard output.
	open := func(flags int) *os.File {
		if err != nil {
			return nil
		}
		fd, openErr := unix.Open(path, flags|unix.O_CLOEXEC, 0)
		if openErr != nil {
			err = &os.PathError{Op: "open", Path: path, Err: openErr}
			return nil
		}
		return os.NewFile(uintptr(fd), path)
	}
	held = open(unix.O_RDWR)
	out = open(unix.O_WRONLY)
	if err != nil && held != nil {
		_ = held.Close()
	}
	return out, held, err
}

// runtimeFiles are a sandbox's files in gVisor's root directory, and its configuration.
func (d *Driver) runtimeFiles(id string) []string {
	name := id + "_sandbox:" + id
	return []string{name + ".state", name + ".lock", "runsc-" + id + ".sock", id + configSuffix}
}

func (d *Driver) removeRuntimeFiles(id string) error {
	return removeFiles(d.opts.Root, d.runtimeFiles(id)...)
}
