package machines_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver/fake"
)

// run runs a command in the Machine and returns its output, without the last line break.
func (r *rig) run(ref hangar.MachineRef, command ...string) (string, int) {
	r.Helper()
	var out strings.Builder
	result, err := r.ExecMachine(r.Context(), ref, hangar.ExecRequest{Command: command}, hangar.ExecStreams{Stdout: &out})
	r.must(err)
	return strings.TrimSuffix(out.String(), "\n"), result.ExitCode
}

// cycle restarts a started Machine.
func (r *rig) cycle(ref hangar.MachineRef, how string) {
	r.Helper()
	ctx := r.Context()
	switch how {
	case "restart":
		r.must(r.RestartMachine(ctx, ref, hangar.MachineRestart{}))
	case "stop and start":
		r.must(r.StopMachine(ctx, ref, hangar.MachineStop{}))
		r.wait(ref, hangar.MachineStopped)
		r.start(ref)
		return
	case "suspend":
		r.must(r.SuspendMachine(ctx, ref))
		r.wait(ref, hangar.MachineSuspended)
		r.start(ref)
		return
	case "policy":
		r.must(r.SignalMachine(ctx, ref, 9))
		r.until(func() bool { return strings.Contains(r.history(ref), "exit/restarting") })
		r.wait(ref, hangar.MachineStarted)
		return
	case "update":
		before, err := r.Machine(ctx, ref)
		r.must(err)
		_, err = r.UpdateMachine(ctx, ref, hangar.MachineUpdate{Config: before.Config})
		r.must(err)
	}
	for deadline := time.Now().Add(patience); ; {
		m, err := r.Machine(ctx, ref)
		r.must(err)
		if m.State == hangar.MachineStarted {
			return
		}
		if time.Now().After(deadline) {
			r.Fatalf("the machine is %s after %s", m.State, how)
		}
		time.Sleep(time.Millisecond)
	}
}

// TestPersistRootfs writes to the root file system and checks what is left of it.
func TestPersistRootfs(t *testing.T) {
	cycles := []string{"restart", "stop and start", "policy", "update", "suspend"}
	for _, tc := range []struct {
		name string
		edit func(*hangar.MachineConfig)
		kept []string
	}{
		{"by default", func(*hangar.MachineConfig) {}, []string{"suspend"}},
		{"never", func(c *hangar.MachineConfig) { c.PersistRootfs = hangar.PersistNever }, []string{"suspend"}},
		{"restart", func(c *hangar.MachineConfig) { c.Guest.PersistRootfs = hangar.PersistRestart }, []string{"restart", "stop and start", "policy", "suspend"}},
		{"always", func(c *hangar.MachineConfig) {
			c.Rootfs = &hangar.RootfsConfig{Persist: hangar.PersistAlways, SizeGB: 8}
		}, cycles},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t)
			for _, how := range cycles {
				ref := r.create(nil, func(s *hangar.MachineSpec) { tc.edit(&s.Config) })
				r.wait(ref, hangar.MachineStarted)
				r.run(ref, "write", "/kept", "yes")
				r.cycle(ref, how)
				got, _ := r.run(ref, "cat", "/kept")
				if kept := got == "yes"; kept != slices.Contains(tc.kept, how) {
					t.Errorf("after %s the file is kept: %t", how, kept)
				}
			}
		})
	}
}

// TestRootThatIsMissing: a root file system that a Machine keeps and that is missing, for instance
// because its disk was not mounted, is not replaced by an empty one.
func TestRootThatIsMissing(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil, func(s *hangar.MachineSpec) { s.Config.Rootfs = &hangar.RootfsConfig{Persist: hangar.PersistAlways} })
	r.wait(ref, hangar.MachineStarted)
	m, err := r.Machine(t.Context(), ref)
	r.must(err)
	r.must(r.StopMachine(t.Context(), ref, hangar.MachineStop{}))
	r.wait(ref, hangar.MachineStopped)
	layer := filepath.Join(r.dir, "layers", string(ref.ID))
	away := layer + "-away"
	r.must(os.Rename(layer, away))
	for range 2 {
		_, err = r.StartMachine(t.Context(), ref)
		r.must(err)
		r.wait(ref, hangar.MachineFailed)
		if got := r.newest(ref); got.Request == nil || !strings.Contains(got.Request.Error, "missing") {
			t.Errorf("newest event %+v", got)
		}
		_, err = r.UpdateMachine(t.Context(), ref, hangar.MachineUpdate{Config: m.Config, SkipLaunch: true})
		r.must(err)
		r.wait(ref, hangar.MachineStopped)
	}
	r.must(os.Rename(away, layer))
	r.start(ref)
}

