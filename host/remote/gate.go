package remote

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
)

const (
	// DefaultEnterTimeout is the DirectoryConfig.EnterTimeout of a server.
	DefaultEnterTimeout = time.Second
	// maxLogBatch bounds pending lines of logs, in bytes; others are dropped.
	maxLogBatch = 256 << 10
)

// gate is a hangar.MachineGate on another host. Requests enter over one exchange that stays open,
// so that each costs one round trip. When it breaks, the requests inside enter again over the next.
type gate struct {
	*peer

	timeout time.Duration
	silent  circuit // of a peer that is connected and does not answer

	mu      sync.Mutex              // guards what follows
	stream  *batch                  // nil: not connected
	running bool                    // follow runs
	last    uint64                  // id of the newest entry
	asked   map[uint64]chan<- error // entries that wait for an answer
	inside  map[uint64]entry        // entries that have not left, those in asked among them
}

var _ hangar.MachineGate = (*gate)(nil)

func newGate(p *peer, timeout time.Duration) *gate {
	return &gate{peer: p, timeout: timeout, asked: map[uint64]chan<- error{}, inside: map[uint64]entry{}}
}

var errSilent = errors.New("it does not answer in time")

// EnterMachine implements hangar.MachineGate.
func (g *gate) EnterMachine(ref hangar.MachineRef, port int) (leave func(), err error) {
	if g.circuit.open() {
		return nil, g.unreachable(errCircuitOpen)
	}
	if !g.silent.allow() {
		return nil, g.unreachable(errSilent)
	}
	in, answer := g.request(ref, port)
	patience := time.NewTimer(g.timeout)
	defer patience.Stop()
	select {
	case err = <-answer:
	case <-patience.C:
		g.silent.fail()
		if g.forget(in.ID) {
			return nil, g.unreachable(errSilent)
		}
		err = <-answer // it came at the same moment
	}
	if err != nil {
		g.silent.abandon()
		return nil, err
	}
	return sync.OnceFunc(func() { g.leave(in.ID) }), nil
}

// request asks the host to let a request in, now or over the next connection.
func (g *gate) request(ref hangar.MachineRef, port int) (entry, <-chan error) {
	answer := make(chan error, 1)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last++
	in := entry{g.last, ref, port}
	g.asked[in.ID] = answer
	g.inside[in.ID] = in
	if g.stream != nil {
		_ = g.stream.add(kindEnter, in) // a broken one is replaced, and the request sent again
	} else if !g.running {
		if g.running = g.work.Go(g.follow); !g.running {
			delete(g.asked, in.ID)
			delete(g.inside, in.ID)
			answer <- g.unreachable(net.ErrClosed)
		}
	}
	return in, answer
}

// forget drops a request; false: it was answered already.
func (g *gate) forget(id uint64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, waits := g.asked[id]; !waits {
		return false
	}
	delete(g.asked, id)
	g.left(id)
	return true
}

func (g *gate) leave(id uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.left(id)
}

// left ends an entry. g.mu is held.
func (g *gate) left(id uint64) {
	if _, in := g.inside[id]; !in {
		return
	}
	delete(g.inside, id)
	if g.stream != nil && g.stream.add(kindLeave, entry{ID: id}) != nil {
		g.stream.close() // over a new one, those that are in are counted again
	}
}

// follow serves a connection to its end, and opens new ones as long as requests are inside.
func (g *gate) follow() {
	for {
		err := g.connection(g.work.Context)
		g.mu.Lock()
		g.stream = nil
		g.fail(err)
		if len(g.inside) == 0 || g.work.Context.Err() != nil {
			g.running = false
			g.mu.Unlock()
			return
		}
		g.mu.Unlock()
		select {
		case <-time.After(minCircuitPause):
		case <-g.work.Context.Done():
		}
	}
}

// fail fails all entries without an answer, because the host is unreachable. g.mu is held.
func (g *gate) fail(err error) {
	for id, answer := range g.asked {
		delete(g.asked, id)
		delete(g.inside, id)
		answer <- err
	}
}

// connection opens an exchange, serves it, and returns why it has ended.
func (g *gate) connection(ctx context.Context) error {
	d, err := g.both(ctx, "Enter")
	if err != nil {
		return err
	}
	defer d.end()
	out := newBatch(d.out)
	if err := g.connected(out); err != nil {
		return err
	}
	var sending sync.WaitGroup
	sending.Go(func() {
		out.run()
		d.end()
	})
	defer sending.Wait()
	defer out.close()
	defer d.end()
	for {
		k, payload, err := readFrame(d.answer, maxCall)
		if err == nil {
			err = g.answered(k, payload)
		}
		if err != nil {
			return g.failure(ctx, lostError{err})
		}
	}
}

// connected sends every entry over a new connection: those without an answer, and those of requests
// inside.
func (g *gate) connected(out *batch) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, in := range g.inside {
		payload, err := json.Marshal(in)
		if err != nil {
			return g.unreachable(err)
		}
		out.head = appendFrame(out.head, kindEnter, payload)
	}
	g.stream = out
	return nil
}

// answered handles a frame of the host.
func (g *gate) answered(k kind, payload []byte) error {
	var id uint64
	var err error
	switch k {
	case kindEntered:
		var in entry
		if err := json.Unmarshal(payload, &in); err != nil {
			return err
		}
		id = in.ID
	case kindRefused:
		var r refusal
		if err := json.Unmarshal(payload, &r); err != nil {
			return err
		}
		id, err = r.ID, r.rebuild()
	case kindError:
		return rebuilt(payload)
	default: // of a later version
		return nil
	}
	g.silent.succeed()
	g.mu.Lock()
	defer g.mu.Unlock()
	answer, waits := g.asked[id]
	delete(g.asked, id)
	if err != nil {
		delete(g.inside, id) // also a request that could not enter again: its Machine has ended
	}
	if waits {
		answer <- err
	}
	return nil
}

// DialService implements hangar.MachineGate. Unlike one to this host's Machines, the connection is
// not the kernel's own; it is a hangar.EnteringConn.
func (g *gate) DialService(ctx context.Context, ref hangar.MachineRef, port int) (net.Conn, error) {
	s := &serviceConn{gate: g}
	_, err := g.dial(ctx, "DialService", false, ref, port, func(c *conn) { s.conn, c.entries = c, s.handle })
	if err != nil {
		return nil, err
	}
	return s, nil
}

// DialDatagrams implements hangar.MachineGate. The connection keeps datagrams apart as a socket
// does.
func (g *gate) DialDatagrams(ctx context.Context, ref hangar.MachineRef, port int) (net.Conn, error) {
	return g.dial(ctx, "DialDatagrams", true, ref, port, nil)
}

// WakeMachine implements hangar.MachineGate.
func (g *gate) WakeMachine(ctx context.Context, ref hangar.MachineRef, port int) error {
	return order(ctx, g.peer, "WakeMachine", ref, port)
}

// LogEdge implements hangar.MachineGate. Lines are dropped while the host is not connected.
func (g *gate) LogEdge(ref hangar.MachineRef, level, message string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stream == nil {
		if !g.running {
			g.running = g.work.Go(g.follow) // for the next
		}
		return
	}
	if g.stream.waiting() < maxLogBatch {
		_ = g.stream.add(kindLog, line{ref, level, message})
	}
}
