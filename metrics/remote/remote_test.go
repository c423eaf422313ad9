package remote_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/snappy"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/metrics"
	"github.com/hangar-platform/hangar/metrics/metricstest"
	"github.com/hangar-platform/hangar/metrics/remote"
)

// doomedEnv names the directory of a spool that a process writes to until it is killed.
const doomedEnv = "HANGAR_TEST_SPOOL"

func TestMain(m *testing.M) {
	if dir := os.Getenv(doomedEnv); dir != "" {
		writeUntilKilled(dir)
	}
	goleak.VerifyTestMain(m)
}

var (
	alpha = metrics.Tenant{Org: "alpha", Number: 1}
	beta  = metrics.Tenant{Org: "beta", Number: 2}
	gamma = metrics.Tenant{Org: "gamma", Number: 3}
)

// store is a metrics.Store that records written samples.
type store struct {
	// answer returns the status of a request; nil: all are accepted.
	answer func(ctx context.Context, tenant string, samples []metrics.Sample) (status int, err error)

	shares bool // it takes requests of several tenants, of which the tenant is "" above

	mu       sync.Mutex
	got      map[string][]metrics.Sample // by tenant
	requests []string                    // tenants
}

func (s *store) Client() *http.Client { return &http.Client{Transport: s} }

func (s *store) QueryURL(metrics.Tenant) string { return "" }

func (s *store) WriteURL(t metrics.Tenant) string { return "http://store/" + string(t.Org) }

func (s *store) SharedWriteURL() string {
	if !s.shares {
		return ""
	}
	return "http://store/"
}

func (s *store) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	if r.Header.Get("Content-Encoding") != "snappy" || r.Header.Get("Content-Type") != "application/x-protobuf" ||
		r.Header.Get("X-Prometheus-Remote-Write-Version") != "0.1.0" || r.Method != http.MethodPost {
		return nil, fmt.Errorf("headers %v", r.Header)
	}
	raw, err := snappy.Decode(nil, body)
	if err != nil {
		return nil, err
	}
	samples := decode(raw)
	tenant := strings.TrimPrefix(r.URL.Path, "/")
	status := http.StatusNoContent
	if s.answer != nil {
		if status, err = s.answer(r.Context(), tenant, samples); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, tenant)
	if status/100 == 2 {
		if s.got == nil {
			s.got = make(map[string][]metrics.Sample)
		}
		if tenant != "" {
			s.got[tenant] = append(s.got[tenant], samples...)
			samples = nil
		}
		for _, x := range samples {
			s.got[owner(x)] = append(s.got[owner(x)], x)
		}
	}
	return &http.Response{StatusCode: status, Body: http.NoBody, Request: r}, nil
}

// owner returns the only metrics.OrgLabel of a sample.
func owner(x metrics.Sample) string {
	found := ""
	for _, l := range x.Labels {
		if l.Name == metrics.OrgLabel {
			if found != "" {
				panic("a series is of two tenants")
			}
			found = l.Value
		}
	}
	return found
}

// values returns the values that the store has of a tenant, in order.
func (s *store) values(tenant metrics.Tenant) []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []int
	for _, x := range s.got[string(tenant.Org)] {
		list = append(list, int(x.Value))
	}
	return list
}

func (s *store) order() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// fields calls each for the fields of a message.
func fields(b []byte, each func(n protowire.Number, bytes []byte, number uint64)) {
	for len(b) > 0 {
		n, kind, size := protowire.ConsumeTag(b)
		b = b[size:]
		switch kind {
		case protowire.BytesType:
			v, size := protowire.ConsumeBytes(b)
			each(n, v, 0)
			b = b[size:]
		case protowire.Fixed64Type:
			v, size := protowire.ConsumeFixed64(b)
			each(n, nil, v)
			b = b[size:]
		case protowire.VarintType:
			v, size := protowire.ConsumeVarint(b)
			each(n, nil, v)
			b = b[size:]
		default:
			panic("a type that remote write does not have")
		}
	}
}

