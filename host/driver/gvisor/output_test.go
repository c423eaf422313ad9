package gvisor_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/finish/finishtest"
)

// awaitFull returns once the FIFO is full.
func awaitFull(tb testing.TB, path string) {
	tb.Helper()
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	for deadline := time.Now().Add(step); ; {
		// Writers wait while less than a page is free.
		if n, err := unix.IoctlGetInt(fd, unix.TIOCINQ); err != nil || n > 56<<10 {
			return
		}
		if time.Now().After(deadline) {
			tb.Fatal("nothing was said")
		}
		time.Sleep(time.Millisecond)
	}
}

// checkFlood reads and checks the complete output of the guest's flood.
func checkFlood(tb testing.TB, r io.Reader) {
	tb.Helper()
	sum, lines, at := sha256.New(), bufio.NewReaderSize(r, 1<<20), 0
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			tb.Fatal(err)
		}
		if said, ok := strings.CutPrefix(line, "sum "); ok {
			if got := fmt.Sprintf("%x\n", sum.Sum(nil)); got != said {
				tb.Errorf("sum %s of what came, %s of what was said", got, said)
			}
			return
		}
		if want := fmt.Sprintf("at %d\n", at); line != want {
			tb.Fatalf("%q came, want %q", line, want)
		}
		at += len(line)
		sum.Write([]byte(line))
	}
}

// TestFlood: no output is lost when the guest writes as fast as possible, even if the Machine is
// suspended in between.
func TestFlood(t *testing.T) {
	t.Parallel()
	d := open(t)
	spec := newSpec(t, "flood", "10")
	handle, err := d.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Destroy(finishtest.Context(t), spec.ID, spec.Dir); err != nil {
			t.Error(err)
		}
	})
	reader, err := os.OpenFile(spec.Output, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	awaitFull(t, spec.Output)
	snapshot := filepath.Join(spec.Dir, "snapshot")
	if err := d.Suspend(t.Context(), handle, snapshot); err != nil {
		t.Fatal(err)
	}
	if handle, err = d.Resume(t.Context(), spec, snapshot); err != nil {
		t.Fatal(err)
	}
	checkFlood(t, reader)
	if got, err := d.Wait(t.Context(), handle); err != nil || got.Code != 0 {
		t.Errorf("exit %+v, %v", got, err)
	}
}

// TestUnreadOutput: every operation works although the output of the Machine is not read.
func TestUnreadOutput(t *testing.T) {
	t.Parallel()
	const term = hangar.Signal(unix.SIGTERM)
	for _, tt := range []struct {
		name  string
		words []string
		grace time.Duration
		want  int
	}{
		{"stop", []string{"flood", "100"}, step, 128 + int(unix.SIGTERM)},
		{"stop by force", []string{"flood", "100", "ignore"}, 50 * time.Millisecond, 128 + int(unix.SIGKILL)},
		{"stop without patience", []string{"flood", "100"}, 0, 128 + int(unix.SIGKILL)},
		{"destroy", []string{"flood", "100"}, -1, 0},
	} {
		for _, tty := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, terminal %t", tt.name, tty), func(t *testing.T) {
				t.Parallel()
				d := open(t)
				spec := newSpec(t, tt.words...)
				spec.TTY = tty
				ctx, cancel := context.WithTimeout(t.Context(), step)
				defer cancel()
				handle, err := d.Start(ctx, spec)
				if err != nil {
					t.Fatal(err)
				}
				awaitFull(t, spec.Output)
				if ps, err := d.Processes(ctx, handle); err != nil || len(ps) != 1 {
					t.Errorf("processes %+v, %v", ps, err)
				}
				var out strings.Builder
				if _, err := d.Exec(ctx, handle, command("echo", "here"), hangar.ExecStreams{Stdout: &out}); err != nil || out.String() != "here\n" {
					t.Errorf("exec: %q, %v", out.String(), err)
				}
				if tt.grace >= 0 {
					if err := d.Stop(ctx, handle, term, tt.grace); err != nil {
						t.Errorf("Stop: %v", err)
					}
					got, err := d.Wait(ctx, handle)
					if err != nil || got.Code != tt.want {
						t.Errorf("exit %+v, %v, want %d", got, err, tt.want)
					}
				}
				if err := d.Destroy(finishtest.Context(t), spec.ID, spec.Dir); err != nil {
					t.Errorf("Destroy: %v", err)
				}
				if _, err := d.Wait(ctx, handle); err == nil {
					t.Error("Wait after Destroy: no error")
				}
			})
		}
	}
}
