package balance

import (
	"context"
	"sync"
)

// jobs are what Run does for others.
type jobs struct {
	ready chan struct{} // has a value when list is not empty

	mu    sync.Mutex // guards what follows; taken after that of an app
	list  []func(context.Context)
	ended bool // Run has, and takes no more
}

// submit has Run call a function; false if it has ended.
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

// take returns all jobs that there are; last: there will be no more.
func (j *jobs) take(last bool) []func(context.Context) {
	j.mu.Lock()
	defer j.mu.Unlock()
	list := j.list
	j.list, j.ended = nil, last
	return list
}

// Run wakes Machines, until ctx ends and all that began has ended. It returns the error of
// ctx.
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