func decode(b []byte) (list []metrics.Sample) {
	fields(b, func(_ protowire.Number, series []byte, _ uint64) {
		var s metrics.Sample
		fields(series, func(n protowire.Number, inner []byte, _ uint64) {
			if n == 2 {
				fields(inner, func(n protowire.Number, _ []byte, v uint64) {
					if n == 1 {
						s.Value = math.Float64frombits(v)
					} else {
						s.Time = int64(v)
					}
				})
				return
			}
			var l metrics.Label
			fields(inner, func(n protowire.Number, text []byte, _ uint64) {
				if n == 1 {
					l.Name = string(text)
				} else {
					l.Value = string(text)
				}
			})
			s.Labels = append(s.Labels, l)
		})
		list = append(list, s)
	})
	return list
}

// numbered returns samples with consecutive values starting at first.
func numbered(first, n int) []metrics.Sample {
	list := make([]metrics.Sample, n)
	for i := range list {
		list[i] = metrics.Sample{
			Labels: []metrics.Label{{Name: metrics.NameLabel, Value: "m"}, {Name: "i", Value: strconv.Itoa(first + i)}},
			Value:  float64(first + i), Time: int64(first + i),
		}
	}
	return list
}

func upTo(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	return list
}

func open(t *testing.T, o remote.Options) *remote.Writer {
	t.Helper()
	o.Log = slog.New(slog.DiscardHandler)
	w := remote.New(o)
	if err := w.Open(); err != nil {
		t.Fatal(err)
	}
	return w
}

// run runs a Writer until the test ends, or the returned function is called.
func run(t *testing.T, w *remote.Writer) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return stop
}

func write(t *testing.T, w *remote.Writer, tenant metrics.Tenant, samples []metrics.Sample) {
	t.Helper()
	if err := w.Write(t.Context(), tenant, samples); err != nil {
		t.Fatal(err)
	}
}

func TestSamplesArriveAsTheyWere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		w := open(t, remote.Options{Store: s, Dir: t.TempDir()})
		run(t, w)
		sent := []metrics.Sample{
			{Labels: []metrics.Label{{Name: metrics.NameLabel, Value: "a"}, {Name: "empty", Value: ""}, {Name: "text", Value: "ä\"\n" + strings.Repeat("x", 300)}}, Value: -1.5, Time: 1_800_000_000_123},
			{Labels: []metrics.Label{{Name: metrics.NameLabel, Value: "b"}}, Value: math.Inf(1), Time: 0},
			{Labels: []metrics.Label{{Name: metrics.NameLabel, Value: "c"}}, Value: metrics.Stale(), Time: -5},
			{Labels: []metrics.Label{{Name: metrics.NameLabel, Value: "d"}}, Value: math.NaN(), Time: 1},
		}
		write(t, w, alpha, sent)
		write(t, w, alpha, nil)
		synctest.Wait()
		got := s.got["alpha"]
		if len(got) != len(sent) || len(s.got) != 1 || len(s.order()) != 1 {
			t.Fatalf("%d samples in %d requests", len(got), len(s.order()))
		}
		for i := range sent {
			if !slices.Equal(got[i].Labels, sent[i].Labels) || math.Float64bits(got[i].Value) != math.Float64bits(sent[i].Value) || got[i].Time != sent[i].Time {
				t.Errorf("%+v has become %+v", sent[i], got[i])
			}
		}
		if !metrics.IsStale(got[2].Value) || metrics.IsStale(got[3].Value) {
			t.Error("markers of staleness do not arrive as such")
		}
	})
}

func TestATenantWithoutAValidIDIsRefused(t *testing.T) {
	w := open(t, remote.Options{Store: &store{}, Dir: t.TempDir()})
	for _, org := range []hangar.OrgID{"", "../x", "a/b", "a.b", "ä", hangar.OrgID(strings.Repeat("a", 65))} {
		if err := w.Write(t.Context(), metrics.Tenant{Org: org}, numbered(0, 1)); hangar.CodeOf(err) != hangar.CodeInvalid {
			t.Errorf("%q: %v", org, err)
		}
	}
}

var errGone = errors.New("connection refused")

