package extensions

import (
	"maps"
	"slices"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/extensions/extensionstest"
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
