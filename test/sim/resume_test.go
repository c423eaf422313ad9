package sim

import (
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/test/daemon"
)

// TestKilledWhileItResumes kills the daemon at moments spread over a resume. The
// Machine is started in the end, and from its memory wherever the engine had begun:
// what the daemon that died had asked for is taken over. It may be a cold boot only
// where the kill came before, and the event says so.
func TestKilledWhileItResumes(t *testing.T) {
	d := daemon.Start(t, daemon.Options{})
	c := d.Client()
	if _, err := c.CreateApp(t.Context(), hangar.AppCreate{Name: app, Org: hangar.OrgPersonal}); err != nil {
		t.Fatal(err)
	}
	m, err := c.CreateMachine(t.Context(), app, hangar.MachineCreate{Config: config(pushSleeper(t, d), 0)})
	if err != nil {
		t.Fatal(err)
	}
	ref := m.Ref()
	wait := func(s hangar.MachineState) {
		t.Helper()
		if _, err := c.WaitMachine(t.Context(), ref, hangar.MachineWait{States: []hangar.MachineState{s}}); err != nil {
			t.Fatal(err)
		}
	}
	wait(hangar.MachineStarted)
	const kills = 8
	cold, midway := 0, 0
	for i := range kills {
		if err := c.SuspendMachine(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
		wait(hangar.MachineSuspended)
		if _, err := c.StartMachine(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i) * 12 * time.Millisecond)
		before, err := c.Machine(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}
		d.Kill()
		d.Up()
		wait(hangar.MachineStarted)
		after, err := c.Machine(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}
		if before.State == hangar.MachineStarting {
			midway++
		}
		if r := after.Events[0].Request; r != nil && r.ColdBoot != "" {
			t.Logf("killed after %d ms: %s", i*12, r.ColdBoot)
			cold++
		}
	}
	t.Logf("%d kills, %d midway, %d cold boots", kills, midway, cold)
	if midway == 0 {
		t.Error("no kill fell into a resume: nothing was tested")
	}
	if cold > kills/4 {
		t.Errorf("%d of %d kills cost the memory", cold, kills)
	}
}