func TestTheSpoolKeepsTheOrderWhileTheStoreIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := true
		var mu sync.Mutex
		s := &store{}
		s.answer = func(context.Context, string, []metrics.Sample) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			if down {
				return 0, errGone
			}
			return 204, nil
		}
		w := open(t, remote.Options{Store: s, Dir: t.TempDir()})
		run(t, w)
		for i := range 300 {
			write(t, w, alpha, numbered(10*i, 10))
			write(t, w, beta, numbered(i, 1))
			time.Sleep(time.Second)
		}
		if n := metricstest.Value(t, w, "hangar_remote_spool_bytes", ""); n == 0 {
			t.Error("the spool is empty")
		}
		if n := metricstest.Value(t, w, "hangar_remote_requests_total", "away"); n < 5 || n > 20 {
			t.Errorf("the store was tried %v times in 300 s", n)
		}
		mu.Lock()
		down = false
		mu.Unlock()
		time.Sleep(time.Minute)
		write(t, w, alpha, numbered(3000, 1))
		time.Sleep(time.Second)
		if got := s.values(alpha); !slices.Equal(got, upTo(3001)) {
			t.Errorf("%d samples, not the written ones in order", len(got))
		}
		if got := s.values(beta); !slices.Equal(got, upTo(300)) {
			t.Errorf("%d samples of the other tenant", len(got))
		}
		for _, name := range []string{"hangar_remote_spool_bytes", "hangar_remote_pending_bytes", "hangar_remote_waiting_tenants", "hangar_remote_store_away"} {
			if n := metricstest.Value(t, w, name, ""); n != 0 {
				t.Errorf("%s is %v in the end", name, n)
			}
		}
	})
}

func TestWhatIsPendingAtTheEndIsSentByTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, dir := &store{}, t.TempDir()
		w := open(t, remote.Options{Store: s, Dir: dir})
		write(t, w, alpha, numbered(0, 20_000)) // several batches
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := w.Write(t.Context(), alpha, numbered(0, 1)); hangar.CodeOf(err) != hangar.CodeUnavailable {
			t.Errorf("a write after Close: %v", err)
		}
		w = open(t, remote.Options{Store: s, Dir: dir})
		write(t, w, alpha, numbered(20_000, 10))
		stop := run(t, w)
		synctest.Wait()
		if got := s.values(alpha); !slices.Equal(got, upTo(20_010)) {
			t.Errorf("%d samples", len(got))
		}
		stop()
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("the spool has %v, %v", left, err)
		}
	})
}

func TestWhatTheStoreCallsInvalidIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		s.answer = func(_ context.Context, _ string, samples []metrics.Sample) (int, error) {
			if samples[0].Value == 1 {
				return http.StatusBadRequest, nil
			}
			return http.StatusOK, nil
		}
		w := open(t, remote.Options{Store: s, Dir: t.TempDir()})
		run(t, w)
		for i := range 3 {
			write(t, w, alpha, numbered(i, 1))
			synctest.Wait()
		}
		if got := s.values(alpha); !slices.Equal(got, []int{0, 2}) {
			t.Errorf("the store has %v", got)
		}
		if n, of := metricstest.Value(t, w, "hangar_remote_dropped_samples_total", "invalid"), len(s.order()); n != 1 || of != 3 {
			t.Errorf("%v samples are dropped in %d requests", n, of)
		}
	})
}

func TestAFailingStoreIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		left := 3
		s.answer = func(_ context.Context, tenant string, _ []metrics.Sample) (int, error) {
			if tenant == "alpha" && left > 0 {
				left--
				return []int{503, 429, 500}[left], nil
			}
			return 204, nil
		}
		w := open(t, remote.Options{Store: s, Dir: t.TempDir()})
		run(t, w)
		write(t, w, alpha, numbered(0, 1))
		synctest.Wait()
		write(t, w, alpha, numbered(1, 1))
		write(t, w, beta, numbered(0, 1))
		synctest.Wait()
		if got := s.values(beta); !slices.Equal(got, upTo(1)) {
			t.Errorf("the failures of one tenant hold up another: %v", got)
		}
		time.Sleep(time.Minute)
		if got := s.values(alpha); !slices.Equal(got, upTo(2)) {
			t.Errorf("the store has %v", got)
		}
	})
}

