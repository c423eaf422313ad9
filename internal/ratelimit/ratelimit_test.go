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
