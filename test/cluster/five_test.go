package cluster

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

// TestFiveServers: each of five servers holds the cluster state. One after the other is killed, and then two at
// once: the others take writes meanwhile, and all is everywhere afterwards.
func TestFiveServers(t *testing.T) {
	c := startCluster(t, 5)
	c.awaitMembers(5, c.servers...)
	image := c.pushWeb(hangar.OrgPersonal)
	c.servers[0].createApp("faults", hangar.OrgPersonal)
	machines := c.oneOnEach("faults", parse(t, webConfig, image))
	v := newVisitor(t)
	c.awaitVisits(v, "faults", machines)
	var made []hangar.AppName
	survives := func(killed ...*server) {
		t.Helper()
		for _, s := range killed {
			s.kill()
		}
		began := time.Now()
		left := c.others(killed...)
		for _, s := range left {
			name := hangar.AppName(fmt.Sprintf("five-%d", len(made)))
			c.await("a write by "+s.String()+" without "+names(killed...), func() error {
				_, err := s.client().CreateApp(t.Context(), hangar.AppCreate{Name: name, Org: hangar.OrgPersonal})
				if hangar.CodeOf(err) == hangar.CodeConflict { // it was made, and the answer was lost
					err = nil
				}
				return err
			})
			made = append(made, name)
		}
		took := time.Since(began)
		for i, s := range c.servers { // an edge that runs serves Machines of servers that do
			for _, edge := range left {
				if machine := machines[i]; !slices.Contains(killed, s) {
					c.await("a visit by "+edge.String(), func() error {
						_, err := v.visit(t.Context(), edge, "faults", machine.ID)
						return err
					})
				}
			}
		}
		c.startAll(killed...)
		c.awaitAlive(c.servers...)
		c.awaitVisits(v, "faults", machines)
		for _, name := range made {
			c.has(name, true, c.servers...)
		}
		t.Logf("without %s all others have taken a write after %s", names(killed...), took.Round(time.Millisecond))
	}
	for _, s := range c.servers {
		survives(s)
	}
	survives(c.servers[0], c.servers[3])
	survives(c.servers[1], c.servers[2])
}
