package contract

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

// MachineService checks an implementation of hangar.MachineService.
func MachineService(t *testing.T, h Harness) {
	t.Helper()
	tests := map[string]func(*testing.T, Harness){
		"create":            machineCreate,
		"config echo":       machineEcho,
		"bad wishes":        machineBadWishes,
		"processes config":  machineSeveralProcesses,
		"container config":  machineContainer,
		"refused wishes":    machineRefusedWishes,
		"name taken":        machineNameTaken,
		"not found":         machineNotFound,
		"another app":       machineOtherApp,
		"skip launch":       machineSkipLaunch,
		"stop and start":    machineStopStart,
		"restart":           machineRestart,
		"suspend":           machineSuspend,
		"update":            machineUpdate,
		"update stopped":    machineUpdateStopped,
		"signal":            machineSignal,
		"auto destroy":      machineAutoDestroy,
		"destroy":           machineDestroy,
		"list":              machineList,
		"pages":             machinePages,
		"pages refused":     machinePagesRefused,
		"pages at once":     machinePagesConcurrent,
		"destroyed":         machineDestroyed,
		"busy":              machineBusy,
		"metadata":          machineMetadata,
		"metadata in lists": machineMetadataList,
		"metadata in order": machineMetadataOrder,
		"metadata refused":  machineMetadataRefused,
		"metadata at once":  machineMetadataConcurrent,
		"metadata at boot":  machineMetadataBoot,
		"metadata, updated": machineMetadataUpdate,
		"cordon":            machineCordon,
		"events":            machineEvents,
		"wait":              machineWait,
		"wait from event":   machineWaitFromEvent,
		"watch":             machineWatch,
		"watch breaks off":  machineWatchBreak,
		"processes":         machineProcesses,
		"exec":              machineExec,
		"exec refused":      machineExecRefused,
		"exec ends":         machineExecEnds,
		"dial":              machineDial,
		"dial half-closed":  machineDialHalf,
		"dial much":         machineDialMuch,
		"dial refused":      machineDialRefused,
		"dial ends":         machineDialEnds,
		"dial suspended":    machineDialSuspended,
		"dial not allowed":  machineDialNotAllowed,
		"concurrent stops":  machineConcurrent,
		"context of caller": machineContext,
		"checks":            machineChecks,
		"schedule":          machineSchedule,
		"standby":           machineStandby,
	}
	maps.Copy(tests, leaseTests)
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { test(t, h) })
	}
}

func machineCreate(t *testing.T, h Harness) {
	app := h.newApp(t)
	m := h.create(t, app, hangar.MachineCreate{Config: h.config()})
	if !m.ID.Valid() || m.Name == "" || m.App != app || len(m.InstanceID) != 26 || !m.PrivateIP.Is6() || m.Region == "" {
		t.Errorf("created machine is incomplete: %+v", m)
	}
	if m.HostStatus != "ok" {
		t.Errorf("host_status is %q", m.HostStatus)
	}
	if m.Config.Guest == nil || m.Config.Guest.MemoryMB != 256 || m.Config.Guest.CPUs != 1 || m.Config.Guest.CPUKind != hangar.CPUShared {
		t.Errorf("guest is %+v, want the default filled in", m.Config.Guest)
	}
	h.wait(t, m.Ref(), hangar.MachineStarted)
	got := h.get(t, m.Ref())
	if got.InstanceID != m.InstanceID || got.Name != m.Name || got.PrivateIP != m.PrivateIP {
		t.Errorf("identity changed by booting: %+v, was %+v", got, m)
	}
	if got.ImageRef.Repository == "" || !strings.HasPrefix(got.ImageRef.Digest, "sha256:") {
		t.Errorf("image_ref is %+v, want it resolved", got.ImageRef)
	}
	if len(got.Events) < 2 || got.Events[len(got.Events)-1].Type != hangar.EventLaunch || got.Events[0].Type != hangar.EventStart {
		t.Errorf("events are %+v, want start first and launch last", got.Events)
	}
}

