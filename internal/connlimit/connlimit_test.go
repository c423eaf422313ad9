package connlimit

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// greet serves a greeting, over connections that it has hijacked.
func greet(t *testing.T, limit *Limit) string {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		go func() {
			_, _ = io.WriteString(c, "!")
			_, _ = io.Copy(io.Discard, c)
			_ = c.Close()
			_ = c.Close() // once too often, which counts once
		}()
	}))
	server.Listener = limit.Listener(server.Listener)
	server.Start()
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// dial connects from an address and reports whether it is served.
func dial(t *testing.T, from, to string) (net.Conn, bool) {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: time.Minute}
	c, err := d.DialContext(t.Context(), "tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	_, err = io.ReadFull(c, make([]byte, 1))
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
		t.Fatal(err)
	}
	return c, err == nil
}

func TestLimit(t *testing.T) {
	const each, all = 3, 7
	limit := New(From(netip.MustParsePrefix("fdaa::/16"), netip.MustParsePrefix("127.0.0.0/9")), each, all)
	address := greet(t, limit)
	var held []net.Conn
	expect := func(from string, want bool) {
		t.Helper()
		c, ok := dial(t, from, address)
		if ok != want {
			t.Fatalf("a connection from %s beside %d is served: %v", from, len(held), ok)
		}
		held = append(held, c)
	}
	for range each {
		expect("127.0.0.2", true)
	}
	expect("127.0.0.2", false)
	expect("127.0.0.3", true)
	expect("127.0.0.3", true)
	expect("127.0.0.3", false) // would leave less than it has
	expect("127.0.0.4", true)
	for range all {
		expect("127.128.0.1", true) // a client without a bound
	}
	for _, c := range held {
		_ = c.Close()
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		limit.count.mu.Lock()
		open, sources := limit.count.open, len(limit.count.held)
		limit.count.mu.Unlock()
		if open == 0 && sources == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d connections of %d sources still count", open, sources)
		}
	}
	expect("127.0.0.2", true)
}

// TestConnectionsStayTCP: a counted connection supports watching, sending files and closing one
// direction, like any TCP connection.
func TestConnectionsStayTCP(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := New(From(netip.MustParsePrefix("127.0.0.0/8")), 1, 1).Listener(inner)
	defer l.Close()
	far, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	near, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	if _, ok := near.(interface {
		syscall.Conn
		io.ReaderFrom
		CloseWrite() error
	}); !ok {
		t.Errorf("%T is less than a TCP connection", near)
	}
}

func TestClientOf(t *testing.T) {
	for addr, want := range map[string]string{
		"fdaa:0:1:2:3:4:5:6":    "fdaa:0:1:2:3:4:5:0",
		"fdaa:0:1:2:3:4:5:ffff": "fdaa:0:1:2:3:4:5:0",
		"fdaa:0:1:2:3:4:6:6":    "fdaa:0:1:2:3:4:6:0",
		"2001:db8:1:2:3:4:5:6":  "2001:db8:1:2::",
		"fe80::1:2%eth0":        "fe80::",
		"192.0.2.7":             "192.0.2.7",
		"::ffff:192.0.2.7":      "192.0.2.7",
		"10.0.0.7":              "10.0.0.7",
	} {
		if got := ClientOf(netip.MustParseAddr(addr)); got != netip.MustParseAddr(want) {
			t.Errorf("%s is of %s, not %s", addr, got, want)
		}
	}
	if got := ClientOf(netip.Addr{}); got.IsValid() {
		t.Errorf("no address is of %s", got)
	}
}

// TestNobodyTakesTheLast: greedy keys take as much as they get. However many they are, another key
// gets as much as each of them.
func TestNobodyTakesTheLast(t *testing.T) {
	const all = 10_000
	for _, greedy := range []int{1, 2, 10, 50} {
		c := NewCount[int](all, all)
		for taken := true; taken; {
			taken = false
			for key := range greedy {
				taken = c.Take(key) || taken
			}
		}
		share := all / (greedy + 1)
		for key := range greedy {
			if held := c.held[key]; held < share-1 || held > share+greedy {
				t.Errorf("one of %d has %d of %d", greedy, held, all)
			}
		}
		if left := all - c.Open(); left < share-greedy {
			t.Errorf("%d leave %d of %d", greedy, left, all)
		}
		if !c.TakeN(-1, share/2) {
			t.Errorf("beside %d, another one gets nothing", greedy)
		}
		c.LeaveN(-1, share/2)
		for key := range greedy {
			c.LeaveN(key, c.held[key])
		}
		if c.Open() != 0 || len(c.held) != 0 {
			t.Errorf("%d are held by %d after all have left", c.Open(), len(c.held))
		}
	}
}

// TestTakeN compares taking n at once with taking them one by one.
func TestTakeN(t *testing.T) {
	const all = 20
	for _, each := range []int{all, 7} {
		for others := range all/2 + 1 {
			for own := range all/2 + 1 {
				for n := 1; n <= all; n++ {
					atOnce, single := NewCount[int](each, all), NewCount[int](each, all)
					for _, c := range []*Count[int]{atOnce, single} {
						for range others {
							c.Take(1)
						}
						for range own {
							c.Take(2)
						}
					}
					want := true
					for range n {
						want = want && single.Take(2)
					}
					if got := atOnce.TakeN(2, n); got != want {
						t.Fatalf("limits %d and %d, %d and %d taken: TakeN(%d) = %t, want %t", each, all, others, own, n, got, want)
					}
				}
			}
		}
	}
}
