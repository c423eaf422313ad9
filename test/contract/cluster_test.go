package contract_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/daemon"
	"github.com/hangar-platform/hangar/host/agenttest"
	"github.com/hangar-platform/hangar/test/contract"
	"github.com/hangar-platform/hangar/test/platform"
)

// apart starts two servers that are one platform. The first does the requests to the second, as
// only it takes new Machines and volumes.
func apart(t *testing.T) (*platform.Cluster, *platform.Platform) {
	t.Helper()
	c := platform.StartCluster(t, 2, platform.Options{Config: func(c *daemon.Config) { c.ACME = "https://127.0.0.1:1/directory" }})
	c.Cordon(1)
	return c, c.Servers[1]
}

// TestOverAnotherHost runs the contract on a server that owns none of the Machines and volumes.
func TestOverAnotherHost(t *testing.T) {
	_, p := apart(t)
	h := harness(t, p, p.URL(), client.WithHTTPClient(&http.Client{Transport: p.Transport()}))
	t.Run("machines", func(t *testing.T) { contract.MachineService(t, h) })
	t.Run("apps", func(t *testing.T) { contract.AppService(t, h) })
	t.Run("secrets", func(t *testing.T) { contract.SecretService(t, h) })
	t.Run("volumes", func(t *testing.T) { contract.VolumeService(t, h) })
}

// TestHostIsAway: a Machine whose host cannot be reached is shown as it was published.
func TestHostIsAway(t *testing.T) {
	c, p := apart(t)
	api := p.Client()
	if _, err := api.CreateApp(t.Context(), hangar.AppCreate{Name: "away", Org: hangar.OrgPersonal}); err != nil {
		t.Fatal(err)
	}
	m, err := api.CreateMachine(t.Context(), "away", hangar.MachineCreate{Config: hangar.MachineConfig{Image: "nginx:alpine"}})
	if err != nil {
		t.Fatal(err)
	}
	if m.Host != c.ID(0) {
		t.Fatalf("the machine is on host %s, which takes none", m.Host)
	}
	if _, err := api.WaitMachine(t.Context(), m.Ref(), hangar.MachineWait{}); err != nil {
		t.Fatal(err)
	}
	list, err := api.Machines(t.Context(), "away", hangar.MachineFilter{})
	if err != nil || len(list) != 1 || list[0].HostStatus != "ok" {
		t.Fatalf("got %+v %v", list, err)
	}
	c.Isolate(0)
	for { // until the row is published
		list, err = api.Machines(t.Context(), "away", hangar.MachineFilter{})
		if err != nil {
			t.Fatal(err)
		}
		if len(list) > 0 {
			break
		}
	}
	if list[0].ID != m.ID || list[0].HostStatus != "unreachable" {
		t.Errorf("got %+v", list[0])
	}
	if _, err := api.StartMachine(t.Context(), m.Ref()); hangar.CodeOf(err) != hangar.CodeUnavailable {
		t.Errorf("got %v", err)
	}
	if _, err := api.CreateMachine(t.Context(), "away", hangar.MachineCreate{Config: hangar.MachineConfig{Image: "nginx:alpine"}}); hangar.CodeOf(err) != hangar.CodeUnavailable {
		t.Errorf("got %v", err)
	}
}

// TestAgents runs the suite of agents on that of a server in process, and as another server uses it.
func TestAgents(t *testing.T) {
	c := platform.StartCluster(t, 2, platform.Options{})
	org, err := c.Servers[0].Client().Org(t.Context(), hangar.OrgPersonal)
	if err != nil {
		t.Fatal(err)
	}
	for from, name := range []string{"in process", "over the network"} {
		t.Run(name, func(t *testing.T) {
			agent, gate := c.Agent(from, 0)
			agenttest.Run(t, agenttest.Harness{
				Agent: agent, Gate: gate, Org: org.ID, Image: "nginx:alpine", Missing: "missing:latest", Echo: platform.EchoPort, Closed: 9,
				Print: func(code int) []string { return []string{"sh", "-c", fmt.Sprintf("cat; exit %d", code)} },
			})
		})
	}
}
