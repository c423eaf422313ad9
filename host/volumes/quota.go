package volumes

import (
	"context"
	"errors"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/internal/finish"
)

const (
	// claimDeadline bounds how long a volume waits for the ledger of its organization.
	claimDeadline = 5 * time.Second
	// claimTries bounds the attempts to claim a volume that keeps changing.
	claimTries = 10
)

// errVolumeChanged says that a record has changed since its claim.
var errVolumeChanged = errors.New("the volume has changed meanwhile")

// claiming counts the wanted row of a volume against the quotas of its organization, and then calls
// commit. wanted returns nil if there is nothing to do. If commit fails, the claim is undone.
// Claims of one volume take turns, so that none undoes another.
func (v *volume) claiming(
	ctx context.Context, wanted func(*journal.VolumeRecord) (*hangar.VolumeRow, error), commit func(*journal.VolumeRecord) error,
) error {
	if err := v.claims.Acquire(ctx, 1); err != nil {
		return err
	}
	defer v.claims.Release(1)
	for range claimTries {
		rec := v.rec.Load()
		row, err := wanted(rec)
		if err != nil || row == nil {
			return err
		}
		if err := v.claim(ctx, *row); err != nil {
			return err
		}
		if err = commit(rec); err == nil {
			return nil
		}
		if !errors.Is(err, errVolumeChanged) {
			return errors.Join(err, v.claim(ctx, rowOf(v.rec.Load())))
		}
	}
	changing := hangar.Errorf(hangar.CodeUnavailable, "", "volume %s keeps changing: try again", v.id)
	return errors.Join(changing, v.claim(ctx, rowOf(v.rec.Load())))
}

// claimable reports whether a claim would begin at once. A round over all volumes skips one that is
// waiting for room.
func (v *volume) claimable() bool {
	if !v.claims.TryAcquire(1) {
		return false
	}
	v.claims.Release(1)
	return true
}

// claim counts a volume as its row says.
func (v *volume) claim(ctx context.Context, row hangar.VolumeRow) error {
	return finish.Do(ctx, claimDeadline, func(ctx finish.Context) error { return v.store.o.Publisher.ClaimVolume(ctx, row) })
}

// commitTo commits a change of the record rec, or returns errVolumeChanged if that is not the
// current one.
func (v *volume) commitTo(rec *journal.VolumeRecord, alter change) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.rec.Load() != rec {
		return errVolumeChanged
	}
	_, err := v.commit(alter)
	return err
}
