package replica_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/superfly/ltx"

	"github.com/hangar-platform/hangar/internal/pause"
	"github.com/hangar-platform/hangar/replica/lease"
)

// swapIn and swapOut are an operation of the register: it replaces the value, and returns the
// previous one.
type swapIn struct{ value string }

type swapOut struct {
	old   string
	known bool // otherwise it may have happened, now, later or never
}

// registerModel is a register with swaps. A swap with an unknown result may be placed at the end,
// which is equivalent to no swap.
func registerModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return "" },
		Step: func(state, input, output any) (bool, any) {
			out := output.(swapOut)
			return !out.known || out.old == state.(string), input.(swapIn).value
		},
	}
}

// history is what clients have done.
type history struct {
	mu      sync.Mutex
	began   time.Time
	ops     []porcupine.Operation
	client  int
	acked   int
	unknown int
	refused int
}

// swap makes a program swap, and records the answer.
func (h *history) swap(w *worker, value string) {
	call := time.Since(h.began).Nanoseconds()
	answer := w.ask(value)
	back := time.Since(h.began).Nanoseconds()
	h.mu.Lock()
	defer h.mu.Unlock()
	out := swapOut{}
	switch {
	case strings.HasPrefix(answer, "refused"):
		h.refused++
		return
	case strings.HasPrefix(answer, "acked "):
		h.acked++
		out = swapOut{strings.TrimPrefix(answer, "acked "), true}
	default:
		h.unknown++
		back = math.MaxInt64
	}
	h.client++
	h.ops = append(h.ops, porcupine.Operation{ClientId: h.client, Input: swapIn{value}, Call: call, Output: out, Return: back})
}

// fault changes the network or a clock, for worse or better.
func (c *cluster) fault(t *testing.T, rng *rand.Rand, names []string) {
	name := names[rng.IntN(len(names))]
	all := append(slices.Clone(names), "etcd")
	c.net.mu.Lock()
	c.net.delay = 0
	c.net.mu.Unlock()
	switch n := rng.IntN(10); n {
	case 0, 1:
		t.Log("fault: isolated ", name)
		c.net.isolate(name, all...)
	case 2:
		t.Log("fault: etcd is away for ", name)
		c.net.separate([2]string{name, "etcd"})
	case 3:
		t.Log("fault: no other node for ", name)
		c.net.isolate(name, names...)
	case 4:
		t.Log("fault: etcd is away")
		var pairs [][2]string
		for _, n := range names {
			pairs = append(pairs, [2]string{n, "etcd"})
		}
		c.net.separate(pairs...)
	case 5:
		t.Log("fault: connections break, and are slow")
		c.net.separate()
		c.net.drop(func([2]string) bool { return rng.IntN(2) == 0 })
		c.net.mu.Lock()
		c.net.delay = 30 * time.Millisecond
		c.net.mu.Unlock()
	case 6:
		c.net.separate()
		for n, node := range c.nodes {
			if node.Writable() {
				to, err := node.Handoff(t.Context(), "")
				t.Log("hand-off from ", n, " to ", to, ": ", err)
				return
			}
		}
	case 7, 8:
		jump := time.Duration(rng.Int64N(int64(2*time.Hour))) - time.Hour
		t.Log("fault: the clock of ", name, " is set by ", jump)
		c.ahead[name].Add(int64(jump))
	default:
		t.Log("no fault")
		c.net.separate()
	}
}

// TestFaults has programs on three nodes swap the value of a register, with commits that wait for
// one replica, while the network fails in every way and clocks are set. Acknowledged swaps are
// linearizable, each epoch has had one writer, no node goes back, and in the end all have the same
// bytes. REPLICA_SECONDS is the duration, REPLICA_SEED repeats the faults.
func TestFaults(t *testing.T) {
	for _, journal := range []string{"wal", "delete"} {
		t.Run(journal, func(t *testing.T) {
			seed := uint64(intEnv("REPLICA_SEED", int(time.Now().UnixNano()%1e9)))
			t.Logf("REPLICA_SEED=%d", seed)
			rng := rand.New(rand.NewPCG(seed, 4))
			names := []string{"a", "b", "c"}
			c := newCluster(t, 1)
			c.ttl = 3 * time.Second // one call of etcd has half of it
			c.timeout = 1500 * time.Millisecond
			for _, name := range names {
				c.roots[name] = t.TempDir()
				c.start(name)
			}
			name, primary := c.primary()
			c.connected(name)
			eventually(t, "the quorum", func() bool {
				return workerJob{Path: primary.path("app.db"), Journal: journal, Statements: []string{"CREATE TABLE IF NOT EXISTS t(v)"}}.inProcess(t) == nil &&
					!primary.Info().Databases[0].Late
			})
			c.same("app.db")
			h := &history{began: time.Now()}
			ctx, cancel := context.WithCancel(context.Background())
			var clients sync.WaitGroup
			for i, name := range names {
				w := startWorker(t, workerJob{Path: c.nodes[name].path("app.db"), Register: true})
				clients.Go(func() {
					for n := 0; ctx.Err() == nil; n++ {
						h.swap(w, strconv.Itoa(i)+"-"+strconv.Itoa(n))
						_ = pause.For(ctx, 5*time.Millisecond)
					}
				})
			}
			for _, name := range names {
				clients.Go(func() { monotonic(ctx, t, name, c.nodes[name]) })
			}
			end := time.After(time.Duration(intEnv("REPLICA_SECONDS", 8)) * time.Second)
			for done := false; !done; {
				c.fault(t, rng, names)
				select {
				case <-end:
					done = true
				case <-time.After(time.Duration(200+rng.IntN(1200)) * time.Millisecond):
				}
			}
			c.net.mu.Lock()
			c.net.delay = 0
			c.net.mu.Unlock()
			c.net.separate()
			h.mu.Lock()
			before := h.acked
			h.mu.Unlock()
			eventually(t, "writes again", func() bool { h.mu.Lock(); defer h.mu.Unlock(); return h.acked > before+3 })
			cancel()
			clients.Wait()
			if result := porcupine.CheckOperationsTimeout(registerModel(), h.ops, time.Minute); result != porcupine.Ok {
				t.Errorf("the history of %d swaps is %s", len(h.ops), result)
				for _, op := range h.ops {
					t.Logf("%12d %12d %v %v", op.Call, op.Return, op.Input, op.Output)
				}
			}
			eventually(t, "all to follow", func() bool {
				name, _ = c.primary()
				return len(c.nodes[name].Info().Replicas) == len(names)-1
			})
			c.same("app.db")
			writers := map[uint64]uint64{}
			for _, n := range c.nodes {
				n.writers(t, "app.db", writers)
			}
			t.Logf("%d acknowledged, %d unknown, %d refused, %d epochs", h.acked, h.unknown, h.refused, len(writers))
		})
	}
}

