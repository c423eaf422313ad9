package contract

import (
	"slices"
	"testing"

	"github.com/hangar-platform/hangar"
)

// volumePurge: destroyed volumes of an organization are listed with their size, even without
// their App, and a caller that may destroy them may purge them.
func volumePurge(t *testing.T, h Harness) {
	slug, app := h.newOrg(t), uniqueName()
	ctx := h.Context(t)
	create := func() {
		t.Helper()
		_, err := h.Apps.CreateApp(ctx, hangar.AppCreate{Name: app, Org: slug})
		must(t, "create app", err)
	}
	create()
	first := h.newVolume(t, app, hangar.VolumeCreate{SizeGB: 2})
	_, err := h.Volumes.PurgeVolume(ctx, slug, first.ID)
	wantError(t, "purge what is not destroyed", err, hangar.CodeFailedPrecondition, hangar.ReasonWrongState)
	_, err = h.Volumes.DestroyVolume(ctx, first.Ref())
	must(t, "destroy", err)
	second := h.newVolume(t, app, hangar.VolumeCreate{SizeGB: 1})
	must(t, "destroy app", h.Apps.DestroyApp(ctx, app, true))
	create() // another App, which has nothing of them
	t.Cleanup(func() { h.dropApp(t, app) })
	list, err := h.Volumes.DestroyedVolumes(ctx, slug)
	must(t, "list", err)
	if len(list) == 2 && list[0].ID == second.ID && list[0].DestroyedAt.Equal(list[1].DestroyedAt) {
		slices.Reverse(list) // of the same millisecond, either is the oldest
	}
	if len(list) != 2 || list[0].ID != first.ID || list[1].ID != second.ID || list[0].State != hangar.VolumePendingDestroy {
		t.Errorf("destroyed volumes %+v", list)
	}
	takes := func(volumes, gb int64) {
		t.Helper()
		quotas, err := h.Orgs.OrgQuotas(ctx, slug)
		must(t, "quotas", err)
		for _, q := range quotas {
			if q.Key == hangar.QuotaVolumes && q.Destroyed != volumes || q.Key == hangar.QuotaVolumeGB && q.Destroyed != gb {
				t.Errorf("destroyed volumes take %d of %s", q.Destroyed, q.Key)
			}
		}
	}
	takes(2, 3)

	reader := h.with(t, hangar.TokenCreate{Kind: hangar.TokenReadOnly, Org: slug})
	if list, err := reader.Volumes.DestroyedVolumes(reader.Context(t), slug); err != nil || len(list) != 2 {
		t.Errorf("a reader of the organization sees %v, %v", list, err)
	}
	_, err = reader.Volumes.PurgeVolume(reader.Context(t), slug, first.ID)
	wantError(t, "purge as a reader", err, hangar.CodeForbidden, "")
	// A token for the App that has the name now is none for the one that had it.
	later := h.with(t, hangar.TokenCreate{Kind: hangar.TokenDeploy, Org: slug, Apps: []hangar.AppName{app}})
	if list, err := later.Volumes.DestroyedVolumes(later.Context(t), slug); err != nil || len(list) != 0 {
		t.Errorf("another App of the name sees %v, %v", list, err)
	}
	_, err = later.Volumes.PurgeVolume(later.Context(t), slug, first.ID)
	wantError(t, "purge from another App of the name", err, hangar.CodeNotFound, hangar.ReasonVolumeNotFound)
	_, err = h.Volumes.PurgeVolume(ctx, hangar.OrgPersonal, first.ID)
	wantError(t, "purge from another organization", err, hangar.CodeNotFound, hangar.ReasonVolumeNotFound)

	gone, err := h.Volumes.PurgeVolume(ctx, slug, first.ID)
	must(t, "purge", err)
	if gone.State != hangar.VolumeDestroyed || gone.ID != first.ID {
		t.Errorf("purged: %+v", gone)
	}
	takes(1, 1)
	if list, err := h.Volumes.DestroyedVolumes(ctx, slug); err != nil || len(list) != 1 || list[0].ID != second.ID {
		t.Errorf("then destroyed volumes are %+v, %v", list, err)
	}
	_, err = h.Volumes.PurgeVolume(ctx, slug, second.ID)
	must(t, "purge", err)
	takes(0, 0)
}
