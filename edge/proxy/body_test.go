package proxy

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
)

func newBody(src io.Reader, memory, spool int64, dir string) (*body, *atomic.Int64) {
	total := new(atomic.Int64)
	total.Store(1 << 20)
	return &body{of: new(http.Request), src: io.NopCloser(src), limits: bodyLimits{memory: memory, spool: spool, dir: dir, total: total}}, total
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
			b, total := newBody(iotest.HalfReader(strings.NewReader(sent)), test.memory, test.spool, t.TempDir())
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
			if n := total.Load(); n != 1<<20 {
				t.Errorf("%d bytes are still taken", 1<<20-n)
			}
			if files, err := os.ReadDir(b.limits.dir); err != nil || len(files) > 0 {
				t.Errorf("%d files are left: %v", len(files), err)
			}
		})
	}
}

// All bodies together take no more than they may.
func TestBodiesAreBounded(t *testing.T) {
	b, total := newBody(strings.NewReader(strings.Repeat("x", 1000)), 1000, 0, "")
	total.Store(100)
	a, _ := b.attempt()
	if got, err := io.ReadAll(a); len(got) != 1000 || err != nil {
		t.Errorf("%d bytes were read: %v", len(got), err)
	}
	if b.repeatable() || total.Load() != 100 {
		t.Errorf("it was kept: %t, and %d bytes are left", b.repeatable(), total.Load())
	}
	b.close()
}

// An attempt that is over gets no more, and what it waited for is the next one's.
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
