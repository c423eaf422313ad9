// Package finish makes the contexts of work that does not end with its caller's.
//
// A context that is passed down, of a request or of a step, bounds the waiting: when it ends, all
// interruptible work ends. That would be wrong for two kinds of work, which have their contexts here:
//
//   - Work that must reach its end once it has begun, because half of it would be in the way
//     of everything that follows: killing, unmounting, closing, detaching, removing, growing,
//     undoing. A function that does such work takes a Context, which only Within and Do make. So
//     the compiler refuses a caller's context, and all such work has a time limit.
//   - Work for as long as a component lives, which is longer than the call that opened it: a
//     watch, a worker, a connection. It runs with a context of Lifetime, until the component is
//     closed.
//
// Everything else takes a context.Context and ends with it. The linter forbids
// context.WithoutCancel outside this package.
package finish

import (
	"context"
	"time"
)

// Context has the values of another context, and an end of its own.
type Context interface {
	context.Context

	finishes() // only types of this package have it
}

type bounded struct{ context.Context }

func (bounded) finishes() {}

// Within returns a Context with the values of ctx. It ends after limit, or when cancel is called. It
// does not end with ctx, even if ctx has ended already.
func Within(ctx context.Context, limit time.Duration) (finishing Context, cancel context.CancelFunc) {
	inner, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	return bounded{inner}, cancel
}

// Do calls work with a Context that Within makes.
func Do(ctx context.Context, limit time.Duration, work func(Context) error) error {
	finishing, cancel := Within(ctx, limit)
	defer cancel()
	return work(finishing)
}

// Lifetime returns a context with the values of ctx that ends when end is called, and not with ctx.
// It is for work that outlives the call that started it.
func Lifetime(ctx context.Context) (lifetime context.Context, end context.CancelFunc) {
	return context.WithCancel(context.WithoutCancel(ctx))
}
