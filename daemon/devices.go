package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/hangar-platform/hangar/control"
	"github.com/hangar-platform/hangar/host"
	"github.com/hangar-platform/hangar/host/archive"
	"github.com/hangar-platform/hangar/host/volume"
	"github.com/hangar-platform/hangar/internal/diskspace"
	"github.com/hangar-platform/hangar/internal/finish"
)

// newDevices returns the volumes below the data directory.
func newDevices(cfg Config, guard []string, log *slog.Logger) *volume.Volumes {
	return volume.New(volume.Options{
		Dir: filepath.Join(cfg.Dir, "volumes"), Run: filepath.Join(runDir(cfg), "volumes"), Instance: instance(cfg.Dir),
		Guard: guard, Log: log,
	})
}

// newSpace returns the room on the disk of the data directory.
func newSpace(cfg Config, log *slog.Logger) *diskspace.Space {
	return diskspace.New(diskspace.Options{Dir: cfg.Dir, Reserve: cfg.DiskReserve << 20, Log: log, Now: time.Now})
}

// openDevices opens the volumes of this server. One that lacks what they need serves
// everything else.
func openDevices(ctx context.Context, cfg Config, guard []string, log *slog.Logger, opened *closers) host.Devices {
	devices := newDevices(cfg, guard, log)
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
func newArchive(cfg Config, password *control.ArchivePassword, log *slog.Logger) *archive.Archive {
	where := cfg.Snapshots
	if where == "" {
		where = (&url.URL{Scheme: "file", Path: filepath.Join(cfg.Dir, "snapshots")}).String()
	}
	return archive.New(archive.Options{
		URL: where, Cache: filepath.Join(cfg.Dir, "snapshots-cache"), Password: password.Password, Log: log,
	})
}

// releaseDevices ends what is open of volumes. No daemon may run, and no Machine.
func releaseDevices(ctx context.Context, cfg Config, log *slog.Logger) error {
	devices := newDevices(cfg, nil, log)
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

func (c *Config) validateVolumes() error {
	if !(c.VolumeOvercommit > 0 && c.VolumeOvercommit <= maxOvercommit) { // so that NaN is neither
		return fmt.Errorf("--volume-overcommit %g: must be above 0 and at most %d", c.VolumeOvercommit, maxOvercommit)
	}
	if c.DiskReserve < 0 {
		return fmt.Errorf("--disk-reserve %d: must not be negative", c.DiskReserve)
	}
	if c.VolumesPerMachine < 1 || c.VolumesPerMachine > maxVolumes {
		return fmt.Errorf("--volumes-per-machine %d: must be from 1 to %d", c.VolumesPerMachine, maxVolumes)
	}
	if c.Snapshots == "" {
		return nil
	}
	if err := archive.CheckURL(c.Snapshots); err != nil { // which does not repeat what may be a password
		return fmt.Errorf("--snapshots: %w; it must be like file:///DIR or s3://BUCKET/PREFIX?endpoint=HOST&region=NAME", err)
	}
	return nil
}
