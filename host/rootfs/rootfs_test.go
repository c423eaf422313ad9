package rootfs_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/rootfs"
	"github.com/hangar-platform/hangar/internal/ext4"
	"github.com/hangar-platform/hangar/internal/racetest"
)

// layerSize is that of layers in tests, in bytes.
const layerSize = 64 * mib

var machines = []hangar.MachineID{"0123456789abcd", "1123456789abcd", "2123456789abcd"}

func free(tb testing.TB, dir string) int64 {
	tb.Helper()
	var st unix.Statfs_t
	must(tb, unix.Statfs(dir, &st))
	return int64(st.Bavail) * st.Bsize
}

// TestBound fills layers in every way: a Machine that fills its layer gets ENOSPC at the promised
// size, and others do not.
func TestBound(t *testing.T) {
	disk := smallDisk(t, 512*mib)
	l := open(t, rootfs.Options{Dir: filepath.Join(disk, "layers"), Size: layerSize})
	for _, id := range machines {
		must(t, l.Mount(t.Context(), id, 0, rootfs.Fresh))
		t.Cleanup(func() { must(t, l.Remove(id)) })
	}
	before := free(t, disk)
	fills := map[string]func(dir string) error{
		"data":      func(dir string) error { _, err := fill(filepath.Join(dir, "data"), 1<<40); return err },
		"files":     func(dir string) error { _, err := fillFiles(filepath.Join(dir, "many")); return err },
		"allocated": func(dir string) error { return allocate(filepath.Join(dir, "allocated"), 1<<30) },
		"sparse":    func(dir string) error { return scatter(filepath.Join(dir, "sparse")) },
		"xattrs":    func(dir string) error { return fillAttributes(filepath.Join(dir, "attributes")) },
		"deep":      func(dir string) error { return fillDeep(dir) },
	}
	for name, fillLayer := range fills {
		t.Run(name, func(t *testing.T) {
			must(t, l.Mount(t.Context(), machines[0], 0, rootfs.Fresh))
			if err := fillLayer(l.Path(machines[0])); !errors.Is(err, unix.ENOSPC) {
				t.Errorf("it ends with %v", err)
			}
			usage, err := l.Usage(machines[0])
			must(t, err)
			if usage.Bytes > layerSize || usage.Bytes < layerSize*2/3 {
				t.Errorf("df shows %d bytes of %d", usage.Bytes, layerSize)
			}
			if usage.BytesFree > mib && usage.FilesFree > 0 {
				t.Errorf("df shows %+v of one that is full", usage)
			}
			// The room of the last layer is freed with the loop device, a moment later.
			deadline := time.Now().Add(time.Minute)
			for before-free(t, disk) > layerSize+16*mib && time.Now().Before(deadline) {
				<-time.After(10 * time.Millisecond)
			}
			if took := before - free(t, disk); took > layerSize+16*mib {
				t.Errorf("it took %d bytes of the server", took)
			}
			other, err := l.Usage(machines[1])
			must(t, err)
			if other.BytesFree < layerSize/2 || other.FilesFree < 1000 {
				t.Errorf("another Machine has %+v", other)
			}
			must(t, os.WriteFile(filepath.Join(l.Path(machines[1]), "mine"), []byte("fits"), 0o600))
		})
	}
	must(t, l.Mount(t.Context(), machines[0], 0, rootfs.Fresh))
	if err := fills["data"](l.Path(machines[0])); !errors.Is(err, unix.ENOSPC) { // others leave holes
		t.Errorf("it ends with %v", err)
	}
	if n, err := l.Allocated(); err != nil || n < layerSize/2 || n > 3*layerSize {
		t.Errorf("all take %d bytes, %v", n, err)
	}
}

func allocate(path string, size int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Fallocate(int(f.Fd()), 0, 0, size)
}

// scatter writes single bytes across a file far larger than the layer.
func scatter(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for at := int64(0); ; at += 8 * mib {
		for i := range int64(64) {
			if _, err := f.WriteAt([]byte{1}, at+i*32<<10); err != nil {
				return err
			}
		}
		if err := f.Sync(); err != nil {
			return err
		}
	}
}

func fillAttributes(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	for i := 0; ; i++ {
		path := filepath.Join(dir, fmt.Sprint(i))
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			return err
		}
		value := make([]byte, 3000)
		copy(value, path) // one that is alike is kept once
		if err := unix.Setxattr(path, "user.hangar", value, 0); err != nil {
			return err
		}
	}
}

