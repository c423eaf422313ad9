package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/internal/finish"
)

var _ hangar.VolumePublisher = (*Rows)(nil)

// PublishVolume implements hangar.VolumePublisher. An older row than the published one is
// dropped.
func (r *Rows) PublishVolume(ctx context.Context, row hangar.VolumeRow) error {
	put, err := state.Write(state.VolumeKey(row.Volume.Ref()), row)
	if err != nil {
		return err
	}
	if err := volumeRowFault(put.Key, &row); err != nil {
		return hangar.Errorf(hangar.CodeInvalid, "", "The row of volume %s makes no sense: %w", row.Volume.ID, err)
	}
	if err := r.countVolume(ctx, &row, nil); err != nil {
		return state.HangarError(err)
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
			return state.HangarError(err)
		}
		_, err = r.store.Txn(ctx, state.Txn{If: []state.Compare{cond}, Then: []state.Op{put}})
		if !errors.Is(err, state.ErrConflict) {
			return state.HangarError(err)
		}
	}
}

// RetractVolume implements hangar.VolumePublisher. An unreadable row, or one of another host,
// stays.
func (r *Rows) RetractVolume(ctx context.Context, host hangar.HostID, ref hangar.VolumeRef) error {
	key := state.VolumeKey(ref)
	for {
		item, err := r.store.Get(ctx, key)
		if errors.Is(err, state.ErrNotFound) {
			return nil
		}
		if err != nil {
			return state.HangarError(err)
		}
		if !r.volumeIsOn(item, host) {
			return nil
		}
		_, err = r.store.Txn(ctx, state.Txn{If: []state.Compare{state.Unchanged(item)}, Then: []state.Op{state.Delete(key)}})
		if err == nil {
			err = r.disclaimVolume(ctx, ref.ID)
		}
		if !errors.Is(err, state.ErrConflict) {
			return state.HangarError(err)
		}
	}
}

// volumeIsOn reports whether a row can be read and its volume is on a host.
func (r *Rows) volumeIsOn(item state.Item, host hangar.HostID) bool {
	row, err := r.parseVolume(item)
	return err == nil && row.Volume.Host == host
}

// PublishedVolumes implements hangar.VolumePublisher. An unreadable row is left out, so that its
// host writes it again.
func (r *Rows) PublishedVolumes(ctx context.Context, host hangar.HostID) (map[hangar.VolumeRef]uint64, error) {
	seqs := map[hangar.VolumeRef]uint64{}
	rows, err := r.volumes(ctx, state.VolumesPrefix)
	for _, row := range rows {
		if row.Volume.Host == host {
			seqs[row.Volume.Ref()] = row.Seq
		}
	}
	return seqs, err
}

// volumes returns the rows below a prefix that can be read, sorted by their Apps' ids and theirs.
// Their fields may be shared.
func (r *Rows) volumes(ctx context.Context, prefix string) ([]hangar.VolumeRow, error) {
	items, _, err := state.All(ctx, r.store, prefix, false)
	if err != nil {
		return nil, state.HangarError(err)
	}
	rows := make([]hangar.VolumeRow, 0, len(items))
	for _, item := range items {
		if row, err := r.parseVolume(item); err == nil {
			rows = append(rows, row)
		}
	}
	return rows, nil
}

// volume returns a row, hangar.VolumeNotFound or hangar.ReasonRecordDamaged.
func (r *Rows) volume(ctx context.Context, ref hangar.VolumeRef) (hangar.VolumeRow, error) {
	item, err := r.store.Get(ctx, state.VolumeKey(ref))
	if errors.Is(err, state.ErrNotFound) {
		return hangar.VolumeRow{}, hangar.VolumeNotFound(ref.ID)
	}
	if err != nil {
		return hangar.VolumeRow{}, state.HangarError(err)
	}
	return r.parseVolume(item)
}

// parseVolume is parse for the row of a volume.
func (r *Rows) parseVolume(item state.Item) (hangar.VolumeRow, error) {
	row, err := state.Decode[hangar.VolumeRow](item)
	if err == nil {
		if fault := volumeRowFault(item.Key, &row); fault != nil {
			err = state.Damaged(item.Key, fault)
		}
	}
	if err != nil {
		r.unreadable.Add(1)
		r.log.Warn("row skipped", keyKey, item.Key, keyError, err)
		return hangar.VolumeRow{}, err
	}
	return row, nil
}

// volumeRowFault says why a row does not belong to its key.
func volumeRowFault(key string, row *hangar.VolumeRow) error {
	v := &row.Volume
	app, id, _ := strings.Cut(strings.TrimPrefix(key, state.VolumesPrefix), "/")
	switch {
	case string(v.AppID) != app || app == "" || string(v.ID) != id || !v.ID.Valid():
		return fmt.Errorf("row of volume %q of app %q", v.ID, v.AppID)
	case !v.State.Valid():
		return fmt.Errorf("unknown state %q", v.State)
	case tenants.NameFault(string(v.App)) != "":
		return fmt.Errorf("invalid app %q", v.App)
	case v.Host == "" || row.Org == "" || row.OrgID == "":
		return errors.New("without a host or an organization")
	case slices.ContainsFunc(row.Snapshots, func(s hangar.Snapshot) bool { return !s.ID.Valid() || !s.State.Valid() }):
		return errors.New("with an unknown state of a snapshot, or without its id")
	default:
		return nil
	}
}

// volumeOf returns the row of a volume of an App.
func (r *Rows) volumeOf(ctx context.Context, app hangar.AppID, id hangar.VolumeID) (hangar.VolumeRow, error) {
	if !id.Valid() {
		return hangar.VolumeRow{}, hangar.VolumeNotFound(id)
	}
	return r.volume(ctx, hangar.VolumeRef{AppID: app, ID: id})
}

// volumesOf returns the rows of an App's volumes, sorted by id.
func (r *Rows) volumesOf(ctx context.Context, app hangar.AppID) ([]hangar.VolumeRow, error) {
	return r.volumes(ctx, state.VolumeKey(hangar.VolumeRef{AppID: app}))
}

// publishAnswer publishes the row in a host's answer. A failure only delays the readers, because
// the host publishes the row, too.
func (r *Rows) publishAnswer(ctx context.Context, row *hangar.VolumeRow) {
	ctx, cancel := finish.Within(ctx, listTimeout)
	defer cancel()
	if err := r.PublishVolume(ctx, *row); err != nil {
		r.log.Warn("row of a volume is not published yet", keyApp, row.Volume.App, keyVolume, row.Volume.ID, keyError, err)
	}
}

// destroyedVolumes returns the rows of an organization's destroyed volumes that still take room,
// the oldest first.
func (r *Rows) destroyedVolumes(ctx context.Context, org hangar.OrgID) ([]hangar.VolumeRow, error) {
	all, err := r.volumes(ctx, state.VolumesPrefix)
	if err != nil {
		return nil, err
	}
	rows := slices.DeleteFunc(all, func(row hangar.VolumeRow) bool {
		return row.OrgID != org || !row.Volume.State.Gone() || row.Volume.State == hangar.VolumeDestroyed
	})
	slices.SortStableFunc(rows, func(a, b hangar.VolumeRow) int { return a.Volume.DestroyedAt.Compare(b.Volume.DestroyedAt) })
	return rows, nil
}
