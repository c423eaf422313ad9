package extensions

import (
	"context"
	"maps"
	"slices"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/addresses"
	"github.com/hangar-platform/hangar/control/extensions/extensionstest"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/provider"
)

// TestLife: an extension is made, changed and destroyed, and each time the provider is asked once.
func TestLife(t *testing.T) {
	w, server := newWorld(t), extensionstest.New(t)
	w.provider("logs", server, func(in *hangar.ProviderCreate) { in.ReadReplicas = true })
	made := w.create(hangar.ExtensionCreate{Provider: "logs", PrimaryRegion: "ams", ReadRegions: []hangar.Region{"fra"}})
	if made.Status != hangar.ExtensionProvisioning || made.Name != "web-logs" {
		t.Errorf("journaled is %+v", made)
	}
	w.steps()
	e := w.one()
	if e.Status != hangar.ExtensionReady || e.ID != made.ID || e.ProviderID != "r/1" || e.Error != "" {
		t.Errorf("made is %+v", e)
	}
	at := server.Extensions()[string(e.ID)]
	if at.OrganizationID != string(acme) || at.OrganizationName != "The acme" || at.UserID != string(ann) || at.UserEmail != "aliasacme@customer.example.com" ||
		at.UserRole != "member" || at.PrimaryRegion != "ams" || !slices.Equal(at.ReadRegions, []string{"fra"}) || at.IPAddress != e.IP {
		t.Errorf("the provider was sent %+v", at.Provision)
	}
	want := map[string]string{"LOGS_URL": "https://web-logs.example.com", "LOGS_TOKEN": "token-of-" + string(e.ID)}
	if got := w.secrets(acme, "web"); !maps.Equal(got, want) {
		t.Errorf("secrets are %q, want %q", got, want)
	}
	plan := "pro"
	if _, err := w.service.UpdateExtension(w.as(acme), "web", e.Name, hangar.ExtensionUpdate{Plan: &plan}); err != nil {
		t.Fatal(err)
	}
	w.steps()
	if e := w.one(); e.Plan != "pro" || server.Extensions()[string(e.ID)].Plan != "pro" || e.Status != hangar.ExtensionReady {
		t.Errorf("changed is %+v", e)
	}
	w.clock.advance(checkEvery)
	server.Change("web-logs", func(e *extensionstest.Extension) { e.Status = "sleeping" })
	w.steps()
	if e := w.one(); e.Status != hangar.ExtensionSleeping {
		t.Errorf("a day later it is %+v", e)
	}
	if _, err := w.service.DestroyExtension(w.as(acme), "web", e.Name); err != nil {
		t.Fatal(err)
	}
	if got := w.secrets(acme, "web"); len(got) != 0 {
		t.Errorf("secrets are left: %q", got)
	}
	w.steps()
	w.nothingLeft()
	wantPaths(t, server, "POST /extensions", "GET /extensions/r/1", "PATCH /extensions/r/1", "GET /extensions/r/1", "DELETE /extensions/r/1")
}