// TestABatchThatOnlyFailsIsGivenUp: the store answers 500 to one batch and accepts all others.
func TestABatchThatOnlyFailsIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		s.answer = func(_ context.Context, tenant string, samples []metrics.Sample) (int, error) {
			if tenant == "alpha" && samples[0].Value == 0 {
				return 500, nil
			}
			return 204, nil
		}
		w := open(t, remote.Options{Store: s, Dir: t.TempDir()})
		run(t, w)
		write(t, w, alpha, numbered(0, 1))
		time.Sleep(time.Hour)
		if n := len(s.order()); n < 100 {
			t.Errorf("a batch is given up after %d failures, though the store takes nothing", n)
		}
		write(t, w, beta, numbered(0, 1))
		time.Sleep(time.Hour)
		if n := metricstest.Value(t, w, "hangar_remote_dropped_samples_total", "invalid"); n != 1 {
			t.Errorf("%v samples are dropped", n)
		}
		write(t, w, alpha, numbered(1, 1))
		synctest.Wait()
		if got := s.values(alpha); !slices.Equal(got, []int{1}) {
			t.Errorf("the store has %v", got)
		}
	})
}

// TestABacklogDelaysNobodyElse: while one tenant's spool is sent, another's sample waits at most
// one turn of each sender.
func TestABacklogDelaysNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, dir := &store{}, t.TempDir()
		w := open(t, remote.Options{Store: s, Dir: dir})
		for i := range 100 {
			write(t, w, alpha, numbered(1000*i, 1000))
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		s.answer = func(ctx context.Context, _ string, _ []metrics.Sample) (int, error) {
			time.Sleep(time.Second) // the store is slow
			return 204, ctx.Err()
		}
		w = open(t, remote.Options{Store: s, Dir: dir, Limits: remote.Limits{Senders: 1}})
		stop := run(t, w)
		time.Sleep(2500 * time.Millisecond) // the third request is on its way
		write(t, w, beta, numbered(0, 1))
		write(t, w, gamma, numbered(0, 1))
		time.Sleep(3 * time.Second)
		if got := s.order(); !slices.Equal(got, []string{"alpha", "alpha", "alpha", "beta", "gamma"}) {
			t.Errorf("requests of %v", got)
		}
		time.Sleep(10 * time.Minute)
		stop()
		if got := s.values(alpha); !slices.Equal(got, upTo(100_000)) {
			t.Errorf("%d samples", len(got))
		}
	})
}

// noise is a sample that does not compress.
func noise(i int) []metrics.Sample { return noiseOf(i, 4000) }

func noiseOf(i, size int) []metrics.Sample {
	var b strings.Builder
	x := uint64(i)*0x9E3779B97F4A7C15 + 1
	for b.Len() < size {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b.WriteByte('!' + byte(x%90))
	}
	s := numbered(i, 1)
	s[0].Labels = append(s[0].Labels, metrics.Label{Name: "noise", Value: b.String()})
	return s
}

// await returns once a metric has a value.
func await(t *testing.T, w *remote.Writer, name, label string, want float64) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for metricstest.Value(t, w, name, label) != want {
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatalf("%s is %v, not %v", name, metricstest.Value(t, w, name, label), want)
		}
	}
}

func TestTheLogIsNotFlooded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines lineCount
		s := &store{answer: func(context.Context, string, []metrics.Sample) (int, error) { return 0, errGone }}
		w := remote.New(remote.Options{
			Store: s, Dir: t.TempDir(), Admit: func(int64) error { return unix.ENOSPC },
			Log: slog.New(slog.NewTextHandler(&lines, nil)),
		})
		if err := w.Open(); err != nil {
			t.Fatal(err)
		}
		run(t, w)
		for i := range 600 {
			write(t, w, alpha, numbered(i, 1))
			time.Sleep(time.Second)
		}
		if lines.n > 15 {
			t.Errorf("%d lines in ten minutes", lines.n)
		}
	})
}

type lineCount struct{ n int }

func (l *lineCount) Write(b []byte) (int, error) { l.n++; return len(b), nil }