func machineEcho(t *testing.T, h Harness) {
	app := h.newApp(t)
	config, err := hangar.ParseMachineConfig([]byte(`{"image":"` + h.Image + `","metadata":{"role":"web"},"env":{"A":"1"},
		"services":[{"internal_port":8080,"autostop":"off","force_instance_key":null,"ports":[{"port":80,"handlers":["http"]}]}],
		"stop_config":{"timeout":7000000000},"x_unknown":{"kept":[1,2.50,"<&>"]}}`))
	must(t, "parse", err)
	want, err := config.MarshalJSON()
	must(t, "marshal", err)
	m := h.create(t, app, hangar.MachineCreate{Config: config, SkipLaunch: true})
	got, err := h.get(t, m.Ref()).Config.MarshalJSON()
	must(t, "marshal", err)
	if string(got) != string(want) {
		t.Errorf("config comes back as\n%s\nwant\n%s", got, want)
	}
}

func machineBadWishes(t *testing.T, h Harness) {
	app := h.newApp(t)
	memory, name, region := h.config(), h.config(), h.config()
	memory.Guest = &hangar.Guest{CPUKind: hangar.CPUShared, CPUs: 1, MemoryMB: 300}
	_, err := h.Machines.CreateMachine(h.Context(t), app, hangar.MachineCreate{Config: memory})
	wantError(t, "memory", err, hangar.CodeInvalid, hangar.ReasonBadConfig)
	if err != nil && !strings.Contains(err.Error(), "config.guest.memory_mb") {
		t.Errorf("error %q does not name the property", err)
	}
	_, err = h.Machines.CreateMachine(h.Context(t), app, hangar.MachineCreate{Config: hangar.MachineConfig{}})
	wantError(t, "no image", err, hangar.CodeInvalid, hangar.ReasonBadConfig)
	_, err = h.Machines.CreateMachine(h.Context(t), app, hangar.MachineCreate{Config: region, Region: "nowhere"})
	wantError(t, "region", err, hangar.CodeInvalid, "")
	m := h.create(t, app, hangar.MachineCreate{Config: name, SkipLaunch: true})
	h.wait(t, m.Ref(), hangar.MachineStopped)
	_, err = h.Machines.UpdateMachine(h.Context(t), m.Ref(), hangar.MachineUpdate{Config: name, Name: m.Name + "-other"})
	wantError(t, "another name", err, hangar.CodeInvalid, "")
	_, err = h.Machines.UpdateMachine(h.Context(t), m.Ref(), hangar.MachineUpdate{Config: memory})
	wantError(t, "update of memory", err, hangar.CodeInvalid, hangar.ReasonBadConfig)
}

func machineNameTaken(t *testing.T, h Harness) {
	app, other := h.newApp(t), h.newApp(t)
	in := hangar.MachineCreate{Name: "taken", Config: h.config(), SkipLaunch: true}
	m := h.create(t, app, in)
	if m.Name != "taken" {
		t.Errorf("name is %q", m.Name)
	}
	_, err := h.Machines.CreateMachine(h.Context(t), app, in)
	wantError(t, "the name again", err, hangar.CodeConflict, hangar.ReasonNameTaken)
	h.create(t, other, in)
	h.wait(t, m.Ref(), hangar.MachineStopped)
	must(t, "destroy", h.Machines.DestroyMachine(h.Context(t), m.Ref(), hangar.MachineDestroy{}))
	h.wait(t, m.Ref(), hangar.MachineDestroyed)
	h.create(t, app, in) // the name is free again
}

