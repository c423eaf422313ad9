package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/test/daemon"
)

// The size of the layers that are filled, and what the server may lose beside it.
const (
	rootfsBytes = 1 << 30
	rootfsSlack = 128 << 20
)

// TestRootfsIsBounded fills the root file system of a Machine in every place and in every way:
// the Machine sees ENOSPC and what df says is true, it still stops, starts, suspends and
// resumes, and neither the server nor another Machine loses anything beyond the bound.
func TestRootfsIsBounded(t *testing.T) {
	p := start(t)
	dir := daemon.Busybox(t, "sh", "sleep", "dd", "df", "du", "rm", "mkdir", "touch", "cat", "stat", "fallocate", "sync", "awk")
	image := p.d.Push(dir, "fill:1", "--cmd", "sleep", "--cmd", "100000")
	const victim = `{"image":%q,"restart":{"policy":"no"},"guest":{"cpus":1,"memory_mb":256},"rootfs":{"size_gb":1,"persist":"always"}}`
	other := p.run(t, "other", config(t, `{"image":%q,"guest":{"cpus":1,"memory_mb":256}}`, image))
	m := p.run(t, "victim", config(t, victim, image))

	if kb := m.number(t, "df -k / | awk 'NR==2 {print $2}'"); kb<<10 > rootfsBytes || kb<<10 < rootfsBytes*9/10 {
		t.Errorf("df shows %d KiB of 1 GiB", kb)
	}
	if kb := other.number(t, "df -k / | awk 'NR==2 {print $2}'"); kb > 8<<20 || kb < 7<<20 {
		t.Errorf("df shows %d KiB of 8 GiB", kb)
	}
	if n := m.number(t, "df -i / | awk 'NR==2 {print $2}'"); n < 10_000 || n > 1_000_000 {
		t.Errorf("df shows %d inodes", n)
	}
	before := layersTake(t, p.d)
	for name, fill := range map[string]struct{ commands, clean string }{
		"root":      {"dd if=/dev/zero of=/fill bs=1M", "rm /fill"},
		"tmp":       {"dd if=/dev/zero of=/tmp/fill bs=1M", "rm /tmp/fill"},
		"fly":       {"dd if=/dev/zero of=/.fly/fill bs=1M", "rm /.fly/fill"},
		"hosts":     {"dd if=/dev/zero of=/etc/hosts bs=1M", ": >/etc/hosts"},
		"allocated": {"fallocate -l 3g /fill", "rm -f /fill"},
		"sparse": {
			"i=0; while dd if=/dev/zero of=/fill bs=4M count=1 seek=$((i * 100)) conv=notrunc,fsync 2>/dev/null; do i=$((i + 1)); done; dd if=/dev/zero of=/fill2 bs=1M",
			"rm /fill /fill2",
		},
		"inodes": {"mkdir /many; cd /many; i=0; while : >file$i; do i=$((i + 1)); done", "rm -r /many"},
		"fly inodes": {
			"mkdir /.fly/many; cd /.fly/many; i=0; while : >file$i; do i=$((i + 1)); done",
			"rm -r /.fly/many",
		},
	} {
		t.Run(name, func(t *testing.T) {
			out, code, err := m.tryExec(t.Context(), "sh", "-c", "{ "+fill.commands+"; } 2>&1 | awk 'END {print}'")
			if err != nil || code != 0 || !strings.Contains(out, "No space left on device") && !strings.Contains(strings.ToLower(out), "records out") && !strings.Contains(out, "copied") {
				t.Errorf("it ended with %q, %d, %v", out, code, err)
			}
			usage := m.exec(t, "sh", "-c", "df -k / | awk 'NR==2 {print $4}'; df -i / | awk 'NR==2 {print $4}'")
			var kb, inodes int64
			if _, err := fmt.Sscan(usage, &kb, &inodes); err != nil {
				t.Fatal(err)
			}
			if name != "allocated" && kb > 4096 && inodes > 0 {
				t.Errorf("it is not full: %d KiB and %d inodes are free", kb, inodes)
			}
			if lost := layersTake(t, p.d) - before; lost > rootfsBytes+rootfsSlack {
				t.Errorf("the server lost %d MiB", lost>>20)
			}
			other.exec(t, "sh", "-c", "dd if=/dev/zero of=/mine bs=1M count=8 conv=fsync 2>/dev/null && rm /mine")
			m.exec(t, "sh", "-c", fill.clean)
		})
	}
	t.Run("shared memory", func(t *testing.T) { // is memory, not disk
		m.exec(t, "sh", "-c", "dd if=/dev/zero of=/dev/shm/fill bs=1M 2>/dev/null; [ $(stat -c %s /dev/shm/fill) -le $((128 << 20)) ] && rm /dev/shm/fill")
	})
	t.Run("full", func(t *testing.T) {
		m.exec(t, "sh", "-c", "mkdir /many; (cd /many; i=0; while [ $i -lt 70000 ]; do : >file$i; i=$((i + 1)); done) 2>/dev/null; dd if=/dev/zero of=/many/file0 bs=1M 2>/dev/null; sync")
		m.suspend(t)
		m.resume(t)
		m.mustBeWarm(t)
		for range 2 {
			m.stop(t)
			m.start(t)
		}
		p.d.Kill()
		p.d.Up()
		if size := m.number(t, "stat -c %s /many/file0"); size < rootfsBytes/2 {
			t.Errorf("of what was written %d bytes are left", size)
		}
		m.suspend(t)
		p.d.Kill()
		p.d.Up()
		m.resume(t)
		if lost := layersTake(t, p.d) - before; lost > rootfsBytes+rootfsSlack {
			t.Errorf("the server lost %d MiB", lost>>20)
		}
		m.exec(t, "sh", "-c", "rm -r /many")
	})
	t.Run("larger", func(t *testing.T) {
		m.exec(t, "sh", "-c", "echo kept >/kept")
		c := config(t, strings.Replace(victim, `"size_gb":1`, `"size_gb":3`, 1), image)
		updated, err := p.c.UpdateMachine(t.Context(), m.ref, hangar.MachineUpdate{Config: c})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.c.WaitMachine(t.Context(), m.ref, hangar.MachineWait{
			Instance: updated.InstanceID, States: []hangar.MachineState{hangar.MachineStarted}, Timeout: hangar.MaxWaitTimeout,
		}); err != nil {
			now, _ := p.c.Machine(t.Context(), m.ref)
			t.Fatalf("%v\n%s", err, describe(now))
		}
		if kb := m.number(t, "cat /kept >/dev/null && df -k / | awk 'NR==2 {print $2}'"); kb < 5<<19 {
			t.Errorf("df shows %d KiB of 3 GiB", kb)
		}
	})
	m.destroy(t)
	other.destroy(t)
	until(t, "the end of the layers", func() error {
		images, err := filepath.Glob(filepath.Join(p.d.Dir(), "layers", "*.img"))
		if err == nil && len(images) > 0 {
			err = fmt.Errorf("left: %v", images)
		}
		return err
	})
}

