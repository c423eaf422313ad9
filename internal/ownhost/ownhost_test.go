package ownhost

import (
	"bytes"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { Main(m, nil) }

// asNeighbour is set to the directory in a process that starts while TestOthersCanUnmount has
// something mounted.
const asNeighbour = "HANGAR_TEST_NEIGHBOUR"

// Later tests do not count the mounts of an earlier one as in use.
func TestOthersCanUnmount(t *testing.T) {
	dir := t.TempDir()
	if other := os.Getenv(asNeighbour); other != "" {
		dir = other
	} else {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := unix.Unmount(dir, 0); err != nil {
				t.Error(err)
			}
		}()
		neighbour := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestOthersCanUnmount$")
		neighbour.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, inside+"=") }), asNeighbour+"="+dir)
		if out, err := neighbour.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("PASS")) {
			t.Errorf("beside a neighbour: %v: %s", err, out)
		}
	}
	mounted, err := mountinfo.Mounted(dir)
	if err != nil {
		t.Fatal(err)
	}
	if want := os.Getenv(asNeighbour) == ""; mounted != want {
		t.Errorf("%s is mounted: %t, want %t", dir, mounted, want)
	}
}