// calls are all methods that act on one Machine.
func (h Harness) calls(ctx context.Context, ref hangar.MachineRef) map[string]func() error {
	return map[string]func() error{
		"get": func() error { _, err := h.Machines.Machine(ctx, ref); return err },
		"update": func() error {
			_, err := h.Machines.UpdateMachine(ctx, ref, hangar.MachineUpdate{Config: h.config()})
			return err
		},
		"start":    func() error { _, err := h.Machines.StartMachine(ctx, ref); return err },
		"stop":     func() error { return h.Machines.StopMachine(ctx, ref, hangar.MachineStop{}) },
		"suspend":  func() error { return h.Machines.SuspendMachine(ctx, ref) },
		"restart":  func() error { return h.Machines.RestartMachine(ctx, ref, hangar.MachineRestart{}) },
		"signal":   func() error { return h.Machines.SignalMachine(ctx, ref, 10) },
		"destroy":  func() error { return h.Machines.DestroyMachine(ctx, ref, hangar.MachineDestroy{Force: true}) },
		"cordon":   func() error { return h.Machines.CordonMachine(ctx, ref) },
		"uncordon": func() error { return h.Machines.UncordonMachine(ctx, ref) },
		"metadata": func() error { _, err := h.Machines.MachineMetadata(ctx, ref); return err },
		"set":      func() error { return h.Machines.SetMachineMetadata(ctx, ref, hangar.MetadataPair{Key: "k"}) },
		"remove":   func() error { return h.Machines.RemoveMachineMetadata(ctx, ref, "k") },
		"replace":  func() error { return h.Machines.ReplaceMachineMetadata(ctx, ref, hangar.MetadataWrite{}) },
		"merge":    func() error { return h.Machines.MergeMachineMetadata(ctx, ref, hangar.MetadataWrite{}) },
		"busy":     func() error { _, err := h.Machines.KeepMachineBusy(ctx, ref, time.Minute); return err },
		"wait":     func() error { _, err := h.Machines.WaitMachine(ctx, ref, hangar.MachineWait{}); return err },
		"events":   func() error { _, err := h.Machines.MachineEvents(ctx, ref, 0); return err },
		"lease":    func() error { _, err := h.Machines.MachineLease(ctx, ref); return err },
		"versions": func() error { _, err := h.Machines.MachineVersions(ctx, ref); return err },
		"acquire": func() error {
			_, err := h.Machines.AcquireLease(ctx, ref, hangar.LeaseAcquire{})
			return err
		},
		"release": func() error { return h.Machines.ReleaseLease(hangar.WithLeaseNonce(ctx, "000000000000"), ref) },
		"ps":      func() error { _, err := h.Machines.MachineProcesses(ctx, ref); return err },
		"exec": func() error {
			_, err := h.Machines.ExecMachine(ctx, ref, hangar.ExecRequest{Command: []string{"echo"}}, hangar.ExecStreams{})
			return err
		},
		"watch": func() error {
			for _, err := range h.Machines.WatchMachine(ctx, ref) {
				return err
			}
			return nil
		},
	}
}

func machineNotFound(t *testing.T, h Harness) {
	app := h.newApp(t)
	for name, call := range h.calls(h.Context(t), hangar.MachineRef{App: app, ID: "00000000000000"}) {
		wantError(t, name, call(), hangar.CodeNotFound, hangar.ReasonMachineNotFound)
	}
}

func machineOtherApp(t *testing.T, h Harness) {
	app, other := h.newApp(t), h.newApp(t)
	m := h.stopped(t, app)
	for name, call := range h.calls(h.Context(t), hangar.MachineRef{App: other, ID: m.ID}) {
		wantError(t, name, call(), hangar.CodeNotFound, hangar.ReasonMachineNotFound)
	}
	if got := h.get(t, m.Ref()); got.State != hangar.MachineStopped {
		t.Errorf("a call under another app left the machine %s", got.State)
	}
}

func machineSkipLaunch(t *testing.T, h Harness) {
	m := h.stopped(t, h.newApp(t))
	res, err := h.Machines.StartMachine(h.Context(t), m.Ref())
	must(t, "start", err)
	if res.PreviousState != hangar.MachineStopped {
		t.Errorf("previous state is %s", res.PreviousState)
	}
	h.wait(t, m.Ref(), hangar.MachineStarted)
}

