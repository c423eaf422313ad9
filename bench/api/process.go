package main

import (
	"context"
	"time"

	"github.com/hangar-platform/hangar/bench/harness"
)

// otherWork is the share of the processors that was taken in a second in which
// nothing was measured.
func otherWork(ctx context.Context) (float64, error) {
	idle, total, err := harness.Processors()
	if err != nil {
		return 0, err
	}
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(time.Second):
	}
	idleThen, totalThen, err := harness.Processors()
	return 1 - float64(idleThen-idle)/float64(max(1, totalThen-total)), err
}
