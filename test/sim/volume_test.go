package sim

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/internal/mounttest"
	"github.com/hangar-platform/hangar/test/daemon"
)

// writer is the script of a Machine that writes to its volume, with a file that it holds
// open and one that has no name any more.
const writer = `
test -e /data/kept || echo first > /data/kept
echo unnamed > /data/gone
exec 3>>/data/lines 5</data/gone
rm /data/gone
while :; do
	echo line >&3
	if test -e /data/ask; then rm /data/ask; read word <&5; echo "$word" > /data/answer; fi
	sleep 0.05
done`

// storage is a Machine with a volume on a real daemon.
type storage struct {
	*testing.T
	d      *daemon.Daemon
	c      *client.Client
	volume hangar.VolumeRef
	ref    hangar.MachineRef
}

func newStorage(t *testing.T) *storage {
	t.Helper()
	d := daemon.Start(t, daemon.Options{})
	s := &storage{T: t, d: d, c: d.Client()}
	_, err := s.c.CreateApp(t.Context(), hangar.AppCreate{Name: app, Org: hangar.OrgPersonal})
	s.must(err)
	image := d.Push(daemon.Busybox(t, "sh", "sleep", "cat", "rm", "test", "touch", "wc", "stat", "mount", "df"), "writer", "--cmd", "/bin/sleep", "--cmd", "1000")
	v, err := s.c.CreateVolume(t.Context(), app, hangar.VolumeCreate{Name: "data", SizeGB: 1})
	s.must(err)
	s.volume = v.Ref()
	if v.State != hangar.VolumeCreated || v.Usage.Blocks != 0 {
		t.Errorf("new volume %+v", v)
	}
	m, err := s.c.CreateMachine(t.Context(), app, hangar.MachineCreate{Config: hangar.MachineConfig{
		Image: image, Guest: &hangar.Guest{CPUKind: "shared", CPUs: 1, MemoryMB: 256},
		Init:   hangar.Init{Exec: []string{"/bin/sh", "-c", writer}},
		Mounts: []hangar.Mount{{Volume: string(v.ID), Path: "/data"}},
	}})
	s.must(err)
	s.ref = m.Ref()
	s.wait(hangar.MachineStarted)
	return s
}

func (s *storage) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *storage) wait(state hangar.MachineState) {
	s.Helper()
	if _, err := s.c.WaitMachine(s.Context(), s.ref, hangar.MachineWait{States: []hangar.MachineState{state}, Timeout: 60 * time.Second}); err != nil {
		log, _ := s.d.Try("logs", "--app", string(app), "--no-tail")
		s.Fatalf("wait for %s: %v\n%s", state, err, log)
	}
}

func (s *storage) start() {
	s.Helper()
	_, err := s.c.StartMachine(s.Context(), s.ref)
	s.must(err)
	s.wait(hangar.MachineStarted)
}

// exec runs a command in the Machine.
func (s *storage) exec(args ...string) string {
	s.Helper()
	var out strings.Builder
	_, err := s.c.ExecMachine(s.Context(), s.ref, hangar.ExecRequest{Command: args}, hangar.ExecStreams{Stdout: &out, Stderr: &out})
	s.must(err)
	return strings.TrimSpace(out.String())
}

func (s *storage) lines() int {
	s.Helper()
	// The Machine may have started, and its program not yet written.
	n, err := strconv.Atoi(s.exec("/bin/sh", "-c", "cat /data/lines 2>/dev/null | wc -l"))
	s.must(err)
	return n
}

// grows waits until the Machine has written more lines than n.
func (s *storage) grows(n int) {
	s.Helper()
	for deadline := time.Now().Add(settleWithin); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if s.lines() > n {
			return
		}
	}
	s.Fatalf("the machine writes no more: %d lines", n)
}

// unnamed asks for what is in the file that has no name.
func (s *storage) unnamed() string {
	s.Helper()
	s.exec("/bin/touch", "/data/ask")
	for deadline := time.Now().Add(settleWithin); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if s.exec("/bin/sh", "-c", "test -s /data/answer && echo yes || true") == "yes" {
			return s.exec("/bin/cat", "/data/answer")
		}
	}
	s.Fatal("no answer")
	return ""
}

func (s *storage) coldBoot() string {
	s.Helper()
	m, err := s.c.Machine(s.Context(), s.ref)
	s.must(err)
	if r := m.Events[0].Request; r != nil {
		return r.ColdBoot
	}
	return ""
}

