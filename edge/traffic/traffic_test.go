package traffic

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
)

// emitted are the series of something, by name and labels.
func emitted(emit func(Emit)) map[string]float64 {
	all := map[string]float64{}
	emit(func(name string, value float64, labels ...hangar.MetricLabel) {
		for _, l := range labels {
			name += fmt.Sprintf(",%s=%s", l.Name, l.Value)
		}
		if _, twice := all[name]; twice {
			panic(name + " is emitted twice")
		}
		all[name] = value
	})
	return all
}

func TestResponses(t *testing.T) {
	a := NewTable().App("shop")
	a.Response(200, time.Millisecond)
	a.Response(200, 3*time.Millisecond)
	a.Response(200, time.Minute)
	a.Response(404, 0)
	got := emitted(a.Emit)
	for name, want := range map[string]float64{
		"edge_http_responses_count,status=200":                       3,
		"edge_http_responses_count,status=404":                       1,
		"edge_http_response_time_seconds_bucket,status=200,le=0.001": 1,
		"edge_http_response_time_seconds_bucket,status=200,le=0.005": 2,
		"edge_http_response_time_seconds_bucket,status=200,le=30":    2,
		"edge_http_response_time_seconds_bucket,status=200,le=+Inf":  3,
		"edge_http_response_time_seconds_count,status=200":           3,
		"edge_http_response_time_seconds_sum,status=200":             60.004,
		"edge_tcp_connects_count":                                    0,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s is %v, want %v", name, v, want)
		}
	}
}

// A Machine that answers with every number there is has as many series as there are statuses.
func TestStatusesAreBounded(t *testing.T) {
	var m Machine
	for status := range 1000 {
		m.Response(status, 0)
	}
	total := uint64(0)
	for _, s := range m.responses.all() {
		if s.status < 100 || s.status > 511 {
			t.Errorf("status %d is counted", s.status)
		}
		total += s.count()
	}
	if n := len(m.responses.all()); n > 70 || total != 1000 {
		t.Errorf("%d statuses with %d answers", n, total)
	}
	for status, want := range map[int]int{200: 200, 299: 200, 499: 400, 520: 500, 777: 500, 0: 500} {
		if got := registered(status); got != want {
			t.Errorf("%d is counted as %d, want %d", status, got, want)
		}
	}
}

func TestHandshakes(t *testing.T) {
	a := NewTable().App("shop")
	for i := range 2 * MaxServerNames {
		a.HandshakeFailed(hangar.Hostname(fmt.Sprintf("n%d.example.com", i)))
	}
	a.Handshake(tls.VersionTLS13, time.Millisecond)
	got := emitted(a.Emit)
	names := 0
	for name := range got {
		if strings.HasPrefix(name, "edge_tls_handshake_errors,") {
			names++
		}
	}
	if names > MaxServerNames+1 || got["edge_tls_handshake_errors,servername="] != MaxServerNames {
		t.Errorf("%d names, %v without one", names, got["edge_tls_handshake_errors,servername="])
	}
	if got["edge_tls_handshake_time_seconds_count,version=TLSv1.3"] != 1 {
		t.Errorf("%v", got)
	}
}

func TestSweep(t *testing.T) {
	table := NewTable()
	table.App("gone").Response(200, 0)
	kept := table.App("kept")
	table.Sweep(func(id hangar.AppID) bool { return id == "kept" })
	if list := table.Apps(); len(list) != 1 || list[0] != kept {
		t.Errorf("%d Apps are left", len(list))
	}
}

// pair is a connection of a client, and that which the edge has.
func pair(t *testing.T) (client, accepted *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	a, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = c.Close(), a.Close() })
	return c.(*net.TCPConn), a.(*net.TCPConn)
}

func exchange(t *testing.T, from, to net.Conn, n int) {
	t.Helper()
	sent := make(chan error, 1)
	go func() {
		_, err := from.Write(make([]byte, n))
		sent <- err
	}()
	if _, err := io.ReadFull(to, make([]byte, n)); err != nil {
		t.Fatal(err)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
}

// over waits until the kernel knows that a connection has ended in both directions.
func over(t *testing.T, c *Conn) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for state := uint8(0); state != tcpClose; runtime.Gosched() {
		err := raw.Control(func(fd uintptr) {
			if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
				state = info.State
			}
		})
		if err != nil || t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
}

