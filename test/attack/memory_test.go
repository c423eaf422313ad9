package attack

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/oomscore"
	"github.com/hangar-platform/hangar/test/daemon"
)

// bombs is how many Machines fill their memory at once, and the size of each; smallServer is
// what all Machines may use together, in bytes.
const (
	bombs       = 6
	bombMB      = 512
	smallServer = 1 << 30
)

// limitMachines makes the memory of all Machines of a daemon together that of a small server.
func limitMachines(t *testing.T, dir string) (group string) {
	t.Helper()
	sum := sha256.Sum256([]byte(dir))
	name := "hangar-" + hex.EncodeToString(sum[:3])
	for file, group := range map[string]string{
		"memory.limit_in_bytes": filepath.Join("/sys/fs/cgroup/memory", name), "memory.max": filepath.Join("/sys/fs/cgroup", name),
	} {
		before, err := os.ReadFile(filepath.Join(group, file))
		if err != nil {
			continue
		}
		if n, err := strconv.ParseInt(strings.TrimSpace(string(before)), 10, 64); err != nil || n <= 0 || n > 1<<50 {
			t.Errorf("the memory of all machines was bounded to %q, %v", before, err)
		}
		if err := os.WriteFile(filepath.Join(group, file), []byte(strconv.Itoa(smallServer)), 0o600); err != nil {
			t.Fatal(err)
		}
		return group
	}
	t.Fatal("the machines have no group")
	return ""
}

// platform are the processes that all Machines depend on.
type platform struct{ daemon, keeper, storage int }

func platformOf(t *testing.T, d *daemon.Daemon, volume hangar.VolumeID) platform {
	t.Helper()
	storage, err := daemon.StorageDaemons(d.Dir())
	if err != nil || len(storage[volume]) == 0 {
		t.Fatalf("the storage daemon of %s was not found: %v", volume, err)
	}
	p := platform{daemon: d.PID(), keeper: daemon.Keeper(d.PID()), storage: storage[volume][0]}
	if p.keeper == 0 {
		t.Fatal("the keeper was not found")
	}
	return p
}

// check tells which process is gone or may be ended before Machines are. Where the test may
// not lower a score, the daemon may not either, and keeps the one that it was started with.
func (p platform) check(t *testing.T) {
	t.Helper()
	most := -1
	if err := oomscore.Set(-1); err != nil {
		most = 0
	} else if err := oomscore.Set(0); err != nil {
		t.Fatal(err)
	}
	for name, pid := range map[string]int{"daemon": p.daemon, "keeper": p.keeper, "storage daemon": p.storage} {
		if score, ok := daemon.Score(pid); !ok || score > most {
			t.Errorf("%s, process %d: there is %v, score %d", name, pid, ok, score)
		}
	}
}

// checkSandboxes tells which process of a Machine may be ended after the platform's.
func checkSandboxes(t *testing.T, group string, atLeast int) {
	t.Helper()
	lists, err := filepath.Glob(filepath.Join(group, "*", "cgroup.procs"))
	if err != nil || len(lists) < atLeast {
		t.Fatalf("%d groups of machines in %s: %v", len(lists), group, err)
	}
	seen := 0
	for _, list := range lists {
		raw, _ := os.ReadFile(list) // its Machine may just have ended
		for pid := range strings.FieldsSeq(string(raw)) {
			n, err := strconv.Atoi(pid)
			if err != nil {
				t.Fatal(err)
			}
			score, ok := daemon.Score(n)
			if ok && score <= 0 {
				name, _ := os.ReadFile(filepath.Join("/proc", pid, "cmdline"))
				t.Errorf("process %s of a machine has score %d: %.80q", pid, score, name)
			}
			if ok {
				seen++
			}
		}
	}
	if seen < 2*atLeast { // a sandbox and its gofer
		t.Errorf("only %d processes of %d machines were seen", seen, atLeast)
	}
}

// TestMemoryBomb: when the Machines of a tenant use all memory at once, the kernel ends
// those. The daemon, the keeper and the storage daemons stay, and so do the Machines of
// others, which are smaller.
func TestMemoryBomb(t *testing.T) {
	d := daemon.Start(t, daemon.Options{})
	group := limitMachines(t, d.Dir())
	ctx := t.Context()
	c := d.Client()
	image := d.Push(daemon.Busybox(t, "sh", "mkdir", "mount", "dd", "sleep"), "bomb")

	if _, err := c.CreateApp(ctx, hangar.AppCreate{Name: "victim"}); err != nil {
		t.Fatal(err)
	}
	volume, err := c.CreateVolume(ctx, "victim", hangar.VolumeCreate{Name: "data", SizeGB: 1})
	if err != nil {
		t.Fatal(err)
	}
	run := func(app hangar.AppName, mb int, mounts []hangar.Mount, script string) hangar.MachineRef {
		t.Helper()
		m, err := c.CreateMachine(ctx, app, hangar.MachineCreate{Config: hangar.MachineConfig{
			Image: image, Init: hangar.Init{Exec: []string{"/bin/sh", "-c", script}}, Mounts: mounts,
			Guest: &hangar.Guest{CPUKind: "shared", CPUs: 1, MemoryMB: mb}, Restart: &hangar.RestartConfig{Policy: hangar.RestartNo},
		}})
		if err != nil {
			t.Fatal(err)
		}
		return m.Ref()
	}
	reach := func(ref hangar.MachineRef, state hangar.MachineState) {
		t.Helper()
		if _, err := c.WaitMachine(ctx, ref, hangar.MachineWait{States: []hangar.MachineState{state}, Timeout: hangar.MaxWaitTimeout}); err != nil {
			t.Fatal(err)
		}
	}
	victim := run("victim", 256, []hangar.Mount{{Volume: string(volume.ID), Path: "/data"}}, "exec sleep 10000")
	reach(victim, hangar.MachineStarted)
	protected := platformOf(t, d, volume.ID)
	protected.check(t)
	checkSandboxes(t, group, 1)

	// As after a restart of the daemon, which finds the other processes as they are.
	d.Kill()
	d.Up()
	limitMachines(t, d.Dir())
	protected.daemon = d.PID()
	protected.check(t)
	checkSandboxes(t, group, 1)

	if _, err := c.CreateApp(ctx, hangar.AppCreate{Name: "bombs"}); err != nil {
		t.Fatal(err)
	}
	fill := "sleep 2; mkdir -p /fill; mount -t tmpfs -o size=8g none /fill; exec dd if=/dev/zero of=/fill/it bs=1M"
	var refs []hangar.MachineRef
	for range bombs {
		refs = append(refs, run("bombs", bombMB, nil, fill))
	}
	ended := 0
	for deadline := time.Now().Add(2 * patienceForMemory); ended < 2 && time.Now().Before(deadline); <-time.After(200 * time.Millisecond) {
		ended = 0
		for _, ref := range refs {
			m, err := c.Machine(ctx, ref)
			if err != nil {
				t.Fatalf("the API does not answer: %v", err)
			}
			if m.State.AtRest() {
				ended++
			}
		}
	}
	if ended < 2 {
		t.Errorf("%d of %d machines were ended", ended, bombs)
	}
	protected.check(t)
	if _, err := c.CreateApp(ctx, hangar.AppCreate{Name: "after"}); err != nil {
		t.Errorf("the platform after the memory was full: %v", err)
	}
	t.Logf("%d of %d machines were ended", ended, bombs)
}

// patienceForMemory bounds how long it takes a Machine to fill its memory.
const patienceForMemory = time.Minute
