package platform_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/extensions/extensionstest"
	"github.com/hangar-platform/hangar/test/platform"
)

// TestExtension: a provider on loopback makes an extension for an App, whose next Machine gets its
// secrets, and the end of the extension removes them.
func TestExtension(t *testing.T) {
	t.Parallel()
	p := platform.Start(t, platform.Options{})
	c, ctx := p.Client(), t.Context()
	server := extensionstest.New(t)
	made, err := c.CreateProvider(ctx, hangar.ProviderCreate{
		Name: "logs", ProviderSettings: hangar.ProviderSettings{BaseURL: server.URL, AllowPrivate: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	server.Trust(t, made.RequestSecret.Reveal())
	if _, err := c.CreateApp(ctx, hangar.AppCreate{Name: "web", Org: hangar.OrgPersonal}); err != nil {
		t.Fatal(err)
	}
	e, err := c.CreateExtension(ctx, "web", hangar.ExtensionCreate{Provider: "logs", PrimaryRegion: "ams"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"LOGS_TOKEN", "LOGS_URL"}
	if e.Name != "web-logs" || e.Status != hangar.ExtensionReady || !slices.Equal(e.Secrets, want) || e.ProviderID != "r/1" {
		t.Errorf("created %+v", e)
	}
	at := server.Extensions()[string(e.ID)]
	if at.Name != "web-logs" || at.UserID != "admin" || at.UserRole != "admin" || at.PrimaryRegion != "ams" || at.IPAddress != e.IP || !hangar.IsFlycast(e.IP) {
		t.Errorf("the provider has %+v", at)
	}
	if got := secretNames(t, c, "web"); !slices.Equal(got, want) {
		t.Errorf("the App has secrets %q", got)
	}
	m, err := c.CreateMachine(ctx, "web", hangar.MachineCreate{Config: hangar.MachineConfig{Image: "nginx"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.WaitMachine(ctx, m.Ref(), hangar.MachineWait{States: []hangar.MachineState{hangar.MachineStarted}}); err != nil {
		t.Fatal(err)
	}
	var env bytes.Buffer
	_, err = c.ExecMachine(ctx, m.Ref(), hangar.ExecRequest{Command: []string{"env", "LOGS_TOKEN"}}, hangar.ExecStreams{Stdout: &env})
	if err != nil || !strings.Contains(env.String(), "token-of-"+string(e.ID)) {
		t.Errorf("the environment of the Machine is %s, %v", env.String(), err)
	}
	link, err := c.ExtensionLink(ctx, "web", "web-logs")
	if err != nil {
		t.Fatal(err)
	}
	t.Log(link.URL)
	gone, err := c.DestroyExtension(ctx, "web", "web-logs")
	if err != nil || gone != nil {
		t.Fatalf("after its end there is %+v, %v", gone, err)
	}
	if len(server.Extensions()) != 0 {
		t.Errorf("the provider still has %v", server.Extensions())
	}
	if got := secretNames(t, c, "web"); len(got) != 0 {
		t.Errorf("the App still has secrets %q", got)
	}
	list, err := c.OrgExtensions(ctx, hangar.OrgPersonal)
	if err != nil || len(list) != 0 {
		t.Errorf("there are %v, %v", list, err)
	}
	if err := c.RemoveProvider(ctx, "logs", false); err != nil {
		t.Error(err)
	}
}

func secretNames(t *testing.T, c hangar.SecretService, app hangar.AppName) (names []string) {
	t.Helper()
	all, err := c.Secrets(t.Context(), app, hangar.SecretQuery{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all.List {
		names = append(names, s.Name)
	}
	return names
}
