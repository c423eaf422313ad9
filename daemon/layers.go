package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/rootfs"
	"github.com/hangar-platform/hangar/internal/hint"
)

func (c *Config) validateLayers() error {
	if c.RootfsSize < 1 || c.RootfsSize > hangar.MaxRootfsGB {
		return fmt.Errorf("--rootfs-size %d: must be from 1 to %d", c.RootfsSize, hangar.MaxRootfsGB)
	}
	return nil
}

// newLayers returns what keeps the writable layers of Machines. Those of the fake driver
// write nothing.
func newLayers(cfg Config, log *slog.Logger) *rootfs.Layers {
	return rootfs.New(rootfs.Options{
		Dir: filepath.Join(cfg.Dir, "layers"), Size: int64(cfg.RootfsSize) << 30,
		Unbounded: cfg.RootfsUnbounded || cfg.Driver == DriverFake, Log: log,
	})
}

func openLayers(ctx context.Context, cfg Config, log *slog.Logger, opened *closers) (*rootfs.Layers, error) {
	layers := newLayers(cfg, log)
	if err := layers.Open(ctx); err != nil {
		return nil, hint.With(err, "see `hangar doctor`; `hangar up --rootfs-unbounded` does without, and lets every Machine fill the disk")
	}
	opened.add(layers.Close)
	if cfg.RootfsUnbounded {
		log.Warn("every Machine may fill the disk of this server", "flag", "--rootfs-unbounded")
	}
	return layers, nil
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
