package pause_test

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hangar-platform/hangar/internal/pause"
)

func TestHelps(t *testing.T) {
	for err, want := range map[error]bool{
		syscall.EMFILE: true, syscall.ENFILE: true, syscall.ENOBUFS: true, syscall.ENOMEM: true,
		&net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.EMFILE)}: true,
		syscall.EINVAL: false, net.ErrClosed: false, os.ErrDeadlineExceeded: false,
	} {
		if pause.Helps(err) != want {
			t.Errorf("%v: %t", err, !want)
		}
	}
	if pause.Helps(nil) {
		t.Error("a pause helps against nothing")
	}
}

func TestFor(t *testing.T) {
	for name, c := range map[string]struct {
		d, ends, took time.Duration // ends: of the context
		err           error
	}{
		"to its end":           {d: 3 * time.Second, ends: 5 * time.Second, took: 3 * time.Second},
		"the context ends":     {d: 3 * time.Second, ends: time.Second, took: time.Second, err: context.DeadlineExceeded},
		"nothing to wait for":  {d: -1, ends: time.Second},
		"the context is ended": {d: 0, ends: -1, err: context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), c.ends)
				defer cancel()
				began := time.Now()
				if err := pause.For(ctx, c.d); !errors.Is(err, c.err) {
					t.Errorf("got %v, want %v", err, c.err)
				}
				if took := time.Since(began); took != c.took {
					t.Errorf("it took %s, want %s", took, c.took)
				}
			})
		})
	}
}

// TestBetween: pauses double up to the most and begin again with the first after a long attempt; an error is
// reported when it is another one.
func TestBetween(t *testing.T) {
	away, broken := errors.New("away"), errors.New("broken")
	attempts := []struct {
		takes    time.Duration
		err      error
		reported bool
		pause    time.Duration // after it
	}{
		{err: away, reported: true, pause: time.Second},
		{err: away, pause: 2 * time.Second},
		{err: nil, pause: 4 * time.Second},
		{err: broken, reported: true, pause: 5 * time.Second},
		{err: broken, pause: 5 * time.Second},
		{takes: 4 * time.Second, err: broken, pause: 5 * time.Second},
		{takes: 6 * time.Second, err: broken, reported: true, pause: time.Second},
		{err: broken, pause: 2 * time.Second},
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var ended time.Time
		n := -1
		reported := false
		check := func() {
			if n < 0 {
				return
			}
			if a := attempts[n]; reported != a.reported || time.Since(ended) != a.pause {
				t.Errorf("attempt %d: the error was reported: %t, and it was followed by a pause of %s", n, reported, time.Since(ended))
			}
		}
		err := pause.Between(ctx, pause.Backoff{First: time.Second, Most: 5 * time.Second}, func(context.Context) error {
			check()
			if n++; n == len(attempts) {
				cancel()
				return broken
			}
			reported = false
			time.Sleep(attempts[n].takes)
			ended = time.Now()
			return attempts[n].err
		}, func(err error) {
			if reported = true; err != attempts[n].err { //nolint:errorlint // this very one
				t.Errorf("attempt %d: %v is reported", n, err)
			}
		})
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// TestBetweenRepeatsReports: an error that lasts is reported once a minute.
func TestBetweenRepeatsReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lasts = 10*time.Minute + 30*time.Second
		ctx, cancel := context.WithTimeout(t.Context(), lasts)
		defer cancel()
		reports := 0
		_ = pause.Between(ctx, pause.Feeds, func(context.Context) error { return errors.New("away") }, func(error) { reports++ })
		if want := 11; reports != want {
			t.Errorf("%d reports in %s, want %d", reports, lasts, want)
		}
	})
}
