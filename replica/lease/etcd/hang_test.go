package etcd_test

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/internal/etcdtest"
	"github.com/hangar-platform/hangar/replica/lease"
	"github.com/hangar-platform/hangar/replica/lease/etcd"
)

// hanging is a member that may stop to answer, although its machine still acknowledges what it gets.
type hanging struct{ begun chan struct{} }

type hangingConn struct {
	net.Conn

	h      *hanging
	closed chan struct{}
	once   sync.Once
}

func (c *hangingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	select {
	case <-c.h.begun:
		<-c.closed
		return 0, net.ErrClosed
	default:
		return n, err
	}
}

func (c *hangingConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// TestHangingMember: a watch ends when its member hangs while other members report a change.
func TestHangingMember(t *testing.T) {
	endpoint := etcdtest.Start(t)
	h := &hanging{make(chan struct{})}
	// Both names are of the same member, which hangs only as localhost.
	s, err := etcd.New(etcd.Config{
		Endpoints: []string{strings.Replace(endpoint, "127.0.0.1", "localhost", 1), endpoint},
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, "tcp4", address)
			if err != nil || !strings.HasPrefix(address, "localhost") {
				return c, err
			}
			return &hangingConn{Conn: c, h: h, closed: make(chan struct{})}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	other, err := etcd.New(etcd.Config{Endpoints: []string{endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	put := func(value string) {
		t.Helper()
		if _, _, err := other.Swap(ctx, lease.Change{Put: []lease.Put{{Key: "a", Value: value}}}); err != nil {
			t.Fatal(err)
		}
	}
	before, err := s.Read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	put("first")
	for now, err := range s.Watch(ctx, before) {
		if err != nil {
			if !strings.Contains(err.Error(), "missed a change") {
				t.Error(err)
			}
			break
		}
		if got := now.Records["a"].Value; got != "first" {
			t.Error(got)
		}
		close(h.begun)
		put("second")
	}
	if now, err := s.Read(ctx); err != nil || now.Records["a"].Value != "second" {
		t.Errorf("%+v, %v", now.Records, err)
	}
}
