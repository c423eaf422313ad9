package ratelimit_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/internal/ratelimit"
)

// TestBounded: a flood of keys uses limited memory, keys in use keep their limit, and idle ones are
// forgotten once they have their full burst again.
func TestBounded(t *testing.T) {
	t.Parallel()
	const most = 1000
	pace := ratelimit.Pace{PerSecond: 1, Burst: 3}
	now := time.Unix(1_700_000_000, 0)
	l := ratelimit.New[string](most, pace.Refill(), func() time.Time { return now })
	for range pace.Burst {
		if l.Take("busy", pace) > 0 {
			t.Fatal("refused within the burst")
		}
	}
	for i := range 10 * most {
		if wait := l.Take(strconv.Itoa(i), pace); wait > 0 {
			t.Fatalf("key %d is refused at first sight", i)
		}
		if i%100 == 0 && l.Take("busy", pace) != time.Second {
			t.Fatalf("the limit of a busy key is forgotten after %d others", i)
		}
		if kept := l.Len(); kept > 2*most {
			t.Fatalf("%d limits are kept, more than %d", kept, 2*most)
		}
	}
	for i := range 3 {
		now = now.Add(pace.Refill() + time.Second)
		if l.Take("another "+strconv.Itoa(i), pace) > 0 {
			t.Fatal("refused after a rest")
		}
	}
	if kept := l.Len(); kept > 2 {
		t.Errorf("%d limits are kept of what rests", kept)
	}
}

func BenchmarkTake(b *testing.B) {
	pace := ratelimit.Pace{PerSecond: 1, Burst: 3}
	l := ratelimit.New[string](1000, pace.Refill(), time.Now)
	for b.Loop() {
		l.Take("busy", pace)
	}
}

// TestPaceChanges: a key that goes on has a changed pace at once, higher or lower.
func TestPaceChanges(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	slow, fast := ratelimit.Pace{PerSecond: 1, Burst: 2}, ratelimit.Pace{PerSecond: 100, Burst: 2}
	l := ratelimit.New[string](10, slow.Refill(), func() time.Time { return now })
	for l.Take("a", slow) == 0 {
	}
	now = now.Add(100 * time.Millisecond)
	if l.Take("a", slow) == 0 {
		t.Fatal("allowed too early")
	}
	if wait := l.Take("a", fast); wait > 10*time.Millisecond {
		t.Errorf("with the higher pace it waits %s", wait)
	}
	now = now.Add(time.Second)
	for l.Take("a", fast) == 0 {
	}
	if wait := l.Take("a", slow); wait < 500*time.Millisecond {
		t.Errorf("with the lower pace it waits %s", wait)
	}
}
