package store_test

import (
	"bufio"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/diskspace/disktest"
	"github.com/hangar-platform/hangar/internal/pause"
	"github.com/hangar-platform/hangar/metrics"
	"github.com/hangar-platform/hangar/metrics/metricstest"
	"github.com/hangar-platform/hangar/metrics/store"
)

var org = metricstest.Tenant("org1", 1)

// TestIdleStoreHasNoChild: neither Open nor Close starts the program.
func TestIdleStoreHasNoChild(t *testing.T) {
	s := metricstest.Start(t, func(o *store.Options) {
		o.Program = func(context.Context) (string, error) {
			t.Error("the program was looked for")
			return "", errors.New("unused")
		}
	})
	if up := metricstest.Value(t, s, "hangar_metrics_store_up", ""); s.PID() != 0 || s.Err() != nil || up != 0 {
		t.Errorf("process %d, %v, up %v", s.PID(), s.Err(), up)
	}
}

// TestDataOutlivesStore: samples written just before Close exist after the directory is opened
// again.
func TestDataOutlivesStore(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	in := func(o *store.Options) { o.Dir = dir }
	first, now := metricstest.Start(t, in), time.Now()
	metricstest.Write(t, first, org, metricstest.Sample("kept", 42, now))
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := metricstest.Post(t.Context(), first, org, nil); hangar.CodeOf(err) != hangar.CodeUnavailable {
		t.Errorf("a write after Close answers %v", err)
	}
	metricstest.Await(t, metricstest.Start(t, in), org, "kept", now, 42)
}

// TestClockSetBack: what is later than the clock is kept, since the clock may be wrong.
func TestClockSetBack(t *testing.T) {
	s, later := metricstest.Start(t), time.Now().Add(40*24*time.Hour)
	metricstest.Write(t, s, org, metricstest.Sample("later", 42, later))
	metricstest.Await(t, s, org, "later", later, 42)
}

// TestRest: a resting store has no child until the next request, and still has its data.
func TestRest(t *testing.T) {
	s, now := metricstest.Start(t), time.Now()
	s.Rest() // there is nothing to end yet
	for i := range 2 {
		metricstest.Write(t, s, org, metricstest.Sample("kept", float64(40+i), now))
		metricstest.Await(t, s, org, "kept", now, float64(40+i))
		if s.PID() == 0 {
			t.Error("there is no child")
		}
		s.Rest()
		if s.PID() != 0 || s.Err() != nil {
			t.Errorf("a store that rests has process %d, %v", s.PID(), s.Err())
		}
		now = now.Add(time.Second)
	}
	metricstest.Await(t, s, org, "kept", now.Add(-2*time.Second), 40)
}

// TestStoreServesNothingElse: functions of VictoriaMetrics that the gateway does not need are
// disabled, and the others need a tenant.
func TestStoreServesNothingElse(t *testing.T) {
	s := metricstest.Start(t)
	for _, c := range []struct {
		path   string
		status int
	}{
		{"/ready", http.StatusNoContent},
		{"/prometheus/api/v1/labels?extra_label=__org__=a", http.StatusOK},
		{"/prometheus/api/v1/labels", http.StatusBadRequest},
		{"/prometheus/api/v1/labels?extra_label=app=a", http.StatusBadRequest},
		{"/prometheus/api/v1/labels?extra_label=__org__=a&extra_label=__org__=b", http.StatusBadRequest},
		{"/prometheus/api/v1/write", http.StatusBadRequest},
		{"/prometheus/api/v1/write?extra_label=__org__=a", http.StatusNotFound}, // by GET
		{"/api/v1/labels?extra_label=__org__=a", http.StatusNotFound},
		{"/prometheus/api/v1/series/count?extra_label=__org__=a", http.StatusNotFound},
		{"/prometheus/api/v1/export?extra_label=__org__=a&match[]=x", http.StatusNotFound},
		{"/prometheus/api/v1/status/top_queries?extra_label=__org__=a", http.StatusNotFound},
		{"/prometheus/api/v1/admin/tsdb/delete_series?extra_label=__org__=a&match[]=x", http.StatusNotFound},
		{"/prometheus/api/v1/import/prometheus?extra_label=__org__=a", http.StatusNotFound},
		{"/internal/force_flush", http.StatusNotFound},
		{"/snapshot/create", http.StatusNotFound},
		{"/metrics", http.StatusNotFound},
		{"/", http.StatusNotFound},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://store"+c.path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := s.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != c.status {
			t.Errorf("%s answers %d, want %d", c.path, resp.StatusCode, c.status)
		}
	}
}

