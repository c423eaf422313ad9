package volume

import (
	"context"
	"errors"
	"slices"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/finish"
)

// backends are the backends that work on this host, at least one. The first opens volumes. A volume
// that an earlier process opened with another backend stays with that one until it is closed.
type backends []backend

func (b backends) open(ctx context.Context, im image, key []byte) (handle, error) {
	return b[0].open(ctx, im, key)
}

func (b backends) adopt(ctx finish.Context, im image, key []byte) (handle, error) {
	var errs []error
	for _, one := range b {
		h, err := one.adopt(ctx, im, key)
		if !errors.Is(err, errNotOpen) {
			return h, err
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

func (b backends) release(ctx finish.Context, id hangar.VolumeID) error {
	var errs []error
	for _, one := range b {
		errs = append(errs, one.release(ctx, id))
	}
	return errors.Join(errs...)
}

func (b backends) list(ctx context.Context) ([]hangar.VolumeID, error) {
	var all []hangar.VolumeID
	for _, one := range b {
		ids, err := one.list(ctx)
		if err != nil {
			return nil, err
		}
		all = append(all, ids...)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}
