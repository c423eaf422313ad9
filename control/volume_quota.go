package control

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/ledger"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
)

// volumeClaim is what a volume counts against quotas, from before its host is asked to make it
// until its last snapshot is removed. A destroyed volume keeps its room while it can be undeleted.
type volumeClaim struct {
	OrgID     hangar.OrgID     `json:"org_id"`
	Ref       hangar.VolumeRef `json:"ref"`
	SizeGB    int              `json:"size_gb"`             // 0: the image is gone
	Snapshots int              `json:"snapshots,omitempty"` // that have not failed
	Seq       uint64           `json:"seq,omitempty"`       // of the row that the host claimed for, or that was counted last
	CreatedAt time.Time        `json:"created_at"`
}

// Counted returns what a volume and its snapshots count against quotas.
func (v volumeClaim) Counted() (hangar.OrgID, hangar.Quotas) {
	counts := hangar.Quotas{hangar.QuotaVolumeGB: int64(v.SizeGB), hangar.QuotaSnapshots: int64(v.Snapshots)}
	if v.SizeGB > 0 {
		counts[hangar.QuotaVolumes] = 1
	}
	return v.OrgID, counts
}

// claimOf returns what the volume of a row counts against quotas.
func claimOf(row *hangar.VolumeRow) volumeClaim {
	claim := volumeClaim{OrgID: row.OrgID, Ref: row.Volume.Ref(), Seq: row.Seq, CreatedAt: row.Volume.CreatedAt}
	if row.Volume.State != hangar.VolumeDestroyed {
		claim.SizeGB = row.Volume.SizeGB
	}
	for i := range row.Snapshots {
		if row.Snapshots[i].State != hangar.SnapshotFailed {
			claim.Snapshots++
		}
	}
	return claim
}

func volumeClaimKey(id hangar.VolumeID) string { return state.VolumeClaimsPrefix + string(id) }

// claim counts a volume that is about to be made.
func (v *Volumes) claim(ctx context.Context, app tenants.AppRecord, spec *hangar.VolumeSpec) error {
	org, err := v.tenants.OrgOfApp(ctx, app)
	if err != nil {
		return err
	}
	claim := volumeClaim{
		OrgID: org.ID, Ref: hangar.VolumeRef{App: spec.App, AppID: spec.AppID, ID: spec.ID}, SizeGB: spec.SizeGB, CreatedAt: v.now().UTC(),
	}
	put, err := state.Write(volumeClaimKey(spec.ID), claim)
	if err != nil {
		return err
	}
	_, counts := claim.Counted()
	return v.reclaiming(ctx, org, counts, func() error {
		_, err := v.ledger.SpendFor(ctx, org, counts, state.Txn{If: []state.Compare{state.Absent(put.Key)}, Then: []state.Op{put}})
		return state.HangarError(err)
	})
}

// ClaimVolume implements hangar.VolumePublisher.
func (r *Rows) ClaimVolume(ctx context.Context, row hangar.VolumeRow) error {
	org, _, err := state.Read[tenants.OrgRecord](ctx, r.store, state.OrgKey(row.Org))
	if errors.Is(err, state.ErrNotFound) || err == nil && org.ID != row.OrgID {
		return tenants.OrgNotFound(row.Org)
	}
	if err != nil {
		return state.HangarError(err)
	}
	return state.HangarError(r.countVolume(ctx, &row, &org))
}

// countVolume counts a volume as its host says. With an organization, row is a claim, and growth
// beyond the quota is refused. Otherwise it is the published row, which counts regardless of the
// quota; a row older than the last claim is ignored, and one without a claim, as after the state
// was restored from a backup, is counted.
func (r *Rows) countVolume(ctx context.Context, row *hangar.VolumeRow, org *tenants.OrgRecord) error {
	claim := claimOf(row)
	key := volumeClaimKey(row.Volume.ID)
	for {
		switch _, err := r.store.Get(ctx, key); {
		case err == nil:
			return r.recountVolume(ctx, row, org)
		case !errors.Is(err, state.ErrNotFound):
			return err
		case claim.empty():
			return nil
		}
		put, err := state.Write(key, claim)
		if err != nil {
			return err
		}
		_, counts := claim.Counted()
		_, err = r.ledger.Spend(ctx, claim.OrgID, org, counts, state.Txn{If: []state.Compare{state.Absent(key)}, Then: []state.Op{put}})
		if !errors.Is(err, state.ErrConflict) {
			return err
		}
	}
}

