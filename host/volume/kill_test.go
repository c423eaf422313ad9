package volume_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/volume"
	"github.com/hangar-platform/hangar/internal/finish"
)

// fataler is a testing.TB or a rapid.T.
type fataler interface {
	Helper()
	Fatal(args ...any)
}

// daemonPID is the process of a volume's storage daemon.
func daemonPID(t fataler, w *world, spec volume.Spec) int {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(w.options.Run, string(spec.ID), "pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// killDaemon kills the storage daemon of a volume.
func killDaemon(t fataler, w *world, spec volume.Spec) {
	t.Helper()
	if err := syscall.Kill(daemonPID(t, w, spec), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// journal appends self-checking records.
type journal struct {
	file   *os.File
	synced atomic.Uint32 // records on disk
}

const recordSize = 512

func record(n uint32) []byte {
	b := make([]byte, recordSize)
	rng := rand.New(rand.NewPCG(uint64(n), 1))
	for i := 4; i < recordSize-4; i += 4 {
		binary.LittleEndian.PutUint32(b[i:], rng.Uint32())
	}
	binary.LittleEndian.PutUint32(b, n)
	binary.LittleEndian.PutUint32(b[recordSize-4:], crc32.ChecksumIEEE(b[:recordSize-4]))
	return b
}

// appending begins a journal in a new file, and appends until something fails.
func appending(t *testing.T, name string) (j *journal, ended chan error) {
	t.Helper()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	j, ended = &journal{file: f}, make(chan error, 1)
	go func() { ended <- j.run() }()
	return j, ended
}

// run appends until something fails.
func (j *journal) run() error {
	for n := j.synced.Load(); ; n++ {
		if _, err := j.file.WriteAt(record(n), int64(n)*recordSize); err != nil {
			return err
		}
		if err := j.file.Sync(); err != nil {
			return err
		}
		j.synced.Store(n + 1)
	}
}

// check compares the first records.
func checkRecords(t *testing.T, name string, synced uint32) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for n := range synced {
		if at := int(n) * recordSize; len(b) < at+recordSize || string(b[at:at+recordSize]) != string(record(n)) {
			t.Fatalf("record %d of %d is lost; the file has %d", n, synced, len(b)/recordSize)
		}
	}
}

// TestStorageDaemonKilled: synced data survives a kill of the storage daemon, which leaves nothing
// behind.
func TestStorageDaemonKilled(t *testing.T) {
	kinds(t, 64*mib, func(t *testing.T, w *world, spec volume.Spec) {
		d, dir := w.mounted(spec)
		if byKernel(d) {
			t.Skip("there is no storage daemon")
		}
		for round := range 4 {
			name := filepath.Join(dir, fmt.Sprint("journal", round))
			j, ended := appending(t, name)
			for j.synced.Load() < 50 {
				select {
				case err := <-ended:
					t.Fatal(err)
				case <-time.After(time.Millisecond):
				}
			}
			if round == 1 {
				if _, err := d.Freeze(t.Context(), "mark"); err != nil {
					t.Fatal(err)
				}
			}
			killDaemon(t, w, spec)
			<-d.Lost()
			if round == 2 {
				time.Sleep(1500 * time.Millisecond)
			}
			if err := d.Err(); !errors.Is(err, volume.ErrLost) {
				t.Errorf("error of a lost device: %v", err)
			}
			if err := <-ended; err == nil {
				t.Error("writes went on")
			}
			_ = j.file.Close()
			if _, err := d.Usage(t.Context()); !errors.Is(err, volume.ErrLost) {
				t.Errorf("usage of a lost device: %v", err)
			}
			w.closeLost(d)
			if ids, err := w.List(t.Context()); err != nil || len(ids) != 0 {
				t.Errorf("left behind: %v, %v", ids, err)
			}
			d = w.attach(spec)
			m := w.mount(d)
			if !m.Replayed {
				t.Errorf("mounted after a kill: %+v", m)
			}
			checkRecords(t, name, j.synced.Load())
		}
		w.close(d)
	})
}

// child is a daemon that opens a volume, takes views of it, and is killed.
func child(args []string) error {
	key, err := hex.DecodeString(args[3])
	if err != nil {
		return err
	}
	spec := volume.Spec{ID: hangar.VolumeID(args[2]), Size: 64 * mib, Key: key}
	if len(key) == 0 {
		spec.Key = nil
	}
	v := volume.New(volume.Options{
		Dir: args[0], Run: args[1], Instance: instance(), Backend: backendWanted(), Guard: []string{"/proc/self/exe", asGuard}, Log: slog.New(slog.DiscardHandler),
	})
	ctx := context.Background()
	if err := v.Open(ctx); err != nil {
		return err
	}
	d, err := v.Attach(ctx, spec)
	if err != nil {
		return err
	}
	if _, err := d.Mount(ctx); err != nil {
		return err
	}
	fmt.Println("ready")
	for i := 0; ; i++ {
		f, err := d.Freeze(ctx, fmt.Sprint("mark", i))
		if err != nil {
			return err
		}
		if err := finish.Do(ctx, time.Minute, f.Close); err != nil {
			return err
		}
	}
}

// TestDaemonKilled: a daemon that is killed, even during a freeze, leaves the volume mounted and
// thawed, and the next one adopts it.
func TestDaemonKilled(t *testing.T) {
	kinds(t, 64*mib, func(t *testing.T, w *world, spec volume.Spec) {
		d, dir := w.mounted(spec)
		j, ended := appending(t, filepath.Join(dir, "journal"))
		device := d.Path()
		for range 6 {
			if err := w.Close(); err != nil { // another one takes over
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), "/proc/self/exe", asChild, w.options.Dir, w.options.Run, string(spec.ID), hex.EncodeToString(spec.Key))
			cmd.Env = append(os.Environ(), "HANGAR_TEST_INSTANCE="+instance())
			cmd.Stderr = os.Stderr
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
				t.Fatal("the child did not take the volume over: ", err)
			}
			time.Sleep(time.Duration(rand.IntN(400)) * time.Millisecond)
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, out)
			_ = cmd.Wait()
			before := j.synced.Load()
			for deadline := time.Now().Add(time.Minute); j.synced.Load() == before; {
				select {
				case err := <-ended:
					t.Fatal(err)
				case <-time.After(time.Millisecond):
				}
				if time.Now().After(deadline) {
					t.Fatal("the volume stays frozen")
				}
			}
			d = w.attach(spec)
			if d.Path() != device {
				t.Errorf("the device is %s, not %s as before", d.Path(), device)
			}
			if m := w.mount(d); m != (volume.Mounted{Dir: dir}) {
				t.Errorf("mounted again: %+v", m)
			}
			endView(t, freeze(t, d, "after"))
		}
		synced := j.synced.Load()
		_ = j.file.Close()
		<-ended
		checkRecords(t, j.file.Name(), synced)
		w.close(d)
	})
}

