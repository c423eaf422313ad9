package replica_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/internal/etcdtest"
	"github.com/hangar-platform/hangar/internal/pause"
	"github.com/hangar-platform/hangar/replica"
	"github.com/hangar-platform/hangar/replica/lease"
	"github.com/hangar-platform/hangar/replica/lease/etcd"
)

// network is the connections between nodes and to etcd, which can be cut and delayed.
type network struct {
	mu    sync.Mutex
	names map[string]string    // by address
	cut   map[[2]string]bool   // both ways
	conns map[*faultyConn]bool // open ones
	delay time.Duration        // of each write, at most
}

func newNetwork() *network {
	return &network{names: map[string]string{}, cut: map[[2]string]bool{}, conns: map[*faultyConn]bool{}}
}

// faultyConn is one connection.
type faultyConn struct {
	net.Conn
	n    *network
	ends [2]string
}

func (c *faultyConn) Write(b []byte) (int, error) {
	c.n.mu.Lock()
	delay := c.n.delay
	c.n.mu.Unlock()
	if delay > 0 {
		_ = pause.For(context.Background(), rand.N(delay))
	}
	return c.Conn.Write(b)
}

func (c *faultyConn) Close() error {
	c.n.mu.Lock()
	delete(c.n.conns, c)
	c.n.mu.Unlock()
	return c.Conn.Close()
}

var errCut = errors.New("the network is cut")

func (n *network) dial(ctx context.Context, from, address string) (net.Conn, error) {
	n.mu.Lock()
	ends := [2]string{from, n.names[address]}
	cut := n.isCut(ends)
	n.mu.Unlock()
	if cut {
		return nil, errCut
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	wrapped := &faultyConn{c, n, ends}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.isCut(ends) {
		return nil, errors.Join(errCut, c.Close())
	}
	n.conns[wrapped] = true
	return wrapped, nil
}

func (n *network) isCut(ends [2]string) bool {
	return n.cut[ends] || n.cut[[2]string{ends[1], ends[0]}]
}

// separate cuts the network between pairs of names, and restores it between all others. Connections
// break.
func (n *network) separate(pairs ...[2]string) {
	n.mu.Lock()
	clear(n.cut)
	for _, p := range pairs {
		n.cut[p] = true
	}
	n.mu.Unlock()
	n.drop(func(ends [2]string) bool { return n.isCut(ends) })
}

// drop breaks connections.
func (n *network) drop(which func(ends [2]string) bool) {
	n.mu.Lock()
	var broken []net.Conn
	for c := range n.conns {
		if which(c.ends) {
			broken = append(broken, c.Conn)
			delete(n.conns, c)
		}
	}
	n.mu.Unlock()
	for _, c := range broken {
		c.Close()
	}
}

// isolate separates a node from all others and from etcd.
func (n *network) isolate(name string, others ...string) {
	var pairs [][2]string
	for _, o := range others {
		if o != name {
			pairs = append(pairs, [2]string{name, o})
		}
	}
	n.separate(pairs...)
}

// cluster is nodes that elect their primary.
type cluster struct {
	t        *testing.T
	net      *network
	endpoint string
	replicas int
	timeout  time.Duration // of a commit
	ttl      time.Duration // of the lease
	capture  replica.Capture
	roots    map[string]string
	nodes    map[string]*testNode
	ahead    map[string]*atomic.Int64 // by how many nanoseconds the wall clock of a node is
}

func newCluster(t *testing.T, replicas int, names ...string) *cluster {
	t.Helper()
	needsMount(t)
	c := &cluster{t: t, net: newNetwork(), endpoint: etcdtest.Start(t), replicas: replicas, ttl: 5 * time.Second, roots: map[string]string{}, nodes: map[string]*testNode{}, ahead: map[string]*atomic.Int64{}}
	c.net.names[strings.TrimPrefix(c.endpoint, "http://")] = "etcd"
	for _, name := range names {
		c.roots[name] = t.TempDir()
		c.start(name)
	}
	return c
}

// start starts a node, again if it was stopped.
func (c *cluster) start(name string) *testNode {
	c.t.Helper()
	dial := func(ctx context.Context, address string) (net.Conn, error) { return c.net.dial(ctx, name, address) }
	ahead := &atomic.Int64{}
	c.ahead[name] = ahead
	n := startNode(c.t, nodeConfig{
		root: c.roots[name], capture: c.capture,
		lease: func(url string) lease.Lease {
			c.net.mu.Lock()
			c.net.names[strings.TrimPrefix(url, "http://")] = name
			c.net.mu.Unlock()
			store, err := etcd.New(etcd.Config{Endpoints: []string{c.endpoint}, Dial: dial})
			if err != nil {
				c.t.Fatal(err)
			}
			return lease.NewElected(lease.Config{
				Store: store, Self: lease.Peer{Hostname: name, URL: url}, Candidate: true,
				TTL: c.ttl, LockDelay: 50 * time.Millisecond,
				Wall: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }, Log: slog.New(slog.NewTextHandler(testLog{c.t}, nil)),
			})
		},
		with: func(config *replica.Config) {
			config.Hostname, config.Replicas, config.SyncTimeout = name, c.replicas, c.timeout
			config.Log = config.Log.With("node", name)
			config.Dial = func(ctx context.Context, _, address string) (net.Conn, error) { return dial(ctx, address) }
		},
	})
	c.nodes[name] = n
	return n
}

