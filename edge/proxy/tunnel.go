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

// tunnel switches protocols on both sides and joins them until both have ended. It is in the
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
	x.present(h, a.Response)
	delete(h, "Content-Length")
	h["Connection"], h["Upgrade"] = upgradeOnly, to
	client, rw, err := hijacker.Hijack()
	if err != nil {
		x.fail(&hangar.EdgeError{Code: hangar.EdgeSocket, Status: http.StatusBadGateway, Message: "the connection cannot switch protocols", Err: err})
		return
	}
	defer client.Close()
	x.status = http.StatusSwitchingProtocols
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
	x.stay.attach(func() { _ = machine.Close() })
	// What one side was quick to send is behind its request or answer, in a buffer.
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
	j := &joint{client: client, machine: machine, idle: x.idleTimeout()}
	j.run(x.visitor.ctx)
}

// halfClosed is for how long a tunnel whose one side has ended may be silent.
const halfClosed = 5 * time.Minute

// joint passes bytes between a client and a Machine.
type joint struct {
	client, machine net.Conn
	idle            time.Duration // 0: for ever
	moved           atomic.Int64  // bytes, as far as they have been counted
	ended           atomic.Int32  // directions
}

// run returns when both directions have ended, one has failed, or ctx has ended.
func (j *joint) run(ctx context.Context) {
	defer context.AfterFunc(ctx, j.cut)()
	var other sync.WaitGroup
	other.Go(func() { j.direction(j.machine, j.client) })
	j.direction(j.client, j.machine)
	other.Wait()
}

// cut ends both directions.
func (j *joint) cut() {
	_ = j.client.Close()
	_ = j.machine.Close()
}

// direction passes bytes one way until their source ends, which it tells the other end.
// Between two sockets, the kernel moves them.
//
// What the other direction has moved is counted when that has waited in vain or ended, at
// most half of the patience ago: so a tunnel is silent when it was found so twice.
func (j *joint) direction(to, from net.Conn) {
	for quiet := 0; ; {
		deadline := time.Time{}
		if patience := j.patience(); patience > 0 {
			deadline = time.Now().Add(patience / 2)
		}
		_ = from.SetReadDeadline(deadline)
		before := j.moved.Load()
		n, err := io.Copy(to, from)
		j.moved.Add(n)
		switch {
		case err == nil:
			half, ok := to.(interface{ CloseWrite() error })
			if j.ended.Add(1) == 2 || !ok || half.CloseWrite() != nil {
				j.cut()
			} else {
				_ = to.SetReadDeadline(time.Now()) // it waits with another patience from now on
			}
			return
		case !errors.Is(err, os.ErrDeadlineExceeded):
			j.cut()
			return
		case j.moved.Load() != before:
			quiet = 0
		default:
			if quiet++; quiet > 2 {
				j.cut()
				return
			}
		}
	}
}

// patience is for how long both sides may send nothing; 0: for ever.
func (j *joint) patience() time.Duration {
	if j.idle == 0 && j.ended.Load() > 0 {
		return halfClosed
	}
	return j.idle
}