// TestSharedWrites: each series goes to the tenant that it names. A request with a series that
// names none or several stores nothing.
func TestSharedWrites(t *testing.T) {
	s := metricstest.Start(t)
	now := time.Now()
	first, second := metricstest.Tenant("org1", 1), metricstest.Tenant("org2", 2)
	for name, bad := range map[string]metrics.Sample{
		"none":      metricstest.Sample("bad", 1, now),
		"nobody":    metricstest.Sample("bad", 1, now, metrics.OrgLabel, ""),
		"two":       metricstest.Sample("bad", 1, now, metrics.OrgLabel, "org1", metrics.OrgLabel, "org2"),
		"one twice": metricstest.Sample("bad", 1, now, metrics.OrgLabel, "org1", metrics.OrgLabel, "org1"),
		"and none":  metricstest.Sample("bad", 1, now, metrics.OrgLabel, "org1", metrics.OrgLabel, ""),
	} {
		status, err := metricstest.PostShared(t.Context(), s, []metrics.Sample{metricstest.Sample("bad", 1, now, metrics.OrgLabel, "org1"), bad})
		if err != nil || status != http.StatusBadRequest {
			t.Errorf("a series that names %s is answered with %d, %v", name, status, err)
		}
	}
	status, err := metricstest.PostShared(t.Context(), s, []metrics.Sample{
		metricstest.Sample("good", 1, now, metrics.OrgLabel, "org1"), metricstest.Sample("good", 2, now, metrics.OrgLabel, "org2"),
	})
	if err != nil || status != http.StatusNoContent {
		t.Fatalf("a shared write is answered with %d, %v", status, err)
	}
	metricstest.Await(t, s, first, "good", now, 1)
	metricstest.Await(t, s, second, "good", now, 2)
	for _, tenant := range []metrics.Tenant{first, second} {
		if value, ok, err := metricstest.Query(t.Context(), s, tenant, "count(bad)", now); ok || err != nil {
			t.Errorf("of requests that were refused %s has %v series, %v", tenant.Org, value, err)
		}
	}
	for _, method := range []string{http.MethodGet, http.MethodPut} {
		r, err := http.NewRequestWithContext(t.Context(), method, s.SharedWriteURL(), http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := s.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s answers %d", method, resp.StatusCode)
		}
	}
}

