package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/bench/harness"
)

// fanOut is how a change reached all who waited for it.
type fanOut struct {
	waiters int
	took    []time.Duration // from the request that caused it to each answer, sorted
	cost    time.Duration   // processor time of the daemon, all of it
	bytes   int64           // of memory for each one who waits
}

// dialers bounds how many connections are made at once.
const dialers = 64

// fan has many connections wait for one Machine to be started, and starts it.
func (b *bench) fan(ctx context.Context, d *harness.Daemon, p *platform) error {
	if err := manyFiles(b.options.waiters); err != nil {
		b.notes = append(b.notes, "no waiters: "+err.Error())
		return nil
	}
	target := p.refs[0]
	empty, err := memory([]int{d.PID()})
	if err != nil {
		return err
	}
	raw := p.request(http.MethodGet, target.path()+"/wait?state=started&timeout=60", nil)
	conns := make([]net.Conn, b.options.waiters)
	defer func() {
		for _, c := range conns {
			if c != nil {
				_ = c.Close()
			}
		}
	}()
	group, dialing := errgroup.WithContext(ctx)
	group.SetLimit(dialers)
	for i := range conns {
		group.Go(func() error {
			c, err := new(net.Dialer).DialContext(dialing, "tcp", p.addr)
			if err != nil {
				return err
			}
			conns[i] = c
			_, err = c.Write(raw)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	// All that was sent has to be read before the change, or it is no wait.
	full, err := b.settled(ctx, d)
	if err != nil {
		return err
	}
	f := &fanOut{waiters: len(conns), took: make([]time.Duration, len(conns)), bytes: (full - empty) / int64(len(conns))}
	before, err := processorTime([]int{d.PID()})
	if err != nil {
		return err
	}
	began := time.Now()
	if _, err := once(ctx, "tcp", p.addr, p.request(http.MethodPost, target.path()+"/start", nil)); err != nil {
		return err
	}
	if err := f.collect(ctx, conns, began); err != nil {
		return err
	}
	after, err := processorTime([]int{d.PID()})
	if err != nil {
		return err
	}
	f.cost = after - before
	slices.Sort(f.took)
	b.waiting = f
	_, err = once(ctx, "tcp", p.addr, p.request(http.MethodPost, target.path()+"/stop", nil))
	return err
}

// collect reads the answers, each by a goroutine of its own.
func (f *fanOut) collect(ctx context.Context, conns []net.Conn, began time.Time) error {
	var mu sync.Mutex
	var wrong error
	var wg sync.WaitGroup
	for i, conn := range conns {
		wg.Go(func() {
			_ = conn.SetReadDeadline(time.Now().Add(patience))
			c := &client{conn: conn, in: bufio.NewReaderSize(conn, 1<<10)}
			status, err := c.answer(true)
			f.took[i] = time.Since(began)
			if err == nil && status != http.StatusOK {
				err = fmt.Errorf("status %d: %s", status, c.keep)
			}
			if err != nil {
				mu.Lock()
				wrong = err
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return wrong
}

// manyFiles allows this process and those that it starts so many connections, and
// what else they need.
func manyFiles(n int) error {
	want := uint64(n) + 2000
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	if limit.Max < want {
		return fmt.Errorf("%d open files are allowed, %d are needed", limit.Max, want)
	}
	if limit.Cur < want {
		limit.Cur = want
		return unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	}
	return nil
}
