package balance_test

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/balance"
)

// openGate admits every request.
type openGate struct{ gate }

func (g *openGate) Gate(hangar.HostID) (hangar.MachineGate, error) { return g, nil }

func (g *openGate) DialService(context.Context, hangar.MachineRef, int) (net.Conn, error) {
	near, far := net.Pipe()
	far.Close()
	return near, nil
}

func (g *openGate) EnterMachine(hangar.MachineRef, int) (func(), error) { return func() {}, nil }

// populated is a world of so many Machines, whose rows are in view.
func populated(b *testing.B, n int) *world {
	b.Helper()
	w := newWorld(b, func(o *balance.Options) { o.Gates = &openGate{} })
	b.Cleanup(w.run(b))
	for i := range n {
		w.put(i, limits(20, 25))
	}
	w.await(n - 1) // the last one
	w.endpoint(80)
	return w
}

func visit(ctx context.Context, b *testing.B, w *world) {
	b.Helper()
	ep, ok := w.b.Endpoint(w.route, false, 80)
	if !ok {
		b.Error("no endpoint")
		return
	}
	permit, err := w.b.Acquire(ctx, ep, balance.Selector{})
	if err != nil {
		b.Error(err)
		return
	}
	permit.Release()
}

// BenchmarkAcquire is one request: Endpoint, Acquire and Release.
func BenchmarkAcquire(b *testing.B) {
	for _, n := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprintf("machines=%d", n), func(b *testing.B) {
			w, ctx := populated(b, n), b.Context()
			b.ReportAllocs()
			for b.Loop() {
				visit(ctx, b, w)
			}
		})
		b.Run(fmt.Sprintf("machines=%d/parallel", n), func(b *testing.B) {
			w, ctx := populated(b, n), b.Context()
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					visit(ctx, b, w)
				}
			})
		})
	}
}

// BenchmarkAcquireLoaded has 15 requests in flight in each Machine.
func BenchmarkAcquireLoaded(b *testing.B) {
	w, ctx := populated(b, 10_000), b.Context()
	ep := w.endpoint(80)
	for range 150_000 {
		if _, err := w.b.Acquire(ctx, ep, balance.Selector{}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		visit(ctx, b, w)
	}
}

// BenchmarkAcquireChurn has rows of 10,000 Machines change all the time.
func BenchmarkAcquireChurn(b *testing.B) {
	w, ctx := populated(b, 10_000), b.Context()
	stop, ended := make(chan struct{}), make(chan struct{})
	var changes atomic.Int64
	go func() {
		defer close(ended)
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-tick.C:
			case <-stop:
				return
			}
			s := hangar.MachineStarted
			if n%2 == 0 {
				s = hangar.MachineStopping
			}
			for i := range 10 {
				w.put(n/2*10%10_000+i, state(s))
				changes.Add(1)
			}
		}
	}()
	b.ReportAllocs()
	for b.Loop() {
		visit(ctx, b, w)
	}
	b.ReportMetric(float64(changes.Load())/b.Elapsed().Seconds(), "changes/s")
	close(stop)
	<-ended
}

// BenchmarkServiceSets is a new version of one of 10,000 Machines that have a public port each.
func BenchmarkServiceSets(b *testing.B) {
	const n = 10_000
	own := func(i int) option { return services(web(hangar.ServicePort{Port: 10_000 + i})) }
	w := newWorld(b, func(o *balance.Options) { o.Gates = &openGate{} })
	b.Cleanup(w.run(b))
	for i := range n {
		w.put(i, own(i))
	}
	w.await(n - 1) // the last one
	w.endpoint(10_000)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		w.put(i%n, version(fmt.Sprint(i+2)), own((i+1)%n))
		w.await(i % n)
	}
}

// BenchmarkRow is the change of one row of many.
func BenchmarkRow(b *testing.B) {
	for _, n := range []int{1, 10_000} {
		b.Run(fmt.Sprintf("machines=%d", n), func(b *testing.B) {
			w := populated(b, n)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				w.put(i/2%n, cordoned(i%2 == 0))
				w.await(i / 2 % n)
			}
		})
	}
}
