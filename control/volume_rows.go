package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
)

var _ hangar.VolumePublisher = (*Rows)(nil)

// PublishVolume implements hangar.VolumePublisher. An older row than the published one is
// dropped.
func (r *Rows) PublishVolume(ctx context.Context, row hangar.VolumeRow) error {
	put, err := write(volumeKey(row.Volume.Ref()), row)
	if err != nil {
		return err
	}
	if err := volumeRowFault(put.Key, &row); err != nil {
		return hangar.Errorf(hangar.CodeInvalid, "", "The row of volume %s makes no sense: %w", row.Volume.ID, err)
	}
	if err := r.ledger.countVolume(ctx, &row, nil); err != nil {
		return stateError(err)
	}
	for {
		cond := state.Absent(put.Key)
		switch item, err := r.store.Get(ctx, put.Key); {
		case err == nil:
			if known, err := r.parseVolume(item); err == nil && known.Seq >= row.Seq {
				return nil
			}
			cond = state.Unchanged(item)
		case !errors.Is(err, state.ErrNotFound):
			return stateError(err)
		}
		_, err = r.store.Txn(ctx, state.Txn{If: []state.Compare{cond}, Then: []state.Op{put}})
		if !errors.Is(err, state.ErrConflict) {
			return stateError(err)
		}
	}
}

// RetractVolume implements hangar.VolumePublisher. A row that cannot be read, or is of
// another host, stays.
func (r *Rows) RetractVolume(ctx context.Context, host hangar.HostID, ref hangar.VolumeRef) error {
	key := volumeKey(ref)
	for {
		item, err := r.store.Get(ctx, key)
		if errors.Is(err, state.ErrNotFound) {
			return nil
		}
		if err != nil {
			return stateError(err)
		}
		if !r.volumeIsOn(item, host) {
			return nil
		}
		_, err = r.store.Txn(ctx, state.Txn{If: []state.Compare{state.Unchanged(item)}, Then: []state.Op{state.Delete(key)}})
		if err == nil {
			err = r.ledger.disclaimVolume(ctx, ref.ID)
		}
		if !errors.Is(err, state.ErrConflict) {
			return stateError(err)
		}
	}
}

// volumeIsOn reports whether a row that can be read is of a host's volume.
func (r *Rows) volumeIsOn(item state.Item, host hangar.HostID) bool {
	row, err := r.parseVolume(item)
	return err == nil && row.Volume.Host == host
}

// PublishedVolumes implements hangar.VolumePublisher. A row that cannot be read is not
// told of, so that its host writes it again.
func (r *Rows) PublishedVolumes(ctx context.Context, host hangar.HostID) (map[hangar.VolumeRef]uint64, error) {
	seqs := map[hangar.VolumeRef]uint64{}
	rows, err := r.volumes(ctx, volumesPrefix)
	for _, row := range rows {
		if row.Volume.Host == host {
			seqs[row.Volume.Ref()] = row.Seq
		}
	}
	return seqs, err
}

// volumes returns the rows below a prefix that can be read, sorted by their Apps' ids and
// theirs.
// What they refer to may be shared.
func (r *Rows) volumes(ctx context.Context, prefix string) ([]hangar.VolumeRow, error) {
	items, _, err := state.All(ctx, r.store, prefix, false)
	if err != nil {
		return nil, stateError(err)
	}
	rows := make([]hangar.VolumeRow, 0, len(items))
	for _, item := range items {
		if row, err := r.parseVolume(item); err == nil {
			rows = append(rows, row)
		}
	}
	return rows, nil
}

// volume returns a row, hangar.VolumeNotFound or errUnreadable.
func (r *Rows) volume(ctx context.Context, ref hangar.VolumeRef) (hangar.VolumeRow, error) {
	item, err := r.store.Get(ctx, volumeKey(ref))
	if errors.Is(err, state.ErrNotFound) {
		return hangar.VolumeRow{}, hangar.VolumeNotFound(ref.ID)
	}
	if err != nil {
		return hangar.VolumeRow{}, stateError(err)
	}
	return r.parseVolume(item)
}

// parseVolume is parse for the row of a volume.
func (r *Rows) parseVolume(item state.Item) (hangar.VolumeRow, error) {
	row, err := decode[hangar.VolumeRow](item)
	if err == nil {
		err = volumeRowFault(item.Key, &row)
	}
	if err != nil {
		r.unreadable.Add(1)
		r.log.Warn("row skipped", keyKey, item.Key, keyError, err)
		return hangar.VolumeRow{}, errors.Join(errUnreadable, err)
	}
	return row, nil
}

// volumeRowFault says why a row is not the one of a volume at that key.
func volumeRowFault(key string, row *hangar.VolumeRow) error {
	v := &row.Volume
	app, id, _ := strings.Cut(strings.TrimPrefix(key, volumesPrefix), "/")
	switch {
	case string(v.AppID) != app || app == "" || string(v.ID) != id || !v.ID.Valid():
		return fmt.Errorf("row of volume %q of app %q", v.ID, v.AppID)
	case !v.State.Valid():
		return fmt.Errorf("unknown state %q", v.State)
	case nameFault(string(v.App)) != "":
		return fmt.Errorf("invalid app %q", v.App)
	case v.Host == "" || row.Org == "" || row.OrgID == "":
		return errors.New("without a host or an organization")
	case slices.ContainsFunc(row.Snapshots, func(s hangar.Snapshot) bool { return !s.ID.Valid() || !s.State.Valid() }):
		return errors.New("with an unknown state of a snapshot, or without its id")
	default:
		return nil
	}
}
