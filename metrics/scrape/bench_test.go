package scrape_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/metrics"
	"github.com/hangar-platform/hangar/metrics/metricstest"
	"github.com/hangar-platform/hangar/metrics/remote"
	"github.com/hangar-platform/hangar/metrics/scrape"
)

// sink is a metrics.Store that takes everything over a Unix socket.
type sink struct{ client *http.Client }

func (s sink) Client() *http.Client             { return s.client }
func (s sink) QueryURL(metrics.Tenant) string   { return "" }
func (s sink) WriteURL(t metrics.Tenant) string { return "http://store/" + string(t.Org) }

func openSink(b *testing.B) sink {
	b.Helper()
	name := filepath.Join(b.TempDir(), "s")
	l, err := net.Listen("unix", name)
	if err != nil {
		b.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusNoContent)
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", name)
	}}
	b.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = server.Close()
		<-done
	})
	return sink{&http.Client{Transport: transport}}
}

// exporter answers every request with the same 50 series, of which values change.
func exporter(b *testing.B, i int) net.Addr {
	b.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer conn.Close()
				request := make([]byte, 4<<10)
				var body, answer bytes.Buffer
				for round := 0; ; round++ {
					if n, err := conn.Read(request); err != nil || !bytes.HasSuffix(request[:n], []byte("\r\n\r\n")) {
						return
					}
					body.Reset()
					body.WriteString("# HELP http_requests_total Requests.\n# TYPE http_requests_total counter\n")
					for s := range 50 {
						body.WriteString(`http_requests_total{method="GET",code="200",path="/api/v1/things/`)
						body.WriteString(strconv.Itoa(s))
						body.WriteString("\"} ")
						body.WriteString(strconv.Itoa(round*s + i))
						body.WriteByte('\n')
					}
					answer.Reset()
					fmt.Fprintf(&answer, "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: %d\r\n\r\n", body.Len())
					answer.Write(body.Bytes())
					if _, err := conn.Write(answer.Bytes()); err != nil {
						return
					}
				}
			})
		}
	})
	b.Cleanup(func() { _ = l.Close(); conns.Wait() })
	return l.Addr()
}

// cpu is the processor time of this process.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkScrape scrapes 2000 Machines of 100 organizations, 50 series each, and writes what
// they say by remote write to a server that drops it. The Machines are in this process, so
// their share is in the processor time. core% is of one core, at a round in metrics.Interval.
func BenchmarkScrape(b *testing.B) {
	const machines, orgs, series = 2000, 100, 50
	addrs := make(map[hangar.MachineID]string, machines)
	var targets []scrape.Target
	for i := range machines {
		t := target(fmt.Sprintf("org%02d", i%orgs), fmt.Sprintf("%014x", i))
		addrs[t.Machine.ID] = exporter(b, i).String()
		targets = append(targets, t)
	}
	w := remote.New(remote.Options{Store: openSink(b), Dir: b.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if err := w.Open(); err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	var running sync.WaitGroup
	running.Go(func() { w.Run(ctx) })
	s := scrape.New(scrape.Options{
		Targets: func() iter.Seq[scrape.Target] { return slices.Values(targets) },
		Dial: func(ctx context.Context, m hangar.MachineRef, network string, _ int) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, addrs[m.ID])
		},
		Writer: w, Tell: func(hangar.MachineRef, string, string) {},
	})
	s.Round(ctx, 4) // connects
	before, rounds := cpu(b), 0
	for b.Loop() {
		s.Round(ctx, 4)
		rounds++
	}
	used := (cpu(b) - before) / time.Duration(rounds)
	b.ReportMetric(float64(used)/1e6, "cpu-ms/round")
	b.ReportMetric(100*float64(used)/float64(metrics.Interval), "core%")
	b.ReportMetric(float64(used)/(machines*series), "cpu-ns/sample")
	if got := metricstest.Value(b, s, "hangar_scrape_series", ""); got != machines*series {
		b.Errorf("there are %v series, want %d", got, machines*series)
	}
	s.Drop()
	cancel()
	running.Wait()
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
}
