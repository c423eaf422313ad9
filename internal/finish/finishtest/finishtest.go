// Package finishtest makes contexts of package finish for tests.
package finishtest

import (
	"context"
	"time"

	"github.com/hangar-platform/hangar/internal/finish"
)

// limit is longer than any such work takes in a test that succeeds.
const limit = 2 * time.Minute

// TB is a testing.TB, or a similar type.
type TB interface {
	Context() context.Context
	Cleanup(cleanup func())
}

// Context returns a context for work that a test, or its cleanup, must complete.
func Context(tb TB) finish.Context {
	ctx, cancel := finish.Within(tb.Context(), limit)
	tb.Cleanup(cancel)
	return ctx
}