func machineStopStart(t *testing.T, h Harness) {
	m := h.started(t, h.newApp(t))
	res, err := h.Machines.StartMachine(h.Context(t), m.Ref())
	must(t, "start a started machine", err)
	if res.PreviousState != hangar.MachineStarted {
		t.Errorf("previous state is %s", res.PreviousState)
	}
	must(t, "stop", h.Machines.StopMachine(h.Context(t), m.Ref(), hangar.MachineStop{}))
	h.wait(t, m.Ref(), hangar.MachineStopped)
	must(t, "stop a stopped machine", h.Machines.StopMachine(h.Context(t), m.Ref(), hangar.MachineStop{}))
	exit := lastExit(t, h.get(t, m.Ref()))
	if !exit.RequestedStop || exit.Restarting || exit.ExitedAt.IsZero() || exit.ExitCode != exit.GuestExitCode {
		t.Errorf("exit of a requested stop: %+v", exit)
	}
	_, err = h.Machines.StartMachine(h.Context(t), m.Ref())
	must(t, "start again", err)
	h.wait(t, m.Ref(), hangar.MachineStarted)
	if got := h.get(t, m.Ref()); got.InstanceID != m.InstanceID {
		t.Errorf("stop and start changed the version from %s to %s", m.InstanceID, got.InstanceID)
	}
}

func lastExit(t *testing.T, m *hangar.Machine) hangar.ExitEvent {
	t.Helper()
	for _, e := range m.Events {
		if e.Type != hangar.EventExit {
			continue
		}
		if e.Request == nil || e.Request.ExitEvent == nil || e.Request.MonitorEvent == nil || e.Request.MonitorEvent.ExitEvent == nil {
			t.Fatalf("exit event %+v lacks its exit under one of the two names", e)
		}
		return *e.Request.ExitEvent
	}
	t.Fatalf("no exit event in %+v", m.Events)
	return hangar.ExitEvent{}
}

func machineRestart(t *testing.T, h Harness) {
	m := h.started(t, h.newApp(t))
	newest := h.get(t, m.Ref()).Events[0].ID
	for _, in := range []hangar.MachineRestart{{}, {ForceStop: true}} {
		must(t, "restart", h.Machines.RestartMachine(h.Context(t), m.Ref(), in))
		r, err := h.Machines.WaitMachine(h.Context(t), m.Ref(), hangar.MachineWait{FromEvent: newest, Timeout: patience})
		must(t, "wait for the new start", err)
		if r.EventID <= newest || r.Version != m.InstanceID {
			t.Errorf("reached %+v after event %s of version %s", r, newest, m.InstanceID)
		}
		newest = r.EventID
		lastExit(t, h.get(t, m.Ref()))
	}
}

func machineSuspend(t *testing.T, h Harness) {
	app := h.newApp(t)
	if !h.Suspend {
		m := h.started(t, app)
		wantError(t, "suspend", h.Machines.SuspendMachine(h.Context(t), m.Ref()), hangar.CodeFailedPrecondition, "")
		return
	}
	m := h.started(t, app)
	for range 2 {
		must(t, "suspend", h.Machines.SuspendMachine(h.Context(t), m.Ref()))
		h.wait(t, m.Ref(), hangar.MachineSuspended)
		must(t, "suspend a suspended machine", h.Machines.SuspendMachine(h.Context(t), m.Ref()))
		res, err := h.Machines.StartMachine(h.Context(t), m.Ref())
		must(t, "resume", err)
		if res.PreviousState != hangar.MachineSuspended {
			t.Errorf("previous state is %s", res.PreviousState)
		}
		h.wait(t, m.Ref(), hangar.MachineStarted)
		for _, e := range h.get(t, m.Ref()).Events {
			if e.Request != nil && e.Request.ColdBoot != "" {
				t.Errorf("resume was a cold boot: %s", e.Request.ColdBoot)
			}
		}
	}
	must(t, "suspend", h.Machines.SuspendMachine(h.Context(t), m.Ref()))
	h.wait(t, m.Ref(), hangar.MachineSuspended)
	must(t, "stop", h.Machines.StopMachine(h.Context(t), m.Ref(), hangar.MachineStop{}))
	h.wait(t, m.Ref(), hangar.MachineStopped)
	wantError(t, "suspend a stopped machine", h.Machines.SuspendMachine(h.Context(t), m.Ref()), hangar.CodeFailedPrecondition, hangar.ReasonWrongState)
}