func (v volumeClaim) empty() bool { return v.SizeGB == 0 && v.Snapshots == 0 }

// countsAs reports whether two claims count the same against quotas.
func (v volumeClaim) countsAs(other volumeClaim) bool {
	return v.SizeGB == other.SizeGB && v.Snapshots == other.Snapshots
}

// recountVolume is countVolume for a volume that is counted already.
func (r *Rows) recountVolume(ctx context.Context, row *hangar.VolumeRow, org *tenants.OrgRecord) error {
	return r.reviseClaim(ctx, row, org, func(known volumeClaim, next *volumeClaim) bool {
		if row.Seq < known.Seq || row.Seq == known.Seq && org == nil {
			return false
		}
		if org == nil && row.Volume.State == hangar.VolumeExtending {
			next.SizeGB = known.SizeGB // the size stays at the claim
		}
		return org != nil || !next.countsAs(known)
	})
}

// reviseClaim replaces the claim of a volume by that of its row, with what change changes in it, unless change
// returns false. It stops counting a volume that has nothing left.
func (r *Rows) reviseClaim(ctx context.Context, row *hangar.VolumeRow, org *tenants.OrgRecord, change func(known volumeClaim, next *volumeClaim) bool) error {
	return ledger.Revise(ctx, r.ledger, volumeClaimKey(row.Volume.ID), org, func(known volumeClaim) (*volumeClaim, bool) {
		next := claimOf(row)
		next.CreatedAt = known.CreatedAt
		changed := change(known, &next)
		if next.empty() {
			return nil, changed
		}
		return &next, changed
	})
}

// unused reports whether a host has claimed more or less than the volume had in row, and has not committed a
// change since, as far as it has published.
func (v volumeClaim) unused(row *hangar.VolumeRow) bool {
	return row.Seq == v.Seq && row.Volume.State != hangar.VolumeExtending && !v.countsAs(claimOf(row))
}

// undoClaim counts a volume by its published row instead of an unused claim. If the host does use the claim later,
// its next row counts.
func (r *Rows) undoClaim(ctx context.Context, row *hangar.VolumeRow) error {
	return r.reviseClaim(ctx, row, nil, func(known volumeClaim, _ *volumeClaim) bool { return known.unused(row) })
}

// disclaimVolume stops counting a volume.
func (r *Rows) disclaimVolume(ctx context.Context, id hangar.VolumeID) error {
	return ledger.Revise(ctx, r.ledger, volumeClaimKey(id), nil, func(volumeClaim) (*volumeClaim, bool) { return nil, true })
}

// reclaiming calls attempt, which uses more of an organization's quotas. If the quota refuses it,
// reclaiming removes the oldest destroyed volumes of the organization that could still be
// undeleted, as long as that suffices, and tries again.
func (v *Volumes) reclaiming(ctx context.Context, org *tenants.OrgRecord, more hangar.Quotas, attempt func() error) error {
	for {
		refusal := attempt()
		if hangar.ReasonOf(refusal) != hangar.ReasonQuota {
			return refusal
		}
		freed, err := v.reclaim(ctx, org, more)
		if err != nil || !freed {
			return errors.Join(refusal, err)
		}
	}
}

