package check_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/check"
)

// pipes are Machines that answer at once, and count.
type pipes struct {
	http bool
	runs atomic.Int64
}

func (p *pipes) Dial(context.Context, hangar.MachineID, int) (net.Conn, error) {
	p.runs.Add(1)
	near, far := net.Pipe()
	if !p.http {
		_ = far.Close()
		return near, nil
	}
	go func() {
		defer far.Close()
		if r, err := http.ReadRequest(bufio.NewReader(far)); err == nil {
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(far, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
		}
	}()
	return near, nil
}

// BenchmarkRun is what one run costs with 1,000 Machines that have two checks each,
// and what the Machines take in memory.
func BenchmarkRun(b *testing.B) {
	for _, kind := range []string{"tcp", "http"} {
		b.Run(kind, func(b *testing.B) {
			p := &pipes{http: kind == "http"}
			c := check.New(check.Options{Dialer: p, Now: time.Now, Changed: func(hangar.MachineID, check.Change) {}})
			ctx, cancel := context.WithCancel(b.Context())
			done := make(chan struct{})
			go func() { defer close(done); c.Run(ctx) }()
			defer func() { cancel(); <-done }()
			spec := hangar.NamedCheck{
				Type: kind, Port: 80, Method: http.MethodGet, Path: "/", Interval: 15 * time.Second, Timeout: 2 * time.Second, Grace: time.Hour,
			}
			checks := []hangar.NamedCheck{spec, spec}
			checks[0].Name, checks[1].Name = "one", "two"
			watch := func(booted time.Time) {
				for i := range 1000 {
					c.Watch(check.Target{
						Machine: hangar.MachineID(fmt.Sprintf("%014x", i)), Addr: netip.MustParseAddr("fdaa::2"), Checks: checks, Booted: booted,
					})
				}
			}
			before, goroutines := heap(), runtime.NumGoroutine()
			watch(time.Now())
			took, more := heap()-before, runtime.NumGoroutine()-goroutines
			b.ResetTimer()
			for p.runs.Load() < int64(b.N) {
				started := p.runs.Load()
				watch(time.Time{}) // every check is due
				for p.runs.Load() < min(started+2000, int64(b.N)) {
					runtime.Gosched()
				}
			}
			b.ReportMetric(float64(took)/1000, "B/machine")
			b.ReportMetric(float64(more), "goroutines/1000machines")
		})
	}
}

// heap is what is in use, in bytes.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
