package sim

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/control/extensions/extensionstest"
	"github.com/hangar-platform/hangar/provider"
	"github.com/hangar-platform/hangar/test/daemon"
)

const (
	customers        = 4  // Apps, each with a user of its own at work
	extensionsAtOnce = 12 // of one App, about
	extensionLogs    = hangar.ProviderName("logs")
)

// TestExtensionsOverKills has users make, change and destroy extensions at a provider that loses answers, refuses
// and is slow, while the daemon is killed. In the end the platform, the provider and the secrets of the
// Apps agree: nothing is at the provider that the platform does not know, and no secret without its
// extension.
func TestExtensionsOverKills(t *testing.T) {
	seed := fromEnv(t, "SIM_SEED", uint64(time.Now().UnixNano())>>1)
	rounds := fromEnv(t, "SIM_ROUNDS", 6)
	// The fake driver alone: no extension depends on what runs.
	if driver := os.Getenv("SIM_DRIVER"); driver != "" && driver != "fake" {
		t.Skip("extensions are the same with every driver")
	}
	t.Logf("SIM_SEED=%d SIM_ROUNDS=%d", seed, rounds)
	g := newExtensionGame(t, seed)
	rng := rand.New(rand.NewPCG(seed, 3))
	for range rounds {
		g.round(rng)
	}
	g.settle()
	t.Logf("%d extensions made, %d destroyed, %d requests of the provider verified", g.made.Load(), g.destroyed.Load(), len(g.server.Requests()))
	if t.Failed() {
		t.Logf("run again with SIM_SEED=%d SIM_ROUNDS=%d", seed, rounds)
	}
}

// extensionGame is the platform, a provider, and what its users have asked for.
type extensionGame struct {
	*testing.T
	d               *daemon.Daemon
	c               *client.Client
	server          *extensionstest.Server
	made, destroyed atomic.Int64
	flaky           *extensionstest.Flaky
}

