// Package longpoll holds the connections of requests that wait, without a goroutine for each.
//
// Promises. A connection costs a fraction of what a goroutine with its request does. It is answered
// once, with the result of the wait, and closed. A client that hangs up ends its wait. After Drain
// no connection is held.
//
// Concurrency. Waits is safe for concurrent use. A few goroutines answer, and end when there is no
// waiter to answer; a client that does not read holds up one of them for a bounded time.
//
// It knows no requests: the caller says whether one may be parked, and what its answer looks like.
package longpoll

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/hangup"
)

// maxWorkers bounds the goroutines that answer.
const maxWorkers = 8

// Respond makes the response to the request of an id, from what was reached or from the error
// of the wait. If it fails, the connection is closed without an answer.
type Respond func(id string, reached hangar.MachineReached, err error) (http.Response, error)

// Waits holds the connections that wait.
type Waits struct {
	respond Respond
	timeout time.Duration // for the client to take its answer
	hangups hangup.Watch

	mu      sync.Mutex // guards what follows
	queue   []*wait    // waits that have ended and are not answered yet
	workers int        // goroutines that answer; each ends when the queue is empty
	all     map[*wait]struct{}
	drained chan struct{} // nil until Drain; closed when all is empty from then on
}

// New returns a Waits that holds nothing. A client has timeout to take its answer.
func New(timeout time.Duration, respond Respond) *Waits {
	return &Waits{respond: respond, timeout: timeout, all: map[*wait]struct{}{}}
}

// errHungUp ends waits whose client is gone. They are not answered.
var errHungUp = errors.New("longpoll: the client has hung up")

// errDraining ends waits when the server shuts down.
var errDraining = hangar.Errorf(hangar.CodeUnavailable, "", "the server is shutting down")

// wait is a connection that waits for its answer.
type wait struct {
	of *Waits
	id string // of the request

	mu      sync.Mutex // guards what follows
	conn    net.Conn   // nil until leave is complete
	leave   []func()   // releases what could end the wait
	ended   bool
	reached hangar.MachineReached
	err     error // errHungUp: the client has gone
}

// Park takes over the connection of a request until its wait ends. await begins the wait. It calls told
// once, at any time and from any goroutine, unless forget was called before. It may return
// errors.ErrUnsupported instead. When one of lives ends first, the wait ends with expired. If Park
// reports false, it has done nothing, and the request must be served like any other.
func (w *Waits) Park(
	rw http.ResponseWriter, id string, await func(told func(hangar.MachineReached, error)) (forget func(), err error),
	lives []context.Context, expired error,
) (bool, error) {
	p := &wait{of: w, id: id}
	if !w.enter(p) {
		return false, nil
	}
	forget, err := await(p.end)
	if err != nil {
		w.leave(p)
		if errors.Is(err, errors.ErrUnsupported) {
			return false, nil
		}
		return true, err
	}
	conn, _, err := http.NewResponseController(rw).Hijack()
	if err != nil {
		forget()
		w.leave(p)
		return false, nil //nolint:nilerr // it can be answered as any other
	}
	leave := append(make([]func(), 0, len(lives)+2), forget)
	for _, life := range lives {
		stop := context.AfterFunc(life, func() { p.end(hangar.MachineReached{}, expired) })
		leave = append(leave, func() { stop() })
	}
	// A connection that cannot be watched is held for as long as its wait may last.
	if c, ok := conn.(syscall.Conn); ok {
		if remove, err := w.hangups.Add(c, func() { p.end(hangar.MachineReached{}, errHungUp) }); err == nil {
			leave = append(leave, remove)
		}
	}
	p.settle(conn, leave)
	return true, nil
}

// settle makes the end of the wait answer the connection. If the wait has ended already, that happens
// at once.
func (p *wait) settle(conn net.Conn, leave []func()) {
	p.mu.Lock()
	p.conn, p.leave = conn, leave
	ended := p.ended
	p.mu.Unlock()
	if ended {
		p.of.call(p)
	}
}

// end ends the wait, if nothing else has. It returns at once.
func (p *wait) end(reached hangar.MachineReached, err error) {
	p.mu.Lock()
	first := !p.ended
	if first {
		p.ended, p.reached, p.err = true, reached, err
	}
	settled := p.conn != nil
	p.mu.Unlock()
	if first && settled {
		p.of.call(p)
	}
}

// enter records a wait that will be parked, unless the waits are being drained.
func (w *Waits) enter(p *wait) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.drained != nil {
		return false
	}
	w.all[p] = struct{}{}
	return true
}

// leave forgets a wait that has entered.
func (w *Waits) leave(p *wait) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.all, p)
	if w.drained != nil && len(w.all) == 0 {
		close(w.drained)
	}
}

// Drain ends all waits. It returns when there is none any more, or when ctx ends.
func (w *Waits) Drain(ctx context.Context) {
	w.mu.Lock()
	if w.drained == nil {
		w.drained = make(chan struct{})
		if len(w.all) == 0 {
			close(w.drained)
		}
	}
	waiting := slices.Collect(maps.Keys(w.all))
	w.mu.Unlock()
	for _, p := range waiting {
		p.end(hangar.MachineReached{}, errDraining)
	}
	select {
	case <-w.drained:
	case <-ctx.Done():
	}
}

// call queues a wait to be answered.
func (w *Waits) call(p *wait) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue = append(w.queue, p)
	if w.workers < maxWorkers {
		w.workers++
		go w.serve()
	}
}

// serve answers the waiters in the queue, and closes their connections once the queue
// is empty.
func (w *Waits) serve() {
	var answered []*wait
	for {
		p := w.next(len(answered) == 0)
		switch {
		case p != nil:
			p.answer()
			answered = append(answered, p)
		case len(answered) == 0:
			return
		default:
			for _, p := range answered {
				p.close()
			}
			answered = nil
		}
	}
}

// next returns the next wait to answer, or nil. Without one, a worker that is done ends.
func (w *Waits) next(done bool) *wait {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) == 0 {
		w.queue = nil
		if done {
			w.workers--
		}
		return nil
	}
	p := w.queue[0]
	w.queue = w.queue[1:]
	return p
}

// answer writes the result of the wait. An error is of no use to a client that is gone.
func (p *wait) answer() {
	if errors.Is(p.err, errHungUp) {
		return
	}
	res, err := p.of.respond(p.id, p.reached, p.err)
	if err != nil {
		return
	}
	res.Close = true
	var whole bytes.Buffer
	if res.Write(&whole) != nil || p.conn.SetWriteDeadline(time.Now().Add(p.of.timeout)) != nil {
		return
	}
	_, _ = p.conn.Write(whole.Bytes())
}

// close ends the connection and all that could have ended the wait.
func (p *wait) close() {
	for _, let := range p.leave {
		let()
	}
	_ = p.conn.Close()
	p.of.leave(p)
}
