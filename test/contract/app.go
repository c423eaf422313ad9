package contract

import (
	"slices"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
)

// AppService checks an implementation of hangar.AppService.
func AppService(t *testing.T, h Harness) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, Harness){
		"create and get":        appCreate,
		"names":                 appNames,
		"name taken":            appNameTaken,
		"not found":             appNotFound,
		"list":                  appList,
		"counts":                appCounts,
		"destroy needs force":   appDestroyForce,
		"destroy frees":         appDestroyFrees,
		"destroy with machines": appDestroyStopped,
	} {
		t.Run(name, func(t *testing.T) { test(t, h) })
	}
}

func appCreate(t *testing.T, h Harness) {
	name := uniqueName()
	t.Cleanup(func() { h.dropApp(t, name) })
	made, err := h.Apps.CreateApp(h.Context(t), hangar.AppCreate{Name: name, Org: hangar.OrgPersonal})
	must(t, "create", err)
	if made.Name != name || made.Org.Slug != hangar.OrgPersonal || made.ID == "" || made.CreatedAt.IsZero() {
		t.Errorf("created app is incomplete: %+v", made)
	}
	if made.Status != hangar.AppPending {
		t.Errorf("status of an app without machines is %q, want %q", made.Status, hangar.AppPending)
	}
	if made.Network != hangar.DefaultNetwork || made.NetworkID == 0 {
		t.Errorf("network is %q, number %d", made.Network, made.NetworkID)
	}
	got, err := h.Apps.App(h.Context(t), name)
	must(t, "get", err)
	if got.ID != made.ID || got.Name != made.Name || got.NumericID != made.NumericID || got.NetworkID != made.NetworkID {
		t.Errorf("got %+v, want what was made: %+v", got, made)
	}
}

func appNames(t *testing.T, h Harness) {
	for _, bad := range []string{"", "Upper", "under_score", "sp ace", "dot.ted", strings.Repeat("a", 64), "../etc", "ünicode"} {
		_, err := h.Apps.CreateApp(h.Context(t), hangar.AppCreate{Name: hangar.AppName(bad), Org: hangar.OrgPersonal})
		wantError(t, "create "+bad, err, hangar.CodeInvalid, "")
		if err == nil {
			h.dropApp(t, hangar.AppName(bad))
		}
	}
}

func appNameTaken(t *testing.T, h Harness) {
	name := h.newApp(t)
	_, err := h.Apps.CreateApp(h.Context(t), hangar.AppCreate{Name: name, Org: hangar.OrgPersonal})
	wantError(t, "create again", err, hangar.CodeInvalid, hangar.ReasonNameTaken)
}

func appNotFound(t *testing.T, h Harness) {
	name := uniqueName()
	_, err := h.Apps.App(h.Context(t), name)
	wantError(t, "get", err, hangar.CodeNotFound, hangar.ReasonAppNotFound)
	wantError(t, "destroy", h.Apps.DestroyApp(h.Context(t), name, true), hangar.CodeNotFound, hangar.ReasonAppNotFound)
	_, err = h.Machines.Machines(h.Context(t), name, hangar.MachineFilter{})
	wantError(t, "list machines", err, hangar.CodeNotFound, hangar.ReasonAppNotFound)
	_, err = h.Machines.CreateMachine(h.Context(t), name, hangar.MachineCreate{Config: h.config()})
	wantError(t, "create machine", err, hangar.CodeNotFound, hangar.ReasonAppNotFound)
}

func appList(t *testing.T, h Harness) {
	want := []hangar.AppName{h.newApp(t), h.newApp(t), h.newApp(t)}
	slices.Sort(want)
	apps, err := h.Apps.Apps(h.Context(t), hangar.AppFilter{Org: hangar.OrgPersonal})
	must(t, "list", err)
	var got []hangar.AppName
	for _, a := range apps {
		if slices.Contains(want, a.Name) {
			got = append(got, a.Name)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("listed %v, want %v in this order", got, want)
	}
	apps, err = h.Apps.Apps(h.Context(t), hangar.AppFilter{Org: "nobody"})
	if hangar.CodeOf(err) != hangar.CodeForbidden && hangar.CodeOf(err) != hangar.CodeNotFound {
		must(t, "list of another organization", err)
	}
	if len(apps) != 0 {
		t.Errorf("listed %d apps of an organization that has none", len(apps))
	}
}

func appCounts(t *testing.T, h Harness) {
	name := h.newApp(t)
	h.stopped(t, name)
	m := h.stopped(t, name)
	app, err := h.Apps.App(h.Context(t), name)
	must(t, "get", err)
	if app.MachineCount != 2 || app.Status != hangar.AppDeployed {
		t.Errorf("app with two machines has count %d and status %q", app.MachineCount, app.Status)
	}
	must(t, "destroy machine", h.Machines.DestroyMachine(h.Context(t), m.Ref(), hangar.MachineDestroy{}))
	h.wait(t, m.Ref(), hangar.MachineDestroyed)
	app, err = h.Apps.App(h.Context(t), name)
	must(t, "get", err)
	if app.MachineCount != 1 {
		t.Errorf("app with one machine left has count %d", app.MachineCount)
	}
}

func appDestroyForce(t *testing.T, h Harness) {
	name := h.newApp(t)
	m := h.started(t, name)
	wantError(t, "destroy", h.Apps.DestroyApp(h.Context(t), name, false), hangar.CodeFailedPrecondition, hangar.ReasonMachinesRunning)
	if got := h.get(t, m.Ref()); got.State != hangar.MachineStarted {
		t.Errorf("a refused destroy left the machine %s", got.State)
	}
	must(t, "destroy with force", h.Apps.DestroyApp(h.Context(t), name, true))
	_, err := h.Apps.App(h.Context(t), name)
	wantError(t, "get", err, hangar.CodeNotFound, hangar.ReasonAppNotFound)
}

func appDestroyFrees(t *testing.T, h Harness) {
	name := h.newApp(t)
	must(t, "destroy", h.Apps.DestroyApp(h.Context(t), name, false))
	wantError(t, "destroy again", h.Apps.DestroyApp(h.Context(t), name, false), hangar.CodeNotFound, hangar.ReasonAppNotFound)
	_, err := h.Apps.CreateApp(h.Context(t), hangar.AppCreate{Name: name, Org: hangar.OrgPersonal})
	must(t, "create with a name that is free again", err)
}

func appDestroyStopped(t *testing.T, h Harness) {
	name := h.newApp(t)
	h.stopped(t, name)
	must(t, "destroy with a stopped machine", h.Apps.DestroyApp(h.Context(t), name, false))
}
