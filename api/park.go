package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/hangup"
)

const (
	// maxSeated is how many waits are served as any other request, which costs some 25 KiB
	// each. The connections of those that come on top are parked for a fraction of that,
	// and closed after their answer.
	maxSeated = 500
	// maxClerks bounds the goroutines that answer parked connections.
	maxClerks = 8
)

// lot holds the connections that wait without a goroutine each. Its zero value is ready.
type lot struct {
	seated  atomic.Int64 // waits that have a goroutine
	hangups hangup.Watch

	mu      sync.Mutex // guards what follows
	queue   []*parked  // those that are to be answered
	clerks  int        // goroutines that do so; each ends when there is nothing to do
	all     map[*parked]struct{}
	drained chan struct{} // nil until drain; closed when all is empty from then on
}

// errDraining ends waits whose server ends.
var errDraining = hangar.Errorf(hangar.CodeUnavailable, "", "the server is shutting down")

// parked is a connection that waits for its answer.
type parked struct {
	lot *lot
	id  string // of the request

	mu      sync.Mutex // guards what follows
	conn    net.Conn   // nil until all is there that could end the wait
	leave   []func()   // lets go of that
	ended   bool
	reached hangar.MachineReached
	err     error // errHungUp: nobody is left to be told
}

// park takes over the connection of a wait. When it reports false the request is none for
// that, and nothing has happened.
func (s *server) park(w http.ResponseWriter, r *http.Request, ref hangar.MachineRef, in hangar.MachineWait) (bool, error) {
	awaiter, ok := s.Machines.(hangar.MachineAwaiter)
	// A connection with TLS cannot be watched by its descriptor, nor can one of the edge, which has
	// TLS, too, be taken away from the limits that it counts for.
	if !ok || r.TLS != nil || r.Method != http.MethodGet || !r.ProtoAtLeast(1, 1) || r.ProtoMajor > 1 || r.ContentLength != 0 {
		return false, nil
	}
	who, err := hangar.PrincipalFrom(r.Context())
	if err != nil {
		return true, err
	}
	p := &parked{lot: &s.lot, id: requestID(r)}
	if !s.lot.enter(p) {
		return false, nil
	}
	forget, err := awaiter.AwaitMachine(r.Context(), ref, in, p.end)
	if err != nil {
		s.lot.leave(p)
		if errors.Is(err, errors.ErrUnsupported) {
			return false, nil
		}
		return true, err
	}
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		forget()
		s.lot.leave(p)
		return false, nil //nolint:nilerr // it can be answered as any other
	}
	leave := append(make([]func(), 0, len(who.Tokens)+2), forget)
	for _, id := range who.Tokens {
		life := s.Auth.Life(id)
		stop := context.AfterFunc(life, func() { p.end(hangar.MachineReached{}, errTokenEnded) })
		leave = append(leave, func() { stop() })
	}
	// A connection that cannot be watched is held for as long as its wait may last.
	if c, ok := conn.(syscall.Conn); ok {
		if remove, err := s.lot.hangups.Add(c, func() { p.end(hangar.MachineReached{}, errHungUp) }); err == nil {
			leave = append(leave, remove)
		}
	}
	p.settle(conn, leave)
	return true, nil
}

// settle has the connection answered when the wait ends, or at once if it has.
func (p *parked) settle(conn net.Conn, leave []func()) {
	p.mu.Lock()
	p.conn, p.leave = conn, leave
	ended := p.ended
	p.mu.Unlock()
	if ended {
		p.lot.call(p)
	}
}

// end ends the wait, if nothing else has. It returns at once.
func (p *parked) end(reached hangar.MachineReached, err error) {
	p.mu.Lock()
	first := !p.ended
	if first {
		p.ended, p.reached, p.err = true, reached, err
	}
	settled := p.conn != nil
	p.mu.Unlock()
	if first && settled {
		p.lot.call(p)
	}
}

// enter takes note of a wait that is to be parked, unless the lot is being drained.
func (l *lot) enter(p *parked) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.drained != nil {
		return false
	}
	if l.all == nil {
		l.all = make(map[*parked]struct{})
	}
	l.all[p] = struct{}{}
	return true
}

// leave forgets a wait that has entered.
func (l *lot) leave(p *parked) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.all, p)
	if l.drained != nil && len(l.all) == 0 {
		close(l.drained)
	}
}

// drain ends all waits. It returns when there is none any more, or when ctx ends.
func (l *lot) drain(ctx context.Context) {
	l.mu.Lock()
	if l.drained == nil {
		l.drained = make(chan struct{})
		if len(l.all) == 0 {
			close(l.drained)
		}
	}
	waiting := slices.Collect(maps.Keys(l.all))
	l.mu.Unlock()
	for _, p := range waiting {
		p.end(hangar.MachineReached{}, errDraining)
	}
	select {
	case <-l.drained:
	case <-ctx.Done():
	}
}

// call has a connection answered.
func (l *lot) call(p *parked) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = append(l.queue, p)
	if l.clerks < maxClerks {
		l.clerks++
		go l.serve()
	}
}

// serve answers whoever is in the queue. Connections are closed once nobody waits for
// an answer.
func (l *lot) serve() {
	var answered []*parked
	for {
		p := l.next(len(answered) == 0)
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

// next returns who is to be answered, or nil. Then a clerk who is done goes.
func (l *lot) next(done bool) *parked {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) == 0 {
		l.queue = nil
		if done {
			l.clerks--
		}
		return nil
	}
	p := l.queue[0]
	l.queue = l.queue[1:]
	return p
}

// answer writes what the wait has come to. A client that is gone cannot be told.
func (p *parked) answer() {
	if errors.Is(p.err, errHungUp) {
		return
	}
	status, body := http.StatusOK, any(reachedView{true, p.reached})
	header := http.Header{"Content-Type": {mediaJSON}, "X-Content-Type-Options": {"nosniff"}, "Date": {time.Now().UTC().Format(http.TimeFormat)}}
	header.Set(hangar.HeaderRequestID.Neutral, p.id)
	header.Set(hangar.HeaderRequestID.Original, p.id)
	if p.err != nil {
		e := describe(p.err)
		status, body = statusOf(e.Code, e.Reason), e
		advise(header, e.Code)
	}
	raw, err := encode(body)
	if err != nil {
		return
	}
	res := http.Response{
		StatusCode: status, ProtoMajor: 1, ProtoMinor: 1, Header: header, Close: true,
		Body: io.NopCloser(bytes.NewReader(raw)), ContentLength: int64(len(raw)),
	}
	var whole bytes.Buffer
	if res.Write(&whole) != nil || p.conn.SetWriteDeadline(time.Now().Add(endTimeout)) != nil {
		return
	}
	_, _ = p.conn.Write(whole.Bytes())
}

// close ends the connection and all that could have ended the wait.
func (p *parked) close() {
	for _, let := range p.leave {
		let()
	}
	_ = p.conn.Close()
	p.lot.leave(p)
}