// TestAddressIsServed: the App that a provider names serves the address of the extension in the
// network of its customer, until the end of the extension.
func TestAddressIsServed(t *testing.T) {
	w, server := newWorld(t), extensionstest.New(t)
	w.provider("logs", server, func(in *hangar.ProviderCreate) { in.PlatformApp = "shop" })
	server.Answer(func(p *provider.Provisioned) { p.PlatformAppName, p.Name = "shop", "renamed" })
	made := w.create(hangar.ExtensionCreate{Provider: "logs"})
	w.steps()
	e := w.one()
	if e.Name != "renamed" || e.PlatformApp != "shop" || e.Status != hangar.ExtensionReady {
		t.Fatalf("it is %+v", e)
	}
	items, _, err := state.All(t.Context(), w.store, state.AddressesPrefix, false)
	if err != nil || len(items) != 1 {
		t.Fatalf("%d addresses, %v", len(items), err)
	}
	at, err := addresses.Parse(items[0])
	if err != nil || at.IP != made.IP || at.App != "shop" || at.NetworkID != 4 || at.Kind != hangar.AddressPrivateV6 {
		t.Errorf("the address is %+v, %v", at, err)
	}
	// It is none of the provider's own: it is not listed, counts against nothing, and is not released.
	own := addresses.NewAddresses(w.config.Addresses)
	if list, err := own.Addresses(w.as(rival), "shop"); err != nil || len(list) != 0 {
		t.Errorf("the provider's App has %v, %v", list, err)
	}
	if err := own.ReleaseAddress(w.as(rival), "shop", at.IP); hangar.ReasonOf(err) != hangar.ReasonAddressNotFound {
		t.Errorf("the provider releases it: %v", err)
	}
	if _, err := w.service.CreateExtension(w.as(acme), "web", hangar.ExtensionCreate{Provider: "logs", Name: "renamed"}); hangar.ReasonOf(err) != hangar.ReasonNameTaken {
		t.Errorf("its new name is given away: %v", err)
	}
	if _, err := w.service.DestroyExtension(w.as(acme), "web", "renamed"); err != nil {
		t.Fatal(err)
	}
	w.steps()
	w.nothingLeft()
}

// TestEndOfApp: the extensions of an App that goes are destroyed, and those of others stay.
func TestEndOfApp(t *testing.T) {
	w, server := newWorld(t), extensionstest.New(t)
	w.provider("logs", server, nil)
	w.create(hangar.ExtensionCreate{Provider: "logs"})
	if _, err := w.service.CreateExtension(w.as(rival), "shop", hangar.ExtensionCreate{Provider: "logs"}); err != nil {
		t.Fatal(err)
	}
	w.steps()
	going := w.app(acme, "acme", "web", 4)
	going.Deleting = true
	w.write(map[string]any{state.AppKey("web"): going})
	if _, err := w.service.CreateExtension(w.as(acme), "web", hangar.ExtensionCreate{Provider: "logs", Name: "more"}); hangar.ReasonOf(err) != hangar.ReasonWrongState {
		t.Errorf("an App that goes gets an extension: %v", err)
	}
	if err := w.work.EndApp(t.Context(), acme, going.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := w.store.Txn(t.Context(), state.Txn{Then: []state.Op{state.Delete(state.AppKey("web"))}}); err != nil {
		t.Fatal(err)
	}
	w.steps()
	left := server.Extensions()
	if len(left) != 1 || len(w.refs()) != 1 {
		t.Errorf("the provider has %v, the platform %v", left, w.refs())
	}
	if list, err := w.service.Extensions(w.as(rival), "shop"); err != nil || len(list) != 1 || list[0].Status != hangar.ExtensionReady {
		t.Errorf("the other App has %v, %v", list, err)
	}
}

// leaving is a state whose caller leaves as soon as it has changed something.
type leaving struct {
	state.Store

	leave func()
}

func (l *leaving) Txn(ctx context.Context, txn state.Txn) (state.Revision, error) {
	revision, err := l.Store.Txn(ctx, txn)
	if err == nil && l.leave != nil {
		l.leave()
	}
	return revision, err
}

// TestCreatorLeaves: an extension that is recorded is no failure, although its creator does not wait for it.
func TestCreatorLeaves(t *testing.T) {
	w := newWorld(t)
	store := &leaving{Store: w.store}
	w.open(store)
	w.provider("logs", extensionstest.New(t), nil)
	w.work.running.Store(true)
	var ctx context.Context
	ctx, store.leave = context.WithCancel(w.as(acme))
	made, err := w.service.CreateExtension(ctx, "web", hangar.ExtensionCreate{Provider: "logs"})
	if err != nil || made.Status != hangar.ExtensionProvisioning {
		t.Errorf("made %+v: %v", made, err)
	}
}
