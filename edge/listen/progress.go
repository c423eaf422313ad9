package listen

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Socket is one that clients connect to. Its address may stand for all addresses of the server.
type Socket struct {
	UDP bool
	At  netip.AddrPort
}

// progress shows others how the sockets follow the Apps.
type progress struct {
	poke chan struct{} // has a value when a round is requested

	mu      sync.Mutex // guards what follows
	begun   uint64     // rounds
	ended   uint64     // the latest round that did
	next    chan struct{}
	open    []Socket
	changed chan struct{}
}

func newProgress() *progress {
	return &progress{poke: make(chan struct{}, 1), next: make(chan struct{}), changed: make(chan struct{})}
}

func (p *progress) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begun++
}

// end records the end of a round, and the sockets that are open since.
func (p *progress) end(open []Socket) {
	slices.SortFunc(open, func(a, b Socket) int {
		switch {
		case a.UDP == b.UDP:
			return a.At.Compare(b.At)
		case a.UDP:
			return 1
		default:
			return -1
		}
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = p.begun
	close(p.next)
	p.next = make(chan struct{})
	if !slices.Equal(p.open, open) {
		p.open = open
		close(p.changed)
		p.changed = make(chan struct{})
	}
}

// await returns after a round that begins from now on, or the error of ctx.
func (p *progress) await(ctx context.Context) error {
	p.mu.Lock()
	since := p.begun
	p.mu.Unlock()
	for {
		select {
		case p.poke <- struct{}{}:
		default:
		}
		p.mu.Lock()
		done, next := p.ended > since, p.next
		p.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Sockets are those that are open, sorted, and a channel that is closed when they have
// changed. The slice may not be modified.
func (l *Listeners) Sockets() ([]Socket, <-chan struct{}) {
	l.progress.mu.Lock()
	defer l.progress.mu.Unlock()
	return l.progress.open, l.progress.changed
}

// Await returns when the sockets are as Routes and Balancer are now, or the error of ctx.
func (l *Listeners) Await(ctx context.Context) error { return l.progress.await(ctx) }

// arrivals are connections that were accepted and not handed on yet.
type arrivals struct {
	sync.WaitGroup               // of them, and of the listeners
	handed         chan struct{} // closed when there will be none any more

	mu     sync.Mutex // guards what follows
	silent map[*net.TCPConn]struct{}
	over   bool // silent ones are not waited for
}

// listen counts a silent connection, until done is called.
func (a *arrivals) listen(conn *net.TCPConn) (done func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		_ = conn.SetReadDeadline(time.Now())
	}
	a.silent[conn] = struct{}{}
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.silent, conn)
	}
}

// finish waits for the remaining ones, up to a limit. Nothing may be accepted any more.
func (a *arrivals) finish(patience time.Duration) {
	defer close(a.handed)
	none := make(chan struct{})
	go func() {
		defer close(none)
		a.Wait()
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-none:
	case <-timer.C:
		a.mu.Lock()
		defer a.mu.Unlock()
		a.over = true
		for conn := range a.silent {
			_ = conn.SetReadDeadline(time.Now())
		}
	}
}

// Handed is closed after Run was stopped, when every accepted HTTP connection was taken by
// ServeConn, has ended, or stays silent.
func (l *Listeners) Handed() <-chan struct{} { return l.arrivals.handed }
