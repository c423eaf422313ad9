package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// patience bounds one answer.
const patience = 2 * time.Minute

// request is the next one of a client: the bytes to send, or nil for no more. It is
// called by many goroutines.
type request func(client int) []byte

// load is what clients met.
type load struct {
	took   []time.Duration // of each answer, sorted
	wall   time.Duration   // from the first request to the last answer
	bytes  int64           // of bodies
	failed int64           // answers of another status than 2xx
	first  string          // what the first of them said
}

func (l *load) perSecond() float64 { return float64(len(l.took)) / l.wall.Seconds() }

func (l *load) quantile(q float64) time.Duration {
	if len(l.took) == 0 {
		return 0
	}
	return l.took[min(len(l.took)-1, int(q*float64(len(l.took))))]
}

// drive lets clients send requests, each over a connection of its own and the next
// one when the answer to the last has come, until there are no more or limit has
// passed (0: no limit). There is no HTTP client between the clock and the wire,
// because that costs as much as the answer.
func drive(ctx context.Context, network, address string, clients int, limit time.Duration, next request) (*load, error) {
	var (
		mu    sync.Mutex // guards total and errs
		total load
		errs  []error
		ended atomic.Bool
		wg    sync.WaitGroup
	)
	conns := make([]net.Conn, clients)
	defer func() {
		for _, c := range conns {
			if c != nil {
				_ = c.Close()
			}
		}
	}()
	for i := range conns {
		c, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		conns[i] = c
	}
	defer context.AfterFunc(ctx, func() { ended.Store(true) })()
	if limit > 0 {
		defer time.AfterFunc(limit, func() { ended.Store(true) }).Stop()
	}
	began := time.Now()
	for i, c := range conns {
		wg.Go(func() {
			one := &client{conn: c, in: bufio.NewReaderSize(c, 64<<10)}
			err := one.run(i, next, &ended)
			mu.Lock()
			defer mu.Unlock()
			total.took = append(total.took, one.load.took...)
			total.bytes += one.load.bytes
			total.failed += one.load.failed
			if total.first == "" {
				total.first = one.load.first
			}
			errs = append(errs, err)
		})
	}
	wg.Wait()
	total.wall = time.Since(began)
	slices.Sort(total.took)
	return &total, errors.Join(append(errs, ctx.Err())...)
}

// client is one connection.
type client struct {
	conn net.Conn
	in   *bufio.Reader
	load load
	keep []byte // the body of the last answer, where it is wanted
}

func (c *client) run(number int, next request, ended *atomic.Bool) error {
	for !ended.Load() {
		raw := next(number)
		if raw == nil {
			return nil
		}
		began := time.Now()
		status, err := c.exchange(raw, false)
		if err != nil {
			return err
		}
		c.load.took = append(c.load.took, time.Since(began))
		if status/100 != 2 {
			if c.load.failed++; c.load.first == "" {
				c.load.first = fmt.Sprintf("status %d to %.80q", status, raw)
			}
		}
	}
	return nil
}

// exchange sends a request and reads the answer.
func (c *client) exchange(raw []byte, keep bool) (status int, err error) {
	if err := c.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return 0, err
	}
	if _, err := c.conn.Write(raw); err != nil {
		return 0, err
	}
	return c.answer(keep)
}

// answer reads one.
func (c *client) answer(keep bool) (status int, err error) {
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	if len(line) < 12 || !bytes.HasPrefix(line, []byte("HTTP/1.")) {
		return 0, fmt.Errorf("bad answer %q", line)
	}
	if status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return 0, err
	}
	length, chunked := -1, false
	for {
		line, err := c.in.ReadSlice('\n')
		if err != nil {
			return 0, err
		}
		if len(line) <= 2 {
			break
		}
		name, value, _ := bytes.Cut(bytes.TrimSpace(line), []byte(":"))
		switch {
		case strings.EqualFold(string(name), "content-length"):
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return 0, err
			}
		case strings.EqualFold(string(name), "transfer-encoding"):
			chunked = true
		}
	}
	if chunked {
		return status, c.chunks(keep)
	}
	return status, c.body(max(length, 0), keep, true)
}

// body reads n bytes.
func (c *client) body(n int, keep, first bool) error {
	c.load.bytes += int64(n)
	if !keep {
		_, err := c.in.Discard(n)
		return err
	}
	if first {
		c.keep = c.keep[:0]
	}
	had := len(c.keep)
	c.keep = append(c.keep, make([]byte, n)...)
	_, err := io.ReadFull(c.in, c.keep[had:])
	return err
}

func (c *client) chunks(keep bool) error {
	for first := true; ; first = false {
		line, err := c.in.ReadSlice('\n')
		if err != nil {
			return err
		}
		n, err := strconv.ParseInt(string(bytes.TrimSpace(line)), 16, 32)
		if err != nil {
			return err
		}
		if err := c.body(int(n), keep, first); err != nil {
			return err
		}
		if _, err := c.in.Discard(2); err != nil {
			return err
		}
		if n == 0 {
			return nil
		}
	}
}

// once makes one request and returns the body of the answer, which must be a success.
func once(ctx context.Context, network, address string, raw []byte) ([]byte, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	c := &client{conn: conn, in: bufio.NewReaderSize(conn, 64<<10)}
	status, err := c.exchange(raw, true)
	if err == nil && status/100 != 2 {
		err = fmt.Errorf("status %d to %.80q: %s", status, raw, c.keep)
	}
	return c.keep, err
}
