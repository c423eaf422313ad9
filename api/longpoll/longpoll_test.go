package longpoll_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/longpoll"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errExpired = errors.New("expired")

// respond answers 200 with the reached state, or 500 with the error.
func respond(id string, reached hangar.MachineReached, err error) (http.Response, error) {
	status, text := http.StatusOK, id+" "+string(reached.State)
	if err != nil {
		status, text = http.StatusInternalServerError, err.Error()
	}
	return http.Response{
		StatusCode: status, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{},
		Body: io.NopCloser(strings.NewReader(text)), ContentLength: int64(len(text)),
	}, nil
}

// rig is a server that parks all of its requests, and records the latest one.
type rig struct {
	waits  *longpoll.Waits
	addr   string
	life   context.Context //nolint:containedctx // it is what the test ends
	refuse error
	told   chan func(hangar.MachineReached, error)
	forgot chan struct{}
	result chan error // of Park; errNotParked if it reports false
}

var errNotParked = errors.New("not parked")

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{
		waits: longpoll.New(time.Second, respond), life: context.WithoutCancel(t.Context()),
		told: make(chan func(hangar.MachineReached, error), 1), forgot: make(chan struct{}, 1), result: make(chan error, 1),
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		parked, err := r.waits.Park(w, "req1", func(told func(hangar.MachineReached, error)) (func(), error) {
			if r.refuse != nil {
				return nil, r.refuse
			}
			r.told <- told
			return func() { r.forgot <- struct{}{} }, nil
		}, []context.Context{r.life}, errExpired)
		if !parked && err == nil {
			err = errNotParked
		}
		r.result <- err
	}))
	t.Cleanup(server.Close)
	r.addr = server.Listener.Addr().String()
	return r
}

func (r *rig) request(t *testing.T) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	return conn
}

// answer returns the body of the answer on a connection, which ends with it.
func answer(t *testing.T, conn net.Conn) string {
	t.Helper()
	in := bufio.NewReader(conn)
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil || !res.Close {
		t.Fatalf("read %q, %v, close %v", body, err, res.Close)
	}
	if _, err := in.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("the connection stays open: %v", err)
	}
	return string(body)
}

func TestPark(t *testing.T) {
	started := hangar.MachineReached{State: hangar.MachineStarted}
	for name, test := range map[string]struct {
		end  func(r *rig, told func(hangar.MachineReached, error), expire func())
		want string
	}{
		"told": {func(_ *rig, told func(hangar.MachineReached, error), _ func()) { told(started, nil) }, "req1 started"},
		"told of an error": {func(_ *rig, told func(hangar.MachineReached, error), _ func()) {
			told(hangar.MachineReached{}, io.ErrNoProgress)
		}, io.ErrNoProgress.Error()},
		"expired": {func(_ *rig, _ func(hangar.MachineReached, error), expire func()) { expire() }, errExpired.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			life, expire := context.WithCancel(t.Context())
			defer expire()
			r.life = life
			conn := r.request(t)
			told := <-r.told
			if err := <-r.result; err != nil {
				t.Fatal(err)
			}
			test.end(r, told, expire)
			if got := answer(t, conn); got != test.want {
				t.Errorf("answered %q, want %q", got, test.want)
			}
			<-r.forgot
			told(started, nil) // again, without a waiter
		})
	}
}

func TestHangUp(t *testing.T) {
	r := newRig(t)
	conn := r.request(t)
	told := <-r.told
	if err := <-r.result; err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	<-r.forgot
	told(hangar.MachineReached{}, nil)
}

func TestNotParked(t *testing.T) {
	r := newRig(t)
	for refusal, want := range map[error]error{errors.ErrUnsupported: errNotParked, io.ErrNoProgress: io.ErrNoProgress} {
		r.refuse = refusal
		_ = r.request(t)
		if err := <-r.result; !errors.Is(err, want) {
			t.Errorf("after %v: %v, want %v", refusal, err, want)
		}
	}
}

// TestDrain: all are answered, and none is parked any more.
func TestDrain(t *testing.T) {
	r := newRig(t)
	var conns []net.Conn
	for range 20 {
		conns = append(conns, r.request(t))
		<-r.told
		if err := <-r.result; err != nil {
			t.Fatal(err)
		}
	}
	forgotten := make(chan struct{})
	go func() {
		defer close(forgotten)
		for range conns {
			<-r.forgot
		}
	}()
	drained := make(chan struct{})
	go func() {
		r.waits.Drain(t.Context())
		close(drained)
	}()
	for _, conn := range conns {
		if got := answer(t, conn); !strings.Contains(got, "shutting down") {
			t.Errorf("answered %q", got)
		}
	}
	<-forgotten
	<-drained
	_ = r.request(t)
	if err := <-r.result; !errors.Is(err, errNotParked) {
		t.Errorf("after Drain: %v", err)
	}
}
