package platform_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/metrics/metricstest"
	"github.com/hangar-platform/hangar/test/platform"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(tests{m}) }

// tests are those of the package.
type tests struct{ *testing.M }

func (t tests) Run() int { return metricstest.Main(t.M) }

// TestStart: platforms run beside each other, and a Machine of any image runs in each.
func TestStart(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"first", "second", "third"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			p := platform.Start(t, platform.Options{})
			t.Logf("started in %s", time.Since(began))
			c := p.Client()
			if _, err := c.CreateApp(t.Context(), hangar.AppCreate{Name: "web", Org: hangar.OrgPersonal}); err != nil {
				t.Fatal(err)
			}
			m, err := c.CreateMachine(t.Context(), "web", hangar.MachineCreate{Config: hangar.MachineConfig{Image: "nginx"}})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.WaitMachine(t.Context(), m.Ref(), hangar.MachineWait{States: []hangar.MachineState{hangar.MachineStarted}}); err != nil {
				t.Fatal(err)
			}
			t.Logf("a machine runs after %s", time.Since(began))
		})
	}
}