func TestSeveralProcesses(t *testing.T) {
	r := newRig(t)
	ref := r.create(map[string]string{"SHARED": "yes"}, func(s *hangar.MachineSpec) {
		s.Config.Restart = &hangar.RestartConfig{Policy: hangar.RestartNo}
		s.Config.Processes = []hangar.ProcessConfig{
			{Exec: []string{"guest", "ignore", "USR1"}, Env: map[string]string{"MINE": "first"}},
			{Entrypoint: []string{"guest"}, Cmd: []string{"trap", "USR1", "7"}},
		}
	})
	r.wait(ref, hangar.MachineStarted)
	list, err := r.MachineProcesses(t.Context(), ref)
	if err != nil || len(list) != 2 || list[0].Command != "guest ignore USR1" || list[1].Command != "guest trap USR1 7" {
		t.Errorf("processes %+v, %v", list, err)
	}
	if env, _ := r.run(ref, "env"); !strings.Contains(env, "MINE=first\n") || !strings.Contains(env, "SHARED=yes") {
		t.Errorf("commands run in the environment %q", env)
	}
	r.must(r.SuspendMachine(t.Context(), ref))
	r.wait(ref, hangar.MachineSuspended)
	r.start(ref)
	r.must(r.SignalMachine(t.Context(), ref, 10))
	r.wait(ref, hangar.MachineStopped)
	events, err := r.MachineEvents(t.Context(), ref, 1)
	r.must(err)
	if x := events[0].Request.ExitEvent; x == nil || x.ExitCode != 7 {
		t.Errorf("newest event %+v, want an exit with code 7", events[0])
	}
}

func TestFilesAndNames(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil, func(s *hangar.MachineSpec) {
		s.Config.Files = []hangar.File{
			{GuestPath: "/etc/app/config", RawValue: []byte("v1")},
			{GuestPath: "/etc/hosts", RawValue: []byte("my own")},
		}
		s.Config.DNS = &hangar.DNSConfig{Hostname: "web-1"}
	})
	r.wait(ref, hangar.MachineStarted)
	for command, want := range map[string]string{"cat /etc/app/config": "v1", "guest hostname": "web-1"} {
		if got, _ := r.run(ref, strings.Fields(command)...); got != want {
			t.Errorf("%s: %q, want %q", command, got, want)
		}
	}
	r.run(ref, "write", "/etc/app/config", "changed")
	r.cycle(ref, "suspend")
	if got, _ := r.run(ref, "cat", "/etc/app/config"); got != "changed" {
		t.Errorf("the file holds %q after a resume", got)
	}
	m, err := r.Machine(t.Context(), ref)
	r.must(err)
	config := m.Config
	config.Files = []hangar.File{{GuestPath: "/etc/app/config", RawValue: []byte("v2")}}
	_, err = r.UpdateMachine(t.Context(), ref, hangar.MachineUpdate{Config: config})
	r.must(err)
	r.cycle(ref, "")
	if got, _ := r.run(ref, "cat", "/etc/app/config"); got != "v2" {
		t.Errorf("the file holds %q after an update", got)
	}
}

// TestBootsThatLackSomething: the Machine reports what is missing.
func TestBootsThatLackSomething(t *testing.T) {
	for name, tc := range map[string]struct {
		edit func(*hangar.MachineConfig)
		want string
	}{
		"process secret": {func(c *hangar.MachineConfig) {
			c.Processes = []hangar.ProcessConfig{{Secrets: []hangar.ProcessSecret{{EnvVar: "KEY"}}}}
		}, `the app has no secret "KEY"`},
		"file secret": {func(c *hangar.MachineConfig) {
			c.Files = []hangar.File{{GuestPath: "/key", SecretName: "KEY"}}
		}, `the app has no secret "KEY", which the file /key is made of`},
		"user": {func(c *hangar.MachineConfig) {
			c.Processes = []hangar.ProcessConfig{{}, {User: "nobody-here"}}
		}, `config.processes[1]: cannot run as user "nobody-here"`},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			ref := r.create(nil, func(s *hangar.MachineSpec) { tc.edit(&s.Config) })
			r.wait(ref, hangar.MachineFailed)
			events, err := r.MachineEvents(t.Context(), ref, 1)
			r.must(err)
			if e := events[0]; e.Request == nil || !strings.Contains(e.Request.Error, tc.want) {
				t.Errorf("newest event %+v, want an error with %q", e.Request, tc.want)
			}
		})
	}
}

func TestSwap(t *testing.T) {
	r := newRig(t)
	ref := r.create(map[string]string{fake.EnvOutput: "up"}, func(s *hangar.MachineSpec) { s.Config.Init.SwapSizeMB = 512 })
	r.wait(ref, hangar.MachineStarted)
	if err := r.SuspendMachine(t.Context(), ref); hangar.CodeOf(err) != hangar.CodeFailedPrecondition {
		t.Errorf("suspend of a machine with swap: %v", err)
	}
	page, err := r.Logs(t.Context(), "web", hangar.LogQuery{})
	r.must(err)
	if !slices.ContainsFunc(page.Entries, func(e hangar.LogEntry) bool { return strings.Contains(e.Message, "swap_size_mb 512 has no effect") }) {
		t.Errorf("there is no line saying that there is no swap: %+v", page.Entries)
	}
}
