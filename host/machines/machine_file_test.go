package machines_test

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
)

func write(tb testing.TB, path, text string) {
	tb.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
}

// reads returns the content of a file of a Machine.
func (r *rig) reads(ref hangar.MachineRef, path string) (string, error) {
	f, err := r.OpenMachineFile(context.Background(), ref, path)
	if err != nil {
		return "", err
	}
	b, err := io.ReadAll(f)
	if err == nil && int64(len(b)) != f.Size() {
		r.Errorf("%s has %d bytes, not %d", path, len(b), f.Size())
	}
	if err := f.Close(); err != nil {
		r.Error(err)
	}
	return string(b), err
}

func TestMachineFiles(t *testing.T) {
	r := newRig(t)
	outside := filepath.Join(t.TempDir(), "secret")
	write(t, outside, "secret")
	root := r.images.layer
	write(t, filepath.Join(root, "srv/page.html"), "page")
	write(t, filepath.Join(root, "data0/hidden"), "hidden by the volume")
	write(t, filepath.Join(root, "data00/page"), "beside the volume")
	write(t, filepath.Join(root, "etc/motd"), "of the image")
	for _, file := range []string{"etc/hosts", "etc/resolv.conf", "etc/hostname", ".fly/page", "dev/page"} {
		write(t, filepath.Join(root, file), "") // the platform mounts something else over it
	}
	for link, to := range map[string]string{
		"srv/link": "page.html", "srv/out": outside, "srv/up": "../../../../../../../../etc/passwd", "dir": "srv", "srv/proc": "/proc/self/root",
	} {
		r.must(os.Symlink(to, filepath.Join(root, link)))
	}
	r.must(unix.Mkfifo(filepath.Join(root, "srv/fifo"), 0o600))
	r.must(unix.Mknod(filepath.Join(root, "srv/zero"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))))
	volume := r.NewVolume()
	ref := r.create(nil, mounting(volume))
	r.wait(ref, hangar.MachineStarted)
	write(t, filepath.Join(r.disk.Dir, string(volume.ID), "www/page"), "of the volume")
	r.must(os.Symlink(outside, filepath.Join(r.disk.Dir, string(volume.ID), "out")))

	for path, want := range map[string]string{
		"/srv/page.html": "page", "/srv/./../srv//page.html": "page", "/../../srv/page.html": "page",
		"/data0/www/page": "of the volume", "/data00/page": "beside the volume", "/etc/motd": "of the image", "/data0/../srv/page.html": "page",
	} {
		if got, err := r.reads(ref, path); err != nil || got != want {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	for _, path := range []string{
		"", "/", "srv/page.html", "/srv", "/srv/", "/srv/none", "/srv/link", "/srv/out", "/srv/up", "/dir/page.html", "/srv/proc/etc/passwd",
		"/srv/fifo", "/srv/zero", "/srv/page.html/x", "/srv/page.html\x00", "/data0", "/data0/hidden", "/data0/out", "/data0/../data0/out", outside,
		"/etc/hosts", "/etc/../etc//resolv.conf", "/etc/hostname", "/.fly/page", "/dev/page",
	} {
		_, err := r.reads(ref, path)
		if hangar.CodeOf(err) != hangar.CodeNotFound {
			t.Errorf("%q: %v", path, err)
		}
	}
	_, err := r.reads(hangar.MachineRef{App: "web", AppID: "web", ID: hangar.NewMachineID()}, "/srv/page.html")
	r.Declined(err, hangar.CodeNotFound, hangar.ReasonMachineNotFound)
}

func TestMachineFileSeeks(t *testing.T) {
	r := newRig(t)
	write(t, filepath.Join(r.images.layer, "page"), "0123456789")
	ref := r.create(nil)
	r.wait(ref, hangar.MachineStarted)
	f, err := r.OpenMachineFile(t.Context(), ref, "/page")
	r.must(err)
	defer func() { r.must(f.Close()) }()
	for _, at := range []struct {
		offset int64
		whence int
		want   string
	}{{4, io.SeekStart, "456"}, {-2, io.SeekCurrent, "567"}, {-3, io.SeekEnd, "789"}, {0, io.SeekStart, "012"}} {
		if _, err := f.Seek(at.offset, at.whence); err != nil {
			t.Error(err)
		}
		b := make([]byte, 3)
		if _, err := io.ReadFull(f, b); err != nil || string(b) != at.want {
			t.Errorf("at %d of %d: %q, %v", at.offset, at.whence, b, err)
		}
	}
	if _, err := f.Seek(-1, io.SeekStart); err == nil {
		t.Error("sought before the beginning")
	}
}

// TestMachineFilesEnd closes files with the Machine, so that its volume can be unmounted,
// and bounds how many are open.
func TestMachineFilesEnd(t *testing.T) {
	r := newRig(t)
	volume := r.NewVolume()
	ref := r.create(nil, mounting(volume))
	r.wait(ref, hangar.MachineStarted)
	write(t, filepath.Join(r.disk.Dir, string(volume.ID), "page"), "page")
	var files []hangar.MachineFile
	for {
		f, err := r.OpenMachineFile(t.Context(), ref, "/data0/page")
		if hangar.ReasonOf(err) == hangar.ReasonAtLimit {
			break
		}
		r.must(err)
		files = append(files, f)
	}
	if len(files) != 256 {
		t.Errorf("%d files are open at once", len(files))
	}
	r.must(r.StopMachine(t.Context(), ref, hangar.MachineStop{}))
	r.wait(ref, hangar.MachineStopped)
	for _, f := range files {
		if _, err := f.Read(make([]byte, 1)); err == nil {
			t.Fatal("a file of a machine that is stopped is read")
		}
		r.must(f.Close())
	}
	_, err := r.reads(ref, "/data0/page")
	r.Declined(err, hangar.CodeFailedPrecondition, hangar.ReasonWrongState)
}

// TestMachineFilesSwapped: a Machine that swaps a file or directory for a link during an open never
// exposes a file that is not its own.
func TestMachineFilesSwapped(t *testing.T) {
	r := newRig(t)
	outside := filepath.Join(t.TempDir(), "www")
	write(t, filepath.Join(outside, "page"), "secret")
	root := r.images.layer
	write(t, filepath.Join(root, "www/page"), "mine")
	r.must(os.Symlink(outside, filepath.Join(root, "link")))
	r.must(os.Symlink(filepath.Join(outside, "page"), filepath.Join(root, "page")))
	ref := r.create(nil)
	r.wait(ref, hangar.MachineStarted)
	ctx, cancel := context.WithCancel(t.Context())
	var swapping sync.WaitGroup
	// As the Machine would do it: what it renames is below its own root.
	www, err := os.Open(filepath.Join(root, "www"))
	r.must(err)
	top, err := os.Open(root)
	r.must(err)
	swap := func(dir *os.File, a, b string) {
		defer func() { r.must(dir.Close()) }()
		for ctx.Err() == nil {
			if err := unix.Renameat2(int(dir.Fd()), a, int(top.Fd()), b, unix.RENAME_EXCHANGE); err != nil {
				t.Error(err)
				return
			}
		}
	}
	again, err := os.Open(root)
	r.must(err)
	swapping.Go(func() { swap(again, "www", "link") })
	swapping.Go(func() { swap(www, "page", "page") })
	rounds := 4000
	if testing.Short() {
		rounds = 1000
	}
	shown := 0
	for range rounds {
		got, err := r.reads(ref, "/www/page")
		switch {
		case err == nil && bytes.Equal([]byte(got), []byte("mine")):
			shown++
		case err == nil:
			t.Fatalf("the machine shows %q", got)
		}
	}
	cancel()
	swapping.Wait()
	r.must(top.Close())
	t.Logf("shown %d times of %d", shown, rounds)
}

func BenchmarkMachineFile(b *testing.B) {
	r := newRig(b)
	write(b, filepath.Join(r.images.layer, "page"), string(make([]byte, 4<<10)))
	ref := r.create(nil)
	r.wait(ref, hangar.MachineStarted)
	for b.Loop() {
		if _, err := r.reads(ref, "/page"); err != nil {
			b.Fatal(err)
		}
	}
}
