package volume

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/internal/finish/finishtest"
)

// victim is the environment variable with the configuration of the process to be killed.
const victim = "HANGAR_TEST_KERNEL_VICTIM"

// TestKernelVictim is not a test of its own: TestKernelKill runs it as a process and kills it.
func TestKernelVictim(t *testing.T) {
	spec := os.Getenv(victim)
	if spec == "" {
		t.Skip("a part of TestKernelKill")
	}
	var o Options
	var im image
	if _, err := fmt.Sscan(spec, &o.Dir, &o.Run, &o.Instance, &im.id, &im.path, &im.payload); err != nil {
		t.Fatal(err)
	}
	o.Log = slog.New(slog.DiscardHandler)
	k, ctx := newKernelBackend(New(o)), t.Context()
	for {
		im.size = must(os.Stat(im.path))(t).Size() - im.payload
		h := must(k.adopt(finishtest.Context(t), im, nil))(t)
		fmt.Println("begun")
		v := must(h.cut(ctx, "", func(do func() error) error { return do() }))(t)
		if _, err := v.ReadAt(make([]byte, 64<<10), 0); err != nil {
			t.Fatal(err)
		}
		if im.size < 128*mib {
			if err := h.grow(finishtest.Context(t), im.size+mib); err != nil {
				t.Fatal(err)
			}
		}
		if err := v.close(finishtest.Context(t)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestKernelKill kills a daemon at any moment while it makes views of a volume, ends them and
// extends it: writers are not blocked, no synced data is lost, and the next daemon finds a volume
// without a view.
func TestKernelKill(t *testing.T) {
	r := newKernelRig(t)
	im := r.image(t, 64*mib, true)
	h := must(r.open(t.Context(), im, r.key))(t)
	command(t, "mke2fs", "-q", "-t", "ext4", "-E", "nodiscard", h.path())
	for range 3 {
		dir := mount(t, h.path())
		w := writeRecords(t, filepath.Join(dir, "records"))
		for range 4 {
			r.kill(t, im)
			im.size = must(os.Stat(im.path))(t).Size() - im.payload
			// Commands of the killed daemon may continue for a moment.
			if err := r.check(t.Context()); err != nil {
				t.Fatal(err)
			}
			h = must(r.adopt(finishtest.Context(t), im, nil))(t)
			if states := must(r.states(t.Context(), im.id))(t); len(states) != 1 {
				t.Errorf("left of the view: %v", states)
			}
			if must(deviceSize(h.path()))(t) != im.size {
				t.Errorf("the device has not the size of the image, %d bytes", im.size)
			}
		}
		r.kill(t, im)
		n := w.end(t)
		unmountDir(t, dir)
		// This time it is released, and not adopted.
		if err := r.check(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := r.release(finishtest.Context(t), im.id); err != nil {
			t.Fatal(err)
		}
		r.nothingLeft(t)
		im.size = must(os.Stat(im.path))(t).Size() - im.payload
		h = must(r.open(t.Context(), im, r.key))(t)
		command(t, "e2fsck", "-fn", h.path())
		dir = mount(t, h.path())
		if got := readRecords(t, filepath.Join(dir, "records")); got != n {
			t.Errorf("%d records are there, %d were synced", got, n)
		}
		if err := os.Remove(filepath.Join(dir, "records")); err != nil {
			t.Fatal(err)
		}
		unmountDir(t, dir)
		t.Logf("%d records synced, the slowest in %v; %d MiB", n, w.slowest, im.size/mib)
		if w.slowest > 20*time.Second {
			t.Errorf("a writer waited %v", w.slowest)
		}
	}
	if err := h.close(finishtest.Context(t)); err != nil {
		t.Fatal(err)
	}
}

func deviceSize(device string) (int64, error) {
	f, err := os.Open(device)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return f.Seek(0, io.SeekEnd)
}

// kill starts a busy daemon and kills it.
func (r *kernelRig) kill(t *testing.T, im image) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKernelVictim$")
	cmd.Env = append(os.Environ(), victim+"="+fmt.Sprintln(r.v.o.Dir, r.v.o.Run, r.v.o.Instance, im.id, im.path, im.payload))
	out := must(cmd.StdoutPipe())(t)
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	if line != "begun\n" {
		rest, _ := io.ReadAll(out)
		t.Errorf("%s%s%s", line, rest, complaint.String())
	}
	<-time.After(rand.N(1500 * time.Millisecond))
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait()
}

// recordWriter writes numbered records, and syncs each.
type recordWriter struct {
	stop, done chan struct{}
	synced     uint64
	slowest    time.Duration
	err        error
}

const recordSize = 4096

func writeRecords(t *testing.T, name string) *recordWriter {
	t.Helper()
	f := must(os.Create(name))(t)
	w := &recordWriter{stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(w.done)
		defer f.Close()
		for w.err == nil {
			select {
			case <-w.stop:
				return
			default:
			}
			if w.synced*recordSize >= 32*mib {
				return
			}
			began := time.Now()
			_, err := f.Write(record(w.synced))
			w.err = errors.Join(err, f.Sync())
			w.slowest = max(w.slowest, time.Since(began))
			w.synced++
		}
	}()
	return w
}

func (w *recordWriter) end(t *testing.T) uint64 {
	t.Helper()
	close(w.stop)
	<-w.done
	if w.err != nil {
		t.Fatal(w.err)
	}
	return w.synced
}

func record(n uint64) []byte {
	return bytes.Repeat(binary.BigEndian.AppendUint64(nil, n), recordSize/8)
}

// readRecords returns the number of records.
func readRecords(t *testing.T, name string) uint64 {
	t.Helper()
	content := must(os.ReadFile(name))(t)
	var n uint64
	for ; uint64(len(content)) >= (n+1)*recordSize; n++ {
		if !bytes.Equal(content[n*recordSize:(n+1)*recordSize], record(n)) {
			t.Fatal("record " + strconv.FormatUint(n, 10) + " is not what was written")
		}
	}
	return n
}