func machineUpdate(t *testing.T, h Harness) {
	m := h.started(t, h.newApp(t))
	config := h.get(t, m.Ref()).Config
	config.Env = map[string]string{"COLOR": "blue"}
	updated, err := h.Machines.UpdateMachine(h.Context(t), m.Ref(), hangar.MachineUpdate{Config: config, CurrentVersion: m.InstanceID})
	must(t, "update", err)
	if updated.InstanceID <= m.InstanceID || updated.ID != m.ID || updated.Name != m.Name || updated.PrivateIP != m.PrivateIP {
		t.Errorf("updated machine is %+v, was %+v", updated, m)
	}
	r, err := h.Machines.WaitMachine(h.Context(t), m.Ref(), hangar.MachineWait{Instance: updated.InstanceID, Timeout: patience})
	must(t, "wait for the new version", err)
	if r.Version != updated.InstanceID {
		t.Errorf("reached version %s, want %s", r.Version, updated.InstanceID)
	}
	if got := h.get(t, m.Ref()).Config.Env["COLOR"]; got != "blue" {
		t.Errorf("env of the new version has %q", got)
	}
	versions, err := h.Machines.MachineVersions(h.Context(t), m.Ref())
	must(t, "versions", err)
	if len(versions) != 2 || versions[0].Version != updated.InstanceID || versions[1].Version != m.InstanceID ||
		versions[0].Config.Env["COLOR"] != "blue" || versions[1].Config.Env["COLOR"] != "" {
		t.Errorf("versions are %+v", versions)
	}
	_, err = h.Machines.UpdateMachine(h.Context(t), m.Ref(), hangar.MachineUpdate{Config: config, CurrentVersion: m.InstanceID})
	wantError(t, "update of a stale version", err, hangar.CodeConflict, hangar.ReasonStaleVersion)
}

func machineUpdateStopped(t *testing.T, h Harness) {
	m := h.stopped(t, h.newApp(t))
	updated, err := h.Machines.UpdateMachine(h.Context(t), m.Ref(), hangar.MachineUpdate{Config: h.config()})
	must(t, "update", err)
	r, err := h.Machines.WaitMachine(h.Context(t), m.Ref(), hangar.MachineWait{
		States: []hangar.MachineState{hangar.WaitSettled}, Instance: updated.InstanceID, Timeout: patience,
	})
	must(t, "wait", err)
	if r.State != hangar.MachineStopped {
		t.Errorf("update of a stopped machine left it %s", r.State)
	}
}