// fillDeep makes nested directories with long names.
func fillDeep(dir string) error {
	at, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("%0255d", 1)
	for {
		if err := unix.Mkdirat(at, name, 0o700); err != nil {
			return errors.Join(err, unix.Close(at))
		}
		next, err := unix.Openat(at, name, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err := errors.Join(err, unix.Close(at)); err != nil {
			return err
		}
		at = next
	}
}

// TestKept: a layer keeps its content until a Machine requests a fresh one.
func TestKept(t *testing.T) {
	dir := newDir(t)
	id := machines[0]
	data := func(l *rootfs.Layers) string { return filepath.Join(l.Path(id), "data") }
	first := open(t, rootfs.Options{Dir: dir, Size: layerSize})
	must(t, first.Mount(t.Context(), id, 0, rootfs.Kept)) // there is none
	must(t, os.WriteFile(data(first), []byte("written"), 0o600))
	must(t, first.Mount(t.Context(), id, 0, rootfs.Kept)) // it is mounted
	for range 3 {
		must(t, first.Unmount(id))
		must(t, first.Unmount(id))
		if _, err := os.Lstat(data(first)); err == nil {
			t.Error("it is still mounted")
		}
		must(t, first.Mount(t.Context(), id, 0, rootfs.Kept))
		if b, err := os.ReadFile(data(first)); string(b) != "written" {
			t.Errorf("it has %q, %v", b, err)
		}
	}
	must(t, first.Close())
	second := open(t, rootfs.Options{Dir: dir, Size: layerSize}) // as another daemon
	must(t, second.Mount(t.Context(), id, 0, rootfs.Kept))
	if b, err := os.ReadFile(data(second)); string(b) != "written" {
		t.Errorf("with another process it has %q, %v", b, err)
	}
	must(t, second.Mount(t.Context(), id, 0, rootfs.Fresh))
	if _, err := os.Lstat(data(second)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a fresh one has what was written: %v", err)
	}
	must(t, second.Remove(id))
	must(t, second.Remove(id))
	if ids, err := second.List(); err != nil || len(ids) > 0 {
		t.Errorf("removed, there is %v, %v", ids, err)
	}
}

// TestGrow: a kept layer grows, and never shrinks.
func TestGrow(t *testing.T) {
	l := open(t, rootfs.Options{Dir: newDir(t), Size: layerSize})
	id := machines[0]
	for i, size := range []int64{layerSize, layerSize, 1 << 30, 20 << 30, layerSize} {
		must(t, l.Mount(t.Context(), id, size, rootfs.Kept))
		name := filepath.Join(l.Path(id), fmt.Sprint(i))
		must(t, os.WriteFile(name, []byte(name), 0o600))
		for j := range i + 1 {
			if _, err := os.Stat(filepath.Join(l.Path(id), fmt.Sprint(j))); err != nil {
				t.Error(err)
			}
		}
		usage, err := l.Usage(id)
		must(t, err)
		want := size
		if i == 4 {
			want = 20 << 30
		}
		if usage.Bytes > want || usage.Bytes < want*2/3 {
			t.Errorf("of %d bytes, df shows %d", want, usage.Bytes)
		}
		must(t, l.Unmount(id))
		eventually(t, func() error { // the last check is of all there is
			err := ext4.Check(t.Context(), filepath.Join(filepath.Dir(l.Path(id)), string(id)+".img"))
			if err != nil {
				return err
			}
			return nil
		})
	}
}

// TestGrowthIsNotCutShort ends the context of a mount while the file system grows. The growth
// continues.
func TestGrowthIsNotCutShort(t *testing.T) {
	const program = "resize2fs"
	real, err := exec.LookPath(program)
	must(t, err)
	bin := t.TempDir()
	begun := filepath.Join(bin, "begun")
	slow := fmt.Sprintf("#!/bin/sh\n: > %s\nsleep 1\nexec %s \"$@\"\n", begun, real)
	must(t, os.WriteFile(filepath.Join(bin, program), []byte(slow), 0o700))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))

	l := open(t, rootfs.Options{Dir: newDir(t), Size: layerSize})
	id := machines[0]
	must(t, l.Mount(t.Context(), id, layerSize, rootfs.Kept))
	must(t, l.Unmount(id))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		eventually(t, func() error { _, err := os.Stat(begun); return err })
		cancel()
	}()
	must(t, l.Mount(ctx, id, 1<<30, rootfs.Kept))
	if ctx.Err() == nil {
		t.Error("the context has not ended meanwhile")
	}
	usage, err := l.Usage(id)
	must(t, err)
	if usage.Bytes < 1<<30*2/3 {
		t.Errorf("of %d bytes, df shows %d", 1<<30, usage.Bytes)
	}
	must(t, l.Unmount(id))
}

