package gvisor_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/driver/gvisor"
	"github.com/hangar-platform/hangar/internal/finish/finishtest"
)

// BenchmarkStart measures until the main process runs; reply-ms is the time until the first answer
// of an HTTP server in the Machine. Starts are some time apart, so that an engine waits for each.
func BenchmarkStart(b *testing.B) {
	d := open(b)
	var running, reply []float64
	for b.Loop() {
		time.Sleep(300 * time.Millisecond)
		began := time.Now()
		s := serve(b, d, 0)
		running = append(running, milliseconds(began))
		conn := s.dial()
		s.ask(conn, 1, 2)
		reply = append(reply, milliseconds(began))
		_ = conn.Close()
		if err := d.Destroy(finishtest.Context(b), s.spec.ID, s.spec.Dir); err != nil {
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

// BenchmarkSuspend measures suspend and resume, with the first answer, by size of the state.
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

// BenchmarkProcesses measures the list of a Machine that listens.
func BenchmarkProcesses(b *testing.B) {
	d := open(b)
	s := serve(b, d, 0)
	_ = s.dial().Close()
	for b.Loop() {
		ps, err := d.Processes(b.Context(), s.handle)
		if err != nil || len(ps) != 1 || len(ps[0].ListenSockets) != 1 {
			b.Fatal(ps, err)
		}
	}
}

// cores returns how many cores the Machine uses, over a second.
func cores(b *testing.B, d *gvisor.Driver, h driver.Handle) float64 {
	b.Helper()
	used := func() time.Duration {
		s, err := d.Stats(b.Context(), h)
		if err != nil {
			b.Fatal(err)
		}
		return s.CPUTime
	}
	before, began := used(), time.Now()
	time.Sleep(time.Second)
	return float64(used()-before) / float64(time.Since(began))
}

// BenchmarkIdle measures the cost of an idle Machine: an HTTP server without callers. Each
// operation takes a second.
func BenchmarkIdle(b *testing.B) {
	d := open(b)
	s := serve(b, d, 0)
	_ = s.dial().Close()
	var used, memory []float64
	for b.Loop() {
		used = append(used, 1000*cores(b, d, s.handle))
		st, err := d.Stats(b.Context(), s.handle)
		if err != nil {
			b.Fatal(err)
		}
		memory = append(memory, float64(st.MemoryBytes)/(1<<20))
	}
	slices.Sort(used)
	slices.Sort(memory)
	b.ReportMetric(used[len(used)/2], "millicores")
	b.ReportMetric(memory[len(memory)/2], "MiB")
}

// BenchmarkQuota measures how much processor time a Machine with one core gets if it wants four.
// Each operation takes a second.
func BenchmarkQuota(b *testing.B) {
	d := open(b)
	m := boot(b, d, newSpec(b, "busy", "4"))
	m.line()
	var used []float64
	for b.Loop() {
		used = append(used, cores(b, d, m.handle))
	}
	slices.Sort(used)
	b.ReportMetric(used[len(used)/2], "cores")
}

// BenchmarkUsage measures the usage of a Machine, which the host reads every few seconds.
func BenchmarkUsage(b *testing.B) {
	d := open(b)
	m := boot(b, d, newSpec(b, "sleep"))
	m.line()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := d.Usage(b.Context(), m.handle); err != nil {
			b.Fatal(err)
		}
	}
}
