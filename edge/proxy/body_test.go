package proxy

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/hangar-platform/hangar"
)

func newBody(src io.Reader, memory, spool int64, dir string) (*body, *bodyRoom) {
	room := newBodyRoom(bodyBytes{4 << 20, 4 << 20})
	return &body{of: new(http.Request), src: io.NopCloser(src), org: "me", limits: bodyLimits{memory: memory, spool: spool, dir: dir, room: room}}, room
}

func TestBodyIsReadAgain(t *testing.T) {
	sent := strings.Repeat("0123456789", 10_000)
	for _, test := range []struct {
		name          string
		memory, spool int64
		kept          bool
	}{
		{"in memory", 100_000, 0, true}, {"too large", 99_999, 0, false}, {"on disk", 1_000, 100_000, true}, {"too large for the disk", 1_000, 99_999, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			b, room := newBody(iotest.HalfReader(strings.NewReader(sent)), test.memory, test.spool, t.TempDir())
			for attempt := range 5 {
				a, ok := b.attempt()
				if want := attempt == 0 || test.kept; ok != want {
					t.Fatalf("attempt %d: it is at hand: %t", attempt, ok)
				}
				if !ok {
					if _, err := a.Read(make([]byte, 1)); !errors.Is(err, errBodyGone) {
						t.Errorf("reading it is %v", err)
					}
					return
				}
				part := int64(rand.IntN(len(sent)))
				if attempt == 4 || !test.kept {
					part = int64(len(sent))
				}
				var got bytes.Buffer
				if _, err := io.Copy(&got, io.LimitReader(a, part)); err != nil || got.String() != sent[:part] {
					t.Fatalf("attempt %d: %d bytes differ from what was sent: %v", attempt, got.Len(), err)
				}
			}
			b.close()
			if room.taken != (bodyBytes{}) || len(room.of) > 0 {
				t.Errorf("%+v are still taken, by %v", room.taken, room.of)
			}
			if files, err := os.ReadDir(b.limits.dir); err != nil || len(files) > 0 {
				t.Errorf("%d files are left: %v", len(files), err)
			}
		})
	}
}

// TestBodiesAreBounded: all bodies together stay within their bound, and so do those of an
// organization.
func TestBodiesAreBounded(t *testing.T) {
	for name, most := range map[string]bodyBytes{"memory": {400, 1 << 20}, "disk": {1 << 20, 400}} {
		for _, taken := range []hangar.OrgID{"", "me", "other"} {
			b, _ := newBody(strings.NewReader(strings.Repeat("x", 90)), 90, 90, t.TempDir())
			if name == "disk" {
				b.limits.memory = 0
			}
			room := newBodyRoom(most)
			b.limits.room = room
			before := bodyBytes{}
			if taken != "" {
				before = bodyBytes{min(most.memory, 400) / 4, min(most.spool, 400) / 4}
				if !room.take(taken, before) {
					t.Fatal("there is no room")
				}
			}
			a, _ := b.attempt()
			if got, err := io.ReadAll(a); len(got) != 90 || err != nil {
				t.Errorf("%s: %d bytes were read: %v", name, len(got), err)
			}
			if want := taken != "me"; b.repeatable() != want || b.full() == want {
				t.Errorf("%s beside %q: it is kept: %t, full: %t", name, taken, b.repeatable(), b.full())
			}
			b.close()
			if room.taken != before {
				t.Errorf("%s: %+v are taken, want %+v", name, room.taken, before)
			}
		}
	}
}

// TestBodyChangesHands: a finished attempt gets no more bytes; what it waited for goes to the next.
func TestBodyChangesHands(t *testing.T) {
	pr, pw := io.Pipe()
	b, _ := newBody(pr, 1000, 0, "")
	old, _ := b.attempt()
	waiting := make(chan error)
	go func() {
		_, err := old.Read(make([]byte, 10))
		waiting <- err
	}()
	go func() {
		for b.mu.TryLock() { // until it reads
			b.mu.Unlock()
		}
		b.reader.Store(nil)
		_, _ = io.WriteString(pw, "hello")
		_ = pw.Close()
	}()
	if err := <-waiting; !errors.Is(err, errBodyEnded) {
		t.Errorf("the old attempt got %v", err)
	}
	a, ok := b.attempt()
	if got, err := io.ReadAll(a); !ok || string(got) != "hello" || err != nil {
		t.Errorf("the next attempt got %q, %t, %v", got, ok, err)
	}
	b.close()
}

func FuzzTraceparent(f *testing.F) {
	for _, seed := range []string{
		"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
		"ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "", "00-", strings.Repeat("-", 55),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, sent string) {
		got, continued := traceparent(sent)
		if len(got) != 55 || !validTrace(got) || got[:3] != "00-" {
			t.Fatalf("%q became %q", sent, got)
		}
		if continued && (got[3:35] != sent[3:35] || got[53:] != sent[53:55] || got[36:52] == sent[36:52]) {
			t.Fatalf("%q was continued as %q", sent, got)
		}
	})
}