// kill kills the child with SIGKILL, as a crash would, and waits until it has ended.
func kill(t *testing.T, s *metricstest.Store) {
	t.Helper()
	pid := s.PID()
	if pid == 0 {
		t.Fatal("there is no child")
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for s.PID() == pid {
		if pause.For(t.Context(), time.Millisecond) != nil {
			t.Fatal("the child is still there")
		}
	}
}

// TestKilledStoreLosesTheNewestAlone writes a sample each 100 ms, kills the child, and checks the
// rest: only some of the last seconds may be missing, and everything else is as written.
func TestKilledStoreLosesTheNewestAlone(t *testing.T) {
	const (
		lossWindow = 20 * time.Second
		every      = 100 * time.Millisecond
		total      = 250
	)
	s := metricstest.Start(t)
	acknowledged := make([]time.Time, 0, total)
	at := time.Now().Add(-time.Hour).Truncate(time.Second)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for i := range total {
		metricstest.Write(t, s, org, metricstest.Sample("counted", float64(i), at.Add(time.Duration(i)*time.Second)))
		acknowledged = append(acknowledged, time.Now())
		<-tick.C
	}
	killed := time.Now()
	kill(t, s)
	must := 0 // as many samples as are older than the window
	for must < total && killed.Sub(acknowledged[must]) > lossWindow {
		must++
	}
	if must == 0 {
		t.Fatalf("nothing was older than %s", lossWindow)
	}
	// Values increase by one per step, so that they reveal holes and wrong values.
	n := float64(must)
	for query, want := range map[string]float64{
		"count_over_time(counted[1h])": n, "max_over_time(counted[1h])": n - 1, "min_over_time(counted[1h])": 0, "sum_over_time(counted[1h])": n * (n - 1) / 2,
	} {
		if got, _, err := metricstest.Query(t.Context(), s, org, query, at.Add(time.Duration(must-1)*time.Second)); err != nil || got != want {
			t.Errorf("of what was written before the last %s, %s is %v, %v; want %v", lossWindow, query, got, err, want)
		}
	}
	left, _, err := metricstest.Query(t.Context(), s, org, "count_over_time(counted[1h])", at.Add(total*time.Second))
	if err != nil || left < n {
		t.Errorf("%v samples are left, %v", left, err)
	}
	t.Logf("%v of %d samples are left, %d must be", left, total, must)
}

// TestDamagedPartEndsTheChildAlone: a part file has a content that contradicts its index.
func TestDamagedPartEndsTheChildAlone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	in := func(o *store.Options) { o.Dir = dir }
	first, now := metricstest.Start(t, in), time.Now()
	metricstest.Write(t, first, org, metricstest.Sample("kept", 42, now))
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	parts, err := filepath.Glob(filepath.Join(dir, "data", "small", "*", "*", "metadata.json"))
	if err != nil || len(parts) == 0 {
		t.Fatalf("no parts: %v", err)
	}
	for _, name := range parts {
		if err := os.WriteFile(name, []byte("damaged"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := metricstest.Start(t, in)
	_, _, err = metricstest.Query(t.Context(), s, org, "kept", now)
	if hangar.CodeOf(err) != hangar.CodeUnavailable {
		t.Errorf("a query answers %v", err)
	}
	for s.Err() == nil { // until the supervisor has seen it end
		if pause.For(t.Context(), time.Millisecond) != nil {
			t.Fatal("the store does not say that it is away")
		}
	}
	if err := s.Err(); !strings.Contains(err.Error(), "metadata.json") {
		t.Errorf("the reason is %v", err)
	}
	// Requests fail without waiting for the next start.
	if _, err := metricstest.Post(t.Context(), s, org, nil); hangar.CodeOf(err) != hangar.CodeUnavailable || s.Err() == nil {
		t.Errorf("a write answers %v, the store %v", err, s.Err())
	}
}

// TestProgramThatIsMissing is the same for a program that cannot be started at all.
func TestProgramThatIsMissing(t *testing.T) {
	missing := errors.New("no such program")
	s := metricstest.Start(t, func(o *store.Options) {
		o.Program = func(context.Context) (string, error) { return "", missing }
	})
	_, _, err := metricstest.Query(t.Context(), s, org, "up", time.Now())
	if hangar.CodeOf(err) != hangar.CodeUnavailable || !errors.Is(err, missing) {
		t.Errorf("a query answers %v", err)
	}
}

// TestMemoryIsBounded: the child is in a cgroup with the limit, which Close removes.
func TestMemoryIsBounded(t *testing.T) {
	const limit = 256 << 20
	group := "hangar-metricstest-" + filepath.Base(t.TempDir()) + "-" + time.Now().Format("150405.000000000")
	s := metricstest.Start(t, func(o *store.Options) { o.Group, o.MemoryBytes = group, limit })
	metricstest.Write(t, s, org, metricstest.Sample("kept", 1, time.Now()))
	found, err := filepath.Glob("/sys/fs/cgroup/memory/" + group + "/memory.limit_in_bytes")
	if v2, _ := filepath.Glob("/sys/fs/cgroup/" + group + "/memory.max"); len(v2) > 0 {
		found = v2
	}
	if err != nil || len(found) != 1 {
		t.Fatalf("no group: %v", err)
	}
	if raw, err := os.ReadFile(found[0]); err != nil || strings.TrimSpace(string(raw)) != "268435456" {
		t.Errorf("the bound is %q, %v", raw, err)
	}
	raw, err := os.ReadFile(filepath.Join(filepath.Dir(found[0]), "cgroup.procs"))
	if err != nil || !strings.Contains(string(raw), "\n") {
		t.Errorf("the processes are %q, %v", raw, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Dir(found[0])); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the group is left: %v", err)
	}
}

func TestCluster(t *testing.T) {
	c, err := store.NewCluster("https://select:8481/", "http://insert:8480", http.DefaultClient)
	if err != nil {
		t.Fatal(err)
	}
	tenant := metricstest.Tenant("org&7", 7)
	if got, want := c.QueryURL(tenant), "https://select:8481/select/7/prometheus"; got != want {
		t.Errorf("QueryURL is %s, want %s", got, want)
	}
	if got, want := c.WriteURL(tenant), "http://insert:8480/insert/7/prometheus/api/v1/write?extra_label=__org__%3Dorg%267"; got != want {
		t.Errorf("WriteURL is %s, want %s", got, want)
	}
	if got := c.SharedWriteURL(); got != "" {
		t.Errorf("SharedWriteURL is %s", got)
	}
	for _, bad := range []string{"", "select:8481", "ftp://select", "http://", "http://select?x=1", "http://select#x"} {
		if _, err := store.NewCluster(bad, "http://insert:8480", http.DefaultClient); err == nil {
			t.Errorf("%q is taken as the URL of vmselect", bad)
		}
	}
}

// TestFullDisk: while the disk is full, writes are refused, queries are answered, and the child
// keeps running.
func TestFullDisk(t *testing.T) {
	const minFree = 16 << 20
	disk := disktest.Mount(t, disktest.Ext4, 96<<20)
	s := metricstest.Start(t, func(o *store.Options) { o.Dir, o.MinFreeBytes = filepath.Join(disk, "data"), minFree })
	now := time.Now()
	metricstest.Write(t, s, org, metricstest.Sample("kept", 42, now))
	metricstest.Await(t, s, org, "kept", now, 42)
	pid := s.PID()
	full := disktest.Fill(t, disk, minFree/2)
	post := func(want int) {
		t.Helper()
		for { // the child looks at the disk from time to time
			status, err := metricstest.Post(t.Context(), s, org, []metrics.Sample{metricstest.Sample("later", 1, now)})
			if err != nil {
				t.Fatal(err)
			}
			if status == want {
				return
			}
			if pause.For(t.Context(), 50*time.Millisecond) != nil {
				t.Fatalf("a write answers %d, want %d", status, want)
			}
		}
	}
	post(http.StatusServiceUnavailable)
	if status, err := metricstest.PostShared(t.Context(), s, []metrics.Sample{metricstest.Sample("later", 1, now, metrics.OrgLabel, "org1")}); status != http.StatusServiceUnavailable || err != nil {
		t.Errorf("a shared write is answered with %d, %v", status, err)
	}
	if value, ok, err := metricstest.Query(t.Context(), s, org, "kept", now); err != nil || !ok || value != 42 {
		t.Errorf("with a full disk a query answers %v, %t, %v", value, ok, err)
	}
	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}
	post(http.StatusNoContent)
	if s.PID() != pid || pid == 0 {
		t.Errorf("the child was %d and is %d", pid, s.PID())
	}
}

// watchedLog calls seen for each record with a message.
type watchedLog struct {
	slog.Handler

	message string
	seen    func()
}

func (w *watchedLog) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == w.message {
		w.seen()
	}
	return w.Handler.Handle(ctx, r)
}

// TestRequestsWaitForTheNextChild: requests after a crash do not see it.
func TestRequestsWaitForTheNextChild(t *testing.T) {
	ready := make(chan struct{})
	s := metricstest.Start(t, func(o *store.Options) {
		o.Log = slog.New(&watchedLog{Handler: o.Log.Handler(), message: "Metrics store is ready", seen: sync.OnceFunc(func() { close(ready) })})
	})
	now := time.Now()
	metricstest.Write(t, s, org, metricstest.Sample("kept", 42, now))
	<-ready // a child that ends before is one that keeps ending
	kill(t, s)
	metricstest.Write(t, s, org, metricstest.Sample("written", 7, now))
	metricstest.Await(t, s, org, "written", now, 7)
	if err := s.Err(); err != nil {
		t.Errorf("the store says that it is away: %v", err)
	}
	for name, want := range map[string]float64{"up": 1, "starts_total": 2, "crashes_total": 1, "memory_limit_bytes": store.DefaultMemoryBytes} {
		if got := metricstest.Value(t, s, "hangar_metrics_store_"+name, ""); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if used := metricstest.Value(t, s, "hangar_metrics_store_memory_bytes", ""); used < 1<<20 || used > store.DefaultMemoryBytes {
		t.Errorf("the child has %v bytes", used)
	}
}

// TestChildEndsWithTheDaemon: this test runs itself as a daemon, kills it, and opens the same
// directory while its child may still be ending.
func TestChildEndsWithTheDaemon(t *testing.T) {
	if dir := os.Getenv("METRICSTEST_DAEMON"); dir != "" {
		s := metricstest.Start(t, func(o *store.Options) { o.Dir = dir })
		metricstest.Write(t, s, org, metricstest.Sample("kept", 42, time.Now()))
		os.Stdout.WriteString("ready\n")
		<-t.Context().Done()
		return
	}
	dir := filepath.Join(t.TempDir(), "data")
	daemon := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestChildEndsWithTheDaemon$", "-test.timeout=10m")
	daemon.Env = append(os.Environ(), "METRICSTEST_DAEMON="+dir, "TMPDIR="+t.TempDir()) // it cannot clean up
	out, err := daemon.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	lines, ready := bufio.NewScanner(out), false
	for !ready && lines.Scan() {
		ready = lines.Text() == "ready"
	}
	if err := daemon.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = daemon.Wait()
	if !ready {
		t.Fatal("the daemon has ended before it was killed")
	}
	s := metricstest.Start(t, func(o *store.Options) { o.Dir = dir })
	// The kernel asked its child to end, and it wrote its data.
	metricstest.Await(t, s, org, "last_over_time(kept[10m])", time.Now().Add(time.Second), 42)
	if err := s.Err(); err != nil {
		t.Errorf("the store says that it is away: %v", err)
	}
}

// TestDamagedValuesAreNeverAnswered: the index of a part is intact, its values are not. Whether the
// child refuses the query or ends, no client gets a wrong value, and the next child accepts writes.
func TestDamagedValuesAreNeverAnswered(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	in := func(o *store.Options) { o.Dir = dir }
	first, now := metricstest.Start(t, in), time.Now()
	var samples []metrics.Sample
	for i := range 1000 {
		samples = append(samples, metricstest.Sample("kept", float64(i*i%977), now.Add(time.Duration(i-1000)*time.Second)))
	}
	metricstest.Write(t, first, org, samples...)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "data", "small", "*", "*", "values.bin"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no parts: %v", err)
	}
	for _, name := range files {
		raw, err := os.ReadFile(name)
		if err != nil || len(raw) == 0 {
			t.Fatalf("%s has %d bytes, %v", name, len(raw), err)
		}
		for i := range raw {
			raw[i] ^= 0xff
		}
		if err := os.WriteFile(name, raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := metricstest.Start(t, in)
	if value, ok, err := metricstest.Query(t.Context(), s, org, "sum_over_time(kept[1h])", now); err == nil && ok {
		t.Errorf("a query of damaged values answers %v", value)
	}
	metricstest.Write(t, s, org, metricstest.Sample("later", 7, now))
	metricstest.Await(t, s, org, "later", now, 7)
}
