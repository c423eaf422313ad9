package guest

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
)

// TestLayers compares with the kernel, which mounts the same layers.
func TestLayers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("making and mounting layers needs root")
	}
	bottom := layer(t, map[string]string{
		"etc/passwd": "bottom", "etc/group": "bottom", "etc/removed": "bottom", "opt/a/file": "bottom", "srv/file": "bottom",
		"linked": "-> /store/file", "up": "-> opt/../../../etc/group", "dir": "-> opt/a", "var/file": "bottom", "loop": "-> loop",
		"swapped": "-> /etc",
	})
	middle := layer(t, map[string]string{"etc/passwd": "middle", "opt/a/other": "middle", "var/new": "middle", "srv": "a file now", "swapped/other": "x"})
	top := layer(t, map[string]string{"store/file": "-> deep/file", "store/deep/file": "top", "etc/shadow": "-> passwd", "opt/b": "top"})
	if err := unix.Mknod(filepath.Join(top, "etc", "removed"), unix.S_IFCHR, 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mknod(filepath.Join(top, "opt", "a"), unix.S_IFCHR, 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setxattr(filepath.Join(middle, "var"), "trusted.overlay.opaque", []byte("y"), 0); err != nil {
		t.Fatal(err)
	}
	mounted := t.TempDir()
	if err := unix.Mount("overlay", mounted, "overlay", unix.MS_RDONLY, "lowerdir="+top+":"+middle+":"+bottom); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(mounted, unix.MNT_DETACH) }()
	root, err := unix.Open(mounted, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(root) }()
	for _, name := range []string{
		"etc/passwd", "etc/group", "etc/removed", "etc/shadow", "etc", "opt/a/file", "opt/a/other", "opt/b", "srv", "srv/file",
		"linked", "up", "dir/file", "var/file", "var/new", "store/file", "loop", "none", "etc/passwd/x", "swapped/passwd", "swapped/other",
		"etc/../opt/b",
	} {
		want := ""
		if fd, err := unix.Openat2(root, name, &unix.OpenHow{Flags: unix.O_RDONLY, Resolve: unix.RESOLVE_IN_ROOT}); err == nil {
			f := os.NewFile(uintptr(fd), name)
			b, _ := io.ReadAll(f) // a directory has no content
			want = string(b)
			_ = f.Close()
		}
		got := ""
		f, err := openInLayers([]string{bottom, middle, top}, name)
		switch {
		case err == nil:
			b, err := io.ReadAll(f)
			if err != nil {
				t.Fatal(err)
			}
			got = string(b)
			_ = f.Close()
		case !errors.Is(err, fs.ErrNotExist):
			t.Errorf("%s: %v", name, err)
		}
		if got != want {
			t.Errorf("%s: %q, the kernel reads %q", name, got, want)
		}
	}
}

// TestLongWay: a link through a very deep directory is refused instead of followed for minutes.
func TestLongWay(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("a/", 400)
	image := layer(t, map[string]string{
		deep + "passwd": "root:x:0:0::/root:/bin/sh\n", "etc/passwd": "-> /" + deep + "passwd",
	})
	if _, err := User([]string{image}, "other"); hangar.ReasonOf(err) != hangar.ReasonBadConfig || !strings.Contains(err.Error(), "too many directories") {
		t.Errorf("User: %v", err)
	}
}
