// Package finishtest makes contexts of package finish for tests.
package finishtest

import (
	"context"
	"time"

	"github.com/hangar-platform/hangar/internal/finish"
)

// limit is longer than anything takes in a test that goes well.
const limit = 2 * time.Minute

// TB is a testing.TB, or another test that ends.
type TB interface {
	Context() context.Context
	Cleanup(cleanup func())
}

// Context returns a context for work that a test, or its cleanup, carries to its end.
func Context(tb TB) finish.Context {
	ctx, cancel := finish.Within(tb.Context(), limit)
	tb.Cleanup(cancel)
	return ctx
}
