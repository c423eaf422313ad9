package lease

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Clock measures how much time may have passed since it was made. It follows the fastest clock of the
// machine: the monotonic one, the one that also counts while the machine sleeps (CLOCK_BOOTTIME), or
// the wall clock, which is corrected when a machine continues from a snapshot. So a node notices that
// it slept. A wall clock that is set forward for another reason costs one renewal of the lease.
type Clock struct {
	read func() [3]time.Duration

	mu   sync.Mutex
	base [3]time.Duration // reading of each source when Now was 0
	now  time.Duration
}

// skew is how far a source may lag behind the others before it is advanced to them, so that its
// next jump is noticed.
const skew = 50 * time.Millisecond

// NewClock returns a Clock of this machine. wall returns the time of its wall clock.
func NewClock(wall func() time.Time) *Clock {
	began := time.Now()
	return newClock(func() [3]time.Duration {
		var boot unix.Timespec
		_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) // supported since Linux 2.6.39
		return [3]time.Duration{time.Since(began), time.Duration(boot.Nano()), time.Duration(wall().UnixNano())}
	})
}

func newClock(read func() [3]time.Duration) *Clock { return &Clock{read: read, base: read()} }

// Now returns how much time may have passed since the Clock was made. It never decreases.
func (c *Clock) Now() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.read()
	for i := range at {
		c.now = max(c.now, at[i]-c.base[i])
	}
	for i := range at {
		if at[i]-c.base[i] < c.now-skew {
			c.base[i] = at[i] - c.now
		}
	}
	return c.now
}
