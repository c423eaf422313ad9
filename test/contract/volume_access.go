package contract

import (
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
)

// volumeOtherOrgs: a volume of another organization cannot be told from a missing one, also in an
// App of the name that its App had.
func volumeOtherOrgs(t *testing.T, h Harness) {
	app := h.newApp(t)
	v := h.newVolume(t, app, hangar.VolumeCreate{})
	s := h.snapshot(t, v.Ref())
	slug := h.newOrg(t)
	holder := h.with(t, hangar.TokenCreate{Kind: hangar.TokenOrg, Org: slug})
	ctx := holder.Context(t)
	none := hangar.VolumeRef{App: uniqueName(), ID: hangar.NewVolumeID()}
	for name, do := range holder.volumeVerbs(t) {
		found, lost := do(v.Ref()), do(none)
		wantError(t, name, found, hangar.CodeNotFound, hangar.ReasonAppNotFound)
		wantError(t, name+" nothing", lost, hangar.CodeNotFound, hangar.ReasonAppNotFound)
		if found != nil && lost != nil && strings.ReplaceAll(found.Error(), string(app), "X") != strings.ReplaceAll(lost.Error(), string(none.App), "X") {
			t.Errorf("%s: %q for what is there, %q for what is not", name, found, lost)
		}
	}
	_, err := holder.Volumes.OrgVolumes(ctx, hangar.OrgPersonal, "", 10)
	wantError(t, "list of the organization", err, hangar.CodeNotFound, hangar.ReasonOrgNotFound)

	must(t, "destroy app", h.Apps.DestroyApp(h.Context(t), app, true))
	_, err = holder.Apps.CreateApp(ctx, hangar.AppCreate{Name: app})
	must(t, "create an app of its name", err)
	t.Cleanup(func() { h.dropApp(t, app) })
	if list := holder.volumes(t, app); len(list) != 0 {
		t.Errorf("an app of another organization has the volumes %v", list)
	}
	for name, do := range holder.volumeVerbs(t) {
		wantError(t, name+" from an app of that name", do(v.Ref()), hangar.CodeNotFound, hangar.ReasonVolumeNotFound)
	}
	_, err = holder.Volumes.CreateVolume(ctx, app, hangar.VolumeCreate{Name: "stolen", Snapshot: s.ID})
	wantError(t, "restore a snapshot of another organization", err, hangar.CodeNotFound, hangar.ReasonSnapshotNotFound)
	_, err = holder.Volumes.CreateVolume(ctx, app, hangar.VolumeCreate{Name: "stolen", Source: v.ID})
	wantError(t, "fork a volume of another organization", err, hangar.CodeNotFound, hangar.ReasonVolumeNotFound)
	_, err = holder.Machines.CreateMachine(ctx, app, h.mounting(v))
	wantError(t, "mount a volume of another organization", err, hangar.CodeInvalid, hangar.ReasonVolumeNotFound)
	_, err = holder.Volumes.DrillVolumes(ctx, app)
	wantError(t, "drill a snapshot of another organization", err, hangar.CodeFailedPrecondition, hangar.ReasonSnapshotNotFound)
	if list, err := holder.Volumes.OrgVolumes(ctx, slug, "", 10); err != nil || len(list) != 0 {
		t.Errorf("another organization has the volumes %v, %v", list, err)
	}
}

// volumeOrgMadeAgain: an organization has nothing of one that had its slug.
func volumeOrgMadeAgain(t *testing.T, h Harness) {
	slug, app := h.newOrg(t), uniqueName()
	create := func() {
		t.Helper()
		_, err := h.Apps.CreateApp(h.Context(t), hangar.AppCreate{Name: app, Org: slug})
		must(t, "create app", err)
	}
	create()
	t.Cleanup(func() { h.dropApp(t, app) })
	v := h.newVolume(t, app, hangar.VolumeCreate{})
	s := h.snapshot(t, v.Ref())
	must(t, "destroy app", h.Apps.DestroyApp(h.Context(t), app, true))
	must(t, "delete organization", h.Orgs.DeleteOrg(h.Context(t), slug))
	_, err := h.Orgs.CreateOrg(h.Context(t), hangar.OrgCreate{Slug: slug})
	must(t, "create organization", err)
	create()
	if list := h.volumes(t, app); len(list) != 0 {
		t.Errorf("the app has the volumes %v", list)
	}
	if list, err := h.Volumes.OrgVolumes(h.Context(t), slug, "", 10); err != nil || len(list) != 0 {
		t.Errorf("the organization has the volumes %v, %v", list, err)
	}
	_, err = h.Volumes.UndeleteVolume(h.Context(t), v.Ref())
	wantError(t, "undelete", err, hangar.CodeNotFound, hangar.ReasonVolumeNotFound)
	_, err = h.Volumes.CreateVolume(h.Context(t), app, hangar.VolumeCreate{Name: "stolen", Snapshot: s.ID})
	wantError(t, "restore", err, hangar.CodeNotFound, hangar.ReasonSnapshotNotFound)
	_, err = h.Volumes.DrillVolumes(h.Context(t), app)
	wantError(t, "drill", err, hangar.CodeFailedPrecondition, hangar.ReasonSnapshotNotFound)
}

