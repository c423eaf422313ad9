package volume_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/hangar-platform/hangar/host/volume"
	"github.com/hangar-platform/hangar/internal/extent"
	"github.com/hangar-platform/hangar/internal/finish/finishtest"
)

// digest reads all data of a view.
func digest(t *testing.T, f *volume.Frozen) string {
	t.Helper()
	list, err := f.Data(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	h := sha256.New()
	for _, e := range list {
		if _, err := io.Copy(h, io.NewSectionReader(f, e.Offset, e.Length)); err != nil {
			t.Fatal(err)
		}
	}
	return fmt.Sprintf("%x of %d", h.Sum(nil), list.Length())
}

func freeze(t *testing.T, d *volume.Device, mark string) *volume.Frozen {
	t.Helper()
	f, err := d.Freeze(t.Context(), mark)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func endView(t *testing.T, f *volume.Frozen) {
	t.Helper()
	if err := f.Close(finishtest.Context(t)); err != nil {
		t.Fatal(err)
	}
}

// hammer writes files of random content until stop, with and without a sync.
func hammer(dir string, stop <-chan struct{}) error {
	b := make([]byte, 256<<10)
	rng := rand.NewChaCha8([32]byte{1})
	for i := 0; ; i++ {
		select {
		case <-stop:
			return nil
		default:
		}
		_, _ = rng.Read(b)
		f, err := os.OpenFile(filepath.Join(dir, fmt.Sprint("file", i%16)), os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = f.WriteAt(b, int64(i%5)*int64(len(b)))
		if i%3 == 0 {
			err = errors.Join(err, f.Sync())
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
}

// hammering hammers in the background until stop is called, or the test ends.
func hammering(t *testing.T, dir string) (stop func()) {
	t.Helper()
	quit := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		if err := hammer(dir, quit); err != nil {
			t.Error(err)
		}
	})
	stop = sync.OnceFunc(func() {
		close(quit)
		group.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// TestViewStaysWhileOthersWrite: a view does not change while others write, and is a file system
// from which a second volume can be made.
func TestViewStaysWhileOthersWrite(t *testing.T) {
	const size = 64 * mib
	kinds(t, size, func(t *testing.T, w *world, spec volume.Spec) {
		ctx := t.Context()
		d, dir := w.mounted(spec)
		if err := os.WriteFile(filepath.Join(dir, "before"), []byte("it was there"), 0o600); err != nil {
			t.Fatal(err)
		}
		stop := hammering(t, dir)
		for i := range 3 {
			f := freeze(t, d, fmt.Sprint("mark", i))
			t.Logf("writers waited %v", f.Took())
			if _, err := d.Freeze(ctx, "second"); !errors.Is(err, volume.ErrFrozen) {
				t.Errorf("second view: %v", err)
			}
			first := digest(t, f)
			unix.Sync()
			if second := digest(t, f); first != second {
				t.Errorf("the view changed from %s to %s", first, second)
			}
			if i == 2 {
				restore(t, w, f, spec)
			}
			endView(t, f)
			endView(t, f)
			if _, err := f.ReadAt(make([]byte, 1), 0); !errors.Is(err, os.ErrClosed) {
				t.Errorf("read after the end: %v", err)
			}
		}
		stop()
		w.close(d)
		want := 1 // the image
		if counts(d) {
			want++ // changes
		}
		if left, err := os.ReadDir(filepath.Join(w.options.Dir, string(spec.ID))); err != nil || len(left) != want {
			t.Errorf("beside the image: %v, %v", left, err)
		}
	})
}

// restore makes a volume from a view and compares them.
func restore(t *testing.T, w *world, f *volume.Frozen, spec volume.Spec) {
	t.Helper()
	ctx := t.Context()
	other := encrypted(f.Size())
	w.create(other)
	d := w.attach(other)
	target, err := d.Fill(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Mount(ctx); err == nil {
		t.Error("mounted while it was filled")
	}
	list, err := f.Data(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if _, err := io.Copy(io.NewOffsetWriter(target, e.Offset), io.NewSectionReader(f, e.Offset, e.Length)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(target.Flush(), target.Close()); err != nil {
		t.Fatal(err)
	}
	copied := freeze(t, d, "")
	again, err := copied.Data(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(list, again) {
		t.Errorf("data %v, want %v", again, list)
	}
	for _, e := range list {
		for at := e.Offset; at < e.End(); at += mib {
			n := min(mib, e.End()-at)
			a, b, c := make([]byte, n), make([]byte, n), make([]byte, n)
			_, err1 := f.ReadAt(a, at)
			_, err2 := copied.ReadAt(b, at)
			_, err3 := f.ReadAt(c, at)
			if err := errors.Join(err1, err2, err3); err != nil {
				t.Fatal(err)
			}
			for i := int64(0); i < n; i += 4096 {
				if !bytes.Equal(a[i:i+4096], c[i:i+4096]) {
					t.Errorf("%d of the view changes", at+i)
				}
				if !bytes.Equal(a[i:i+4096], b[i:i+4096]) {
					t.Errorf("at %d KiB: %x, want %x", (at+i)/1024, b[i:i+16], a[i:i+16])
				}
			}
		}
	}
	endView(t, copied)
	m := w.mount(d)
	t.Logf("restored: %+v", m)
	if b, err := os.ReadFile(filepath.Join(m.Dir, "before")); err != nil || string(b) != "it was there" {
		t.Errorf("content %q, %v", b, err)
	}
	w.close(d)
	d = w.attach(other)
	if err := d.Check(ctx); err != nil {
		t.Error(err)
	}
	w.close(d)
}

// TestChangesModel: blocks outside of Changed are unchanged, for any operations between marks;
// after a kill, changes are reported as unknown.
func TestChangesModel(t *testing.T) {
	const size, block = 8 * mib, 4096
	w := newWorld(t)
	few(t)
	rapid.Check(t, func(rt *rapid.T) {
		ctx := t.Context()
		spec := rapid.SampledFrom([]volume.Spec{encrypted(size), plain(size)}).Draw(rt, "volume")
		w.create(spec)
		m := &model{t: rt, w: w, ctx: ctx, spec: spec, content: make([]byte, size), written: make([]bool, size/block), marks: map[string]*past{}}
		m.device = w.attach(spec)
		defer func() {
			if err := errors.Join(w.Release(finishtest.Context(rt), spec.ID), w.Remove(finishtest.Context(rt), spec.ID)); err != nil {
				rt.Error(err)
			}
		}()
		rt.Repeat(map[string]func(*rapid.T){
			"write": m.write, "mark": m.mark, "close": m.reopen, "restart": m.restart, "kill": m.kill,
		})
	})
}

// few reduces the number of rapid's checks unless a flag sets it: a step takes a tenth of a second.
func few(t *testing.T) {
	t.Helper()
	checks := "5"
	if testing.Short() {
		checks = "15" // of which rapid runs a fifth, with half of the steps
	}
	for name, value := range map[string]string{"rapid.checks": checks, "rapid.steps": "15"} {
		f := flag.Lookup(name)
		if f.Value.String() != f.DefValue {
			continue
		}
		if err := f.Value.Set(value); err != nil {
			t.Fatal(err)
		}
	}
}

// model is the expected state of a volume.
type model struct {
	t       *rapid.T
	w       *world
	ctx     context.Context
	spec    volume.Spec
	device  *volume.Device
	content []byte
	written []bool // blocks
	marks   map[string]*past
	count   int
}

// past is the state at a mark.
type past struct {
	content []byte
	known   bool // changes since then must be known
}

func (m *model) must(err error) {
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *model) write(t *rapid.T) {
	const block = 4096
	from := rapid.IntRange(0, len(m.written)-1).Draw(t, "from")
	n := min(rapid.IntRange(1, 40).Draw(t, "blocks"), len(m.written)-from)
	b := bytes.Repeat([]byte{rapid.Byte().Draw(t, "byte")}, n*block)
	target, err := m.device.Fill(m.ctx)
	m.must(err)
	_, err = target.WriteAt(b, int64(from)*block)
	m.must(errors.Join(err, target.Flush(), target.Close()))
	copy(m.content[from*block:], b)
	for i := range n {
		m.written[from+i] = true
	}
}

func (m *model) mark(*rapid.T) {
	const block = 4096
	m.count++
	mark := fmt.Sprint("mark-", m.count)
	f, err := m.device.Freeze(m.ctx, mark)
	m.must(err)
	data, err := f.Data(m.ctx)
	m.must(err)
	b := make([]byte, len(m.content))
	_, err = f.ReadAt(b, 0)
	m.must(err)
	for i, written := range m.written {
		at := extent.Extent{Offset: int64(i) * block, Length: block}
		if !written {
			continue
		}
		if data.Intersect(extent.List{at}).Length() != block {
			m.t.Fatalf("block %d was written and is no data: %v", i, data)
		}
		if !bytes.Equal(b[at.Offset:at.End()], m.content[at.Offset:at.End()]) {
			m.t.Fatalf("block %d is not what was written", i)
		}
	}
	for name, p := range m.marks {
		changed, known, err := f.Changed(m.ctx, name)
		m.must(err)
		if p.known && m.count-atoi(name) <= 2 && !known {
			m.t.Fatalf("what changed since %s is not known", name)
		}
		for i := range m.written {
			at := extent.Extent{Offset: int64(i) * block, Length: block}
			if known && m.written[i] && !bytes.Equal(p.content[at.Offset:at.End()], m.content[at.Offset:at.End()]) &&
				changed.Intersect(extent.List{at}).Length() != block {
				m.t.Fatalf("block %d changed since %s, which is not in %v", i, name, changed)
			}
		}
	}
	m.must(f.Close(finishtest.Context(m.t)))
	m.marks[mark] = &past{content: bytes.Clone(m.content), known: counts(m.device)}
}

func atoi(mark string) (n int) {
	_, _ = fmt.Sscanf(mark, "mark-%d", &n)
	return n
}

func (m *model) reopen(*rapid.T) {
	m.must(m.device.Close(finishtest.Context(m.t)))
	m.attach(m.w.Volumes)
}

// restart drops all state, as a killed daemon does.
func (m *model) restart(*rapid.T) {
	m.w.reopen()
	m.attach(m.w.Volumes)
}

func (m *model) kill(*rapid.T) {
	if !counts(m.device) {
		m.t.Skip("there is no storage daemon to kill")
	}
	killDaemon(m.t, m.w, m.spec)
	<-m.device.Lost()
	for _, p := range m.marks {
		p.known = false
	}
	if err := m.device.Close(finishtest.Context(m.t)); !errors.Is(err, volume.ErrLost) {
		m.t.Fatalf("closed: %v", err)
	}
	m.attach(m.w.Volumes)
}

func (m *model) attach(v *volume.Volumes) {
	var err error
	m.device, err = v.Attach(m.ctx, m.spec)
	m.must(err)
}

// TestFreezeIsShort freezes a file system under heavy writes, for as long as a freeze lets writers
// wait: it thaws by itself, before the guard does. On a server that stalls meanwhile, it is tried
// again.
func TestFreezeIsShort(t *testing.T) {
	w := newWorld(t)
	d, dir := w.mounted(encrypted(1024 * mib))
	stop := hammering(t, dir)
	for held := false; !held; {
		f := freeze(t, d, "mark")
		held = f.Took() > 0 // otherwise the time was over, and the view is as after a power failure
		endView(t, f)
	}
	stop()
	w.close(d)
}
