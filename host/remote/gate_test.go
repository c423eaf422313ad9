package remote_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

// door counts the visits.
type door struct {
	mu    sync.Mutex
	in    int
	most  int
	limit int           // 0: none
	stuck chan struct{} // not nil: no one is answered until it is closed

	closed atomic.Bool // the connection to the Machine; see noted
}

func (d *door) enter(hangar.MachineRef, int) (func(), error) {
	d.mu.Lock()
	stuck := d.stuck
	d.mu.Unlock()
	if stuck != nil {
		<-stuck
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.limit > 0 && d.in == d.limit {
		return nil, hangar.Errorf(hangar.CodeExhausted, hangar.ReasonAtLimit, "full")
	}
	d.in++
	d.most = max(d.most, d.in)
	return sync.OnceFunc(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.in--
	}), nil
}

func (d *door) inside() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.in
}

func (d *door) setStuck(c chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stuck = c
}

func TestGateCounts(t *testing.T) {
	d := &door{limit: 3}
	s := &stub{id: other, enter: d.enter}
	w := newWorld(t, s, s)
	var leaves []func()
	for range 3 {
		leave, err := w.gate().EnterMachine(hangar.MachineRef{ID: "1"}, 80)
		if err != nil {
			t.Fatal(err)
		}
		leaves = append(leaves, leave)
	}
	if _, err := w.gate().EnterMachine(hangar.MachineRef{ID: "1"}, 80); hangar.ReasonOf(err) != hangar.ReasonAtLimit {
		t.Errorf("got %v", err)
	}
	if d.inside() != 3 {
		t.Errorf("%d are in", d.inside())
	}
	for _, leave := range leaves {
		leave()
		leave()
	}
	w.await(func() bool { return d.inside() == 0 })
}

func TestManyEnter(t *testing.T) {
	d := &door{}
	s := &stub{id: other, enter: d.enter}
	w := newWorld(t, s, s)
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			for range 20 {
				leave, err := w.gate().EnterMachine(hangar.MachineRef{ID: "1"}, 80)
				if err != nil {
					t.Error(err)
					return
				}
				leave()
			}
		})
	}
	all.Wait()
	w.await(func() bool { return d.inside() == 0 })
}

// TestThoseInsideEnterAgain when the connection breaks, and leave with the directory.
func TestThoseInsideEnterAgain(t *testing.T) {
	d := &door{}
	s := &stub{id: other, enter: d.enter}
	w := newHastyWorld(t, s, s)
	var leave func()
	for range 2 {
		w.await(func() (in bool) {
			var err error
			leave, err = w.gate().EnterMachine(hangar.MachineRef{ID: "1"}, 80)
			return err == nil
		})
	}
	w.line.hush() // those that were in leave, and cannot come back yet
	w.line.cut()
	w.await(func() bool { return d.inside() == 0 })
	w.line.speak()
	w.await(func() bool { return d.inside() == 2 })
	leave()
	w.await(func() bool { return d.inside() == 1 })
	w.end()
	w.await(func() bool { return d.inside() == 0 })
}

// TestSilentGate: the edge takes another Machine when a host does not answer, and the late answer
// counts no one.
func TestSilentGate(t *testing.T) {
	d := &door{}
	s := &stub{id: other, enter: d.enter}
	w := newHastyWorld(t, s, s)
	stuck := make(chan struct{})
	d.setStuck(stuck)
	for range 2 { // it is found out, and known
		if _, err := w.gate().EnterMachine(hangar.MachineRef{ID: "1"}, 80); hangar.CodeOf(err) != hangar.CodeUnavailable {
			t.Errorf("got %v", err)
		}
	}
	d.setStuck(nil)
	close(stuck)
	w.await(func() bool {
		leave, err := w.gate().EnterMachine(hangar.MachineRef{ID: "1"}, 80)
		if err == nil {
			leave()
		}
		return err == nil
	})
	w.await(func() bool { return d.inside() == 0 })
}

func TestEdgeLines(t *testing.T) {
	lines := make(chan string, 100)
	d := &door{}
	s := &stub{id: other, enter: d.enter, log: func(message string) { lines <- message }}
	w := newWorld(t, s, s)
	if _, err := w.gate().EnterMachine(hangar.MachineRef{ID: "1"}, 80); err != nil { // so that it is connected
		t.Fatal(err)
	}
	for i := range 10 {
		w.gate().LogEdge(hangar.MachineRef{ID: "1"}, "info", fmt.Sprint(i))
	}
	for i := range 10 {
		if got := <-lines; got != fmt.Sprint(i) {
			t.Errorf("got line %s, want %d", got, i)
		}
	}
}

// content is a file in memory.
type content struct {
	*bytes.Reader

	closed chan struct{}
}

func (c content) Close() error {
	close(c.closed)
	return nil
}
func (c content) ModTime() time.Time { return time.Unix(1e9, 5) }

func TestFile(t *testing.T) {
	data := make([]byte, 600_000)
	for i := range data {
		data[i] = byte(i * 7 / 3)
	}
	closed := make(chan struct{})
	s := &stub{id: other, file: func(path string) (hangar.MachineFile, error) {
		if path != "/there" {
			return nil, hangar.Errorf(hangar.CodeNotFound, "", "no such file")
		}
		return content{bytes.NewReader(data), closed}, nil
	}}
	w := newWorld(t, s, s)
	if _, err := w.gate().OpenMachineFile(t.Context(), hangar.MachineRef{}, "/away"); hangar.CodeOf(err) != hangar.CodeNotFound {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	f, err := w.gate().OpenMachineFile(ctx, hangar.MachineRef{}, "/there")
	if err != nil {
		t.Fatal(err)
	}
	if f.Size() != int64(len(data)) || !f.ModTime().Equal(time.Unix(1e9, 5)) {
		t.Errorf("got %d bytes of %s", f.Size(), f.ModTime())
	}
	got, err := io.ReadAll(f)
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("got %d bytes, %v", len(got), err)
	}
	if at, err := f.Seek(-10, io.SeekEnd); err != nil || at != int64(len(data))-10 {
		t.Errorf("got %d %v", at, err)
	}
	if got, err = io.ReadAll(f); err != nil || !bytes.Equal(got, data[len(data)-10:]) {
		t.Errorf("got %d bytes, %v", len(got), err)
	}
	if _, err := f.Seek(-1, io.SeekStart); err == nil {
		t.Error("it was sought before the beginning")
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	<-closed
}

// counted is content that counts what is read of it.
type counted struct {
	content
	read *atomic.Int64
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.content.Read(p)
	c.read.Add(int64(n))
	return n, err
}

// TestPartsOfAFile: of a file that is read here and there, no more is sent than is read, and of one that is read to its
// end, all of it once.
func TestPartsOfAFile(t *testing.T) {
	data := make([]byte, 3<<20)
	var read atomic.Int64
	s := &stub{id: other, file: func(string) (hangar.MachineFile, error) {
		return counted{content{bytes.NewReader(data), make(chan struct{})}, &read}, nil
	}}
	w := newWorld(t, s, s)
	f, err := w.gate().OpenMachineFile(t.Context(), hangar.MachineRef{}, "/there")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	one := make([]byte, 1)
	for i := range int64(100) {
		if _, err := f.Seek(i*20_000, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(f, one); err != nil {
			t.Fatal(err)
		}
	}
	if n := read.Swap(0); n != 100 {
		t.Errorf("%d bytes are sent for 100", n)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, f); err != nil || read.Load() != int64(len(data)) {
		t.Errorf("%d bytes are sent of %d: %v", read.Load(), len(data), err)
	}
}