// TestGuardThaws: a guard thaws a frozen file system when its parent ends without a message.
func TestGuardThaws(t *testing.T) {
	w := newWorld(t)
	d, dir := w.mounted(encrypted(64 * mib))
	guard := exec.CommandContext(t.Context(), "/proc/self/exe", asGuard, dir)
	in, err := guard.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := guard.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := guard.Start(); err != nil {
		t.Fatal(err)
	}
	if said, err := bufio.NewReader(out).ReadString('\n'); said != "ready\n" {
		t.Fatal(said, err)
	}
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const ioctlFreeze = 0xc0045877
	if err := unix.IoctlSetInt(int(f.Fd()), ioctlFreeze, 0); err != nil {
		t.Fatal(err)
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil { // blocks until it is thawed
		t.Error(err)
	}
	if err := guard.Wait(); err != nil {
		t.Error(err)
	}
	_ = f.Close()
	w.close(d)
}

// halt stops the layers between a device and its image.
func halt(t *testing.T, w *world, d *volume.Device, spec volume.Spec) (goOn func() error) {
	t.Helper()
	if !byKernel(d) {
		pid := daemonPID(t, w, spec)
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		return func() error { return syscall.Kill(pid, syscall.SIGCONT) }
	}
	if out, err := exec.CommandContext(t.Context(), "dmsetup", "suspend", "--nolockfs", "--noflush", d.Path()).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return func() error { return exec.CommandContext(t.Context(), "dmsetup", "resume", d.Path()).Run() }
}

// TestPowerCut: synced data is in a copy of the image, taken at any moment as in a power failure.
func TestPowerCut(t *testing.T) {
	kinds(t, 64*mib, func(t *testing.T, w *world, spec volume.Spec) {
		d, dir := w.mounted(spec)
		j, ended := appending(t, filepath.Join(dir, "journal"))
		stop := hammering(t, dir)
		for range 3 {
			for more := j.synced.Load() + 10; j.synced.Load() < more; {
				time.Sleep(time.Millisecond)
			}
			// The storage daemon does not count as synced: data that it holds back is lost. The
			// process, or the kernel's device, is stopped, so that the copy is of one moment.
			goOn := halt(t, w, d, spec)
			synced := j.synced.Load()
			cut := spec
			cut.ID = hangar.NewVolumeID()
			if err := os.Mkdir(filepath.Dir(w.image(cut)), 0o700); err != nil {
				t.Fatal(err)
			}
			out, err := exec.CommandContext(t.Context(), "cp", "--sparse=always", w.image(spec), w.image(cut)).CombinedOutput()
			if err := errors.Join(err, goOn()); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			other := w.attach(cut)
			m := w.mount(other)
			checkRecords(t, filepath.Join(m.Dir, "journal"), synced)
			w.close(other)
			other = w.attach(cut)
			if err := other.Check(t.Context()); err != nil {
				t.Error(err)
			}
			w.close(other)
		}
		stop()
		_ = j.file.Close()
		<-ended
		w.close(d)
	})
}
