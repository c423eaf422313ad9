package cluster

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

// TestAnyHostAnswers makes Apps and Machines by each server, and uses them by each other at once: what
// one server has acknowledged, all know.
func TestAnyHostAnswers(t *testing.T) {
	c := startCluster(t, fromEnv(t, "CLUSTER_SERVERS", 3))
	image := c.pushWeb(hangar.OrgPersonal)
	v := newVisitor(t)
	for i, s := range c.servers {
		app := hangar.AppName(fmt.Sprintf("any-%d", i))
		s.createApp(app, hangar.OrgPersonal)
		for _, other := range c.servers {
			if _, err := other.client().App(t.Context(), app); err != nil {
				t.Errorf("%s does not know an App that %s has made: %v", other, s, err)
			}
		}
		machines := c.oneOnEach(app, parse(t, webConfig, image))
		c.awaitVisits(v, app, machines)
		for _, m := range machines {
			for _, by := range c.servers {
				c.used(t, v, by, m)
			}
		}
	}
}

// used does to a Machine, by one server, all that its API offers.
func (c *cluster) used(t *testing.T, v *visitor, by *server, m *hangar.Machine) {
	t.Helper()
	api, ref := by.client(), m.Ref()
	fail := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s of %s at host %s by %s: %v", what, m.ID, m.Host, by, err)
		}
	}
	got, err := api.Machine(t.Context(), ref)
	if fail("get", err); err == nil && (got.ID != m.ID || got.Host != m.Host || got.PrivateIP != m.PrivateIP) {
		t.Errorf("%s shows %+v of %+v", by, got, m)
	}
	list, err := api.Machines(t.Context(), m.App, hangar.MachineFilter{})
	if fail("list", err); !slices.ContainsFunc(list, func(o *hangar.Machine) bool { return o.ID == m.ID && o.HostStatus == "ok" }) {
		t.Errorf("%s does not list %s among %d Machines", by, m.ID, len(list))
	}
	var out bytes.Buffer
	result, err := api.ExecMachine(t.Context(), ref, hangar.ExecRequest{Command: []string{"sh", "-c", "cat; exit 7"}}, hangar.ExecStreams{Stdin: strings.NewReader("in"), Stdout: &out})
	if fail("exec", err); err == nil && (result.ExitCode != 7 || out.String() != "in") {
		t.Errorf("exec by %s: %+v, %q", by, result, out.String())
	}
	c.await("the log has a line", func() error {
		page, err := api.Logs(t.Context(), m.App, hangar.LogQuery{Instance: m.ID})
		if err == nil && !slices.ContainsFunc(page.Entries, func(e hangar.LogEntry) bool { return e.Message == "up" }) {
			err = fmt.Errorf("%s shows %d lines", by, len(page.Entries))
		}
		return err
	})
	lease, err := api.AcquireLease(t.Context(), ref, hangar.LeaseAcquire{TTL: time.Minute})
	fail("lease", err)
	if err == nil {
		for _, other := range c.servers {
			if err := other.client().SuspendMachine(t.Context(), ref); hangar.ReasonOf(err) != hangar.ReasonLeaseHeld {
				t.Errorf("%s suspends a Machine that was leased by %s: %v", other, by, err)
			}
		}
		fail("release of the lease", api.ReleaseLease(hangar.WithLeaseNonce(t.Context(), lease.Nonce), ref))
	}
	fail("suspend", api.SuspendMachine(t.Context(), ref))
	next := c.servers[by.number%len(c.servers)]
	c.reaches(next, m, hangar.MachineSuspended)
	c.await("a start by another server", func() error {
		_, err := next.client().StartMachine(t.Context(), ref)
		if hangar.CodeOf(err) != hangar.CodeUnavailable {
			fail("start", err)
			return nil
		}
		return err
	})
	c.reaches(by, m, hangar.MachineStarted)
	fail("stop", api.StopMachine(t.Context(), ref, hangar.MachineStop{}))
	c.reaches(next, m, hangar.MachineStopped)
	for _, edge := range []*server{by, next} { // the first wakes it
		_, err := v.visit(t.Context(), edge, m.App, m.ID)
		fail("a visit by the edge of "+edge.String(), err)
	}
}
