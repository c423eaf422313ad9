package sim

import (
	"strings"
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
	const kills, most = 8, 80
	cold, kept := 0, 0 // of the kills that fell into a resume, those after which it went on from memory
	for i := 0; i < kills || kept == 0 && i < most; i++ {
		if err := c.SuspendMachine(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
		wait(hangar.MachineSuspended)
		if _, err := c.StartMachine(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
		moment := time.Duration(i%kills) * 12 * time.Millisecond
		time.Sleep(moment)
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
		switch r := after.Events[0].Request; {
		case r != nil && r.ColdBoot != "":
			cold++
			if !strings.Contains(r.ColdBoot, "interrupted while resuming") {
				t.Errorf("killed after %s: %s", moment, r.ColdBoot)
			}
		case before.State == hangar.MachineStarting:
			kept++
		}
	}
	t.Logf("%d cold boots, %d resumes that outlived the daemon", cold, kept)
	if kept == 0 {
		t.Errorf("no resume outlived the daemon, in %d kills", most)
	}
}