func machineSignal(t *testing.T, h Harness) {
	app := h.newApp(t)
	m := h.started(t, app)
	must(t, "signal", h.Machines.SignalMachine(h.Context(t), m.Ref(), 9))
	h.wait(t, m.Ref(), hangar.MachineStopped)
	exit := lastExit(t, h.get(t, m.Ref()))
	if exit.ExitCode != 137 || exit.Signal != 9 || exit.GuestSignal != 9 || exit.RequestedStop || exit.Restarting {
		t.Errorf("exit by SIGKILL: %+v", exit)
	}
	wantError(t, "signal a stopped machine", h.Machines.SignalMachine(h.Context(t), m.Ref(), 9), hangar.CodeFailedPrecondition, hangar.ReasonWrongState)

	config := h.config()
	config.Restart = &hangar.RestartConfig{Policy: hangar.RestartAlways}
	always := h.create(t, app, hangar.MachineCreate{Config: config})
	first := h.wait(t, always.Ref(), hangar.MachineStarted)
	must(t, "signal", h.Machines.SignalMachine(h.Context(t), always.Ref(), 9))
	_, err := h.Machines.WaitMachine(h.Context(t), always.Ref(), hangar.MachineWait{FromEvent: first.EventID, Timeout: patience})
	must(t, "wait for the restart", err)
	if exit := lastExit(t, h.get(t, always.Ref())); !exit.Restarting || exit.RequestedStop {
		t.Errorf("exit before a restart: %+v", exit)
	}
}

func machineAutoDestroy(t *testing.T, h Harness) {
	config := h.config()
	config.AutoDestroy = true
	m := h.create(t, h.newApp(t), hangar.MachineCreate{Config: config})
	h.wait(t, m.Ref(), hangar.MachineStarted)
	must(t, "signal", h.Machines.SignalMachine(h.Context(t), m.Ref(), 9))
	h.wait(t, m.Ref(), hangar.MachineDestroyed)
	lastExit(t, h.get(t, m.Ref()))
	h.wait(t, m.Ref(), hangar.MachineStarted) // as it was
	_, err := h.Machines.WaitMachine(h.Context(t), m.Ref(), hangar.MachineWait{States: []hangar.MachineState{hangar.MachineSuspended}, Timeout: patience})
	wantError(t, "wait for what it never was", err, hangar.CodeFailedPrecondition, hangar.ReasonOutOfReach)
}

func machineDestroy(t *testing.T, h Harness) {
	app := h.newApp(t)
	m := h.started(t, app)
	wantError(t, "destroy a started machine", h.Machines.DestroyMachine(h.Context(t), m.Ref(), hangar.MachineDestroy{}),
		hangar.CodeFailedPrecondition, hangar.ReasonWrongState)
	must(t, "destroy with force", h.Machines.DestroyMachine(h.Context(t), m.Ref(), hangar.MachineDestroy{Force: true}))
	h.wait(t, m.Ref(), hangar.MachineDestroyed)
	got := h.get(t, m.Ref())
	if got.State != hangar.MachineDestroyed || len(got.Events) == 0 {
		t.Errorf("destroyed machine is %+v", got)
	}
	must(t, "destroy a destroyed machine", h.Machines.DestroyMachine(h.Context(t), m.Ref(), hangar.MachineDestroy{}))
	for _, name := range []string{
		"start", "stop", "suspend", "restart", "signal", "update", "ps", "exec", "cordon", "uncordon", "set", "remove", "replace", "merge", "acquire",
	} {
		wantError(t, name+" a destroyed machine", h.calls(h.Context(t), m.Ref())[name](), hangar.CodeFailedPrecondition, hangar.ReasonWrongState)
	}
	_, err := h.Machines.WaitMachine(h.Context(t), m.Ref(), hangar.MachineWait{Timeout: patience})
	wantError(t, "wait for a destroyed machine to start", err, hangar.CodeFailedPrecondition, hangar.ReasonOutOfReach)
}

