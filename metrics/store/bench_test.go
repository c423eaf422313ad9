package store_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/pause"
	"github.com/hangar-platform/hangar/metrics"
	"github.com/hangar-platform/hangar/metrics/metricstest"
	"github.com/hangar-platform/hangar/metrics/store"
)

// answer asks until the store answers.
func answer(b *testing.B, s *metricstest.Store) {
	b.Helper()
	for {
		if _, _, err := metricstest.Query(b.Context(), s, org, "up", time.Now()); err == nil {
			return
		}
		if pause.For(b.Context(), time.Millisecond) != nil {
			b.Fatal("no answer")
		}
	}
}

// reportMemory reports the private memory of the child, in MB.
func reportMemory(b *testing.B, s *metricstest.Store) {
	b.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", s.PID()))
	if err != nil {
		b.Fatal(err)
	}
	kilobytes := 0
	for line := range strings.Lines(string(raw)) {
		var n int
		if _, err := fmt.Sscanf(line, "Private_Dirty: %d kB", &n); err == nil {
			kilobytes += n
		}
	}
	b.ReportMetric(float64(kilobytes)/1000, "private-MB")
}

func fill(b *testing.B, s *metricstest.Store, series int) {
	b.Helper()
	now := time.Now()
	for first := 0; first < series; first += 500 {
		samples := make([]metrics.Sample, 500)
		for i := range samples {
			samples[i] = metricstest.Sample("filled", 1, now, "app", fmt.Sprint(first/50), "instance", fmt.Sprint(first+i))
		}
		metricstest.Write(b, s, org, samples...)
	}
	metricstest.Await(b, s, org, "count(filled)", now, float64(series))
}

// BenchmarkFirstAnswer is the time from the first query of a daemon to its answer, with a store of
// so many series, and the memory of the child then.
func BenchmarkFirstAnswer(b *testing.B) {
	for _, series := range []int{0, 100_000} {
		b.Run(fmt.Sprintf("series=%d", series), func(b *testing.B) {
			dir := filepath.Join(b.TempDir(), "data")
			in := func(o *store.Options) { o.Dir = dir }
			if series > 0 {
				s := metricstest.Start(b, in)
				fill(b, s, series)
				reportMemory(b, s)
				if err := s.Close(); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				b.StopTimer()
				s := metricstest.Start(b, in)
				b.StartTimer()
				answer(b, s)
				b.StopTimer()
				reportMemory(b, s)
				if err := s.Close(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}

// BenchmarkAnswerAfterKill is the time from a kill -9 of the child to the answer of a query.
func BenchmarkAnswerAfterKill(b *testing.B) {
	for _, series := range []int{0, 100_000} {
		b.Run(fmt.Sprintf("series=%d", series), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				s := metricstest.Start(b)
				answer(b, s)
				if series > 0 {
					fill(b, s, series)
				}
				pid := s.PID()
				b.StartTimer()
				if err := unix.Kill(pid, unix.SIGKILL); err != nil {
					b.Fatal(err)
				}
				answer(b, s)
				for s.PID() == pid {
					answer(b, s) // it was the one that was killed
				}
				b.StopTimer()
				if err := s.Close(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}