// monotonic checks that the position of a node never goes back. It compares epoch and ID, because
// transactions that no other node has may be undone, which lowers the ID alone. If the new primary
// has not committed anything yet, the epoch is the same, and the undone ones have been put aside.
func monotonic(ctx context.Context, t *testing.T, name string, n *testNode) {
	var last lease.Mark
	for ctx.Err() == nil {
		epoch, id := n.Find("app.db").Mark()
		now := lease.Mark{Epoch: epoch, TXID: uint64(id)}
		if now.Before(last) && (now.Epoch < last.Epoch || !n.hasAside(t, "app.db", last)) {
			t.Errorf("node %s is at %+v after %+v", name, now, last)
		}
		last = now
		_ = pause.For(ctx, time.Millisecond)
	}
}

// hasAside reports whether the node has put the transaction of a mark aside.
func (n *testNode) hasAside(t *testing.T, db string, m lease.Mark) bool {
	name := fmt.Sprintf("%016x-%s*.ltx", m.Epoch, ltx.TXID(m.TXID))
	found, err := filepath.Glob(filepath.Join(n.Info().Aside.Path, db, name))
	if err != nil {
		t.Error(err)
	}
	return len(found) > 0
}

// writers records which node has committed in which epoch, according to a node's log.
func (n *testNode) writers(t *testing.T, db string, by map[uint64]uint64) {
	t.Helper()
	log := n.Find(db).Log()
	r, err := log.AfterID(log.Base().TXID)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for {
		b, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		tx := decode(t, b)
		if other, ok := by[r.Epoch()]; ok && other != tx.NodeID {
			t.Errorf("in epoch %d both %016X and %016X have committed", r.Epoch(), other, tx.NodeID)
		}
		by[r.Epoch()] = tx.NodeID
	}
}

// TestRegisterModel checks that the model distinguishes right from wrong.
func TestRegisterModel(t *testing.T) {
	op := func(from, to int64, value, old string, known bool) porcupine.Operation {
		return porcupine.Operation{ClientId: int(from), Input: swapIn{value}, Call: from, Output: swapOut{old, known}, Return: to}
	}
	const never = math.MaxInt64
	for name, c := range map[string]struct {
		right bool
		ops   []porcupine.Operation
	}{
		"in order":                {true, []porcupine.Operation{op(1, 2, "a", "", true), op(3, 4, "b", "a", true)}},
		"lost":                    {false, []porcupine.Operation{op(1, 2, "a", "", true), op(3, 4, "b", "", true)}},
		"at once":                 {true, []porcupine.Operation{op(1, 4, "a", "b", true), op(2, 3, "b", "", true)}},
		"unknown that happened":   {true, []porcupine.Operation{op(1, never, "a", "", false), op(3, 4, "b", "a", true)}},
		"unknown that did not":    {true, []porcupine.Operation{op(1, never, "a", "", false), op(3, 4, "b", "", true)}},
		"unknown happens once":    {false, []porcupine.Operation{op(1, never, "a", "", false), op(3, 4, "b", "a", true), op(5, 6, "c", "a", true)}},
		"two from the same value": {false, []porcupine.Operation{op(1, 2, "a", "", true), op(3, 6, "b", "a", true), op(4, 5, "c", "a", true)}},
	} {
		if got := porcupine.CheckOperations(registerModel(), c.ops); got != c.right {
			t.Errorf("%s: the model says %t", name, got)
		}
	}
}