// primary waits until programs may write on a node other than the named ones, and returns it. Before
// that, a program that changes the journal mode fails immediately, because the database is locked.
func (c *cluster) primary(except ...string) (string, *testNode) {
	c.t.Helper()
	var name string
	eventually(c.t, "a primary", func() bool {
		for n, node := range c.nodes {
			if node.Writable() && node.Hub().Role().IsPrimary && !strings.Contains(strings.Join(except, " "), n) {
				name = n
				return true
			}
		}
		return false
	})
	return name, c.nodes[name]
}

// others returns the names of all nodes except one.
func (c *cluster) others(name string) []string {
	var all []string
	for n := range c.nodes {
		if n != name {
			all = append(all, n)
		}
	}
	return all
}

// connected waits until all other nodes follow a node.
func (c *cluster) connected(name string) {
	c.t.Helper()
	for _, o := range c.others(name) {
		eventually(c.t, o+" to follow "+name, func() bool {
			peer, self, ok := c.nodes[o].PrimaryPeer()
			return ok && !self && peer.Hostname == name
		})
	}
}

// same waits until all nodes have what the primary has, byte by byte.
func (c *cluster) same(db string) {
	c.t.Helper()
	name, primary := c.primary()
	for _, o := range c.others(name) {
		same(c.t, primary, c.nodes[o], db)
	}
}

func (n *testNode) post(path string) (int, string) {
	n.t.Helper()
	resp, err := http.Post(n.url+path, "", nil)
	if err != nil {
		n.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		n.t.Fatal(err)
	}
	return resp.StatusCode, strings.TrimSpace(string(b))
}

// rows counts the rows of a table of a node.
func (n *testNode) rows(db string) int {
	n.t.Helper()
	b, _ := n.export(db)
	file := filepath.Join(n.t.TempDir(), db)
	if err := os.WriteFile(file, b, 0o600); err != nil {
		n.t.Fatal(err)
	}
	conn, err := open(file, "")
	if err != nil {
		n.t.Fatal(err)
	}
	defer conn.Close()
	var count int
	if err := conn.QueryRow("SELECT count(*) FROM t").Scan(&count); err != nil {
		n.t.Fatal(err)
	}
	return count
}

// TestFailover loses primaries: another node takes over with everything that was replicated, under
// programs that have the database open, and the lost one follows it when it comes back.
func TestFailover(t *testing.T) {
	for _, journal := range []string{"wal", "delete"} {
		t.Run(journal, func(t *testing.T) {
			c := newCluster(t, 0, "a", "b", "c")
			name, primary := c.primary()
			primary.exec("app.db", journal, "CREATE TABLE t(v)", "INSERT INTO t VALUES(1)")
			c.connected(name)
			c.same("app.db")
			program := startWorker(t, workerJob{Path: primary.path("app.db"), Register: true, Journal: journal})
			if got := program.ask("x"); !strings.HasPrefix(got, "acked") {
				t.Fatal("the program: ", got)
			}
			c.same("app.db")
			epoch := primary.Info().Epoch
			c.net.isolate(name, "a", "b", "c", "etcd")
			next, second := c.primary(name)
			if after := second.Info().Epoch; after <= epoch {
				t.Errorf("epoch %d after %d", after, epoch)
			}
			second.exec("app.db", "", "INSERT INTO t VALUES(2)")
			if got := program.ask("y"); !strings.HasPrefix(got, "refused") {
				t.Error("a program writes on a former primary: ", got)
			}
			c.net.separate()
			c.connected(next)
			c.same("app.db")
			if b, err := os.ReadFile(primary.path(".primary")); err != nil || string(b) != next+"\n" {
				t.Errorf(".primary: %q %v", b, err)
			}
			if got := program.ask("y"); !strings.HasPrefix(got, "refused") {
				t.Error("a program writes on a replica: ", got)
			}
			// And back, with the program still running.
			eventually(t, "the promotion", func() bool {
				status, text := primary.post("/promote")
				return status == http.StatusOK && text == name
			})
			if got := program.ask("z"); !strings.HasPrefix(got, "acked") {
				t.Error("the program on the primary again: ", got)
			}
			c.connected(name)
			c.same("app.db")
			for name, n := range c.nodes {
				if a := n.Info().Aside; a.Files != 0 {
					t.Errorf("%s has put aside %d files", name, a.Files)
				}
			}
		})
	}
}

