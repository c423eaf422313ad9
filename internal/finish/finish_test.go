package finish_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hangar-platform/hangar/internal/finish"
)

type key struct{}

// ended returns a cancelled context that has a value.
func ended(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
	cancel()
	return ctx
}

func TestWithin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		parent, end := context.WithTimeout(context.WithValue(t.Context(), key{}, "value"), time.Second)
		defer end()
		ctx, cancel := finish.Within(parent, time.Minute)
		defer cancel()
		if deadline, ok := ctx.Deadline(); !ok || deadline != time.Now().Add(time.Minute) {
			t.Errorf("Deadline() = %v, %v", deadline, ok)
		}
		if ctx.Value(key{}) != "value" {
			t.Error("the value of the parent is gone")
		}
		time.Sleep(time.Minute - time.Nanosecond)
		if parent.Err() == nil || ctx.Err() != nil {
			t.Errorf("before the limit: parent %v, context %v", parent.Err(), ctx.Err())
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			t.Errorf("at the limit: %v", ctx.Err())
		}
	})
}

func TestWithinOfAContextThatHasEnded(t *testing.T) {
	ctx, cancel := finish.Within(ended(t), time.Minute)
	if ctx.Err() != nil {
		t.Fatalf("ended with its parent: %v", ctx.Err())
	}
	child, stop := context.WithCancel(ctx)
	defer stop()
	cancel()
	if !errors.Is(ctx.Err(), context.Canceled) || !errors.Is(child.Err(), context.Canceled) {
		t.Errorf("after cancel: %v, its child %v", ctx.Err(), child.Err())
	}
}

func TestDo(t *testing.T) {
	failure := errors.New("failure")
	var used finish.Context
	err := finish.Do(ended(t), time.Minute, func(ctx finish.Context) error {
		used = ctx
		return errors.Join(ctx.Err(), failure)
	})
	if !errors.Is(err, failure) || errors.Is(err, context.Canceled) {
		t.Errorf("Do = %v", err)
	}
	if used.Err() == nil {
		t.Error("the context of the work outlives it")
	}
}

func TestLifetime(t *testing.T) {
	ctx, end := finish.Lifetime(ended(t))
	if _, bounded := ctx.Deadline(); bounded || ctx.Err() != nil || ctx.Value(key{}) != "value" {
		t.Errorf("bounded %v, %v, value %v", bounded, ctx.Err(), ctx.Value(key{}))
	}
	end()
	if !errors.Is(ctx.Err(), context.Canceled) {
		t.Errorf("after its end: %v", ctx.Err())
	}
}