func volumeTokens(t *testing.T, h Harness) {
	app, other := h.newApp(t), h.newApp(t)
	v, foreign := h.newVolume(t, app, hangar.VolumeCreate{}), h.newVolume(t, other, hangar.VolumeCreate{})
	s := h.snapshot(t, foreign.Ref())
	m := h.stopped(t, app)
	apps := []hangar.AppName{app}

	deploy := h.with(t, hangar.TokenCreate{Kind: hangar.TokenDeploy, Apps: apps})
	if list := deploy.volumes(t, app); len(list) != 1 {
		t.Errorf("a deploy token lists %v", list)
	}
	if list, err := deploy.Volumes.OrgVolumes(deploy.Context(t), hangar.OrgPersonal, "", 1000); err != nil || len(list) != 1 || list[0].ID != v.ID {
		t.Errorf("a deploy token lists %v of the organization, %v", list, err)
	}
	_, err := deploy.Volumes.CreateVolume(deploy.Context(t), app, hangar.VolumeCreate{Name: "d", Snapshot: s.ID})
	wantError(t, "restore a snapshot of another app", err, hangar.CodeNotFound, hangar.ReasonSnapshotNotFound)
	_, err = deploy.Volumes.CreateVolume(deploy.Context(t), app, hangar.VolumeCreate{Name: "d", Source: foreign.ID})
	wantError(t, "fork a volume of another app", err, hangar.CodeNotFound, hangar.ReasonVolumeNotFound)

	// The rights of each action of a token.
	days := 7
	allowed := map[string]hangar.Action{
		"get": hangar.ActionRead, "events": hangar.ActionRead, "list": hangar.ActionRead, "update": hangar.ActionWrite, "extend": hangar.ActionWrite,
		"undelete": hangar.ActionWrite, "destroy": hangar.ActionDelete, "snapshot": hangar.ActionCreate,
	}
	for _, action := range []hangar.Action{hangar.ActionRead, hangar.ActionWrite, hangar.ActionCreate, hangar.ActionDelete, hangar.ActionControl} {
		holder := h.with(t, hangar.TokenCreate{Kind: hangar.TokenCustom, Apps: apps, Actions: action})
		for name, do := range holder.volumeVerbs(t) {
			err := do(hangar.VolumeRef{App: app, ID: hangar.NewVolumeID()})
			if allowed[name] == action {
				wantError(t, name+" with "+action.String(), err, hangar.CodeNotFound, hangar.ReasonVolumeNotFound)
			} else {
				wantError(t, name+" with "+action.String(), err, hangar.CodeForbidden, "")
			}
		}
	}

	// A token of Machines reaches no volumes.
	machine := h.with(t, hangar.TokenCreate{Kind: hangar.TokenCustom, Apps: apps, Machines: []hangar.MachineID{m.ID}, Actions: hangar.ActionAll})
	for name, do := range machine.volumeVerbs(t) {
		wantError(t, name+" with a token of a machine", do(v.Ref()), hangar.CodeForbidden, "")
	}
	_, err = machine.Volumes.UpdateVolume(machine.Context(t), v.Ref(), hangar.VolumeUpdate{SnapshotRetention: &days})
	wantError(t, "update with a token of a machine", err, hangar.CodeForbidden, "")
	if list, err := machine.Volumes.OrgVolumes(machine.Context(t), hangar.OrgPersonal, "", 1000); err != nil || len(list) != 0 {
		t.Errorf("a token of a machine lists the volumes %v, %v", list, err)
	}
}
