package remote

import (
	"sync"
	"time"
)

// The pauses of a circuit that is open: they double with each failure in a row.
const (
	minCircuitPause = 100 * time.Millisecond
	maxCircuitPause = 2 * time.Second
)

// circuit keeps calls from a peer that could not be reached. After a pause one call is let through,
// whose result decides for all others.
type circuit struct {
	mu       sync.Mutex
	failures int       // in a row; 0: the circuit is closed
	until    time.Time // of the pause
	trying   bool      // a call finds out
}

// allow reports whether a call may be made. It is followed by a report, succeed, fail or abandon.
func (c *circuit) allow() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failures == 0 {
		return true
	}
	if c.trying || time.Now().Before(c.until) {
		return false
	}
	c.trying = true
	return true
}

// open reports whether allow would refuse a call.
func (c *circuit) open() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failures > 0 && (c.trying || time.Now().Before(c.until))
}

// succeed reports that the peer was reached.
func (c *circuit) succeed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures, c.trying = 0, false
}

// fail reports that it was not.
func (c *circuit) fail() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.until = time.Now().Add(min(minCircuitPause<<min(c.failures, 10), maxCircuitPause))
	c.failures++
	c.trying = false
}

// abandon reports that the caller did not wait for the result.
func (c *circuit) abandon() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trying = false
}