func machineList(t *testing.T, h Harness) {
	app := h.newApp(t)
	web, gone := h.config(), h.config()
	web.Metadata = map[string]string{"role": "web", "tier": "1"}
	a := h.create(t, app, hangar.MachineCreate{Config: web, SkipLaunch: true})
	b := h.started(t, app)
	c := h.create(t, app, hangar.MachineCreate{Config: gone, SkipLaunch: true})
	h.wait(t, a.Ref(), hangar.MachineStopped)
	h.wait(t, c.Ref(), hangar.MachineStopped)
	must(t, "destroy", h.Machines.DestroyMachine(h.Context(t), c.Ref(), hangar.MachineDestroy{}))
	h.wait(t, c.Ref(), hangar.MachineDestroyed)
	for _, test := range []struct {
		name   string
		filter hangar.MachineFilter
		want   []hangar.MachineID
	}{
		{"all", hangar.MachineFilter{}, []hangar.MachineID{a.ID, b.ID}},
		{"with events", hangar.MachineFilter{Events: true}, []hangar.MachineID{a.ID, b.ID}},
		{"destroyed too", hangar.MachineFilter{IncludeDestroyed: true}, []hangar.MachineID{a.ID, b.ID, c.ID}},
		{"state", hangar.MachineFilter{States: []hangar.MachineState{hangar.MachineStarted}}, []hangar.MachineID{b.ID}},
		{"states", hangar.MachineFilter{States: []hangar.MachineState{hangar.MachineStarted, hangar.MachineStopped}}, []hangar.MachineID{a.ID, b.ID}},
		{"region", hangar.MachineFilter{Regions: []hangar.Region{"zzz", a.Region}}, []hangar.MachineID{a.ID, b.ID}},
		{"another region", hangar.MachineFilter{Regions: []hangar.Region{"zzz"}}, nil},
		{"metadata", hangar.MachineFilter{Metadata: map[string]string{"role": "web", "tier": "1"}}, []hangar.MachineID{a.ID}},
		{"changed since", hangar.MachineFilter{UpdatedAfter: time.Unix(1, 0)}, []hangar.MachineID{a.ID, b.ID}},
		{"not changed since", hangar.MachineFilter{UpdatedAfter: time.Now().Add(time.Hour)}, nil},
		{"other metadata", hangar.MachineFilter{Metadata: map[string]string{"role": "web", "tier": "2"}}, nil},
	} {
		machines, err := h.Machines.Machines(h.Context(t), app, test.filter)
		must(t, "list "+test.name, err)
		var got []hangar.MachineID
		for _, m := range machines {
			got = append(got, m.ID)
			if with := len(m.Events) > 0; with != test.filter.Events {
				t.Errorf("%s: machine %s comes with events: %t", test.name, m.ID, with)
			}
		}
		slices.Sort(test.want)
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: got %v, want %v in this order", test.name, got, test.want)
		}
	}
}

func machineEvents(t *testing.T, h Harness) {
	m := h.started(t, h.newApp(t))
	all, err := h.Machines.MachineEvents(h.Context(t), m.Ref(), 50)
	must(t, "events", err)
	for i, e := range all {
		if e.ID == "" || e.Type == "" || e.Status == "" || e.Source == "" || e.Timestamp == 0 {
			t.Errorf("event %+v is incomplete", e)
		}
		if i > 0 && all[i-1].ID <= e.ID {
			t.Errorf("event %s comes before %s, want newest first", all[i-1].ID, e.ID)
		}
	}
	one, err := h.Machines.MachineEvents(h.Context(t), m.Ref(), 1)
	must(t, "events", err)
	if len(one) != 1 || one[0].ID != all[0].ID {
		t.Errorf("limit 1 gives %+v, want the newest, %s", one, all[0].ID)
	}
	for _, limit := range []int{-1, 51, 1 << 40} {
		_, err = h.Machines.MachineEvents(h.Context(t), m.Ref(), limit)
		if limit < 0 {
			wantError(t, "a negative limit", err, hangar.CodeInvalid, "")
		} else if err == nil && len(all) > 50 {
			t.Errorf("limit %d gives %d events", limit, len(all))
		}
	}
}

