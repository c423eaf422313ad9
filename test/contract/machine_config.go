package contract

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
)

// configWith returns a config that was sent, with properties beside an image and a
// restart policy.
func (h Harness) configWith(t *testing.T, properties string) hangar.MachineConfig {
	t.Helper()
	config, err := hangar.ParseMachineConfig(fmt.Appendf(nil, `{"image":%q,"restart":{"policy":"no"},%s}`, h.Image, properties))
	must(t, "parse", err)
	return config
}

// jsonText is v as JSON.
func jsonText(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	must(t, "marshal", err)
	return string(b)
}

// machineSeveralProcesses: several processes run, are echoed as they were sent, and end
// together.
func machineSeveralProcesses(t *testing.T, h Harness) {
	sleep := jsonText(t, h.Sleep)
	config := h.configWith(t, `"processes":[{"exec":`+sleep+`,"env":{"A":"1"},"env_from":[{"env_var":"ID","field_ref":"id"}],"x":null},
		{"exec":`+sleep+`,"user":"0","ignore_app_secrets":true}],"dns":{"hostname":"several"},"init":{"swap_size_mb":0,"kernel_args":["quiet"]}`)
	m := h.create(t, h.newApp(t), hangar.MachineCreate{Config: config})
	h.wait(t, m.Ref(), hangar.MachineStarted)
	if got, want := jsonText(t, h.get(t, m.Ref()).Config), jsonText(t, config); got != want {
		t.Errorf("config comes back as\n%s\nwant\n%s", got, want)
	}
	must(t, "signal", h.Machines.SignalMachine(h.Context(t), m.Ref(), 9))
	h.wait(t, m.Ref(), hangar.MachineStopped)
	if x := h.exitOf(t, m.Ref()); x.ExitCode != 137 || x.RequestedStop {
		t.Errorf("exit event %+v, want code 137", x)
	}
}

// machineContainer: the one container of a Machine is what it runs.
func machineContainer(t *testing.T, h Harness) {
	config, err := hangar.ParseMachineConfig(fmt.Appendf(nil, `{"containers":[{"name":"main","image":%q,"exec":%s,"restart":{"policy":"no"},
		"env":{"A":"1"},"stop":{"signal":"SIGTERM","timeout":"3s"}}]}`, h.Image, jsonText(t, h.Sleep)))
	must(t, "parse", err)
	m := h.create(t, h.newApp(t), hangar.MachineCreate{Config: config})
	h.wait(t, m.Ref(), hangar.MachineStarted)
	got := h.get(t, m.Ref())
	if echo, want := jsonText(t, got.Config), jsonText(t, config); echo != want {
		t.Errorf("config comes back as\n%s\nwant\n%s", echo, want)
	}
	if got.ImageRef.Repository == "" {
		t.Errorf("image_ref is %+v, want the container's image", got.ImageRef)
	}
	must(t, "stop", h.Machines.StopMachine(h.Context(t), m.Ref(), hangar.MachineStop{}))
	h.wait(t, m.Ref(), hangar.MachineStopped)
	if x := h.exitOf(t, m.Ref()); !x.RequestedStop {
		t.Errorf("exit event %+v, want it requested", x)
	}
}

// exitOf returns the newest exit of the Machine.
func (h Harness) exitOf(t *testing.T, ref hangar.MachineRef) *hangar.ExitEvent {
	t.Helper()
	for _, e := range h.get(t, ref).Events {
		if e.Type == hangar.EventExit && e.Request != nil && e.Request.ExitEvent != nil {
			return e.Request.ExitEvent
		}
	}
	t.Fatal("no exit event")
	return nil
}

// machineRefusedWishes: a setting that is not offered, or breaks a rule, is refused by its name.
func machineRefusedWishes(t *testing.T, h Harness) {
	app := h.newApp(t)
	for path, config := range map[string]hangar.MachineConfig{
		"config.init.tty":                     {Init: hangar.Init{TTY: true}, Processes: []hangar.ProcessConfig{{}, {}}},
		"config.containers":                   {Containers: []hangar.Container{{}, {}}},
		"config.containers[0].depends_on":     {Containers: []hangar.Container{{DependsOn: []any{map[string]any{"name": "b"}}}}},
		"config.processes[0].env_from[0]":     {Processes: []hangar.ProcessConfig{{EnvFrom: []hangar.EnvFrom{{EnvVar: "A", FieldRef: "name"}}}}},
		"config.processes[1].secrets[0]":      {Processes: []hangar.ProcessConfig{{}, {Secrets: []hangar.ProcessSecret{{EnvVar: "no-variable"}}}}},
		"config.dns.dns_forward_rules":        {DNS: &hangar.DNSConfig{ForwardRules: []hangar.DNSForwardRule{{Basename: "a", Addr: "b"}}}},
		"config.dns.nameservers[0]":           {DNS: &hangar.DNSConfig{Nameservers: []string{"resolver"}}},
		"config.files[0].guest_path":          {Files: []hangar.File{{GuestPath: "/etc/../../x"}}},
		"config.files[0].image_config":        {Files: []hangar.File{{GuestPath: "/x", ImageConfig: "x"}}},
		"config.guest.max_memory_mb":          {Guest: &hangar.Guest{CPUKind: hangar.CPUShared, CPUs: 1, MemoryMB: 512, MaxMemoryMB: 256}},
		"config.init.swap_size_mb":            {Init: hangar.Init{SwapSizeMB: -1}},
		"config.rootfs.size_gb":               {Rootfs: &hangar.RootfsConfig{SizeGB: -1}},
		"config.size":                         {Size: "shared-cpu-1x", Guest: &hangar.Guest{CPUKind: hangar.CPUShared, CPUs: 2, MemoryMB: 512}},
		"config.stop_config.timeout":          {StopConfig: &hangar.StopConfig{Timeout: new(hangar.Duration(-1))}},
		"config.guest.gpus":                   {Guest: &hangar.Guest{CPUKind: hangar.CPUShared, CPUs: 1, MemoryMB: 512, GPUs: 1}},
		"config.guest.host_dedication_id":     {Guest: &hangar.Guest{CPUKind: hangar.CPUShared, CPUs: 1, MemoryMB: 512, HostDedicationID: "x"}},
		"config.containers[0].healthchecks":   {Containers: []hangar.Container{{Healthchecks: []any{map[string]any{"name": "h"}}}}},
		"config.containers[0].stop.timeout":   {Containers: []hangar.Container{{Stop: &hangar.StopConfig{Timeout: new(hangar.Duration(-1))}}}},
		"config.containers[0].restart.policy": {Containers: []hangar.Container{{Restart: &hangar.RestartConfig{Policy: "x"}}}},
	} {
		config.Image = h.Image
		_, err := h.Machines.CreateMachine(h.Context(t), app, hangar.MachineCreate{Config: config, SkipLaunch: true})
		wantError(t, path, err, hangar.CodeInvalid, "")
		if err != nil && !strings.Contains(err.Error(), path) {
			t.Errorf("the error %q does not name %s", err, path)
		}
	}
}
