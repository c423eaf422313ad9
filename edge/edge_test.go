package edge_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge"
	"github.com/hangar-platform/hangar/edge/catalog"
	"github.com/hangar-platform/hangar/edge/edgetest"
	"github.com/hangar-platform/hangar/edge/listen"
)

// patience is how long the edge waits for slow clients. There are none here.
const patience = time.Minute

// world is an App with a Machine, which is a web server of the test.
type world struct {
	hangar.MachineGate // what is not needed here
	address            string
}

func (w *world) Gate(hangar.HostID) (hangar.MachineGate, error) { return w, nil }

func (w *world) EnterMachine(hangar.MachineRef, int) (func(), error) { return func() {}, nil }

func (w *world) DialService(ctx context.Context, _ hangar.MachineRef, _ int) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "tcp", w.address)
}

func (w *world) LogEdge(hangar.MachineRef, string, string) {}

// shop is that App.
func shop() *edgetest.Feed {
	f := edgetest.NewFeed()
	shared := hangar.Address{IP: netip.MustParseAddr("127.0.0.1"), Kind: hangar.AddressSharedV4, App: "shop"}
	f.PutRoute(hangar.AppRoute{ID: "shop", App: "shop", Org: "org", Addresses: []hangar.Address{shared}})
	f.Put(hangar.MachineRow{Org: "org", Network: 1, Machine: hangar.Machine{
		ID: "0123456789abcd", App: "shop", AppID: "shop", State: hangar.MachineStarted, Host: "0badcafe", Region: "loc", InstanceID: "1",
		Config: hangar.MachineConfig{Services: []hangar.Service{{
			Protocol: "tcp", InternalPort: 8080, Ports: []hangar.ServicePort{{Port: 80, Handlers: []string{"http"}}},
		}}},
	}})
	return f
}

// An accepted client is answered when the edge ends, whether it waits for an answer or is about
// to ask.
func TestOrderlyEnd(t *testing.T) {
	asked := make(chan struct{}, 1)
	program := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			asked <- struct{}{}
			time.Sleep(300 * time.Millisecond)
		}
		_, _ = io.WriteString(w, "done")
	}))
	defer program.Close()
	w := &world{address: strings.TrimPrefix(program.URL, "http://")}
	feed := shop()
	machines, routes := catalog.New(feed, nil), catalog.NewRoutes(feed, "apps.test", nil)
	e := edge.New(edge.Options{
		Host: "0badcafe", Dir: t.TempDir(), HTTP: "127.0.0.1:0", HTTPS: "127.0.0.1:0", Domain: "apps.test", Region: "loc",
		Machines: machines, Routes: routes, Gates: w, Drain: 2 * patience,
		Limits: listen.Limits{LastWords: patience},
	})
	if err := e.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	lasting, stop := context.WithCancel(t.Context())
	defer stop()
	go func() { _ = machines.Run(lasting) }()
	ctx, end := context.WithCancel(lasting)
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()

	plain, _ := e.Addrs()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", plain.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_ = c.SetDeadline(time.Now().Add(patience))
		return c
	}
	ask := func(c net.Conn, path string) {
		if _, err := io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: shop.apps.test\r\n\r\n"); err != nil {
			t.Error(err)
		}
	}
	answered := func(c net.Conn) {
		t.Helper()
		answer, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer answer.Body.Close()
		if body, err := io.ReadAll(answer.Body); err != nil || string(body) != "done" {
			t.Errorf("answered %q, %v", body, err)
		}
	}
	slow := dial()
	ask(slow, "/slow")
	<-asked
	var late []net.Conn
	for range 100 {
		late = append(late, dial())
	}
	last := dial() // when it is answered, all before it were accepted
	ask(last, "/")
	answered(last)
	began := time.Now()
	end()
	time.Sleep(50 * time.Millisecond)
	for _, c := range late {
		ask(c, "/")
	}
	for _, c := range append(late, slow) {
		answered(c)
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Run: %v", err)
	}
	if took := time.Since(began); took > patience {
		t.Errorf("it took %s", took)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}
