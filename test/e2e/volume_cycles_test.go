package e2e

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

// TestSuspendCyclesKeepVolumes suspends and resumes a Machine again and again that writes
// to its volume and to its root file system, and kills the daemon in between. Not a byte
// may differ on either, and the process stays the same.
func TestSuspendCyclesKeepVolumes(t *testing.T) {
	p := start(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	d := p.volume(t, hangar.VolumeCreate{})
	m, w := d.runBlocks(t, p.pushBlocks(t), "cycles", "/ledger")
	before, err := w.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	most, kills := cycles(t, 200, 15), 0
	var read int64
	for n := range most {
		stop := writeOn(t, w)
		progress(t, w, 1+random.Uint64N(10))
		// Suspended while it writes: the connection is still there afterwards.
		m.suspend(t)
		if n%8 == 4 {
			p.killAndUp(random)
			kills++
		}
		m.resume(t)
		progress(t, w, 1)
		if err := stop(); err != nil {
			t.Fatalf("cycle %d: the connection was lost: %v", n, err)
		}
		found, err := w.Check(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if lost := found.Lost(w.Acked()); lost != "" || found.ID != before.ID {
			t.Fatalf("cycle %d, process %s, was %s: %s", n, found.ID, before.ID, lost)
		}
		read += found.Read
	}
	t.Logf("%d cycles, %d kills of the daemon, %v batches, %d bytes read and right", most, kills, w.Acked(), read)
	// The same after a stop; the root file system is fresh then.
	m.stop(t)
	m.mustHave(t, w.Acked()[:1])
}
