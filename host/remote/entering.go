package remote

import (
	"encoding/json"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
)

// serviceConn is the edge's end of a connection to a service of a Machine. Requests enter over it,
// one after the other: the frame that asks for entry precedes the request.
type serviceConn struct {
	*conn

	gate *gate

	mu       sync.Mutex  // guards what follows
	last     uint64      // id of the newest entry
	patience *time.Timer // for the answer to it; nil: none is awaited
	over     bool        // one end is closed: no answer is awaited any more
}

var _ hangar.EnteringConn = (*serviceConn)(nil)

// EnterMachine implements hangar.EnteringConn. The connection ends if the host does not answer in
// time.
func (c *serviceConn) EnterMachine() (leave func(), err error) {
	c.settle(c.gate.silent.abandon) // the Machine answered an earlier one before the host did
	if c.gate.circuit.open() {
		return nil, c.gate.unreachable(errCircuitOpen)
	}
	if !c.gate.silent.allow() {
		return nil, c.gate.unreachable(errSilent)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	payload, err := json.Marshal(entry{ID: c.last})
	if err != nil {
		c.gate.silent.abandon()
		return nil, err
	}
	c.sendAhead(appendFrame(nil, kindEnter, payload))
	if c.over { // the request cannot be written either
		c.gate.silent.abandon()
		return func() {}, nil
	}
	c.patience = time.AfterFunc(c.gate.timeout, func() {
		if c.settle(c.gate.silent.fail) {
			c.fail(c.gate.unreachable(errSilent))
			c.end()
		}
	})
	return sync.OnceFunc(func() { c.leave(payload) }), nil
}

// leave reports to the host that a request has left, unless the end of the connection or the next
// request that enters over it reports it. It does not wait for a request that is being written, which
// may have to wait for the Machine.
func (c *serviceConn) leave(entry []byte) {
	if c.open() && c.out.writeUnlessBusy(kindLeave, entry) != nil {
		c.end()
	}
}

// handle handles an answer of the host, or the end of the connection.
func (c *serviceConn) handle(k kind, payload []byte) (dropped bool) {
	if k == kindClose {
		c.expectNothing()
		return false
	}
	var r refusal // the frame of an admitted entry has fewer fields
	if err := json.Unmarshal(payload, &r); err != nil {
		c.end()
		return true
	}
	if k != kindEntered && k != kindRefused || !c.newest(r.ID) {
		return false
	}
	c.settle(c.gate.silent.succeed)
	if k == kindRefused {
		c.fail(&hangar.RefusedError{Err: r.rebuild()})
	}
	return false
}

// Close implements net.Conn. A host need not answer a request whose client has given up.
func (c *serviceConn) Close() error {
	c.expectNothing()
	return c.conn.Close()
}

// Abort is that of conn.
func (c *serviceConn) Abort(cause error) {
	c.expectNothing()
	c.conn.Abort(cause)
}

// expectNothing ends the wait for an answer, for this entry and later ones.
func (c *serviceConn) expectNothing() {
	c.mu.Lock()
	c.over = true
	c.mu.Unlock()
	c.settle(c.gate.silent.abandon)
}

// newest reports whether an id is that of the latest entry.
func (c *serviceConn) newest(id uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return id == c.last
}

// settle ends the wait for an answer and calls report; false: no answer was awaited.
func (c *serviceConn) settle(report func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.patience == nil {
		return false
	}
	c.patience.Stop()
	c.patience = nil
	report()
	return true
}

// answerWithin is how long the answer to an entry may be held back, to be sent together with the
// first bytes of the Machine's answer. It is far less than DefaultEnterTimeout.
const answerWithin = 50 * time.Millisecond

// visitor is the request that is in a Machine over one connection of the edge on another host.
type visitor struct {
	caller *conn
	enter  func() (leave func(), err error)

	id     uint64 // the caller's; 0: none is in
	leaves func()
	late   *time.Timer // sends the answer to the entry; nil: there was none yet
}

// handle lets requests in and out; the end of the connection lets one out, too. The data of a
// refused request is dropped, because the edge sends it to another Machine.
func (v *visitor) handle(k kind, payload []byte) (dropped bool) {
	if k == kindClose {
		v.leave()
		return false
	}
	var in entry
	if err := json.Unmarshal(payload, &in); err != nil {
		return true
	}
	switch k {
	case kindEnter:
		v.leave()
		leaves, err := v.enter()
		if err != nil {
			if payload, err = json.Marshal(refusal{in.ID, faultOf(err)}); err == nil {
				_ = v.caller.out.write(kindRefused, payload) // the reader notices a lost connection
			}
			return true
		}
		v.id, v.leaves = in.ID, leaves
		v.caller.sendAhead(appendFrame(nil, kindEntered, payload))
		if v.late == nil {
			v.late = time.AfterFunc(answerWithin, v.caller.flushAhead)
		} else {
			v.late.Reset(answerWithin)
		}
	case kindLeave:
		if v.id == in.ID { // the next may have entered before
			v.leave()
		}
	default: // of a later version
	}
	return false
}

// leave lets the request out, if there is one.
func (v *visitor) leave() {
	if v.late != nil {
		v.late.Stop()
	}
	if v.leaves != nil {
		v.leaves()
		v.id, v.leaves = 0, nil
	}
}
