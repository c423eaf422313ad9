package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hangar-platform/hangar"
)

// tunnel switches protocols on both sides and joins them until both have ended. It counts as in the
// Machine for as long.
func (x *exchange) tunnel(a *answer) {
	defer a.drop()
	hijacker, can := x.w.(http.Hijacker)
	if !can || a.conn == nil || x.upgrade == "" || len(a.Header["Upgrade"]) != 1 {
		x.fail(&hangar.EdgeError{Code: hangar.EdgeIncomplete, Status: http.StatusBadGateway, Message: "the machine switched protocols, which the client did not ask for"})
		return
	}
	to := a.Header["Upgrade"]
	h := http.Header{}
	x.setAnswerHeaders(h, a.Response)
	delete(h, "Content-Length")
	h["Connection"], h["Upgrade"] = upgradeOnly, to
	client, rw, err := hijacker.Hijack()
	if err != nil {
		x.fail(&hangar.EdgeError{Code: hangar.EdgeSocket, Status: http.StatusBadGateway, Message: "the connection cannot switch protocols", Err: err})
		return
	}
	defer client.Close()
	x.answered(http.StatusSwitchingProtocols)
	_ = client.SetDeadline(time.Time{})
	if _, err = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\n"); err == nil {
		if err = h.Write(rw); err == nil {
			if _, err = rw.WriteString("\r\n"); err == nil {
				err = rw.Flush()
			}
		}
	}
	if err != nil {
		return
	}
	machine, early := a.conn.Detach()
	defer machine.Close()
	x.admission.onExit(func() { _ = machine.Close() })
	// Early bytes follow a side's request or answer, in a buffer.
	if _, err := client.Write(early); err != nil {
		return
	}
	if n := rw.Reader.Buffered(); n > 0 {
		early, _ := rw.Peek(n)
		if _, err := machine.Write(early); err != nil {
			return
		}
	}
	x.p.stats.tunnels.Add(1)
	defer x.p.stats.tunnels.Add(-1)
	r := &relay{client: client, machine: machine, idle: x.idleTimeout()}
	r.run(x.client.ctx)
}

// halfClosed is the idle timeout of a tunnel after one side has ended.
const halfClosed = 5 * time.Minute

// relay forwards bytes between a client and a Machine.
type relay struct {
	client, machine net.Conn
	idle            time.Duration // 0: no limit
	moved           atomic.Int64  // bytes counted so far
	ended           atomic.Int32  // number of directions
}

// run returns when both directions have ended, one has failed, or ctx has ended.
func (r *relay) run(ctx context.Context) {
	defer context.AfterFunc(ctx, r.close)()
	var other sync.WaitGroup
	other.Go(func() { r.copyOneWay(r.machine, r.client) })
	r.copyOneWay(r.client, r.machine)
	other.Wait()
}

// close ends both directions.
func (r *relay) close() {
	_ = r.client.Close()
	_ = r.machine.Close()
}

// copyOneWay forwards bytes one way until their source ends, then closes the other side for
// writing. Between two sockets, the kernel moves them.
//
// The other direction counts its bytes only when a read times out or it ends, up to half an idle
// timeout late: so a tunnel is idle only after several timeouts in a row without any bytes.
func (r *relay) copyOneWay(to, from net.Conn) {
	for quiet := 0; ; {
		deadline := time.Time{}
		if timeout := r.idleTimeout(); timeout > 0 {
			deadline = time.Now().Add(timeout / 2)
		}
		_ = from.SetReadDeadline(deadline)
		before := r.moved.Load()
		n, err := io.Copy(to, from)
		r.moved.Add(n)
		switch {
		case err == nil:
			half, ok := to.(interface{ CloseWrite() error })
			if r.ended.Add(1) == 2 || !ok || half.CloseWrite() != nil {
				r.close()
			} else {
				_ = to.SetReadDeadline(time.Now()) // so that its new timeout applies
			}
			return
		case !errors.Is(err, os.ErrDeadlineExceeded):
			r.close()
			return
		case r.moved.Load() != before:
			quiet = 0
		default:
			if quiet++; quiet > 2 {
				r.close()
				return
			}
		}
	}
}

// idleTimeout is how long both sides may send nothing; 0: no limit.
func (r *relay) idleTimeout() time.Duration {
	if r.idle == 0 && r.ended.Load() > 0 {
		return halfClosed
	}
	return r.idle
}
