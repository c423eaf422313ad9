package main

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
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
	bare    []time.Duration // the same of a program that does nothing but write the answers
	cost    time.Duration   // processor time of the daemon, all of it
	bytes   int64           // of memory for each waiter
}

// spread is how changes reached the one who waited for each, among many who waited for
// others.
type spread struct {
	waiters int
	started []time.Duration // from the request to start a Machine to its answer, sorted
	told    []time.Duration // from the same to the answer of the wait, sorted
	after   []time.Duration // from the answer of the start to that of the wait, sorted
	bytes   int64           // of memory for each waiter
}

const (
	dialers = 64  // bounds how many connections are made at once
	wakes   = 300 // changes of a spread
)

// crowd is connections that wait.
type crowd struct {
	conns []net.Conn
	bytes int64 // of the daemon's memory for each
}

func (c *crowd) leave() {
	for _, conn := range c.conns {
		if conn != nil {
			_ = conn.Close()
		}
	}
}

// gather has n connections send a request each that is not answered yet.
func (b *bench) gather(ctx context.Context, d *harness.Daemon, addr string, n int, raw func(i int) []byte) (*crowd, error) {
	empty, err := harness.Memory([]int{d.PID()})
	if err != nil {
		return nil, err
	}
	c := &crowd{}
	if c.conns, err = dial(ctx, addr, n, raw); err != nil {
		c.leave()
		return nil, err
	}
	// All that was sent has to be read before the change, or it is no wait.
	full, err := b.settled(ctx, d)
	c.bytes = (full - empty) / int64(n)
	return c, err
}

// dial makes n connections, each of which sends a request. Those that were made before
// an error are returned with it.
func dial(ctx context.Context, addr string, n int, raw func(i int) []byte) ([]net.Conn, error) {
	conns := make([]net.Conn, n)
	group, dialing := errgroup.WithContext(ctx)
	group.SetLimit(dialers)
	for i := range conns {
		group.Go(func() error {
			c, err := new(net.Dialer).DialContext(dialing, "tcp", addr)
			if err != nil {
				return err
			}
			conns[i] = c
			_, err = c.Write(raw(i))
			return err
		})
	}
	return conns, group.Wait()
}

// fan has many connections wait for one Machine to be started, and starts it.
func (b *bench) fan(ctx context.Context, d *harness.Daemon, p *platform) error {
	if err := manyFiles(b.options.waiters); err != nil {
		b.notes = append(b.notes, "no waiters: "+err.Error())
		return nil
	}
	target := p.refs[0]
	raw := p.request(http.MethodGet, target.path()+"/wait?state=started&timeout=60", nil)
	c, err := b.gather(ctx, d, p.addr, b.options.waiters, func(int) []byte { return raw })
	if err != nil {
		return err
	}
	defer c.leave()
	f := &fanOut{waiters: len(c.conns), bytes: c.bytes}
	before, err := harness.ProcessorTime([]int{d.PID()})
	if err != nil {
		return err
	}
	began := time.Now()
	if _, err := once(ctx, "tcp", p.addr, p.request(http.MethodPost, target.path()+"/start", nil)); err != nil {
		return err
	}
	if f.took, err = collect(ctx, c.conns, began); err != nil {
		return err
	}
	after, err := harness.ProcessorTime([]int{d.PID()})
	if err != nil {
		return err
	}
	f.cost = after - before
	c.leave()
	if f.bare, err = bare(ctx, f.waiters); err != nil {
		return err
	}
	b.waiting = f
	_, err = once(ctx, "tcp", p.addr, p.request(http.MethodPost, target.path()+"/stop", nil))
	return err
}

// collect reads the answers, each by a goroutine of its own, and returns how long they
// took, sorted.
func collect(ctx context.Context, conns []net.Conn, began time.Time) ([]time.Duration, error) {
	took := make([]time.Duration, len(conns))
	var mu sync.Mutex
	var wrong error
	var wg sync.WaitGroup
	for i, conn := range conns {
		wg.Go(func() {
			at, err := told(conn)
			took[i] = at.Sub(began)
			if err != nil {
				mu.Lock()
				wrong = err
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	slices.Sort(took)
	return took, wrong
}

// told reads the answer of a wait and returns when it came.
func told(conn net.Conn) (time.Time, error) {
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	c := &client{conn: conn, in: bufio.NewReaderSize(conn, 1<<10)}
	status, err := c.answer(true)
	at := time.Now()
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("status %d: %s", status, c.keep)
	}
	return at, err
}

// scatter has many connections wait for a Machine each, and starts some, one by one.
func (b *bench) scatter(ctx context.Context, d *harness.Daemon, p *platform) error {
	waiters := min(b.options.waiters, len(p.refs))
	if manyFiles(waiters) != nil {
		return nil // as fan has noted
	}
	// The state that is committed when a start is answered.
	c, err := b.gather(ctx, d, p.addr, waiters, func(i int) []byte {
		return p.request(http.MethodGet, p.refs[i].path()+"/wait?state=starting&timeout=60", nil)
	})
	if err != nil {
		return err
	}
	defer c.leave()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", p.addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	starter := &client{conn: conn, in: bufio.NewReaderSize(conn, 64<<10)}
	s := &spread{waiters: waiters, bytes: c.bytes}
	for _, i := range rand.Perm(waiters)[:min(wakes, waiters)] { //nolint:gosec // no secret
		var at time.Time
		var wait errgroup.Group
		wait.Go(func() (err error) {
			at, err = told(c.conns[i])
			return err
		})
		began := time.Now()
		status, err := starter.exchange(p.request(http.MethodPost, p.refs[i].path()+"/start", nil), true)
		started := time.Now()
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("status %d: %s", status, starter.keep)
		}
		if err != nil {
			return err
		}
		if err := wait.Wait(); err != nil {
			return err
		}
		s.started, s.told = append(s.started, started.Sub(began)), append(s.told, at.Sub(began))
		s.after = append(s.after, max(0, at.Sub(started)))
	}
	for _, times := range [][]time.Duration{s.started, s.told, s.after} {
		slices.Sort(times)
	}
	b.scattered = s
	return ctx.Err()
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
