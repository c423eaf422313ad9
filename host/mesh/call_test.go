package mesh

import (
	"testing"
	"time"
)

// A host that does not answer is called again, for a while; one that answers is not.
func TestCalls(t *testing.T) {
	t.Parallel()
	begun := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(d time.Duration) time.Time { return begun.Add(d) }
	for _, test := range []struct {
		name      string
		answers   time.Duration // 0: never
		handshake time.Time     // of a session before
		want      int
	}{
		{name: "silent", want: maxCalls},
		{name: "silent, with an old session", handshake: at(-time.Minute), want: maxCalls},
		{name: "answers at once", answers: callDelay + time.Millisecond, want: 1},
		{name: "answers the second call", answers: callDelay + recallDelay + time.Millisecond, want: 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			n := &neighbor{}
			n.begin(at(callDelay))
			calls := 0
			for now := time.Duration(0); now < 2*maxCalls*recallDelay; now += callDelay {
				handshake := test.handshake
				if test.answers > 0 && now >= test.answers {
					handshake = at(test.answers)
				}
				if n.due(at(now), handshake) {
					if calls++; now < callDelay {
						t.Errorf("called after %s", now)
					}
				}
			}
			if calls != test.want || !n.call.IsZero() {
				t.Errorf("%d calls, the next at %s; want %d and none", calls, n.call, test.want)
			}
		})
	}
}