// TestHandoffUnderWrites repeatedly hands over while programs write on the current primary: no
// commit is lost.
func TestHandoffUnderWrites(t *testing.T) {
	c := newCluster(t, 0, "a", "b")
	name, primary := c.primary()
	primary.exec("app.db", "wal", "CREATE TABLE t(v)")
	c.connected(name)
	c.same("app.db")
	ctx, cancel := context.WithCancel(context.Background())
	counts := make(chan [2]int) // acknowledged commits, and unknown ones
	for _, n := range c.nodes {
		w := startWorker(t, workerJob{Path: n.path("app.db"), Register: true, Journal: "wal"})
		go func() {
			var count [2]int
			for ctx.Err() == nil {
				switch answer := w.ask(""); {
				case strings.HasPrefix(answer, "acked"):
					count[0]++
				case !strings.HasPrefix(answer, "refused"): // the lease was lost between the commit and its answer
					count[1]++
				}
			}
			counts <- count
		}()
	}
	for range intEnv("REPLICA_ROUNDS", 4) {
		before := primary.Find("app.db").Pos().TXID
		eventually(t, "writes", func() bool { return primary.Find("app.db").Pos().TXID > before+3 })
		var text string
		eventually(t, "the hand-off", func() bool {
			var status int
			status, text = primary.post("/handoff")
			return status == http.StatusOK
		})
		name, primary = c.primary(name)
		if text != name {
			t.Errorf("handed over to %s, and %s is primary", text, name)
		}
		c.connected(name)
	}
	cancel()
	one, two := <-counts, <-counts
	sum, unknown := one[0]+two[0], one[1]+two[1]
	c.same("app.db")
	if got := primary.rows("app.db"); got < sum || got > sum+unknown {
		t.Errorf("%d rows after %d commits, %d unknown", got, sum, unknown)
	}
	for name, n := range c.nodes {
		if a := n.Info().Aside; a.Files != 0 {
			t.Errorf("%s has put aside %d files", name, a.Files)
		}
	}
	t.Logf("%d commits, %d unknown", sum, unknown)
}

// TestTailRoles changes roles with capture tail: by a hand-off, and by a cut of the network.
func TestTailRoles(t *testing.T) {
	c := newCluster(t, 0)
	c.capture = replica.Tail
	for _, name := range []string{"a", "b"} {
		c.roots[name] = t.TempDir()
		c.start(name)
	}
	name, primary := c.primary()
	primary.exec("app.db", "wal", "CREATE TABLE t(v)", "INSERT INTO t VALUES(1)")
	mustBeCaptured(t, primary, "app.db")
	c.connected(name)
	c.same("app.db")
	eventually(t, "the hand-off", func() bool { status, _ := primary.post("/handoff"); return status == http.StatusOK })
	next, second := c.primary(name)
	c.connected(next)
	second.exec("app.db", "wal", "INSERT INTO t VALUES(2)")
	c.same("app.db")
	c.net.isolate(next, name, "etcd")
	_, primary = c.primary(next)
	primary.exec("app.db", "wal", "INSERT INTO t VALUES(3)")
	mustBeCaptured(t, primary, "app.db")
	c.net.separate()
	c.connected(name)
	c.same("app.db")
	if got := primary.rows("app.db"); got != 3 {
		t.Errorf("%d rows", got)
	}
}