// reclaim removes destroyed volumes of an organization, the oldest first, to make room below its
// quotas, and reports whether it has removed any. If all of them would not suffice, it removes
// none.
func (v *Volumes) reclaim(ctx context.Context, org *tenants.OrgRecord, more hangar.Quotas) (freed bool, err error) {
	used, _, err := v.ledger.Usage(ctx, org.ID)
	if err != nil {
		return false, state.HangarError(err)
	}
	limits, err := v.ledger.Limits(org)
	if err != nil {
		return false, err
	}
	lacking := func(key hangar.QuotaKey) int64 {
		if limit, ok := limits.Limit(key); ok && more[key] > 0 {
			return used[key] + more[key] - limit
		}
		return 0
	}
	volumes, gb := lacking(hangar.QuotaVolumes), lacking(hangar.QuotaVolumeGB)
	rows, err := v.rows.destroyedVolumes(ctx, org.ID)
	if err != nil {
		return false, err
	}
	var most, mostGB int64
	for _, row := range rows {
		most, mostGB = most+1, mostGB+int64(row.Volume.SizeGB)
	}
	if volumes > most || gb > mostGB {
		return false, nil // removing all of them would not suffice
	}
	for _, row := range rows {
		if volumes <= 0 && gb <= 0 {
			break
		}
		gone, err := v.purge(ctx, &row)
		if err != nil {
			return freed, err
		}
		if gone { // false for one that is still being read
			freed = true
			volumes, gb = volumes-1, gb-int64(row.Volume.SizeGB)
		}
	}
	return freed, nil
}

// purge removes a destroyed volume before its time. It reports false for one that was
// undeleted meanwhile, or is still being read.
func (v *Volumes) purge(ctx context.Context, row *hangar.VolumeRow) (bool, error) {
	agent, err := v.hosts.agent(row.Volume.Host)
	if err != nil {
		return false, nil //nolint:nilerr // a volume on an unreachable host stays
	}
	gone, err := agent.PurgeVolume(platform(ctx), row.Volume.Ref())
	switch {
	case hangar.CodeOf(err) == hangar.CodeNotFound:
		return true, v.rows.RetractVolume(ctx, row.Volume.Host, row.Volume.Ref())
	case hangar.CodeOf(err) == hangar.CodeFailedPrecondition:
		return false, nil
	case err != nil:
		return false, err
	}
	v.log.InfoContext(ctx, "destroyed volume removed before its time: its organization needs its quota",
		keyVolume, row.Volume.ID, keyApp, row.Volume.App)
	return true, v.rows.PublishVolume(ctx, *gone)
}

// healClaims removes the claims of volumes that no host has: their creators were interrupted. A
// claim stays while a host that might have the volume cannot be reached. It also undoes claims that a
// host made and abandoned.
func (v *Volumes) healClaims(ctx context.Context) error {
	items, _, err := state.All(ctx, v.store, state.VolumeClaimsPrefix, false)
	if err != nil {
		return state.HangarError(err)
	}
	unused, now := state.Sightings{}, v.now()
	for _, item := range items {
		claim, err := state.Decode[volumeClaim](item)
		if err != nil {
			v.log.ErrorContext(ctx, "claim of a volume skipped", keyKey, item.Key, keyError, err)
			continue
		}
		if now.Sub(claim.CreatedAt) < outcomeTimeout {
			continue
		}
		row, err := v.rows.volume(ctx, claim.Ref)
		if err == nil && claim.unused(&row) {
			unused[item.Key] = v.unused.First(item, now)
			if now.Sub(unused[item.Key].At) >= outcomeTimeout {
				if err := v.rows.undoClaim(ctx, &row); err != nil {
					return state.HangarError(err)
				}
			}
		}
		if hangar.CodeOf(err) != hangar.CodeNotFound {
			continue
		}
		// Every host has to answer: otherwise the volume of an unreachable host would no longer be
		// counted.
		answers := askAll(v.hosts, v.hosts.agents.Known(), func(a hangar.Agent) (*hangar.VolumeRow, error) { return a.VolumeRow(ctx, claim.Ref) })
		if slices.ContainsFunc(answers, func(a answer[*hangar.VolumeRow]) bool { return hangar.CodeOf(a.err) != hangar.CodeNotFound }) {
			continue
		}
		if err := v.rows.disclaimVolume(ctx, claim.Ref.ID); err != nil {
			return state.HangarError(err)
		}
	}
	v.unused = unused
	return nil
}
