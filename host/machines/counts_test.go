package machines_test

import (
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver/fake"
)

// TestStartsAreCounted: starts are counted by kind and result.
func TestStartsAreCounted(t *testing.T) {
	r := newRig(t)
	starts := func(kind string) func() float64 {
		return func() float64 { return r.Counted("hangar_machine_start_duration_seconds", kind) }
	}
	failures := func(kind string) func() float64 {
		return func() float64 { return r.Counted("hangar_machine_start_failures_total", kind) }
	}
	// The count follows the commit that others wait for.
	becomes := func(count func() float64, want float64) {
		t.Helper()
		r.until(func() bool { return count() == want })
	}
	ref := r.create(nil)
	r.wait(ref, hangar.MachineStarted)
	becomes(starts("boot"), 1)
	r.suspend(ref)
	if n := r.Counted("hangar_machines", "suspended"); n != 1 {
		t.Errorf("%v Machines are suspended", n)
	}
	if n := r.Counted("hangar_machine_memory_promised_bytes"); n != 0 {
		t.Errorf("%v bytes are promised to a Machine at rest", n)
	}
	r.start(ref)
	becomes(starts("resume"), 1)
	if n := r.Counted("hangar_machine_memory_promised_bytes"); n == 0 || n > r.Counted("hangar_machine_memory_capacity_bytes") {
		t.Errorf("%v bytes are promised to a Machine that runs", n)
	}

	cold := r.create(map[string]string{fake.EnvResumeError: "snapshot unusable"}, func(s *hangar.MachineSpec) { s.Name = "cold" })
	r.wait(cold, hangar.MachineStarted)
	r.suspend(cold)
	r.start(cold)
	becomes(starts("fallback"), 1)
	becomes(starts("boot"), 2)

	broken := r.create(map[string]string{fake.EnvStartError: "no such command"}, func(s *hangar.MachineSpec) {
		s.Name, s.Config.Restart = "broken", &hangar.RestartConfig{Policy: hangar.RestartNo}
	})
	r.wait(broken, hangar.MachineFailed)
	becomes(failures("boot"), 1)
	for kind, want := range map[string]float64{"boot": 2, "resume": 1, "fallback": 1, "takeover": 0} {
		if got := starts(kind)(); got != want {
			t.Errorf("%v starts are of kind %s, want %v", got, kind, want)
		}
	}
}
