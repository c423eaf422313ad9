package lease

import (
	"testing"
	"time"
)

// TestClock lets the sources jump against each other.
func TestClock(t *testing.T) {
	var at [3]time.Duration
	at[2] = 1e18 // the wall clock begins elsewhere
	c := newClock(func() [3]time.Duration { return at })
	for _, step := range []struct {
		name             string
		mono, boot, wall time.Duration
		want             time.Duration // that has passed
	}{
		{"all alike", time.Second, time.Second, time.Second, time.Second},
		{"the machine slept", time.Second, time.Hour, time.Hour, time.Hour},
		{"all alike again", time.Second, time.Second, time.Second, time.Second},
		{"it continued from a snapshot", 0, 0, time.Minute, time.Minute},
		{"the wall clock is set back", time.Second, time.Second, -time.Hour, time.Second},
		{"and forward later, by a sleep", 0, time.Minute, 0, time.Minute},
		{"and by a snapshot", 0, 0, time.Minute, time.Minute},
	} {
		before := c.Now()
		at[0], at[1], at[2] = at[0]+step.mono, at[1]+step.boot, at[2]+step.wall
		if got := c.Now() - before; got != step.want {
			t.Errorf("%s: %s passed, not %s", step.name, got, step.want)
		}
		if before = c.Now(); c.Now() != before {
			t.Errorf("%s: time passes by itself", step.name)
		}
	}
}
