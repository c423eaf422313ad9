package vm_test

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/host/volume"
	"github.com/hangar-platform/hangar/test/vm"
)

// bound is how long the machine may take. Its processor is emulated, on a server that is
// doing other things.
const bound = time.Hour

// volumes is the machine that tests of host/volume need.
var volumes = vm.Guest{
	Modules: []string{
		"virtio_pci", "virtio_blk", "virtio_rng", "loop", "fuse",
		"dm-mod", "dm-crypt", "dm-snapshot", "xts", "aesni-intel", "algif_skcipher",
	},
	Programs: map[string]string{
		"mke2fs": "e2fsprogs", "e2fsck": "e2fsprogs", "resize2fs": "e2fsprogs", "tune2fs": "e2fsprogs",
		"dumpe2fs": "e2fsprogs", "debugfs": "e2fsprogs", "e2undo": "e2fsprogs", "cryptsetup": "cryptsetup-bin", "dmsetup": "dmsetup",
		"losetup": "mount", "qemu-storage-daemon": "qemu-system-common", "qemu-img": "qemu-utils", "cp": "coreutils",
	},
	Files:  []string{"/etc/mke2fs.conf", "/etc/passwd", "/etc/group"},
	Memory: 1024,
	Disk:   8 << 30,
}

// ranOne is how the output of a test binary says that a test passed.
var ranOne = regexp.MustCompile(`(?m)^--- PASS: `)

// TestVolumes runs the tests of host/volume where the kernel has all that they ask for,
// with each of its backends.
func TestVolumes(t *testing.T) {
	asked(t)
	binary := filepath.Join(t.TempDir(), "volume.test")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-ldflags=-s -w", "-o", binary, "../../host/volume")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the test: %v\n%s", err, out)
	}
	for _, backend := range []volume.Backend{volume.BackendKernel, volume.BackendDaemon} {
		t.Run(string(backend), func(t *testing.T) {
			runVolumes(t, vm.Test{
				Binary: binary,
				Args: []string{
					"-test.v", "-test.timeout=" + (bound - time.Minute).String(), "-test.run=" + os.Getenv("VM_RUN"),
					"-rapid.checks=10", "-rapid.steps=10", // what is random is tried at length elsewhere
				},
				Env: []string{"HANGAR_TEST_BACKEND=" + string(backend)},
			})
		})
	}
}

func runVolumes(t *testing.T, test vm.Test) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	began := time.Now()
	var text bytes.Buffer
	exit, err := vm.Run(ctx, cacheDir(t), t.TempDir(), volumes, test, io.MultiWriter(&text, t.Output()))
	t.Logf("the machine ran for %v", time.Since(began).Round(time.Second))
	switch {
	case err != nil:
		t.Fatal(err)
	case exit != 0:
		t.Fatalf("the test exited with %d", exit)
	case !ranOne.Match(text.Bytes()):
		t.Fatal("no test ran")
	}
}