// Bytes are exact while a connection is open, after its App has changed, and when it has ended,
// in whichever way.
func TestBytesOfAConnection(t *testing.T) {
	for name, end := range map[string]func(client *net.TCPConn, c *Conn){
		"closed here": func(_ *net.TCPConn, c *Conn) { _ = c.Close() },
		"closed there": func(client *net.TCPConn, c *Conn) {
			_ = client.CloseWrite()
			_, _ = c.Read(make([]byte, 1))
			_ = c.Close()
		},
		"ended there, then here": func(client *net.TCPConn, c *Conn) {
			_ = client.CloseWrite()
			_, _ = c.Read(make([]byte, 1))
			_ = c.CloseWrite()
			_, _ = client.Read(make([]byte, 1))
			over(t, c)
			_ = c.Close()
		},
		"ended here, then there": func(client *net.TCPConn, c *Conn) {
			_ = c.CloseWrite()
			_, _ = client.Read(make([]byte, 1))
			_ = client.CloseWrite()
			over(t, c)
			c.flow.account() // before the end was read
			_, _ = c.Read(make([]byte, 1))
			_ = c.Close()
		},
		"reset there": func(client *net.TCPConn, c *Conn) {
			_ = client.SetLinger(0)
			_ = client.Close()
			_, _ = c.Read(make([]byte, 1))
			_ = c.Close()
		},
		"aborted": func(_ *net.TCPConn, c *Conn) { c.Abort(nil) },
	} {
		t.Run(name, func(t *testing.T) {
			table := NewTable()
			client, accepted := pair(t)
			c := table.Count(accepted)
			exchange(t, client, c, 10_000)
			shop := c.Flow().For("shop")
			exchange(t, c, client, 2_000_000)
			check := func(a *App, in, out uint64, open uint64) {
				t.Helper()
				table.Apps()
				if a.in.Load() != in || a.out.Load() != out {
					t.Errorf("%s: %d bytes in and %d out, want %d and %d", a.id, a.in.Load(), a.out.Load(), in, out)
				}
				if a.connects.Load() != 1 || a.connects.Load()-a.disconnects.Load() != open {
					t.Errorf("%s: %d connects, %d disconnects", a.id, a.connects.Load(), a.disconnects.Load())
				}
			}
			check(shop, 10_000, 2_000_000, 1)
			exchange(t, client, c, 7)
			other := c.Flow().For("other")
			exchange(t, client, c, 11)
			exchange(t, c, client, 13)
			end(client, c)
			check(shop, 10_007, 2_000_000, 0)
			check(other, 11, 13, 0)
			if len(table.flows) != 0 {
				t.Errorf("%d flows are left", len(table.flows))
			}
			if a := c.Flow().For("late"); a.connects.Load() != 0 {
				t.Error("what has ended is counted")
			}
		})
	}
}

// BenchmarkRequest is what counting adds to a request: an answer of the edge and one of the
// Machine, each with a look at the clock.
func BenchmarkRequest(b *testing.B) {
	table, m := NewTable(), new(Machine)
	f := table.NewFlow(func() (in, out uint64) { return 0, 0 })
	f.For("0123456789abcdef")
	start := time.Now()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		id := hangar.AppID("0123456789abcdef")
		for pb.Next() {
			m.Response(200, time.Since(start))
			f.For(id)
			f.For(id).Response(200, time.Since(start))
		}
	})
}

// BenchmarkConnection is what counting adds to a connection of a client.
func BenchmarkConnection(b *testing.B) {
	table := NewTable()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	conn, err := l.Accept()
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	b.ReportAllocs()
	for b.Loop() {
		c := table.Count(conn.(*net.TCPConn))
		c.Flow().For("0123456789abcdef")
		c.Flow().End()
	}
}
