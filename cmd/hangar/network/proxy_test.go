package network

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"

	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

// failing is a listener whose first calls of Accept fail.
type failing struct {
	net.Listener
	errs []error
	then func() // is called when Accept no longer fails
}

func (f *failing) Accept() (net.Conn, error) {
	if len(f.errs) > 0 {
		err := f.errs[0]
		f.errs = f.errs[1:]
		return nil, err
	}
	f.then()
	return f.Listener.Accept()
}

// TestProxyAccepts: the proxy waits for a descriptor, and ends with what is no passing error.
func TestProxyAccepts(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	x := &proxy{c: commands{&cli.Invocation{Streams: cli.Streams{Stderr: io.Discard}}}}
	gone := errors.New("gone")
	if err := x.serve(t.Context(), &failing{l, []error{syscall.EMFILE, gone}, nil}); !errors.Is(err, gone) {
		t.Errorf("ended with %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	waited := false
	err = x.serve(ctx, &failing{l, []error{syscall.EMFILE, syscall.ENFILE}, func() { waited = true; cancel() }})
	if err != nil || !waited {
		t.Errorf("waited for connections: %t, %v", waited, err)
	}
}

// TestProxyPorts reads LOCAL[:REMOTE].
func TestProxyPorts(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		text          string
		local, remote int
	}{{"5432", 5432, 5432}, {"0:5432", 0, 5432}, {"15432:5432", 15432, 5432}, {"65535", 65535, 65535}} {
		local, remote, err := parsePorts(test.text)
		if err != nil || local != test.local || remote != test.remote {
			t.Errorf("%s: %d, %d, %v", test.text, local, remote, err)
		}
	}
	for _, text := range []string{"", ":", "0", "1:", ":1", "-1:1", "1:2:3", "1:65536", "a"} {
		if _, _, err := parsePorts(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}
