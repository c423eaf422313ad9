package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
)

// TestMetrics: one server keeps the metrics of all and evaluates alerts, and each answers for them. It
// keeps both over kill -9; when it is lost for good, another takes its place.
func TestMetrics(t *testing.T) {
	c := startCluster(t, fromEnv(t, "CLUSTER_SERVERS", 3))
	image := c.pushWeb(hangar.OrgPersonal)
	c.servers[0].createApp("measured", hangar.OrgPersonal)
	machines := c.oneOnEach("measured", parse(t, webConfig, image))
	holder := c.servers[0] // which was alone at first
	c.awaitMeasured(time.Time{}, machines, c.servers...)
	c.keptBy(holder)
	last := c.servers[len(c.servers)-1]
	if _, err := last.client().SetAlerts(t.Context(), hangar.OrgPersonal, hangar.AlertConfig{
		Rules: "groups: [{name: g, interval: 15s, rules: [{alert: Up, expr: platform_instance_up == 1}]}]",
	}); err != nil {
		t.Fatal(err)
	}
	before := c.awaitAlerts(machines, c.servers...)

	seen := time.Now()
	holder.kill()
	others := c.others(holder)
	for _, s := range others {
		if _, err := s.measured(seen); err == nil {
			t.Errorf("%s has metrics while the server that keeps them is away", s)
		}
	}
	c.startAll(holder)
	c.awaitAlive(c.servers...)
	c.awaitMeasured(time.Now(), machines, c.servers...)
	c.keptBy(holder)
	for _, s := range c.servers {
		if got, err := s.measured(seen); err != nil || len(got) != len(machines) {
			t.Errorf("of what was measured before, %s has %v, %v", s, got, err)
		}
	}
	for id, began := range c.awaitAlerts(machines, c.servers...) {
		if !began.Equal(before[id]) {
			t.Errorf("the alert of %s has begun at %s, and before the restart at %s", id, began, before[id])
		}
	}

	id := holder.id()
	holder.kill()
	c.await("the lost server can be removed", func() error {
		_, err := others[0].command("host", "remove", "--force", string(id))
		return err
	})
	c.awaitMeasured(time.Now(), machines[1:], others...)
	c.awaitAlerts(machines[1:], others...)
}

// measured returns when each Machine of the App was last measured, as of a time.
func (s *server) measured(at time.Time) (map[hangar.MachineID]time.Time, error) {
	vector, err := s.client().QueryMetrics(s.c.Context(), client.MetricsQuery{Org: hangar.OrgPersonal, Expr: `timestamp(platform_instance_up{app="measured"})`}, at)
	if err != nil {
		return nil, err
	}
	got := map[hangar.MachineID]time.Time{}
	for _, one := range vector {
		got[hangar.MachineID(one.Metric["instance"])] = time.UnixMilli(int64(float64(one.Value) * 1e3))
	}
	return got, nil
}

// awaitMeasured returns when each of some servers shows that Machines were measured after a time.
func (c *cluster) awaitMeasured(after time.Time, machines []*hangar.Machine, by ...*server) {
	c.Helper()
	c.await("all Machines are measured", func() error {
		for _, s := range by {
			got, err := s.measured(time.Time{})
			if err != nil {
				return fmt.Errorf("%s: %w", s, err)
			}
			for _, m := range machines {
				if last, ok := got[m.ID]; !ok || last.Before(after) {
					return fmt.Errorf("%s knows of %s at host %s as of %s", s, m.ID, m.Host, last)
				}
			}
		}
		return nil
	})
}

// awaitAlerts returns when each of some servers shows one alert for each of some Machines, and since when
// they are there, which all must say alike.
func (c *cluster) awaitAlerts(machines []*hangar.Machine, by ...*server) map[string]time.Time {
	c.Helper()
	began := map[string]time.Time{}
	c.await("alerts", func() error {
		clear(began)
		for _, s := range by {
			report, err := s.client().Alerts(c.Context(), hangar.OrgPersonal)
			if err != nil {
				return fmt.Errorf("%s: %w", s, err)
			}
			firing := map[string]time.Time{}
			for _, a := range report.Alerts {
				if a.State == hangar.AlertFiring {
					firing[a.Labels["instance"]] = a.ActiveAt
				}
			}
			for _, m := range machines {
				at, ok := firing[string(m.ID)]
				if !ok || !began[string(m.ID)].IsZero() && !began[string(m.ID)].Equal(at) {
					return fmt.Errorf("%s knows of an alert of %s as of %s, and another server as of %s", s, m.ID, at, began[string(m.ID)])
				}
				began[string(m.ID)] = at
			}
		}
		return nil
	})
	return began
}

// keptBy checks that one server alone has a store of metrics.
func (c *cluster) keptBy(holder *server) {
	c.Helper()
	for _, s := range c.servers {
		switch _, err := os.Stat(filepath.Join(s.dir(), "metrics", "data")); {
		case err != nil && !errors.Is(err, os.ErrNotExist):
			c.Error(err)
		case (err == nil) != (s == holder):
			c.Errorf("%s has a store of metrics: %t", s, err == nil)
		}
	}
}
