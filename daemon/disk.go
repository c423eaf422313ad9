package daemon

import (
	"log/slog"
	"path/filepath"
	"time"

	"github.com/hangar-platform/hangar/host/rootfs"
	"github.com/hangar-platform/hangar/host/volume"
	"github.com/hangar-platform/hangar/internal/diskspace"
)

// newLayers returns the writable layers of Machines. With the fake driver they are unbounded, because
// its Machines write nothing.
func newLayers(cfg Config, log *slog.Logger) *rootfs.Layers {
	return rootfs.New(rootfs.Options{
		Dir: filepath.Join(cfg.Dir, "layers"), Size: int64(cfg.RootfsSize) << 30,
		Unbounded: cfg.RootfsUnbounded || cfg.Driver == DriverFake, Log: log,
	})
}

// newDevices returns the volumes below the data directory.
func newDevices(cfg Config, guard []string, log *slog.Logger) *volume.Volumes {
	return volume.New(volume.Options{
		Dir: filepath.Join(cfg.Dir, "volumes"), Run: volumesRun(cfg), Instance: instance(cfg.Dir),
		Guard: guard, Log: log,
	})
}

// volumesRun is the directory of what is open of volumes.
func volumesRun(cfg Config) string { return filepath.Join(runDir(cfg), "volumes") }

// newSpace returns the accounting of the disk of the data directory.
func newSpace(cfg Config, log *slog.Logger) *diskspace.Space {
	return diskspace.New(diskspace.Options{Dir: cfg.Dir, Reserve: cfg.DiskReserve << 20, Log: log, Now: time.Now})
}
