package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
	hostmachines "github.com/hangar-platform/hangar/host/machines"
	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/internal/hint"
	"github.com/hangar-platform/hangar/internal/keeper"
	"github.com/hangar-platform/hangar/metrics/store"
)

// stopPatience is how long a daemon may take to end before it is killed.
const stopPatience = 20 * time.Second

// releaseWithin bounds the release of one sandbox or volume, which continues when a context ends.
const releaseWithin = 2 * time.Minute

// Uninstall ends the daemon of cfg, if one runs, stops its Machines, releases everything it made
// on this server and removes its data directory. It continues where an earlier one has failed.
func Uninstall(ctx context.Context, cfg Config, log *slog.Logger) error {
	lock, err := takeOver(ctx, cfg.Dir)
	if err != nil {
		return err
	}
	defer lock.release()
	if err := removeFromHost(ctx, cfg, log); err != nil {
		return hint.With(err, "run `hangar down` again: it continues where it stopped")
	}
	mounts, err := mountsBelow(cfg.Dir)
	if err != nil {
		return err
	}
	if len(mounts) > 0 {
		return hint.With(fmt.Errorf("still mounted: %s", strings.Join(mounts, ", ")), "unmount them and run `hangar down` again; nothing was removed")
	}
	return os.RemoveAll(cfg.Dir)
}

// takeOver takes the lock of a data directory, and stops a running daemon for that.
func takeOver(ctx context.Context, dir string) (*dirLock, error) {
	lock, err := lockDir(ctx, dir)
	if !errors.Is(err, errLocked) {
		return lock, err
	}
	d, err := Find(dir)
	if err != nil {
		return nil, hint.With(err, "wait until the other command on this directory has ended")
	}
	defer d.Close()
	if d.pid == os.Getpid() {
		return nil, fmt.Errorf("this process is the daemon of %s", dir)
	}
	if d.managed() {
		return nil, hint.With(fmt.Errorf("process %d is run by systemd, which would start it again", d.pid),
			"systemctl disable --now hangar; then run `hangar down` again")
	}
	if err := d.Stop(ctx, stopPatience); err != nil {
		return nil, err
	}
	return lockDir(ctx, dir)
}

// removeFromHost removes everything that the daemon of cfg made on the host, except its data directory.
// No daemon may run.
func removeFromHost(ctx context.Context, cfg Config, log *slog.Logger) error {
	if cfg.Driver == DriverFake {
		return errors.Join(releaseDevices(ctx, cfg, log), os.RemoveAll(runDir(cfg)))
	}
	sandboxes, err := newGvisor(cfg, log)
	if err != nil {
		return err
	}
	if err := sandboxes.Open(ctx); err != nil {
		return err
	}
	defer sandboxes.Close()
	ids, err := sandboxes.List(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, id := range ids {
		if ctx.Err() != nil {
			return errors.Join(append(errs, ctx.Err())...)
		}
		errs = append(errs, finish.Do(ctx, releaseWithin, func(ctx finish.Context) error {
			return sandboxes.Destroy(ctx, id, hostmachines.SandboxDir(cfg.Dir, id))
		}))
	}
	id, err := recordedHost(cfg, log)
	if err != nil {
		// A journal that cannot be read must not keep the rest from being removed.
		log.Warn("the address of this server may be left", "error", err)
	}
	errs = append(errs, store.RemoveGroup(metricsGroup(cfg)), removeLayers(cfg, log), releaseDevices(ctx, cfg, log), sandboxes.Remove(ctx), newNetwork(cfg, id, nil, log).Remove(ctx),
		keeper.Quit(ctx, keeperSocket(cfg)), os.RemoveAll(runDir(cfg)))
	return errors.Join(errs...)
}

// noHost stands for a server whose daemon has not chosen an id, and so has given it no address.
const noHost hangar.HostID = "00000000"

// recordedHost returns the id that the daemon of cfg chose for this server, from which the server's
// private address derives.
func recordedHost(cfg Config, log *slog.Logger) (_ hangar.HostID, err error) {
	path := filepath.Join(cfg.Dir, "journal.db")
	if !exists(path) {
		return noHost, nil
	}
	records, err := journal.Open(path, journal.Options{Log: log})
	if err != nil {
		return noHost, err
	}
	defer func() { err = errors.Join(err, records.Close()) }()
	id, err := records.Setting(settingHostID)
	if err != nil {
		if errors.Is(err, journal.ErrNotFound) {
			err = nil
		}
		return noHost, err
	}
	return hangar.HostID(id), nil
}

// mountsBelow lists what is mounted below a directory, deepest first.
func mountsBelow(dir string) ([]string, error) {
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return !strings.HasPrefix(m.Mountpoint, dir+"/"), false
	})
	if err != nil {
		return nil, err
	}
	var found []string
	for _, m := range slices.Backward(mounts) {
		found = append(found, m.Mountpoint)
	}
	return found, nil
}

// removeLayers removes all that Machines wrote to their root file systems.
func removeLayers(cfg Config, log *slog.Logger) error {
	layers := newLayers(cfg, log)
	ids, err := layers.List()
	if err != nil {
		return fmt.Errorf("list writable layers: %w", err)
	}
	var errs []error
	for _, id := range ids {
		errs = append(errs, layers.Remove(id))
	}
	return errors.Join(errs...)
}

// releaseDevices closes open volumes. No daemon and no Machine may run.
func releaseDevices(ctx context.Context, cfg Config, log *slog.Logger) error {
	devices := newDevices(cfg, nil, log)
	if err := devices.Open(ctx); err != nil {
		log.Warn("open volumes are not closed", "error", err)
		return nil
	}
	ids, err := devices.List(ctx)
	errs := []error{err}
	for _, id := range ids {
		if ctx.Err() != nil {
			errs = append(errs, ctx.Err())
			break
		}
		errs = append(errs, finish.Do(ctx, releaseWithin, func(ctx finish.Context) error { return devices.Release(ctx, id) }))
	}
	return errors.Join(append(errs, devices.Close())...)
}
