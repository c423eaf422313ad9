package main

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar/control"
	"github.com/hangar-platform/hangar/host"
	"github.com/hangar-platform/hangar/host/archive"
	"github.com/hangar-platform/hangar/host/volume"
	"github.com/hangar-platform/hangar/internal/diskspace"
	"github.com/hangar-platform/hangar/internal/finish"
)

// guardCommand is by which the daemon starts this program as the guard of a file system
// that it has frozen.
const guardCommand = "guard-volume"

// newGuardCommand is for the daemon alone.
func newGuardCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: guardCommand + " DIR", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return volume.Guard(args[0], os.Stdin, c.stdout) },
	}
}

// newDevices returns the volumes below the data directory.
func newDevices(cfg config, log *slog.Logger) *volume.Volumes {
	return volume.New(volume.Options{
		Dir: filepath.Join(cfg.Dir, "volumes"), Run: filepath.Join(runDir(cfg), "volumes"), Instance: instance(cfg.Dir),
		Guard: []string{"/proc/self/exe", guardCommand}, Log: log,
	})
}

// newSpace returns the room on the disk of the data directory.
func newSpace(cfg config, log *slog.Logger) *diskspace.Space {
	return diskspace.New(diskspace.Options{Dir: cfg.Dir, Reserve: cfg.DiskReserve << 20, Log: log, Now: time.Now})
}

// openDevices opens the volumes of this server. One that lacks what they need serves
// everything else.
func openDevices(ctx context.Context, cfg config, log *slog.Logger, opened *closers) host.Devices {
	devices := newDevices(cfg, log)
	if err := devices.Open(ctx); err != nil {
		log.Warn("this server cannot keep volumes; see hangar doctor", "error", err)
		return host.NoVolumes{Why: err.Error()}
	}
	opened.add(func() error {
		err := devices.Close()
		_ = os.Remove(runDir(cfg)) // unless something of a Machine is in it
		return err
	})
	return host.LocalDevices(devices)
}

// newArchive returns the store of snapshots. The agent opens it when it is first needed,
// and closes it: it may be on another server, and its password is in the cluster state.
func newArchive(cfg config, password *control.ArchivePassword, log *slog.Logger) *archive.Archive {
	where := cfg.Snapshots
	if where == "" {
		where = (&url.URL{Scheme: "file", Path: filepath.Join(cfg.Dir, "snapshots")}).String()
	}
	return archive.New(archive.Options{
		URL: where, Cache: filepath.Join(cfg.Dir, "snapshots-cache"), Password: password.Password, Log: log,
	})
}

// releaseDevices ends what is open of volumes. No daemon may run, and no Machine.
func releaseDevices(ctx context.Context, cfg config, log *slog.Logger) error {
	devices := newDevices(cfg, log)
	if err := devices.Open(ctx); err != nil {
		log.Warn("volumes that are open stay so", "error", err)
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

// maxVolumes and maxOvercommit bound what an operator may allow.
const (
	maxVolumes    = 16
	maxOvercommit = 1000
)

func (c *config) validateVolumes() error {
	if !(c.VolumeOvercommit > 0 && c.VolumeOvercommit <= maxOvercommit) { // so that NaN is neither
		return usageErrorf("--volume-overcommit %g: must be above 0 and at most %d", c.VolumeOvercommit, maxOvercommit)
	}
	if c.DiskReserve < 0 {
		return usageErrorf("--disk-reserve %d: must not be negative", c.DiskReserve)
	}
	if c.VolumesPerMachine < 1 || c.VolumesPerMachine > maxVolumes {
		return usageErrorf("--volumes-per-machine %d: must be from 1 to %d", c.VolumesPerMachine, maxVolumes)
	}
	if c.Snapshots == "" {
		return nil
	}
	if err := archive.CheckURL(c.Snapshots); err != nil { // which does not repeat what may be a password
		return usageErrorf("--snapshots: %w; it must be like file:///DIR or s3://BUCKET/PREFIX?endpoint=HOST&region=NAME", err)
	}
	return nil
}