// TestFullLayer mounts full layers: the platform still finds room.
func TestFullLayer(t *testing.T) {
	l := open(t, rootfs.Options{Dir: newDir(t), Size: layerSize})
	id := machines[0]
	must(t, l.Mount(t.Context(), id, 0, rootfs.Fresh))
	for range 3 {
		must(t, l.Reserve(id))
		if _, err := fill(filepath.Join(l.Path(id), "data"), 1<<40); !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
		for n := 0; ; n++ {
			_, err := fillFiles(filepath.Join(l.Path(id), fmt.Sprint("many", n)))
			if errors.Is(err, unix.ENOSPC) {
				break
			}
			must(t, err)
		}
		must(t, l.Unmount(id))
		must(t, l.Mount(t.Context(), id, 0, rootfs.Kept))
		for i := range 8 {
			dir := filepath.Join(l.Path(id), fmt.Sprint("start", i))
			must(t, os.RemoveAll(dir))
			must(t, os.Mkdir(dir, 0o755))
			must(t, os.WriteFile(filepath.Join(dir, "file"), make([]byte, 8<<10), 0o600))
		}
	}
}

// TestFullServer fills the disk below the layers: a sync of unwritten data fails, and earlier
// synced data is intact when there is room again.
func TestFullServer(t *testing.T) {
	disk := smallDisk(t, 96*mib)
	l := open(t, rootfs.Options{Dir: filepath.Join(disk, "layers"), Size: 1 << 30})
	for _, id := range machines[:2] {
		must(t, l.Mount(t.Context(), id, 0, rootfs.Fresh))
		t.Cleanup(func() { must(t, l.Remove(id)) })
	}
	path := func(id hangar.MachineID, name string) string { return filepath.Join(l.Path(id), name) }
	before, err := fill(path(machines[0], "before"), 4*mib)
	must(t, err)
	written, err := fill(path(machines[1], "all"), 512*mib)
	if err == nil || written > 96*mib {
		t.Errorf("%d MiB were synced on a disk of 96: %v", written/mib, err)
	}
	if _, err := fill(path(machines[0], "more"), 4*mib); err == nil {
		t.Error("another Machine could sync more than there is room for")
	}
	if err := l.Mount(t.Context(), machines[2], 0, rootfs.Fresh); err == nil {
		t.Error("a layer was made where there is no room")
		must(t, l.Remove(machines[2]))
	}
	if err := l.Unmount(machines[0]); err != nil && !errors.Is(err, rootfs.ErrLost) {
		t.Error(err)
	}
	must(t, l.Remove(machines[1])) // makes room
	must(t, l.Mount(t.Context(), machines[0], 0, rootfs.Kept))
	info, err := os.Stat(path(machines[0], "before"))
	must(t, err)
	b, err := os.ReadFile(path(machines[0], "before"))
	must(t, err)
	if info.Size() != before || string(b[:8]) != "hangar! " || string(b[before-8:]) != "hangar! " {
		t.Errorf("what was synced is %d bytes", info.Size())
	}
	_, err = fill(path(machines[0], "after"), 4*mib)
	must(t, err)
}

// TestFreedSpaceReturns: room that a Machine frees is the server's again, while it runs.
func TestFreedSpaceReturns(t *testing.T) {
	disk := smallDisk(t, 256*mib)
	l := open(t, rootfs.Options{Dir: filepath.Join(disk, "layers"), Size: 1 << 30})
	must(t, l.Mount(t.Context(), machines[0], 0, rootfs.Fresh))
	t.Cleanup(func() { must(t, l.Remove(machines[0])) })
	before := free(t, disk)
	path := filepath.Join(l.Path(machines[0]), "data")
	_, err := fill(path, 100*mib)
	must(t, err)
	if took := before - free(t, disk); took < 90*mib {
		t.Fatalf("100 MiB took %d", took)
	}
	must(t, os.Remove(path))
	must(t, l.Sync(machines[0]))
	eventually(t, func() error {
		if kept := before - free(t, disk); kept > 20*mib {
			return fmt.Errorf("%d bytes of 100 MiB are still taken", kept)
		}
		return nil
	})
}

