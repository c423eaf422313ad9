package backup

import (
	"slices"
	"time"

	"github.com/superfly/ltx"
)

// catalog lists the stored objects of one database.
type catalog struct {
	items []item             // newest first
	after map[ltx.Pos][]item // by the position that they lead to, newest first
}

func newCatalog(items []item) *catalog {
	c := &catalog{items: slices.Clone(items), after: map[ltx.Pos][]item{}}
	slices.SortFunc(c.items, func(i, j item) int { return j.compare(i) })
	for _, i := range c.items {
		c.after[i.to] = append(c.after[i.to], i)
	}
	return c
}

// way returns the items that lead to the state of the database at a time: a snapshot, unless the
// backup has all transactions since the empty database, and the transactions after it. The last item
// may have later transactions, too. way reports false if the backup does not reach back that far.
func (c *catalog) way(to time.Time) ([]item, bool) {
	limit := to.UnixMilli()
	dead := map[item]bool{}
	for _, end := range c.items {
		if end.first > limit || end.form == merged && end.last > limit {
			continue
		}
		if w := c.back(end, dead); w != nil {
			return w, true
		}
	}
	return nil, false
}

// back finds the items that lead from a snapshot, or from an empty database, to end. dead has items
// that cannot be reached.
func (c *catalog) back(end item, dead map[item]bool) []item {
	stack := []item{end}
	for len(stack) > 0 {
		top := stack[len(stack)-1]
		if top.form == snapshot || top.from == empty {
			slices.Reverse(stack)
			return stack
		}
		prior := c.prior(top, dead)
		if prior == nil {
			dead[top] = true
			stack = stack[:len(stack)-1]
			continue
		}
		stack = append(stack, *prior)
	}
	return nil
}

// prior returns the best item that ends where another begins: a snapshot, or else the smallest.
func (c *catalog) prior(i item, dead map[item]bool) *item {
	var best *item
	for _, p := range c.after[i.from] {
		if dead[p] || p.form != snapshot && p.from.TXID >= i.from.TXID {
			continue
		}
		if best == nil || p.form == snapshot && best.form != snapshot || best.form != snapshot && p.from.TXID > best.from.TXID {
			best = &p
		}
	}
	return best
}

// snapshotAt reports whether there is a snapshot of a position.
func (c *catalog) snapshotAt(pos ltx.Pos) bool {
	return slices.ContainsFunc(c.after[pos], func(i item) bool { return i.form == snapshot })
}

// needed returns the items that a restore to any time since the given one may need.
func (c *catalog) needed(since time.Time) map[item]bool {
	need := map[item]bool{}
	if w, ok := c.way(since); ok {
		for _, i := range w {
			need[i] = true
		}
	}
	var todo []item
	for _, i := range c.items {
		if i.last >= since.UnixMilli() {
			need[i] = true
			todo = append(todo, i)
		}
	}
	for len(todo) > 0 {
		i := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if i.form == snapshot || i.from == empty {
			continue
		}
		from := c.snapshotAt(i.from)
		for _, p := range c.after[i.from] {
			if !need[p] && (!from || p.form == snapshot) {
				need[p] = true
				todo = append(todo, p)
			}
		}
	}
	return need
}
