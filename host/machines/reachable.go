package machines

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
)

// The kernel of a Machine does not report to the host that a program listens. So one goroutine for
// all waiters of a port dials it until it answers: every millisecond for as long as a usual program
// takes to start, and then with growing pauses. With many Machines being woken the pauses are
// longer, because their starts need the processors. The edge gets the first connection that
// succeeds (ADR 27).
const (
	firstDialPause   = time.Millisecond
	maxDialPause     = 25 * time.Millisecond
	eagerDialling    = 200 * time.Millisecond // before the pauses grow
	firstDialTimeout = 5 * time.Millisecond   // a Machine that is about to run drops packets
	dialsAtOnce      = 2                      // of all woken Machines, in each firstDialPause
	maxDialTimeout   = time.Second
	keepDialled      = time.Second // how long an unused connection is kept
)

// probes are the ports of a Machine that have waiters, and unused connections.
type probes struct {
	mu      sync.Mutex
	waiting map[int]*probe
	made    map[int]*dialled
}

// probe dials a port until it answers or no waiter is left.
type probe struct {
	waiters int // guarded by probes.mu
	cancel  context.CancelFunc
	done    chan struct{} // closed when err is set
	err     error
}

// dialled is an unused connection.
type dialled struct {
	conn   net.Conn
	expiry *time.Timer
}

// reachable returns once the port of a Machine takes connections. It answers CodeFailedPrecondition
// with hangar.ReasonStartFailed when the Machine ends before.
func (m *machine) reachable(ctx context.Context, port int) error {
	p := m.probe(port)
	if p == nil {
		return errShutDown()
	}
	defer m.unprobe(port, p)
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// probe joins the waiters for a port; nil: the Store is closed.
func (m *machine) probe(port int) *probe {
	m.probes.mu.Lock()
	defer m.probes.mu.Unlock()
	if p := m.probes.waiting[port]; p != nil {
		p.waiters++
		return p
	}
	ctx, cancel := context.WithCancel(m.store.work.Context)
	p := &probe{waiters: 1, cancel: cancel, done: make(chan struct{})}
	if !m.store.work.Go(func() { m.dialUntil(ctx, port, p) }) {
		cancel()
		return nil
	}
	if m.probes.waiting == nil {
		m.probes.waiting = make(map[int]*probe)
	}
	m.probes.waiting[port] = p
	return p
}

// unprobe ends a call of probe.
func (m *machine) unprobe(port int, p *probe) {
	m.probes.mu.Lock()
	defer m.probes.mu.Unlock()
	if p.waiters--; p.waiters > 0 {
		return
	}
	p.cancel()
	if m.probes.waiting[port] == p {
		delete(m.probes.waiting, port)
	}
}

// dialUntil dials a port until it answers, the Machine ends or ctx does.
func (m *machine) dialUntil(ctx context.Context, port int, p *probe) {
	defer close(p.done)
	m.store.dialling.Add(1)
	defer m.store.dialling.Add(-1)
	began, pause, patience := time.Now(), firstDialPause, firstDialTimeout
	for {
		changed, _ := m.watchers.wait()
		rec := m.rec.Load()
		if state := rec.Machine.State; state != hangar.MachineStarted {
			p.err = notWoken(hangar.ReasonStartFailed, "machine %s was started for a request and is %s before it takes connections on port %d", m.id, state, port)
			return
		}
		bounded, cancel := context.WithTimeout(ctx, patience)
		conn, err := m.store.o.Network.DialService(bounded, m.id, port)
		cancel()
		switch {
		case err == nil:
			m.probes.keep(port, conn)
			if now := m.rec.Load(); now.Machine.State != hangar.MachineStarted || now.Losses != rec.Losses {
				m.probes.drop() // the Machine may have ended before
			}
			return
		case ctx.Err() != nil:
			p.err = errShutDown() // or no waiter is left
			return
		case hangar.CodeOf(err) == hangar.CodeUnimplemented:
			p.err = err
			return
		}
		if hangar.CodeOf(err) == hangar.CodeTimeout {
			patience = min(2*patience, maxDialTimeout)
		}
		if time.Since(began) > eagerDialling {
			pause = min(pause*5/4, maxDialPause)
		}
		crowd := time.Duration(m.store.dialling.Load())
		timer := time.NewTimer(max(pause, min(crowd*firstDialPause/dialsAtOnce, maxDialPause)))
		select {
		case <-timer.C:
		case <-changed:
			timer.Stop()
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// keep stores a connection for the next caller.
func (p *probes) keep(port int, conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := &dialled{conn: conn}
	if old := p.made[port]; old != nil {
		old.drop()
	}
	if p.made == nil {
		p.made = make(map[int]*dialled)
	}
	p.made[port] = d
	d.expiry = time.AfterFunc(keepDialled, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.made[port] == d {
			delete(p.made, port)
			d.drop()
		}
	})
}

// take returns a stored connection to a port, or nil. It drops one that the program has closed
// meanwhile, because that would cost a request.
func (p *probes) take(port int) net.Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := p.made[port]
	if d == nil {
		return nil
	}
	delete(p.made, port)
	if !d.alive() {
		d.drop()
		return nil
	}
	d.expiry.Stop()
	return d.conn
}

// alive reports, without waiting, whether the connection is still open.
func (d *dialled) alive() bool {
	sc, ok := d.conn.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	alive := false
	err = raw.Control(func(fd uintptr) {
		n, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		alive = n > 0 || errors.Is(err, unix.EAGAIN)
	})
	return err == nil && alive
}

// drop closes unused connections: their Machine no longer serves.
func (p *probes) drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for port, d := range p.made {
		delete(p.made, port)
		d.drop()
	}
}

func (d *dialled) drop() {
	if d.expiry != nil {
		d.expiry.Stop()
	}
	_ = d.conn.Close() // nothing was sent
}