func TestVolumeKeepsFiles(t *testing.T) {
	s := newStorage(t)
	s.grows(3)
	s.until("in use", func(v *hangar.Volume) bool {
		return v.Usage.FSType == hangar.FSExt4 && v.Usage.Total() >= 900<<20 && v.AttachedMachine == s.ref.ID && v.Encrypted
	})
	if got := s.exec("/bin/stat", "-c", "%a %u:%g", "/data"); got != "755 0:0" {
		t.Errorf("/data is %s", got)
	}
	n := s.lines()
	s.must(s.c.StopMachine(t.Context(), s.ref, hangar.MachineStop{}))
	s.wait(hangar.MachineStopped)
	s.start()
	if got := s.exec("/bin/cat", "/data/kept"); got != "first" {
		t.Errorf("after a restart the file says %q", got)
	}
	s.grows(n)

	n = s.lines()
	s.d.Kill()
	s.d.Up()
	s.wait(hangar.MachineStarted)
	s.grows(n) // the same processes: nothing has stopped
	m, err := s.c.Machine(t.Context(), s.ref)
	s.must(err)
	if m.Events[0].Type != hangar.EventStart {
		t.Errorf("the kill of the daemon was noticed: %+v", m.Events[0])
	}
	row, err := s.c.ExtendVolume(t.Context(), s.volume, 2)
	s.must(err)
	t.Logf("extended under a running machine; needs a restart: %t", row.NeedsRestart)
	s.must(s.c.RestartMachine(t.Context(), s.ref, hangar.MachineRestart{}))
	_, err = s.c.WaitMachine(t.Context(), s.ref, hangar.MachineWait{FromEvent: m.Events[0].ID, Timeout: time.Minute})
	s.must(err)
	s.until("extended after a restart", func(v *hangar.Volume) bool {
		return v.SizeGB == 2 && !v.NeedsRestart && v.Usage.Total() >= 1900<<20
	})
	if got := s.exec("/bin/cat", "/data/kept"); got != "first" {
		t.Errorf("after the extension the file says %q", got)
	}
}

func TestSuspendWithOpenFilesOnAVolume(t *testing.T) {
	s := newStorage(t)
	for round := range 3 {
		s.grows(3)
		n := s.lines()
		s.must(s.c.SuspendMachine(t.Context(), s.ref))
		s.wait(hangar.MachineSuspended)
		s.closed()
		if round == 1 {
			s.d.Kill()
			s.d.Up()
		}
		s.start()
		if why := s.coldBoot(); why != "" {
			t.Fatalf("round %d: memory was lost: %s", round, why)
		}
		s.grows(n)
	}
	if got := s.unnamed(); got != "unnamed" {
		t.Errorf("the file without a name says %q", got)
	}
}

// closed waits until nothing is open for volumes, which may be a moment after the Machine
// is suspended.
func (s *storage) closed() {
	s.Helper()
	open := s.open()
	for deadline := time.Now().Add(20 * time.Second); len(open) > 0 && time.Now().Before(deadline); open = s.open() {
		time.Sleep(20 * time.Millisecond)
	}
	if len(open) > 0 {
		s.Errorf("open while the machine is suspended: %v", open)
	}
}

// until waits until the volume is as it has to be.
func (s *storage) until(what string, ok func(*hangar.Volume) bool) {
	s.Helper()
	for deadline := time.Now().Add(settleWithin); ; time.Sleep(20 * time.Millisecond) {
		v, err := s.c.Volume(s.Context(), s.volume)
		s.must(err)
		if ok(v) {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("the volume is not %s: %+v", what, v)
		}
	}
}

// open returns the processes and mounts that are there for volumes.
func (s *storage) open() (open []string) {
	s.Helper()
	mounts, err := mounttest.Mentioning(string(s.volume.ID))
	s.must(err)
	for _, m := range mounts {
		open = append(open, fmt.Sprintf("mount %+v", *m))
	}
	for _, pid := range s.storageDaemons() {
		open = append(open, "process "+strconv.Itoa(pid))
	}
	return open
}

// storageDaemons are the processes that serve the volume.
func (s *storage) storageDaemons() (pids []int) {
	s.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	s.must(err)
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		args := strings.Split(string(raw), "\x00")
		if filepath.Base(args[0]) == "qemu-storage-daemon" && strings.Contains(string(raw), string(s.volume.ID)) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			s.must(err)
			pids = append(pids, pid)
		}
	}
	return pids
}

func TestStorageDaemonIsKilled(t *testing.T) {
	s := newStorage(t)
	pids := s.storageDaemons()
	if len(pids) == 0 {
		t.Skip("the volume is not served by a process here")
	}
	s.grows(3)
	s.exec("/bin/sh", "-c", "echo synced > /data/synced; sync")
	for round := range 3 {
		for _, pid := range s.storageDaemons() {
			s.must(syscall.Kill(pid, syscall.SIGKILL))
		}
		began := time.Now()
		s.lost(round + 1)
		s.wait(hangar.MachineStarted)
		t.Logf("started again after %s", time.Since(began).Round(time.Millisecond))
		if got := s.exec("/bin/cat", "/data/synced"); got != "synced" {
			t.Errorf("the file says %q", got)
		}
		s.grows(s.lines())
	}
}

// lost waits until so many events of the volume tell that it was lost.
func (s *storage) lost(times int) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
	defer cancel()
	for ctx.Err() == nil {
		events, err := s.c.VolumeEvents(ctx, s.volume)
		s.must(err)
		n := 0
		for _, e := range events {
			if e.Type == hangar.VolumeEventLost {
				n++
			}
		}
		m, err := s.c.Machine(ctx, s.ref)
		s.must(err)
		if n == times && m.State != hangar.MachineStarted || n == times && len(s.storageDaemons()) > 0 {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	s.Fatal("the loss of the volume was not noticed")
}