// number runs a shell command that prints one.
func (m *machine) number(t *testing.T, command string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(strings.TrimSpace(m.exec(t, "sh", "-c", command)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// layersTake returns how many bytes of the disk the layers of all Machines take. The free room of
// the disk would depend on others, too.
func layersTake(t *testing.T, d *daemon.Daemon) (sum int64) {
	t.Helper()
	images, err := filepath.Glob(filepath.Join(d.Dir(), "layers", "*.img"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range images {
		var st syscall.Stat_t
		if err := syscall.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		sum += st.Blocks * 512
	}
	return sum
}

// TestLayersLeaveNothing takes Machines through their whole life, over and over, with a
// daemon that is killed now and then: no device, mount or file adds up.
func TestLayersLeaveNothing(t *testing.T) {
	p, image := busyboxPlatform(t)
	things := func() (n int) {
		for thing := range inventory(t) {
			kind, _, _ := strings.Cut(thing, " ")
			if (kind == "loop" || kind == "mount") && strings.Contains(thing, p.d.Dir()) {
				n++
			}
		}
		entries, err := os.ReadDir(filepath.Join(p.d.Dir(), "layers"))
		if err != nil {
			t.Fatal(err)
		}
		return n + len(entries)
	}
	const most = 8 // layers that wait, their directory, and what ends in a moment
	for i := range times(200, 6) {
		m := p.run(t, fmt.Sprint("cycle", i), config(t, `{"image":%q,"guest":{"cpus":1,"memory_mb":256},"rootfs":{"persist":"restart"}}`, image))
		m.exec(t, "touch", "/kept")
		m.suspend(t)
		m.resume(t)
		m.stop(t)
		m.start(t)
		m.exec(t, "stat", "/kept")
		if i%10 == 5 {
			p.d.Kill()
			p.d.Up()
			m.exec(t, "stat", "/kept")
		}
		m.destroy(t)
		until(t, "the end of what the Machine had", func() error {
			if n := things(); n > most {
				return fmt.Errorf("%d devices, mounts and files", n)
			}
			return nil
		})
	}
}
