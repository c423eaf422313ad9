package volume_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/host/volume"
	"github.com/hangar-platform/hangar/internal/finish"
)

// cutContext is a context that ends after it was checked a number of times.
type cutContext struct {
	context.Context

	mu   sync.Mutex
	left int           // checks until it ends
	done chan struct{} // closed when it has ended
}

// cutAt returns a context that ends with its n-th check, from 0.
func cutAt(ctx context.Context, n int) *cutContext {
	return &cutContext{Context: ctx, left: n, done: make(chan struct{})}
}

func (c *cutContext) look() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left == 0 {
		close(c.done)
	}
	c.left--
}

func (c *cutContext) Done() <-chan struct{} {
	c.look()
	return c.done
}

func (c *cutContext) Err() error {
	c.look()
	if c.ended() {
		return context.Canceled
	}
	return nil
}

func (c *cutContext) ended() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.left < 0
}

// everyCut repeats do, cancelling its context one step later each time, until do completes.
func everyCut(t *testing.T, what string, do func(ctx context.Context) error) {
	t.Helper()
	for n := range 10_000 {
		ctx := cutAt(t.Context(), n)
		err := do(ctx)
		if !ctx.ended() {
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			t.Logf("%s: cut at %d looks", what, n)
			return
		}
	}
	t.Fatalf("%s does not end", what)
}

// finished adapts an operation that finishes for a caller whose context ends.
func finished(do func(finish.Context) error) func(context.Context) error {
	return func(ctx context.Context) error { return finish.Do(ctx, time.Minute, do) }
}

// TestCutShort cancels the context of each operation at every step. The volume's users continue
// with their unsynced data, and the operation can be repeated.
func TestCutShort(t *testing.T) {
	kinds(t, 64*mib, func(t *testing.T, w *world, spec volume.Spec) {
		d, dir := w.mounted(spec)
		served := func() int {
			if byKernel(d) {
				return 0
			}
			return daemonPID(t, w, spec)
		}
		pid := served()
		want := bytes.Repeat([]byte("not synced\n"), 100<<10)
		file := filepath.Join(dir, "file")
		if err := os.WriteFile(file, want, 0o600); err != nil {
			t.Fatal(err)
		}
		everyCut(t, "attach", func(ctx context.Context) error {
			w.reopen()
			_, err := w.Attach(ctx, spec)
			if now := served(); now != pid {
				t.Fatalf("process %d serves the volume, not %d: %v", now, pid, err)
			}
			return err
		})
		d = w.attach(spec)
		everyCut(t, "freeze", func(ctx context.Context) error {
			view, err := d.Freeze(ctx, "mark")
			if err != nil {
				return err
			}
			everyCut(t, "thaw", finished(view.Close))
			return nil
		})
		everyCut(t, "extend", finished(func(ctx finish.Context) error {
			_, err := d.Extend(ctx, spec.Size+64*mib)
			return err
		}))
		spec.Size += 64 * mib
		if now := served(); now != pid {
			t.Fatalf("process %d serves the volume, not %d", now, pid)
		}
		everyCut(t, "close", finished(d.Close))
		w.close(w.attach(spec))
		d = w.attach(spec)
		dir = w.mount(d).Dir
		if got, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes are left of %d: %v", len(got), len(want), err)
		}
		w.close(d)
	})
}
