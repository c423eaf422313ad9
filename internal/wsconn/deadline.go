package wsconn

import (
	"context"
	"os"
	"sync"
	"time"
)

// deadline is the time by which calls in one direction must end.
type deadline struct {
	cancel context.CancelFunc // of the connection

	mu      sync.Mutex // guards what follows
	timer   *time.Timer
	expired bool
	busy    bool // a call is in progress
}

// begin must be called at the start of a call, end at its end.
func (d *deadline) begin() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.expired {
		return os.ErrDeadlineExceeded
	}
	d.busy = true
	return nil
}

func (d *deadline) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.busy = false
}

// passed reports whether the time is over.
func (d *deadline) passed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.expired
}

// set changes the time; zero: no deadline.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.expired = false
	if t.IsZero() {
		return
	}
	left := time.Until(t)
	if left <= 0 {
		d.expire()
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(left, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.timer == timer { // the deadline has not changed meanwhile
			d.expire()
		}
	})
	d.timer = timer
}

// expire ends the call in progress, and with it the connection. The caller holds mu.
func (d *deadline) expire() {
	d.expired = true
	if d.busy {
		d.cancel()
	}
}
