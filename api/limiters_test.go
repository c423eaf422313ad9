package api

import (
	"fmt"
	"testing"
	"time"
)

// TestLimitersAreBounded: a flood of keys costs so much memory and no more, what is
// used meanwhile keeps its limit, and what rests is forgotten once it has its burst
// again.
func TestLimitersAreBounded(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	l := newLimiters(1, func() time.Time { return now })
	busy := limited{pattern: "POST …/start", target: "web/busy"}
	for range 3 {
		if l.take(busy, actionPace) > 0 {
			t.Fatal("refused within the burst")
		}
	}
	for i := range 10 * maxLimiters {
		if wait := l.take(limited{target: fmt.Sprint(i)}, actionPace); wait > 0 {
			t.Fatalf("key %d is refused at first sight", i)
		}
		if i%1000 == 0 && l.take(busy, actionPace) == 0 {
			t.Fatalf("the limit of a busy key is forgotten after %d others", i)
		}
		if kept := len(l.young) + len(l.old); kept > 2*maxLimiters {
			t.Fatalf("%d limiters are kept, more than %d", kept, 2*maxLimiters)
		}
	}
	for i := range 3 {
		now = now.Add(destroyPace.refill() + time.Second)
		if l.take(limited{target: fmt.Sprint("another", i)}, actionPace) > 0 {
			t.Fatal("refused after a rest")
		}
	}
	if kept := len(l.young) + len(l.old); kept > 2 {
		t.Errorf("%d limiters are kept of what rests", kept)
	}
}

func BenchmarkLimiters(b *testing.B) {
	l := newLimiters(PublicRateLimits, time.Now)
	key := limited{pattern: "POST /v1/apps/{app}/machines/{machine}/start", target: "web/d8912340000003"}
	for b.Loop() {
		l.take(key, actionPace)
	}
}