// TestInUse: a layer that another process has open never becomes two devices.
func TestInUse(t *testing.T) {
	l := open(t, rootfs.Options{Dir: newDir(t), Size: layerSize})
	id := machines[0]
	must(t, l.Mount(t.Context(), id, 0, rootfs.Fresh))
	user, err := os.Create(filepath.Join(l.Path(id), "data"))
	must(t, err)
	must(t, l.Unmount(id))
	released := make(chan error, 1)
	time.AfterFunc(100*time.Millisecond, func() {
		_, err := user.WriteString("to the end")
		released <- errors.Join(err, user.Close())
	})
	must(t, l.Mount(t.Context(), id, 0, rootfs.Kept)) // waits
	must(t, <-released)
	if b, err := os.ReadFile(filepath.Join(l.Path(id), "data")); string(b) != "to the end" {
		t.Errorf("it has %q, %v", b, err)
	}
}

// TestDamaged: a layer that cannot be mounted is reported, and not changed.
func TestDamaged(t *testing.T) {
	dir := newDir(t)
	l := open(t, rootfs.Options{Dir: dir, Size: layerSize})
	id := machines[0]
	must(t, l.Mount(t.Context(), id, 0, rootfs.Fresh))
	must(t, l.Unmount(id))
	image := filepath.Join(dir, string(id)+".img")
	f, err := os.OpenFile(image, os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteAt(make([]byte, 64<<10), 0)
	must(t, errors.Join(err, f.Close()))
	if err := l.Mount(t.Context(), id, 0, rootfs.Kept); !errors.Is(err, rootfs.ErrDamaged) {
		t.Errorf("mounted: %v", err)
	}
	if _, err := os.Stat(image); err != nil {
		t.Error(err)
	}
	must(t, l.Mount(t.Context(), id, 0, rootfs.Fresh))
}

// TestMissing: a layer that must exist is not replaced by an empty one.
func TestMissing(t *testing.T) {
	for _, unbounded := range []bool{true, false} {
		t.Run(fmt.Sprintf("unbounded=%v", unbounded), func(t *testing.T) {
			l := open(t, rootfs.Options{Dir: newDir(t), Size: layerSize, Unbounded: unbounded})
			id := machines[0]
			if err := l.Mount(t.Context(), id, 0, rootfs.Existing); !errors.Is(err, rootfs.ErrDamaged) {
				t.Errorf("mounted: %v", err)
			}
			must(t, l.Mount(t.Context(), id, 0, rootfs.Kept))
			must(t, l.Mount(t.Context(), id, 0, rootfs.Existing))
			must(t, l.Unmount(id))
			must(t, l.Mount(t.Context(), id, 0, rootfs.Existing))
		})
	}
}

// TestKilled kills a process that works with layers: the next one mounts every layer, fresh or
// kept, and no unfinished work is left.
func TestKilled(t *testing.T) {
	racetest.Skip(t)
	dir := newDir(t)
	rounds := 40
	if testing.Short() {
		rounds = 8
	}
	for i := range rounds {
		cmd := child(t, dir)
		<-time.After(time.Duration(i*13%200) * time.Millisecond)
		must(t, cmd.Process.Kill())
		_ = cmd.Wait()
		l := open(t, rootfs.Options{Dir: dir, Size: layerSize})
		for n, id := range machines {
			must(t, l.Mount(t.Context(), id, 0, from((i+n)%3 == 0)))
			path := filepath.Join(l.Path(id), "data")
			// Written without a sync: it is all there, or nothing.
			if b, err := os.ReadFile(path); err == nil && len(b) > 0 && string(b) != "written" || err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Errorf("it has %q, %v", b, err)
			}
			must(t, os.WriteFile(path, []byte("written"), 0o600))
			if i%2 == 0 {
				must(t, l.Unmount(id))
			}
			if i%5 == 0 {
				must(t, l.Remove(id))
			}
		}
		must(t, l.Close())
		eventually(t, func() error { // the kernel clears a device a moment after its last user
			for _, d := range devices(t, dir) {
				if filepath.Dir(d.File) != dir {
					return fmt.Errorf("a device of a layer that is no Machine's is left: %+v", d)
				}
			}
			return nil
		})
	}
}