func newExtensionGame(t *testing.T, seed uint64) *extensionGame {
	t.Helper()
	g := &extensionGame{T: t, d: daemon.Start(t, daemon.Options{Driver: "fake"}), server: extensionstest.New(t)}
	g.flaky = extensionstest.NewFlaky(20, 200*time.Millisecond, rand.New(rand.NewPCG(seed, 4)))
	g.c = g.d.Client()
	made, err := g.c.CreateProvider(t.Context(), hangar.ProviderCreate{Name: extensionLogs, ProviderSettings: hangar.ProviderSettings{
		BaseURL: g.server.URL, AllowPrivate: true, Limits: hangar.ProviderLimits{Extensions: 10_000, PerOrg: 10_000},
	}})
	if err != nil {
		t.Fatal(err)
	}
	g.server.Trust(t, made.RequestSecret.Reveal())
	g.server.Configure(func(p provider.Provision) map[string]string {
		return map[string]string{extensionstest.SecretOf(p.Name) + "_URL": "https://" + p.Name, extensionstest.SecretOf(p.Name) + "_KEY": p.ID}
	})
	g.server.Fault(g.flaky.Fault)
	for i := range customers {
		if _, err := g.c.CreateApp(t.Context(), hangar.AppCreate{Name: customer(i), Org: hangar.OrgPersonal}); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

func customer(i int) hangar.AppName { return hangar.AppName(fmt.Sprintf("customer-%d", i)) }

// round lets users act until the daemon is killed.
func (g *extensionGame) round(rng *rand.Rand) {
	g.Helper()
	g.flaky.Broken.Store(rng.IntN(3) > 0)
	ctx, stop := context.WithCancel(g.Context())
	var group sync.WaitGroup
	for i := range customers {
		dice := rand.New(rand.NewPCG(rng.Uint64(), 5))
		group.Go(func() { g.act(ctx, customer(i), dice) })
	}
	time.Sleep(200*time.Millisecond + time.Duration(rng.Int64N(int64(2*time.Second))))
	if rng.IntN(5) == 0 {
		g.d.Term()
	} else {
		g.d.Kill()
	}
	stop()
	group.Wait()
	g.d.Up()
}

// act does what a user of an App does. Errors are no fault: the daemon dies meanwhile, and the provider is broken.
func (g *extensionGame) act(ctx context.Context, app hangar.AppName, dice *rand.Rand) {
	for ctx.Err() == nil {
		there, err := g.c.Extensions(ctx, app)
		if err != nil {
			return
		}
		if len(there) == 0 || dice.IntN(extensionsAtOnce) > len(there) {
			if _, err := g.c.CreateExtension(ctx, app, hangar.ExtensionCreate{Provider: extensionLogs, Name: fmt.Sprintf("x-%d", dice.Uint32())}); err == nil {
				g.made.Add(1)
			}
			continue
		}
		switch one := there[dice.IntN(len(there))]; dice.IntN(6) {
		case 0:
			plan := fmt.Sprint(dice.IntN(3))
			_, _ = g.c.UpdateExtension(ctx, app, one.Name, hangar.ExtensionUpdate{Plan: &plan})
		case 1:
			_, _ = g.c.RetryExtension(ctx, app, one.Name, hangar.ExtensionRetry{})
		default:
			if _, err := g.c.DestroyExtension(ctx, app, one.Name); err == nil {
				g.destroyed.Add(1)
			}
		}
	}
}

// settle has everything come to rest, and compares all sides; then all is destroyed, and nothing is left.
func (g *extensionGame) settle() {
	g.Helper()
	g.flaky.Broken.Store(false)
	live := map[string]*hangar.Extension{} // by the platform's id
	for i := range customers {
		app, want := customer(i), map[string]string{}
		for _, e := range g.rest(app) {
			live[string(e.ID)] = e
			if e.Status == hangar.ExtensionReady {
				want[extensionstest.SecretOf(e.Name)+"_URL"], want[extensionstest.SecretOf(e.Name)+"_KEY"] = "https://"+e.Name, string(e.ID)
			}
		}
		if got := g.secrets(app); !maps.Equal(got, want) {
			g.Errorf("the secrets of %s are %v, not %v", app, got, want)
		}
	}
	there := g.server.Extensions()
	for id, e := range there {
		if live[id] == nil {
			g.Errorf("the provider has %q (%s), of which the platform knows nothing", e.Name, id)
		}
	}
	for id, e := range live {
		if at, ok := there[id]; e.Status == hangar.ExtensionReady && (!ok || at.Plan != e.Plan || at.Remote != e.ProviderID) {
			g.Errorf("the platform has %+v, the provider %+v", e, at)
		}
	}
	for i := range customers {
		if err := g.c.DestroyApp(g.Context(), customer(i), true); err != nil {
			g.Error(err)
		}
	}
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		left, err := g.c.OrgExtensions(g.Context(), hangar.OrgPersonal)
		if err != nil {
			g.Fatal(err)
		}
		if len(left) == 0 {
			break
		}
		if time.Now().After(deadline) {
			g.Fatalf("%d extensions outlast their Apps, such as %+v", len(left), left[0])
		}
	}
	if left := g.server.Extensions(); len(left) != 0 {
		g.Errorf("the provider still has %v", left)
	}
}

// rest waits until no extension of an App is under way.
func (g *extensionGame) rest(app hangar.AppName) []*hangar.Extension {
	g.Helper()
	for deadline := time.Now().Add(7 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		list, err := g.c.Extensions(g.Context(), app)
		if err != nil {
			g.Fatal(err)
		}
		busy := slices.IndexFunc(list, func(e *hangar.Extension) bool {
			return e.Status != hangar.ExtensionReady && e.Status != hangar.ExtensionError || e.Status == hangar.ExtensionReady && e.Error != ""
		})
		if busy < 0 {
			return list
		}
		if time.Now().After(deadline) {
			g.Fatalf("%+v does not come to rest", list[busy])
		}
	}
}

// secrets are those of an App, with their values.
func (g *extensionGame) secrets(app hangar.AppName) map[string]string {
	g.Helper()
	found, err := g.c.Secrets(g.Context(), app, hangar.SecretQuery{Show: true})
	if err != nil {
		g.Fatal(err)
	}
	all := map[string]string{}
	for _, s := range found.List {
		all[s.Name] = s.Value.Reveal()
	}
	return all
}
