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
	// claimTries bounds how often a volume is claimed that changes at the same time.
	claimTries = 10
)

// errVolumeChanged says that a record is not any more the one that was claimed for.
var errVolumeChanged = errors.New("the volume has changed meanwhile")

// claiming has what a volume will be counted against the quotas of its organization, and then
// commits it with commitTo. wanted says what it will be: nil if there is nothing to do. What is
// not committed is not counted either.
// Claims of one volume take turns, so that none of them undoes the claim of another one.
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

// claim counts a volume as row says.
func (v *volume) claim(ctx context.Context, row hangar.VolumeRow) error {
	ctx, cancel := finish.Within(ctx, claimDeadline)
	defer cancel()
	return v.store.o.Publisher.ClaimVolume(ctx, row)
}

// commitTo commits a change of the record that was claimed for, or returns errVolumeChanged.
func (v *volume) commitTo(rec *journal.VolumeRecord, alter change) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.rec.Load() != rec {
		return errVolumeChanged
	}
	_, err := v.commit(alter)
	return err
}
