package volume_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/volume"
	"github.com/hangar-platform/hangar/internal/finish/finishtest"
)

// TestGrowthKilled: after a kill during the growth of an unmounted file system, the next mount
// repairs it, with all its content.
func TestGrowthKilled(t *testing.T) {
	kinds(t, 64*mib, func(t *testing.T, w *world, spec volume.Spec) {
		d, _ := w.mounted(spec)
		online, err := d.Extend(finishtest.Context(t), 2*spec.Size)
		w.close(d)
		if err != nil {
			t.Fatal(err)
		}
		if online {
			t.Skip("nothing to kill: the kernel lets this process grow what is mounted")
		}
		content := bytes.Repeat([]byte("content"), mib)
		var killed int
		for round := range 12 {
			spec := spec
			spec.ID = hangar.NewVolumeID()
			d, dir := w.mounted(spec)
			if err := os.WriteFile(filepath.Join(dir, "file"), content, 0o600); err != nil {
				t.Fatal(err)
			}
			w.close(d)
			d = w.attach(spec)
			spec.Size = 4096 * mib
			if online, err := d.Extend(finishtest.Context(t), spec.Size); err != nil || online {
				t.Fatal(online, err)
			}
			kill := func(pid int) error { return syscall.Kill(pid, syscall.SIGKILL) }
			if round%2 == 0 && !byKernel(d) {
				kill = func(int) error { return syscall.Kill(daemonPID(t, w, spec), syscall.SIGKILL) }
			}
			ended := make(chan error, 1)
			go func() {
				_, err := d.Mount(t.Context())
				ended <- err
			}()
			err := killDuring(ended, "resize2fs", time.Duration(rand.Int64N(int64(15*time.Millisecond))), kill)
			// The kill may also have happened after the mount.
			if err := d.Close(finishtest.Context(t)); err != nil && !errors.Is(err, volume.ErrLost) && !errors.Is(err, volume.ErrUnsynced) {
				t.Fatal(err)
			}
			if err == nil {
				continue
			}
			killed++
			d = w.attach(spec)
			m, err := d.Mount(t.Context())
			if err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			if got, err := os.ReadFile(filepath.Join(m.Dir, "file")); err != nil || !bytes.Equal(got, content) {
				t.Errorf("round %d: %d bytes, %v", round, len(got), err)
			}
			if usage, err := d.Usage(t.Context()); err != nil || usage.Total() < 3800*mib {
				t.Errorf("round %d: usage %+v, %v", round, usage, err)
			}
			w.close(d)
			d = w.attach(spec)
			if err := d.Check(t.Context()); err != nil {
				t.Errorf("round %d: %v", round, err)
			}
			w.close(d)
		}
		if killed == 0 {
			t.Error("nothing was killed")
		}
		t.Logf("%d of 12 were killed", killed)
	})
}

// killDuring waits for a child of this process that runs a program, and calls kill some time after
// it has started. It returns the value of ended.
func killDuring(ended <-chan error, program string, after time.Duration, kill func(pid int) error) error {
	for {
		select {
		case err := <-ended:
			return err
		default:
		}
		for _, pid := range childrenThatRun(program) {
			time.Sleep(after)
			_ = kill(pid) // it may have ended
			return <-ended
		}
	}
}

func childrenThatRun(program string) (pids []int) {
	tasks, _ := filepath.Glob("/proc/self/task/*/children")
	for _, task := range tasks {
		children, _ := os.ReadFile(task)
		for child := range strings.FieldsSeq(string(children)) {
			comm, _ := os.ReadFile(fmt.Sprintf("/proc/%s/comm", child))
			if pid, err := strconv.Atoi(child); err == nil && strings.TrimSpace(string(comm)) == program {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}
