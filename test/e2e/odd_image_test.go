package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/test/daemon"
)

// TestOddImages: an image that has links where file systems are mounted runs as elsewhere, as
// does one with the longest command that Linux executes; an image that cannot run says why.
func TestOddImages(t *testing.T) {
	p := start(t)
	argument := strings.Repeat("x", hangar.MaxExecString)
	tests := []struct {
		name  string
		links map[string]string // to directories of the image, which are made
		lost  map[string]string // to nothing
		args  []string
		want  string // in the log; or else
		error string // in the event of the failed start
	}{
		{name: "tmp", links: map[string]string{"tmp": "var/tmp"}, want: "ok"},
		{name: "absolute", links: map[string]string{"tmp": "/var/tmp"}, want: "ok"},
		{name: "run", links: map[string]string{"var/run": "../run", "var/lock": "/run/lock"}, want: "ok"},
		{name: "proc", links: map[string]string{"proc": "srv/proc"}, want: "ok"},
		{name: "sys", links: map[string]string{"sys": "srv/sys"}, want: "ok"},
		{name: "dev", links: map[string]string{"dev": "srv/dev"}, want: "ok"},
		{name: "shm", links: map[string]string{"dev/shm": "../run/shm"}, want: "ok"},
		{name: "etc", links: map[string]string{"etc": "srv/etc"}, want: "ok"},
		{name: "lost", lost: map[string]string{"proc": "nowhere"}, error: "/proc"},
		{name: "long", args: []string{argument, argument, argument}, want: "ok"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := daemon.Busybox(t, "sh", "ls", "cat", "sleep", "mkdir", "touch")
			for name, target := range test.links {
				to := target
				if !strings.HasPrefix(target, "/") {
					to = filepath.Join(filepath.Dir(name), target)
				}
				mkdir(t, filepath.Join(dir, to))
				link(t, target, filepath.Join(dir, name))
			}
			for name, target := range test.lost {
				link(t, target, filepath.Join(dir, name))
			}
			flags := []string{
				"--entrypoint", "sh", "--entrypoint", "-c", "--entrypoint",
				"set -e; cat /proc/self/stat /etc/hosts /etc/resolv.conf >/dev/null; ls /sys/* >/dev/null; echo >/dev/null; touch /tmp/t /dev/shm/t; echo ok; sleep 100000", "--entrypoint", "sh",
			}
			for _, a := range test.args {
				flags = append(flags, "--cmd", a)
			}
			m := p.create(t, "odd-"+test.name, hangar.MachineConfig{Image: p.d.Push(dir, "odd-"+test.name+":1", flags...), Restart: &hangar.RestartConfig{Policy: hangar.RestartNo}})
			if test.error != "" {
				m.wait(t, hangar.MachineFailed)
				now, err := p.c.Machine(t.Context(), m.ref)
				if err != nil || !strings.Contains(describe(now), test.error) {
					t.Errorf("it does not say %q: %v\n%s", test.error, err, describe(now))
				}
				return
			}
			m.wait(t, hangar.MachineStarted)
			m.says(t, test.want)
			m.suspend(t)
			m.resume(t)
			m.exec(t, "ls", "/proc/self", "/tmp/t")
			m.destroy(t)
		})
	}
}

func mkdir(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
}

func link(t *testing.T, target, name string) {
	t.Helper()
	mkdir(t, filepath.Dir(name))
	if err := os.Symlink(target, name); err != nil {
		t.Fatal(err)
	}
}

// TestExecOfTheDead: a command whose Machine ends meanwhile ends with it, and the caller gets an
// error.
func TestExecOfTheDead(t *testing.T) {
	p := start(t)
	image := p.d.Push(daemon.Busybox(t, "sh", "sleep"), "dead:1", "--cmd", "sleep", "--cmd", "100000")
	tests := []struct {
		name string
		end  func(*machine, *testing.T)
	}{
		{"killed", (*machine).killSandbox},
		{"stopped", (*machine).stop},
		{"suspended", (*machine).suspend},
		{"destroyed", (*machine).destroy},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			m := p.run(t, "dead-"+test.name, hangar.MachineConfig{Image: image, Restart: &hangar.RestartConfig{Policy: hangar.RestartNo}})
			ended := make(chan error, 1)
			code := 0
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			began := make(chan struct{})
			go func() {
				close(began)
				var err error
				_, code, err = m.tryExec(ctx, "sleep", "40")
				ended <- err
			}()
			<-began
			time.Sleep(time.Second)
			test.end(m, t)
			since := time.Now()
			err := <-ended
			t.Logf("after %s: %v (%s, %s)", time.Since(since), err, hangar.CodeOf(err), hangar.ReasonOf(err))
			if test.name == "suspended" {
				m.resume(t)
				return
			}
			if killed := err == nil && code > 128; !killed && hangar.ReasonOf(err) != hangar.ReasonWrongState || time.Since(since) > 30*time.Second {
				t.Errorf("the command ended with code %d, %v after %s", code, err, time.Since(since))
			}
		})
	}
}
