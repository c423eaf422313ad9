package flight_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"golang.org/x/sync/singleflight"

	"github.com/hangar-platform/hangar/internal/flight"
)

// TestDoOutlivesTheFirst: if the context of the working caller ends, the waiting callers do the
// work themselves. Otherwise they share its result.
func TestDoOutlivesTheFirst(t *testing.T) {
	refused := errors.New("refused")
	for name, c := range map[string]struct {
		end   error // of the first one's work
		again int   // times that the work is done
		want  error
	}{
		"canceled": {context.Canceled, 2, nil},
		"timeout":  {context.DeadlineExceeded, 2, nil},
		"refused":  {refused, 1, refused},
		"done":     {nil, 1, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var group singleflight.Group
				first, done := make(chan struct{}), make(chan struct{})
				times := 0
				go func() {
					_, err := flight.Do(t.Context(), &group, "key", func() (int, error) {
						times++
						<-first
						return 7, c.end
					})
					if !errors.Is(err, c.end) {
						t.Errorf("the first one gets %v", err)
					}
				}()
				synctest.Wait()
				go func() {
					defer close(done)
					got, err := flight.Do(t.Context(), &group, "key", func() (int, error) {
						times++
						return 7, nil
					})
					if !errors.Is(err, c.want) || got != 7 {
						t.Errorf("the second one gets %d, %v", got, err)
					}
				}()
				synctest.Wait()
				close(first)
				<-done
				if times != c.again {
					t.Errorf("done %d times", times)
				}
			})
		})
	}
}