// TestCycles makes, keeps and removes a layer many times: nothing accumulates.
func TestCycles(t *testing.T) {
	dir := newDir(t)
	l := open(t, rootfs.Options{Dir: dir, Size: layerSize})
	cycles := 200
	if testing.Short() {
		cycles = 40
	}
	for i := range cycles {
		id := machines[i%len(machines)]
		must(t, l.Mount(t.Context(), id, 0, from(i%2 == 0)))
		must(t, l.Reserve(id))
		must(t, l.Sync(id))
		must(t, l.Unmount(id))
		if i%4 == 0 {
			must(t, l.Remove(id))
		}
	}
	for _, id := range machines {
		must(t, l.Remove(id))
	}
	must(t, l.Close())
	nothingLeft(t, dir)
	left, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range left {
		if e.Name() != "spare" {
			t.Errorf("%s is left", e.Name())
		}
	}
}

// TestUnbounded keeps layers in directories, on request.
func TestUnbounded(t *testing.T) {
	l := open(t, rootfs.Options{Dir: newDir(t), Unbounded: true})
	id := machines[0]
	path := filepath.Join(l.Path(id), "data")
	must(t, l.Mount(t.Context(), id, 0, rootfs.Fresh))
	must(t, os.WriteFile(path, nil, 0o600))
	must(t, l.Unmount(id))
	must(t, l.Mount(t.Context(), id, 0, rootfs.Kept))
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
	must(t, l.Mount(t.Context(), id, 0, rootfs.Fresh))
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a fresh one has what was written: %v", err)
	}
	must(t, l.Remove(id))
	if ids, err := l.List(); err != nil || len(ids) > 0 {
		t.Errorf("removed, there is %v, %v", ids, err)
	}
}

// TestBoundChanged: layers of the other kind are refused, and nothing of them is removed.
func TestBoundChanged(t *testing.T) {
	for _, unbounded := range []bool{true, false} {
		t.Run(fmt.Sprintf("unbounded=%v", unbounded), func(t *testing.T) {
			dir, id := newDir(t), machines[0]
			l := open(t, rootfs.Options{Dir: dir, Size: layerSize, Unbounded: unbounded})
			path := filepath.Join(l.Path(id), "data")
			must(t, l.Mount(t.Context(), id, 0, rootfs.Fresh))
			must(t, os.WriteFile(path, nil, 0o600))
			must(t, l.Unmount(id))
			must(t, l.Close())
			other := rootfs.New(rootfs.Options{Dir: dir, Size: layerSize, Unbounded: !unbounded})
			if err := other.Open(t.Context()); err == nil || !strings.Contains(err.Error(), "--rootfs-unbounded") {
				t.Errorf("opened: %v", err)
			}
			must(t, other.Close())
			l = open(t, rootfs.Options{Dir: dir, Size: layerSize, Unbounded: unbounded})
			must(t, l.Mount(t.Context(), id, 0, rootfs.Kept))
			if _, err := os.Stat(path); err != nil {
				t.Error(err)
			}
		})
	}
}

// BenchmarkMount compares how a Machine gets its layer.
func BenchmarkMount(b *testing.B) {
	dir := newDir(b)
	l := open(b, rootfs.Options{Dir: dir})
	id := machines[0]
	for name, c := range map[string]struct {
		size  int64
		fresh bool
		rest  time.Duration
	}{
		"fresh, made ahead": {0, true, 400 * time.Millisecond},
		"fresh, at once":    {0, true, 0},
		"kept":              {0, false, 0},
		"of another size":   {4 << 30, true, 0},
	} {
		b.Run(name, func(b *testing.B) {
			must(b, l.Mount(b.Context(), id, c.size, rootfs.Fresh))
			for b.Loop() {
				b.StopTimer()
				must(b, l.Unmount(id))
				<-time.After(c.rest)
				b.StartTimer()
				must(b, l.Mount(b.Context(), id, c.size, from(c.fresh)))
			}
		})
	}
	b.Run("unmount", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			must(b, l.Mount(b.Context(), id, 0, rootfs.Kept))
			must(b, os.WriteFile(filepath.Join(l.Path(id), "data"), []byte("written"), 0o600))
			b.StartTimer()
			must(b, l.Unmount(id))
		}
	})
}
