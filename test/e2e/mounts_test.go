package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/mounttest"
	"github.com/hangar-platform/hangar/test/daemon"
)

// TestMountsAreConfined: what tenants write can be reached on the server as well as in their
// Machines. There it gives no program another user's rights and is no device, whatever its mode
// says; and only a sandbox executes any of it.
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
	mounts, err := mounttest.Mentioning(p.d.Dir(), instance(t, p.d))
	if err != nil {
		t.Fatal(err)
	}
	for _, mount := range mounts {
		want := []string{"nosuid", "nodev", "noexec"}
		switch {
		case mount.FSType == "nsfs": // a name of a network namespace, which has no files
			want = nil
		case mount.FSType == "overlay", mount.FSType == "ext4" && filepath.Base(mount.Mountpoint) == "mnt": // the sandbox maps programs from there
			want = want[:2]
		case mount.FSType == "fuse": // one file, the device of a volume, that cannot be executed
			want = want[:2]
		}
		for _, option := range want {
			if !slices.Contains(strings.Split(mount.Options, ","), option) {
				t.Errorf("%s of %s (%s) is mounted without %s: %v", mount.Mountpoint, mount.Source, mount.FSType, option, mount.Options)
			}
		}
		seen[mount.FSType] = true
	}
	if !seen["overlay"] || !seen["ext4"] {
		t.Errorf("the root file system and the volume of the Machine are not among %v", seen)
	}
	for _, dir := range []string{"images", "layers", "volumes"} { // unpacked files are protected by the modes of these
		fi, err := os.Stat(filepath.Join(p.d.Dir(), dir))
		if err != nil {
			t.Error(err)
		} else if fi.Mode().Perm()&0o077 != 0 {
			t.Errorf("others may look into %s: %s", dir, fi.Mode())
		}
	}
}
