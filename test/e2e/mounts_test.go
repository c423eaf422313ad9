package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/test/daemon"
)

// hostMount is what the server tells of a mount.
type hostMount struct {
	dir, kind, source string
	options           []string
}

// mountsOf returns the mounts of a daemon with a data directory and an instance id.
func mountsOf(t *testing.T, dir, id string) (list []hostMount) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if !strings.Contains(line, dir) && !strings.Contains(line, id) {
			continue
		}
		// "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw"
		mount, system, _ := strings.Cut(line, " - ")
		m, s := strings.Fields(mount), strings.Fields(system)
		list = append(list, hostMount{dir: m[4], options: strings.Split(m[5], ","), kind: s[0], source: s[1]})
	}
	return list
}

// TestMountsAreConfined: what tenants write can be reached on the server as well as in their
// Machines. There it gives nobody another user's rights and is no device, whatever its mode says;
// and nothing of it is executed, but by a sandbox.
func TestMountsAreConfined(t *testing.T) {
	p := start(t)
	image := p.d.Push(daemon.Busybox(t, "sh", "sleep", "cp", "chmod"), "mounts:1", "--cmd", "sleep", "--cmd", "100000")
	v := p.volume(t, hangar.VolumeCreate{})
	m := p.run(t, "victim", config(t,
		`{"image":%q,"guest":{"cpus":1,"memory_mb":256},"mounts":[{"volume":"`+string(v.ref.ID)+`","path":"/data"}]}`, image))
	for _, program := range []string{"/sh", "/data/sh"} {
		m.exec(t, "sh", "-c", "cp /bin/sh "+program+" && chmod 4755 "+program)
		m.exec(t, program, "-c", "exit 0") // in there it is what it is said to be
	}
	seen := map[string]bool{}
	for _, mount := range mountsOf(t, p.d.Dir(), instance(t, p.d)) {
		want := []string{"nosuid", "nodev", "noexec"}
		switch {
		case mount.kind == "nsfs": // a name of a network namespace, which has no files
			want = nil
		case mount.kind == "overlay", mount.kind == "ext4" && filepath.Base(mount.dir) == "mnt": // the sandbox maps programs from there
			want = want[:2]
		case mount.kind == "fuse": // one file, the device of a volume, that nobody may execute
			want = want[:2]
		}
		for _, option := range want {
			if !slices.Contains(mount.options, option) {
				t.Errorf("%s of %s (%s) is mounted without %s: %v", mount.dir, mount.source, mount.kind, option, mount.options)
			}
		}
		seen[mount.kind] = true
	}
	if !seen["overlay"] || !seen["ext4"] {
		t.Errorf("the root file system and the volume of the Machine are not among %v", seen)
	}
	for _, dir := range []string{"images", "layers", "volumes"} { // what is unpacked is protected by who may go there
		fi, err := os.Stat(filepath.Join(p.d.Dir(), dir))
		if err != nil {
			t.Error(err)
		} else if fi.Mode().Perm()&0o077 != 0 {
			t.Errorf("others may look into %s: %s", dir, fi.Mode())
		}
	}
}
