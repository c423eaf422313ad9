package balance

import (
	"context"
	"sync"
)

// jobs are the wakes and probes that Run runs, each in a goroutine of its own.
type jobs struct {
	ready chan struct{} // has a value while list is not empty

	mu    sync.Mutex // guards the fields below; locked after app.mu
	list  []func(context.Context)
	ended bool // Run has ended, and takes no more
}

// submit queues a job for Run; false if Run has ended.
func (b *Balancer) submit(job func(context.Context)) bool {
	b.jobs.mu.Lock()
	defer b.jobs.mu.Unlock()
	if b.jobs.ended {
		return false
	}
	b.jobs.list = append(b.jobs.list, job)
	select {
	case b.jobs.ready <- struct{}{}:
	default:
	}
	return true
}

// take removes and returns all jobs; last: Run takes no more.
func (j *jobs) take(last bool) []func(context.Context) {
	j.mu.Lock()
	defer j.mu.Unlock()
	list := j.list
	j.list, j.ended = nil, last
	return list
}

// Run runs wakes and probes until ctx ends, then waits for those that began. It returns the
// error of ctx.
func (b *Balancer) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	for {
		last := ctx.Err() != nil
		for _, job := range b.jobs.take(last) {
			running.Go(func() { job(ctx) })
		}
		if last {
			return ctx.Err()
		}
		select {
		case <-b.jobs.ready:
		case <-ctx.Done():
		}
	}
}
