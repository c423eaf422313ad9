package backup

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/superfly/ltx"
)

func TestItemNames(t *testing.T) {
	full := item{
		form: merged, from: ltx.Pos{TXID: 9, PostApplyChecksum: ltx.ChecksumFlag | 5}, to: ltx.Pos{TXID: 1 << 60, PostApplyChecksum: 1<<64 - 1},
		epoch: 1 << 40, begun: 1772323200001, first: 1772323200000, last: 1772323299999, size: 7,
	}
	for _, db := range []string{"app.db", "a b%c", "ä", "db"} {
		for _, i := range []item{full, {form: single, from: empty, to: empty}, {form: snapshot}} {
			name := i.name(db)
			gotDB, got, ok := parseItem(name, i.size)
			if !ok || gotDB != db || got != i {
				t.Errorf("%s: %s %+v %v, want %+v", name, gotDB, got, ok, i)
			}
			if _, _, ok := parseItem(name+"x", 0); ok {
				t.Errorf("%sx is an object", name)
			}
		}
	}
	for _, name := range []string{"", "cluster.json", "db/x", "db/x/y", full.name("a")[3:], "x" + full.name("a"), "db/%zz/" + full.name("a")[5:]} {
		if _, _, ok := parseItem(name, 0); ok {
			t.Errorf("%q is an object", name)
		}
	}
}

// line is a history of positions for tests.
type line struct {
	rng    *rand.Rand
	items  []item
	states []item // of each transaction
}

// run appends n transactions after a position, in objects of several each.
func (l *line) run(from ltx.Pos, stamp int64, n int, epoch uint64) (ltx.Pos, int64) {
	for n > 0 {
		i := item{form: single, from: from, epoch: epoch, begun: int64(epoch)}
		for range min(n, 1+l.rng.IntN(4)) {
			n--
			stamp += 1 + l.rng.Int64N(1000)
			to := ltx.Pos{TXID: from.TXID + 1, PostApplyChecksum: ltx.ChecksumFlag | ltx.Checksum(l.rng.Uint64())}
			l.states = append(l.states, item{from: from, to: to, last: stamp})
			if i.first == 0 {
				i.first = stamp
			}
			from, i.to, i.last = to, to, stamp
		}
		l.items = append(l.items, i)
		if l.rng.IntN(5) == 0 {
			l.items = append(l.items, item{form: snapshot, to: from, epoch: epoch, begun: int64(epoch), first: stamp, last: stamp})
		}
	}
	return from, stamp
}

// end follows a way up to a time, and returns its end. It checks that the way is consecutive.
func end(t *testing.T, l *line, w []item, limit int64) ltx.Pos {
	t.Helper()
	pos := empty
	for n, i := range w {
		if i.form == snapshot {
			if n != 0 || i.last > limit {
				t.Fatalf("snapshot at %d of the way", n)
			}
			pos = i.to
			continue
		}
		if i.from != pos {
			t.Fatalf("%s begins at %s, after %s", i.form, i.from, pos)
		}
		for pos != i.to {
			at := slices.IndexFunc(l.states, func(s item) bool { return s.from == pos && within(l, s.to, i.to) })
			if at < 0 {
				t.Fatalf("nothing follows %s", pos)
			}
			if l.states[at].last > limit {
				return pos
			}
			pos = l.states[at].to
		}
	}
	return pos
}

// within reports whether the line from one position leads to another.
func within(l *line, pos, to ltx.Pos) bool {
	for pos != to {
		before := slices.IndexFunc(l.states, func(s item) bool { return s.to == to })
		if before < 0 {
			return false
		}
		to = l.states[before].from
	}
	return true
}

// TestWays makes histories in which primaries follow one another, each from a position of the
// previous one, and compares the ways with the databases. Then it repeats that without the objects
// that are not needed.
func TestWays(t *testing.T) {
	for seed := range uint64(60) {
		l := &line{rng: rand.New(rand.NewPCG(seed, 1))}
		pos, stamp := empty, int64(1_000_000)
		// truth has the line of the newest primary, and the transactions that only an earlier one
		// had.
		for epoch := range uint64(1 + l.rng.IntN(4)) {
			before := len(l.states)
			next, now := l.run(pos, stamp, 3+l.rng.IntN(20), epoch+1)
			// The next one begins at the end of an object of this one.
			candidates := []ltx.Pos{next}
			for _, i := range l.items {
				if i.epoch == epoch+1 && i.form == single && i.to.TXID > l.states[before].to.TXID {
					candidates = append(candidates, i.to)
				}
			}
			pos, stamp = candidates[l.rng.IntN(len(candidates))], now
		}
		l.rng.Shuffle(len(l.items), func(i, j int) { l.items[i], l.items[j] = l.items[j], l.items[i] })
		c := newCatalog(l.items)
		last := l.states[len(l.states)-1].last
		since := l.states[l.rng.IntN(len(l.states))].last
		need := c.needed(time.UnixMilli(since))
		var kept []item
		for _, i := range l.items {
			if need[i] {
				kept = append(kept, i)
			}
		}
		short := newCatalog(kept)
		for _, s := range l.states {
			w, ok := c.way(time.UnixMilli(s.last))
			if !ok {
				t.Fatalf("seed %d: no way to %d", seed, s.last)
			}
			// Times are unique, so the state of a time is that of the primary then.
			got := end(t, l, w, s.last)
			if got != s.to {
				t.Errorf("seed %d: at %d %s, want %s", seed, s.last, got, s.to)
			}
			if s.last < since {
				continue
			}
			w, ok = short.way(time.UnixMilli(s.last))
			if !ok || end(t, l, w, s.last) != got {
				t.Errorf("seed %d: at %d something needed was removed", seed, s.last)
			}
		}
		if w, ok := short.way(time.UnixMilli(last + 1000)); !ok || end(t, l, w, last+1000) != l.states[len(l.states)-1].to {
			t.Errorf("seed %d: the newest is lost", seed)
		}
		if _, ok := c.way(time.UnixMilli(999_999)); ok {
			t.Errorf("seed %d: a way to before the beginning", seed)
		}
	}
}

// TestDeadEnds finds a way around objects that lead nowhere.
func TestDeadEnds(t *testing.T) {
	pos := func(n ltx.TXID) ltx.Pos {
		return ltx.Pos{TXID: n, PostApplyChecksum: ltx.ChecksumFlag | ltx.Checksum(n)}
	}
	c := newCatalog([]item{
		{form: merged, from: empty, to: pos(8), first: 8, last: 8},
		{form: single, from: pos(6), to: pos(8), first: 7, last: 8}, // what was before it is merged and removed
		{form: single, from: pos(8), to: pos(10), first: 9, last: 10},
		{form: single, from: pos(20), to: pos(21), first: 9, last: 10},
	})
	w, ok := c.way(time.UnixMilli(10))
	if !ok || len(w) != 2 || w[0].form != merged || w[1].to != pos(10) {
		t.Errorf("%+v %v", w, ok)
	}
	if w, ok := c.way(time.UnixMilli(7)); ok {
		t.Errorf("%+v", w)
	}
}
