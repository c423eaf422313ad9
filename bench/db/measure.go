package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hangar-platform/hangar/internal/pause"
)

// perNode is how many subscribers a node has, of the 256 that it takes.
const perNode = 250

// delay measures how long after its commit a transaction is an event at a replica.
func (r *results) delay(ctx context.Context) error {
	for _, place := range []string{strict, tail} {
		if err := r.delayIn(ctx, place); err != nil {
			return fmt.Errorf("%s: %w", place, err)
		}
	}
	return nil
}

func (r *results) delayIn(ctx context.Context, place string) (err error) {
	nodes, stop, err := r.cluster(ctx, place, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	s, err := nodes[1].subscribe(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	times, first, err := r.pace(ctx, nodes)
	if err != nil {
		return err
	}
	for i, committed := range times {
		arrived, ok := s.at(first + uint64(i))
		if !ok {
			return fmt.Errorf("no event of transaction %d", first+uint64(i))
		}
		r.delays[place] = append(r.delays[place], max(0, time.Duration(arrived-committed)))
	}
	return nil
}

// pace commits one by one and returns when each commit returned, and the first transaction. All nodes have them
// then.
func (r *results) pace(ctx context.Context, nodes []*node) ([]int64, uint64, error) {
	before, err := nodes[0].txid(ctx)
	if err != nil {
		return nil, 0, err
	}
	d, err := job{Path: nodes[0].path(), Kind: pacing, N: r.o.commits}.run(ctx)
	if err != nil {
		return nil, 0, err
	}
	for _, n := range nodes {
		if err := n.reaches(ctx, before+uint64(d.N)); err != nil {
			return nil, 0, err
		}
	}
	// An event may be on its way yet.
	return d.Times, before + 1, pause.For(ctx, 100*time.Millisecond)
}

// cluster starts a primary with a database of one row, and replicas that have it.
func (r *results) cluster(ctx context.Context, place string, replicas int) (nodes []*node, stop func() error, err error) {
	stop = func() error {
		var errs []error
		for _, n := range nodes {
			errs = append(errs, n.stop())
		}
		return errors.Join(errs...)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, stop())
		}
	}()
	for i := range replicas + 1 {
		n := node{capture: place}
		if i > 0 {
			n.primary = nodes[0].url
		}
		started, err := r.start(ctx, n)
		if err != nil {
			return nodes, stop, err
		}
		nodes = append(nodes, started)
	}
	if _, err := (job{Path: nodes[0].path(), Kind: writing, N: 1}).run(ctx); err != nil {
		return nodes, stop, err
	}
	for _, n := range nodes {
		if err := n.reaches(ctx, 1); err != nil {
			return nodes, stop, err
		}
	}
	return nodes, stop, nil
}

// catchUp measures how long a replica takes to get what was committed while it was away.
func (r *results) catchUp(ctx context.Context) (err error) {
	nodes, stop, err := r.cluster(ctx, tail, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	before, err := nodes[0].txid(ctx)
	if err != nil {
		return err
	}
	if err := nodes[1].stop(); err != nil {
		return err
	}
	if _, err := (job{Path: nodes[0].path(), Kind: writing, Synchronous: "NORMAL", N: r.o.behind}).run(ctx); err != nil {
		return err
	}
	if err := nodes[0].reaches(ctx, before+uint64(r.o.behind)); err != nil {
		return err
	}
	last, err := nodes[0].txid(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	again, err := r.start(ctx, node{capture: tail, primary: nodes[0].url, root: nodes[1].root})
	if err != nil {
		return err
	}
	nodes[1] = again
	if err := again.reaches(ctx, last); err != nil {
		return err
	}
	r.behind, r.behindTx = time.Since(began), last-before
	return nil
}

// copyWhole measures how long a new replica takes to copy a large database while it is written, and what the
// writer notices.
func (r *results) copyWhole(ctx context.Context) (err error) {
	nodes, stop, err := r.cluster(ctx, strict, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if _, err := (job{Path: nodes[0].path(), Kind: filling, Synchronous: "OFF", N: r.o.size}).run(ctx); err != nil {
		return err
	}
	// What is in the log would be sent as transactions.
	if err := errors.Join(nodes[0].stop(), removeLog(nodes[0].root)); err != nil {
		return err
	}
	if nodes[0], err = r.start(ctx, node{capture: strict, root: nodes[0].root}); err != nil {
		return err
	}
	write := job{Path: nodes[0].path(), Kind: writing, Synchronous: "NORMAL", For: r.o.time}
	alone, err := write.run(ctx)
	if err != nil {
		return err
	}
	r.alone = float64(alone.N) / alone.Took.Seconds()
	i, err := nodes[0].info(ctx)
	if err != nil {
		return err
	}
	r.copiedMB = i.Databases[0].Pages * i.Databases[0].Size >> 20
	at, err := nodes[0].txid(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	fresh, err := r.start(ctx, node{capture: strict, primary: nodes[0].url})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, fresh.stop()) }()
	copied := make(chan error, 1)
	go func() {
		err := fresh.reaches(ctx, at)
		r.copied = time.Since(began)
		copied <- err
	}()
	writes, took := 0, time.Duration(0)
	write.For = 200 * time.Millisecond
	for {
		d, err := write.run(ctx)
		if err != nil {
			return err
		}
		writes, took = writes+d.N, took+d.Took
		select {
		case err := <-copied:
			r.during = float64(writes) / took.Seconds()
			return err
		default:
		}
	}
}

// subscribe measures how long it takes until all of many subscribers have an event.
func (r *results) subscribe(ctx context.Context) (err error) {
	r.nodes = (r.o.subscribers + perNode - 1) / perNode
	nodes, stop, err := r.cluster(ctx, strict, r.nodes-1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	var all []*subscription
	defer func() {
		for _, s := range all {
			s.close()
		}
	}()
	for i := range r.o.subscribers {
		s, err := nodes[i/perNode].subscribe(ctx)
		if err != nil {
			return err
		}
		all = append(all, s)
	}
	times, first, err := r.pace(ctx, nodes)
	if err != nil {
		return err
	}
	for _, s := range all {
		s.mu.Lock()
		if s.err != nil {
			r.cut++
		}
		s.mu.Unlock()
	}
	for i, committed := range times {
		last := committed
		for _, s := range all {
			if arrived, ok := s.at(first + uint64(i)); ok {
				last = max(last, arrived)
			}
		}
		r.spread = append(r.spread, time.Duration(last-committed))
	}
	return nil
}
