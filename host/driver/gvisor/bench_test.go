package gvisor_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

// BenchmarkStart measures until the main process runs; reply-ms is until the first
// answer of an HTTP server in the Machine.
func BenchmarkStart(b *testing.B) {
	d := open(b)
	var running, reply []float64
	for b.Loop() {
		began := time.Now()
		s := serve(b, d, 0)
		running = append(running, milliseconds(began))
		conn := s.dial()
		s.ask(conn, 1, 2)
		reply = append(reply, milliseconds(began))
		_ = conn.Close()
		if err := d.Destroy(b.Context(), s.spec.ID, s.spec.Dir); err != nil {
			b.Fatal(err)
		}
	}
	report(b, "running", running)
	report(b, "reply", reply)
}

func milliseconds(since time.Time) float64 { return float64(time.Since(since).Microseconds()) / 1000 }

// report adds the median, and the minimum, which other work on the host disturbs
// least.
func report(b *testing.B, what string, ms []float64) {
	b.Helper()
	slices.Sort(ms)
	b.ReportMetric(ms[len(ms)/2], what+"-p50-ms")
	b.ReportMetric(ms[0], what+"-min-ms")
}

// BenchmarkSuspend measures both ways, with the first answer, by size of the state.
func BenchmarkSuspend(b *testing.B) {
	for _, mb := range []int{16, 256, 1024} {
		b.Run(fmt.Sprintf("%dMB", mb), func(b *testing.B) {
			s := serve(b, open(b), mb)
			conn := s.dial()
			defer conn.Close()
			n, length := 0, 0
			ask := func() {
				n++
				length += len(fmt.Sprint(n)) + 1
				s.ask(conn, n, length)
			}
			ask()
			var suspend, resume []float64
			for b.Loop() {
				began := time.Now()
				dir := s.suspend()
				suspend = append(suspend, milliseconds(began))
				began = time.Now()
				s.resume(dir)
				resume = append(resume, milliseconds(began))
				ask() // checksums all of the memory
			}
			report(b, "suspend", suspend)
			report(b, "resume", resume)
		})
	}
}

// BenchmarkExec measures a command that does nothing.
func BenchmarkExec(b *testing.B) {
	d := open(b)
	s := serve(b, d, 0)
	for b.Loop() {
		if _, err := d.Exec(b.Context(), s.handle, command("exit", "0"), hangar.ExecStreams{}); err != nil {
			b.Fatal(err)
		}
	}
}
