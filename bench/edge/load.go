package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sync/errgroup"
)

// host is what clients ask for: the name of the App below the daemon's domain.
const host = "edge.hangar.localhost"

// patience bounds one answer.
const patience = 30 * time.Second

// conn is a client's connection. There is no HTTP client between the clock and the wire,
// because that costs as much as a proxy.
type conn struct {
	net.Conn
	in      *bufio.Reader
	request []byte
}

func dial(ctx context.Context, f *front, address string, secure bool, path string) (*conn, error) {
	c, err := (&net.Dialer{Timeout: patience}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.name, err)
	}
	if secure {
		t := tls.Client(c, &tls.Config{InsecureSkipVerify: true, ServerName: f.serverName(), NextProtos: []string{"http/1.1"}}) //nolint:gosec // its own certificates
		if err := t.HandshakeContext(ctx); err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", f.name, err), c.Close())
		}
		c = t
	}
	return &conn{Conn: c, in: bufio.NewReaderSize(c, 32<<10), request: []byte("GET " + path + " HTTP/1.1\r\nHost: " + f.hostHeader() + "\r\n\r\n")}, nil
}

// hostHeader is the Host that the front serves: hangar distinguishes Apps by it.
func (f *front) hostHeader() string {
	if f.name == nameHangar {
		return host
	}
	return "127.0.0.1"
}

func (f *front) serverName() string {
	if f.name == nameHangar {
		return host
	}
	return "localhost"
}

// do sends the request and reads the answer, of which it returns how many bytes the body had.
func (c *conn) do() (int64, error) {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return 0, err
	}
	if _, err := c.Write(c.request); err != nil {
		return 0, err
	}
	length := int64(-1)
	for first := true; ; first = false {
		line, err := c.in.ReadSlice('\n')
		if err != nil {
			return 0, err
		}
		line = bytes.TrimRight(line, "\r\n")
		switch {
		case first && !bytes.Contains(line, []byte(" 200")):
			return 0, fmt.Errorf("answered %s", line)
		case len(line) == 0 && length < 0:
			return 0, errors.New("an answer without a length")
		case len(line) == 0:
			return io.CopyN(io.Discard, c.in, length)
		case len(line) > 15 && strings.EqualFold(string(line[:15]), "content-length:"):
			if length, err = strconv.ParseInt(string(bytes.TrimSpace(line[15:])), 10, 64); err != nil {
				return 0, err
			}
		}
	}
}

// saturate lets clients ask one question after the other and returns how many were answered
// in a second.
func saturate(ctx context.Context, f *front, address string, secure bool, clients int, d time.Duration) (int64, error) {
	var answered atomic.Int64
	end := time.Now().Add(d)
	group, ctx := errgroup.WithContext(ctx)
	for range clients {
		group.Go(func() error {
			c, err := dial(ctx, f, address, secure, "/")
			if err != nil {
				return err
			}
			defer c.Close()
			for time.Now().Before(end) {
				if _, err := c.do(); err != nil {
					return fmt.Errorf("%s: %w", f.name, err)
				}
				answered.Add(1)
			}
			return nil
		})
	}
	err := group.Wait()
	return answered.Load(), err
}

// paced asks at a rate, whether or not answers come in time, and returns how long each took
// from the moment at which it was due.
func paced(ctx context.Context, f *front, address string, clients int, rate float64, d time.Duration) ([]time.Duration, error) {
	all := make([][]time.Duration, clients)
	began := time.Now().Add(50 * time.Millisecond)
	gap := time.Duration(float64(clients) / rate * float64(time.Second))
	group, ctx := errgroup.WithContext(ctx)
	for i := range clients {
		group.Go(func() error {
			c, err := dial(ctx, f, address, false, "/")
			if err != nil {
				return err
			}
			defer c.Close()
			due := began.Add(gap * time.Duration(i) / time.Duration(clients))
			for ; due.Sub(began) < d; due = due.Add(gap) {
				time.Sleep(time.Until(due))
				if _, err := c.do(); err != nil {
					return fmt.Errorf("%s: %w", f.name, err)
				}
				all[i] = append(all[i], time.Since(due))
			}
			return nil
		})
	}
	err := group.Wait()
	took := slices.Concat(all...)
	slices.Sort(took)
	return took, err
}

// handshakes lets clients connect by TLS, ask once and go, and returns how often they did.
func handshakes(ctx context.Context, f *front, clients int, d time.Duration) (int64, error) {
	var done atomic.Int64
	end := time.Now().Add(d)
	group, ctx := errgroup.WithContext(ctx)
	for range clients {
		group.Go(func() error {
			for time.Now().Before(end) {
				c, err := dial(ctx, f, f.https, true, "/")
				if err != nil {
					return err
				}
				_, err = c.do()
				_ = c.Close()
				if err != nil {
					return fmt.Errorf("%s: %w", f.name, err)
				}
				done.Add(1)
			}
			return nil
		})
	}
	err := group.Wait()
	return done.Load(), err
}

// download fetches one body of n bytes.
func download(ctx context.Context, f *front, n int64) error {
	c, err := dial(ctx, f, f.http, false, fmt.Sprintf("/bytes?n=%d", n))
	if err != nil {
		return err
	}
	defer c.Close()
	got, err := c.do()
	if err == nil && got != n {
		err = fmt.Errorf("%s: %d bytes of %d", f.name, got, n)
	}
	return err
}

// passThrough fetches n bytes over a connection that is not understood on the way.
func passThrough(ctx context.Context, f *front, n int64) error {
	c, err := (&net.Dialer{Timeout: patience}).DialContext(ctx, "tcp", f.tcp)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := fmt.Fprintf(c, "%d\n", n); err != nil {
		return err
	}
	got, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{c}, make([]byte, 256<<10))
	if err == nil && got != n {
		err = fmt.Errorf("%s: %d bytes of %d", f.name, got, n)
	}
	return err
}

// echoes lets clients send a message over a WebSocket and wait for it to come back, and
// returns how many did.
func echoes(ctx context.Context, f *front, clients int, d time.Duration) (int64, error) {
	var done atomic.Int64
	end := time.Now().Add(d)
	group, ctx := errgroup.WithContext(ctx)
	for range clients {
		group.Go(func() error {
			c, _, err := websocket.Dial(ctx, "ws://"+f.http+"/", &websocket.DialOptions{Host: f.hostHeader()})
			if err != nil {
				return fmt.Errorf("%s: %w", f.name, err)
			}
			defer func() { _ = c.CloseNow() }()
			message := bytes.Repeat([]byte("x"), 64)
			for time.Now().Before(end) {
				if err := c.Write(ctx, websocket.MessageBinary, message); err != nil {
					return err
				}
				if _, _, err := c.Read(ctx); err != nil {
					return err
				}
				done.Add(1)
			}
			return nil
		})
	}
	err := group.Wait()
	return done.Load(), err
}

// idle opens connections that have each asked once, and returns what closes them.
func idle(ctx context.Context, f *front, address string, secure bool, n int) (func(), error) {
	conns := make([]*conn, n)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(32)
	for i := range n {
		group.Go(func() error {
			c, err := dial(ctx, f, address, secure, "/")
			if err != nil {
				return err
			}
			conns[i] = c
			_, err = c.do()
			return err
		})
	}
	stop := func() {
		for _, c := range conns {
			if c != nil {
				_ = c.Close()
			}
		}
	}
	return stop, group.Wait()
}
