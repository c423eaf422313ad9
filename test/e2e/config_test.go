package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/test/daemon"
)

// busyboxPlatform is a platform and the reference of an image with a shell.
func busyboxPlatform(t *testing.T) (p *platform, image string) {
	t.Helper()
	p = start(t)
	dir := daemon.Busybox(t, "sh", "sleep", "id", "cat", "hostname", "nproc", "stat", "grep", "awk", "ls", "touch", "kill", "tr", "printenv", "mv")
	return p, p.d.Push(dir, "tools:1", "--cmd", "sleep", "--cmd", "100000")
}

// config is what a user sends, %q in it the image.
func config(t *testing.T, document string, image string) hangar.MachineConfig {
	t.Helper()
	c, err := hangar.ParseMachineConfig(fmt.Appendf(nil, document, image))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// says waits until the Machine has written all the lines.
func (m *machine) says(t *testing.T, lines ...string) {
	t.Helper()
	until(t, "the log", func() error {
		got := "\n" + strings.Join(m.output(t, ""), "\n") + "\n"
		for _, l := range lines {
			if !strings.Contains(got, "\n"+l+"\n") {
				return errors.New(l + " is missing from " + got)
			}
		}
		return nil
	})
}

// TestProcesses runs several processes in one Machine, through a suspend and the death
// of the daemon, until one of them ends.
func TestProcesses(t *testing.T) {
	p, image := busyboxPlatform(t)
	m := p.run(t, "several", config(t, `{"image":%q,"restart":{"policy":"no"},"stop_config":{"signal":"SIGTERM","timeout":"60s"},"env":{"ALL":"all"},"processes":[
		{"exec":["sh","-c","trap 'echo told; exit 3' TERM; echo first $ALL $MINE; while :; do sleep 0.05; done"],"env":{"MINE":"one"}},
		{"entrypoint":["sh","-c"],"cmd":["echo second $ALL $MINE $WHO $(id -u):$(id -g) >>/dev/stdout; while [ ! -e /tmp/go ]; do sleep 0.05; done; exit 7"],
		 "user":"1000:1001","env":{"MINE":"two"},"env_from":[{"env_var":"WHO","field_ref":"app_name"}]},
		{}]}`, image))
	m.says(t, "first all one", "second all two e2e 1000:1001")
	m.suspend(t)
	m.resume(t)
	m.mustBeWarm(t)
	p.d.Kill()
	p.d.Up()
	list, err := p.c.MachineProcesses(t.Context(), m.ref)
	if err != nil {
		t.Fatal(err)
	}
	pids := make(map[int]bool)
	for _, process := range list {
		pids[process.PID] = true
	}
	if !pids[2] || !pids[3] || !pids[4] || pids[1] {
		t.Errorf("processes %+v, want 2, 3 and 4", list)
	}
	if env := m.exec(t, "sh", "-c", "tr '\\0' ' ' </proc/4/environ"); strings.Contains(env, "MINE=") || !strings.Contains(env, "ALL=all") {
		t.Errorf("environment of the third: %q", env)
	}
	m.exec(t, "touch", "/tmp/go")
	m.wait(t, hangar.MachineStopped)
	if x := m.exit(t); x.ExitCode != 7 || x.RequestedStop {
		t.Errorf("exit %+v, want code 7", x)
	}
	m.says(t, "told")

	m.start(t)
	m.says(t, "first all one")
	m.stop(t)
	if x := m.exit(t); !x.RequestedStop || x.ExitCode != 3 && x.Signal != 15 {
		t.Errorf("exit %+v after a stop", x)
	}
}

// TestWhatConfigsSay: the programs of a Machine find the settings of its config.
func TestWhatConfigsSay(t *testing.T) {
	p, image := busyboxPlatform(t)

	t.Run("terminal", func(t *testing.T) {
		m := p.run(t, "terminal", config(t, `{"image":%q,"init":{"tty":true,"kernel_args":["quiet"],
			"exec":["sh","-c","test -t 0 && test -t 1 && test -t 2 && echo terminal $TERM; exec sleep 100000"]}}`, image))
		m.says(t, "terminal xterm")
		m.destroy(t)
	})
	t.Run("container", func(t *testing.T) {
		m := p.run(t, "container", config(t, `{"containers":[{"name":"main","image":%q,"entrypoint":["sh","-c"],"user":"7",
			"cmd":["trap 'exit 5' USR1; echo $A $(id -u) $(cat /etc/c); echo again >/dev/stdout; while :; do sleep 0.05; done"],
			"env":{"A":"contained"},"files":[{"guest_path":"/etc/c","raw_value":"ZmlsZQ=="}],"stop":{"signal":"SIGUSR1"}}]}`, image))
		m.says(t, "contained 7 file", "again")
		m.stop(t)
		if x := m.exit(t); x.ExitCode != 5 {
			t.Errorf("exit %+v, want code 5", x)
		}
		m.destroy(t)
	})
	t.Run("names", func(t *testing.T) {
		m := p.run(t, "names", config(t, `{"image":%q,"dns":{"nameservers":["9.9.9.9"],"searches":["corp.test"],"options":[{"name":"ndots","value":"3"}],
			"hostname":"web-1","hostname_fqdn":"web-1.corp.test","skip_registration":true}}`, image))
		if got, want := m.exec(t, "cat", "/etc/resolv.conf"), "search corp.test\nnameserver 9.9.9.9\noptions ndots:3\n"; got != want {
			t.Errorf("resolv.conf is %q, want %q", got, want)
		}
		if got := m.exec(t, "hostname") + m.exec(t, "cat", "/etc/hostname"); got != "web-1\nweb-1\n" {
			t.Errorf("host name %q", got)
		}
		if got := m.exec(t, "cat", "/etc/hosts"); !strings.Contains(got, "\tweb-1.corp.test web-1 "+string(m.ref.ID)) {
			t.Errorf("hosts is %q", got)
		}
		m.destroy(t)
	})
	t.Run("files", func(t *testing.T) {
		m := p.run(t, "files", config(t, `{"image":%q,"files":[{"guest_path":"/opt/new/dir/secret","raw_value":"c2VjcmV0","mode":256},
			{"guest_path":"/run/tool","raw_value":"IyEvYmluL3NoCmVjaG8gdG9vbCAkKGlkIC11KQpleGVjIHNsZWVwIDEwMDAwMAo=","mode":493}],
			"processes":[{"exec":["/run/tool"],"user":"12"}]}`, image))
		m.says(t, "tool 12")
		if got := m.exec(t, "stat", "-c", "%a %u %g", "/opt/new/dir/secret", "/opt/new/dir"); got != "400 0 0\n755 0 0\n" {
			t.Errorf("mode and owner: %q", got)
		}
		// A file is the Machine's own: it may be replaced.
		m.exec(t, "sh", "-c", "echo changed >/tmp/x && mv /tmp/x /opt/new/dir/secret")
		m.suspend(t)
		m.resume(t)
		m.mustBeWarm(t)
		if got := m.exec(t, "cat", "/opt/new/dir/secret"); got != "changed\n" {
			t.Errorf("the file holds %q after a resume", got)
		}
		m.destroy(t)
	})
	t.Run("size", func(t *testing.T) {
		m := p.run(t, "size", config(t, `{"image":%q,"init":{"swap_size_mb":256},"guest":{"cpus":1,"cpu_kind":"performance","memory_mb":256,"max_memory_mb":768},"rootfs":{"size_gb":2}}`, image))
		if got := m.exec(t, "awk", "/MemTotal/ {print $2 / 1024}", "/proc/meminfo"); got != "768\n" {
			t.Errorf("the program sees %q MB", got)
		}
		if err := p.c.SuspendMachine(t.Context(), m.ref); hangar.CodeOf(err) != hangar.CodeFailedPrecondition {
			t.Errorf("suspend of a machine with swap: %v", err)
		}
		m.destroy(t)
	})
	t.Run("persistence", func(t *testing.T) {
		for persist, want := range map[string]string{"never": "", "restart": "restart", "always": "restart update"} {
			m := p.run(t, "persist-"+persist, config(t, `{"image":%q,"guest":{"persist_rootfs":"`+persist+`"}}`, image))
			var kept []string
			m.exec(t, "touch", "/kept")
			m.stop(t)
			m.start(t)
			if _, code, err := m.tryExec(t.Context(), "stat", "/kept"); err == nil && code == 0 {
				kept = append(kept, "restart")
			}
			m.exec(t, "touch", "/kept")
			now, err := p.c.Machine(t.Context(), m.ref)
			if err != nil {
				t.Fatal(err)
			}
			now, err = p.c.UpdateMachine(t.Context(), m.ref, hangar.MachineUpdate{Config: now.Config})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.c.WaitMachine(t.Context(), m.ref, hangar.MachineWait{Instance: now.InstanceID, States: []hangar.MachineState{hangar.MachineStarted}, Timeout: hangar.MaxWaitTimeout}); err != nil {
				t.Fatal(err)
			}
			if _, code, err := m.tryExec(t.Context(), "stat", "/kept"); err == nil && code == 0 {
				kept = append(kept, "update")
			}
			if got := strings.Join(kept, " "); got != want {
				t.Errorf("persist_rootfs %s: kept by %q, want %q", persist, got, want)
			}
			m.destroy(t)
		}
	})
}
