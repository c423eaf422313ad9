package contract

import (
	"slices"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

// machineChecks expects of a check no more than that something is known of it.
func machineChecks(t *testing.T, h Harness) {
	second := hangar.Duration(time.Second)
	config := h.config()
	config.Checks = map[string]hangar.Check{"alive": {Type: "tcp", Port: 9999, Interval: &second}}
	config.Services = []hangar.Service{{InternalPort: 8080, Checks: []hangar.Check{{Type: "http", Interval: &second}}}}
	m := h.create(t, h.newApp(t), hangar.MachineCreate{Config: config, SkipLaunch: true})
	names := []string{"alive", "servicecheck-00-http-8080"}
	known := func(m *hangar.Machine) bool {
		t.Helper()
		if len(m.Checks) != len(names) {
			t.Fatalf("checks of a %s machine: %+v", m.State, m.Checks)
		}
		known := true
		for i, c := range m.Checks {
			if c.Name != names[i] || c.UpdatedAt.IsZero() || c.Output == "" || len(c.Output) > hangar.MaxCheckOutput {
				t.Errorf("check %+v, want a complete one of %s", c, names[i])
			}
			switch c.Status {
			case hangar.CheckPassing, hangar.CheckCritical:
			case hangar.CheckWarning:
				known = false
			default:
				t.Errorf("check %+v has no such status", c)
			}
		}
		return known
	}
	h.wait(t, m.Ref(), hangar.MachineStopped)
	if known(h.get(t, m.Ref())) {
		t.Error("the checks of a stopped machine have run")
	}
	_, err := h.Machines.StartMachine(h.Context(t), m.Ref())
	must(t, "start", err)
	h.wait(t, m.Ref(), hangar.MachineStarted)
	// There is no event for a check, only the Machine itself.
	for deadline := time.Now().Add(patience); !known(h.get(t, m.Ref())); <-time.After(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the checks of a started machine do not run")
		}
	}
	list, err := h.Machines.Machines(h.Context(t), m.App, hangar.MachineFilter{})
	must(t, "list", err)
	if len(list) != 1 || !known(list[0]) {
		t.Errorf("listed with checks %+v", list[0].Checks)
	}
	must(t, "stop", h.Machines.StopMachine(h.Context(t), m.Ref(), hangar.MachineStop{}))
	h.wait(t, m.Ref(), hangar.MachineStopped)
	if known(h.get(t, m.Ref())) {
		t.Error("something is known of a machine that was stopped")
	}
	updated, err := h.Machines.UpdateMachine(h.Context(t), m.Ref(), hangar.MachineUpdate{Config: h.config()})
	must(t, "update", err)
	if len(updated.Checks) > 0 {
		t.Errorf("checks %+v of a config without", updated.Checks)
	}
}

func machineSchedule(t *testing.T, h Harness) {
	app := h.newApp(t)
	config := h.config()
	config.Schedule = "yearly"
	_, err := h.Machines.CreateMachine(h.Context(t), app, hangar.MachineCreate{Config: config})
	wantError(t, "another schedule", err, hangar.CodeInvalid, hangar.ReasonBadConfig)
	for _, s := range []hangar.Schedule{hangar.Hourly, hangar.Daily, hangar.Weekly, hangar.Monthly} {
		config.Schedule = s
		m := h.create(t, app, hangar.MachineCreate{Config: config, SkipLaunch: s != hangar.Hourly})
		if s == hangar.Hourly { // the first run is at the creation
			h.wait(t, m.Ref(), hangar.MachineStarted)
			continue
		}
		h.wait(t, m.Ref(), hangar.MachineStopped)
		_, err := h.Machines.StartMachine(h.Context(t), m.Ref())
		must(t, "start by hand", err)
		h.wait(t, m.Ref(), hangar.MachineStarted)
		wantError(t, "suspend", h.Machines.SuspendMachine(h.Context(t), m.Ref()), hangar.CodeFailedPrecondition, hangar.ReasonUnsupported)
	}
}

func machineStandby(t *testing.T, h Harness) {
	app := h.newApp(t)
	primary := h.stopped(t, app)
	config := h.config()
	config.Standbys = []hangar.MachineID{primary.ID}
	m := h.create(t, app, hangar.MachineCreate{Config: config})
	h.wait(t, m.Ref(), hangar.MachineStopped)
	if got := h.get(t, m.Ref()); !slices.Equal(got.Config.Standbys, config.Standbys) || got.Events[0].Type != hangar.EventLaunch {
		t.Errorf("standby %+v with events %+v", got.Config.Standbys, got.Events)
	}
	_, err := h.Machines.StartMachine(h.Context(t), m.Ref())
	must(t, "start by hand", err)
	h.wait(t, m.Ref(), hangar.MachineStarted)
	for name, edit := range map[string]func(*hangar.MachineConfig){
		"services":  func(c *hangar.MachineConfig) { c.Services = []hangar.Service{{InternalPort: 80}} },
		"an App":    func(c *hangar.MachineConfig) { c.Standbys = []hangar.MachineID{"web"} },
		"one twice": func(c *hangar.MachineConfig) { c.Standbys = []hangar.MachineID{primary.ID, primary.ID} },
	} {
		bad := config
		edit(&bad)
		_, err := h.Machines.CreateMachine(h.Context(t), app, hangar.MachineCreate{Config: bad})
		wantError(t, "a standby for "+name, err, hangar.CodeInvalid, hangar.ReasonBadConfig)
	}
}