func machineWait(t *testing.T, h Harness) {
	m := h.started(t, h.newApp(t))
	newest := h.get(t, m.Ref()).Events[0]
	r := h.wait(t, m.Ref(), hangar.MachineStopped, hangar.MachineStarted)
	if r.State != hangar.MachineStarted || r.Version != m.InstanceID || r.EventID != newest.ID {
		t.Errorf("reached %+v, want event %s", r, newest.ID)
	}
	if r := h.wait(t, m.Ref(), hangar.WaitSettled); r.State != hangar.MachineStarted {
		t.Errorf("settled in %s", r.State)
	}
	_, err := h.Machines.WaitMachine(h.Context(t), m.Ref(), hangar.MachineWait{
		States: []hangar.MachineState{hangar.MachineStopped}, Timeout: time.Millisecond,
	})
	wantError(t, "wait for what does not happen", err, hangar.CodeTimeout, hangar.ReasonWaitTimeout)
	for _, bad := range []hangar.MachineWait{
		{States: []hangar.MachineState{"flying"}},
		{Timeout: -time.Second},
		{Timeout: hangar.MaxWaitTimeout + time.Second},
	} {
		_, err := h.Machines.WaitMachine(h.Context(t), m.Ref(), bad)
		wantError(t, "a bad wait", err, hangar.CodeInvalid, "")
	}
	got := make(chan error, 4)
	for range cap(got) {
		go func() {
			_, err := h.Machines.WaitMachine(h.Context(t), m.Ref(), hangar.MachineWait{
				States: []hangar.MachineState{hangar.MachineStopped}, Timeout: patience,
			})
			got <- err
		}()
	}
	must(t, "stop", h.Machines.StopMachine(h.Context(t), m.Ref(), hangar.MachineStop{}))
	for range cap(got) {
		must(t, "wait beside a stop", <-got)
	}
}

func machineWaitFromEvent(t *testing.T, h Harness) {
	m := h.started(t, h.newApp(t))
	before := h.get(t, m.Ref()).Events[0].ID
	must(t, "stop", h.Machines.StopMachine(h.Context(t), m.Ref(), hangar.MachineStop{}))
	h.wait(t, m.Ref(), hangar.MachineStopped)
	_, err := h.Machines.StartMachine(h.Context(t), m.Ref())
	must(t, "start", err)
	h.wait(t, m.Ref(), hangar.MachineStarted)
	r, err := h.Machines.WaitMachine(h.Context(t), m.Ref(), hangar.MachineWait{
		States: []hangar.MachineState{hangar.MachineStopped}, FromEvent: before, Timeout: patience,
	})
	must(t, "wait for a state that has passed", err)
	if r.State != hangar.MachineStopped || r.EventID <= before {
		t.Errorf("reached %+v after event %s", r, before)
	}
}

func machineConcurrent(t *testing.T, h Harness) {
	m := h.started(t, h.newApp(t))
	errs := make(chan error, 8)
	for range cap(errs) {
		go func() { errs <- h.Machines.StopMachine(h.Context(t), m.Ref(), hangar.MachineStop{}) }()
	}
	for range cap(errs) {
		must(t, "one of several stops", <-errs)
	}
	h.wait(t, m.Ref(), hangar.MachineStopped)
	exits := 0
	for _, e := range h.get(t, m.Ref()).Events {
		if e.Type == hangar.EventExit {
			exits++
		}
	}
	if exits != 1 {
		t.Errorf("several stops at once brought %d exits", exits)
	}
}

func machineContext(t *testing.T, h Harness) {
	m := h.started(t, h.newApp(t))
	ctx, cancel := context.WithCancel(h.Context(t))
	waiting := make(chan error, 1)
	go func() {
		_, err := h.Machines.WaitMachine(ctx, m.Ref(), hangar.MachineWait{States: []hangar.MachineState{hangar.MachineStopped}})
		waiting <- err
	}()
	cancel()
	if err := <-waiting; err == nil {
		t.Error("a wait whose caller has left succeeded")
	}
	if got := h.get(t, m.Ref()); got.State != hangar.MachineStarted {
		t.Errorf("a caller who left changed the machine to %s", got.State)
	}
}
