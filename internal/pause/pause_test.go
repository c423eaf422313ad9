package pause_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hangar-platform/hangar/internal/pause"
)

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

func TestBetween(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		begun, broken := time.Now(), errors.New("broken")
		var failures []error
		times := 0
		err := pause.Between(ctx, time.Minute, func(context.Context) error {
			if times++; times == 3 {
				cancel()
				return nil
			}
			return broken
		}, func(err error) { failures = append(failures, err) })
		if !errors.Is(err, context.Canceled) || !slices.Equal(failures, []error{broken, broken}) {
			t.Errorf("%v after %v", err, failures)
		}
		if took := time.Since(begun); took != 2*time.Minute {
			t.Errorf("it took %s", took)
		}
	})
}
