package minrate_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hangar-platform/hangar/internal/minrate"
)

// drip yields a byte after each pause, until its context ends.
type drip struct {
	ctx   context.Context
	pause time.Duration
}

func (d drip) Read(p []byte) (int, error) {
	select {
	case <-time.After(d.pause):
		p[0] = 1
		return 1, nil
	case <-d.ctx.Done():
		return 0, d.ctx.Err()
	}
}

func (drip) Close() error { return nil }

func TestRate(t *testing.T) {
	for _, c := range []struct {
		name  string
		pause time.Duration // of each byte
		rests time.Duration // of the reader, after each
		ok    bool
	}{
		{"as fast as it must be", 90 * time.Millisecond, 0, true},
		{"a reader that rests", 90 * time.Millisecond, time.Minute, true},
		{"too slow", 110 * time.Millisecond, 0, false},
		{"silent", time.Hour, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				r := minrate.New(ctx, cancel, drip{ctx, c.pause}, 10, 10*time.Second)
				b := make([]byte, 1)
				var err error
				for range 1000 {
					if _, err = r.Read(b); err != nil {
						break
					}
					time.Sleep(c.rests)
				}
				if want := errors.Is(err, minrate.ErrTooSlow); (err == nil) != c.ok || want == c.ok {
					t.Errorf("got %v", err)
				}
				if err := r.Close(); err != nil {
					t.Error(err)
				}
				if _, err := r.Read(b); c.ok && !errors.Is(err, context.Canceled) || errors.Is(err, io.EOF) {
					t.Errorf("after its end: %v", err)
				}
			})
		})
	}
}
