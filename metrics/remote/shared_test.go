package remote_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/metrics"
	"github.com/hangar-platform/hangar/metrics/metricstest"
	"github.com/hangar-platform/hangar/metrics/remote"
)

// TestTenantsShareARequest: samples wait for those of other tenants, up to a limit, and go in one
// request. Each series has the label of its writer and no other tenant's.
func TestTenantsShareARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{shares: true}
		w := open(t, remote.Options{Store: s, Dir: t.TempDir(), Limits: remote.Limits{Gather: time.Second}})
		run(t, w)
		began := time.Now()
		for i := range 10 {
			for _, tenant := range []metrics.Tenant{alpha, beta, gamma} {
				write(t, w, tenant, numbered(10*i, 10))
			}
			time.Sleep(50 * time.Millisecond)
		}
		time.Sleep(time.Second - time.Since(began) - time.Millisecond)
		synctest.Wait()
		if got := s.order(); len(got) != 0 {
			t.Errorf("before a second has passed there are the requests %q", got)
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if got := s.order(); !slices.Equal(got, []string{""}) {
			t.Errorf("the requests are %q", got)
		}
		for _, tenant := range []metrics.Tenant{alpha, beta, gamma} {
			if got := s.values(tenant); !slices.Equal(got, upTo(100)) {
				t.Errorf("%s has %v", tenant.Org, got)
			}
		}
		if n := metricstest.Value(t, w, "hangar_remote_sent_samples_total", ""); n != 300 {
			t.Errorf("%v samples are counted", n)
		}
	})
}

// TestNobodyWritesForAnother: the tenant's hidden label replaces one in the sample and arrives
// once, and labels stay sorted.
func TestNobodyWritesForAnother(t *testing.T) {
	name := metrics.Label{Name: metrics.NameLabel, Value: "m"}
	forged := metrics.Label{Name: metrics.OrgLabel, Value: "beta"}
	own := metrics.Label{Name: metrics.OrgLabel, Value: "alpha"}
	upper, lower := metrics.Label{Name: "A", Value: "1"}, metrics.Label{Name: "a", Value: "2"}
	for _, c := range []struct{ labels, want []metrics.Label }{
		{[]metrics.Label{}, []metrics.Label{own}},
		{[]metrics.Label{name}, []metrics.Label{name, own}},
		{[]metrics.Label{forged}, []metrics.Label{own}},
		{[]metrics.Label{name, forged}, []metrics.Label{name, own}},
		{[]metrics.Label{name, forged, forged}, []metrics.Label{name, own}},
		{[]metrics.Label{upper, name, lower}, []metrics.Label{upper, name, own, lower}},
		{[]metrics.Label{upper, name, forged, lower}, []metrics.Label{upper, name, own, lower}},
		{[]metrics.Label{name, lower, forged}, []metrics.Label{name, own, lower}}, // not sorted
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &store{shares: true}
			w := open(t, remote.Options{Store: s, Dir: t.TempDir()})
			run(t, w)
			write(t, w, alpha, []metrics.Sample{{Labels: c.labels, Value: 7}})
			write(t, w, beta, numbered(0, 1))
			time.Sleep(time.Second)
			synctest.Wait()
			got := s.got["alpha"]
			if len(got) != 1 || !slices.Equal(got[0].Labels, c.want) || got[0].Value != 7 || len(s.got["beta"]) != 1 {
				t.Errorf("%v has become %v; the other tenant has %v", c.labels, got, s.got["beta"])
			}
		})
	}
}

// TestWhatIsWrongWithOneCostsNoOther: the store refuses requests with samples of beta.
func TestWhatIsWrongWithOneCostsNoOther(t *testing.T) {
	for _, status := range []int{http.StatusBadRequest, http.StatusServiceUnavailable} {
		synctest.Test(t, func(t *testing.T) {
			s := &store{shares: true}
			var mu sync.Mutex
			refused := true
			s.answer = func(_ context.Context, tenant string, samples []metrics.Sample) (int, error) {
				mu.Lock()
				defer mu.Unlock()
				if refused && (tenant == "beta" || slices.ContainsFunc(samples, func(x metrics.Sample) bool { return owner(x) == "beta" })) {
					return status, nil
				}
				return http.StatusNoContent, nil
			}
			w := open(t, remote.Options{Store: s, Dir: t.TempDir()})
			run(t, w)
			for i := range 5 {
				for _, tenant := range []metrics.Tenant{alpha, beta, gamma} {
					write(t, w, tenant, numbered(i, 1))
				}
				time.Sleep(2 * time.Second)
			}
			for _, tenant := range []metrics.Tenant{alpha, gamma} {
				if got := s.values(tenant); !slices.Equal(got, upTo(5)) {
					t.Errorf("with status %d for another, %s has %v", status, tenant.Org, got)
				}
			}
			mu.Lock()
			refused = false
			mu.Unlock()
			write(t, w, beta, numbered(5, 1))
			time.Sleep(time.Minute)
			want, lost := upTo(6), 0.0
			if status == http.StatusBadRequest {
				want, lost = []int{5}, 5
			}
			if got := s.values(beta); !slices.Equal(got, want) {
				t.Errorf("after status %d there are %v, want %v", status, got, want)
			}
			if n := metricstest.Value(t, w, "hangar_remote_dropped_samples_total", "invalid"); n != lost {
				t.Errorf("with status %d, %v samples are dropped", status, n)
			}
			// Requests are shared again.
			before := len(s.order())
			write(t, w, alpha, numbered(5, 1))
			write(t, w, beta, numbered(6, 1))
			time.Sleep(time.Second)
			synctest.Wait()
			if got := s.order()[before:]; !slices.Equal(got, []string{""}) {
				t.Errorf("in the end the requests are %q", got)
			}
		})
	}
}

// TestMuchDoesNotWait: samples beyond a bound are sent immediately, no matter whose they are.
func TestMuchDoesNotWait(t *testing.T) {
	for name, limits := range map[string]remote.Limits{
		"of all": {GatherBytes: 20_000},
		"of one": {GatherBytes: 1 << 30, TenantPending: 60_000},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &store{shares: true}
			w := open(t, remote.Options{Store: s, Dir: t.TempDir(), Limits: limits})
			run(t, w)
			began, n := time.Now(), 0
			for len(s.order()) == 0 && n < 10_000 {
				write(t, w, alpha, numbered(n, 100))
				n += 100
				synctest.Wait()
			}
			if took := time.Since(began); took > 0 || n == 10_000 {
				t.Errorf("much %s is sent after %d samples and %s", name, n, took)
			}
			if disk := metricstest.Value(t, w, "hangar_remote_spool_bytes", ""); disk > 0 {
				t.Errorf("much %s goes to the disk: %v bytes", name, disk)
			}
		})
	}
}

// TestABacklogAndOthersShareTheStore: one tenant has a backlog on disk and keeps writing. The
// samples of others are sent as soon as they are gathered and a request of the first tenant has
// ended.
func TestABacklogAndOthersShareTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const takes = 100 * time.Millisecond
		dir := t.TempDir()
		first := open(t, remote.Options{Store: &store{shares: true}, Dir: dir})
		for i := range 100 {
			write(t, first, alpha, noise(i))
		}
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
		s := &store{shares: true, answer: func(context.Context, string, []metrics.Sample) (int, error) {
			time.Sleep(takes)
			return http.StatusNoContent, nil
		}}
		w := open(t, remote.Options{Store: s, Dir: dir, Limits: remote.Limits{Senders: 1}})
		run(t, w)
		for i := range 10 {
			write(t, w, alpha, noise(100+i))
			write(t, w, beta, numbered(i, 1))
			write(t, w, gamma, numbered(i, 1))
			time.Sleep(time.Second + 3*takes)
			for _, tenant := range []metrics.Tenant{beta, gamma} {
				if got := s.values(tenant); !slices.Equal(got, upTo(i+1)) {
					t.Fatalf("beside a backlog %s has %v of %d", tenant.Org, got, i+1)
				}
			}
		}
		if !slices.Contains(s.order(), "alpha") || !slices.Contains(s.order(), "") {
			t.Errorf("the requests are %q", s.order())
		}
	})
}

// TestAwayIsTriedByOne: a store that does not respond to a shared request counts as away once,
// however many tenants are in the request, and nothing is lost.
func TestAwayIsTriedByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{shares: true}
		var mu sync.Mutex
		down := true
		s.answer = func(context.Context, string, []metrics.Sample) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			if down {
				return 0, errGone
			}
			return http.StatusNoContent, nil
		}
		w := open(t, remote.Options{Store: s, Dir: t.TempDir()})
		run(t, w)
		tenants := make([]metrics.Tenant, 50)
		for i := range tenants {
			tenants[i] = metrics.Tenant{Org: hangar.OrgID(fmt.Sprintf("org%d", i)), Number: uint32(i + 1)}
			write(t, w, tenants[i], numbered(0, 1))
		}
		time.Sleep(3 * time.Second) // the request, and a try after a pause of a second
		synctest.Wait()
		if n := metricstest.Value(t, w, "hangar_remote_requests_total", "away"); n != 2 {
			t.Errorf("in three seconds the store was tried %v times", n)
		}
		if n := metricstest.Value(t, w, "hangar_remote_pending_bytes", ""); n != 0 {
			t.Errorf("memory holds %v bytes", n)
		}
		mu.Lock()
		down = false
		mu.Unlock()
		time.Sleep(time.Minute)
		for _, tenant := range tenants {
			if got := s.values(tenant); !slices.Equal(got, upTo(1)) {
				t.Errorf("%s has %v", tenant.Org, got)
			}
		}
	})
}

// TestRandomStores writes samples of many tenants to stores with random answers, and checks that
// each tenant's samples arrive in order, at least once, and as its own.
func TestRandomStores(t *testing.T) {
	for seed := range uint64(30) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			var mu sync.Mutex
			bad := 0.3
			s := &store{shares: true}
			s.answer = func(context.Context, string, []metrics.Sample) (int, error) {
				mu.Lock()
				x, takes := random.Float64(), time.Duration(random.IntN(300))*time.Millisecond
				mu.Unlock()
				time.Sleep(takes)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case x < bad/2:
					return http.StatusServiceUnavailable, nil
				case x < bad:
					return 0, errGone
				default:
					return http.StatusNoContent, nil
				}
			}
			w := open(t, remote.Options{Store: s, Dir: t.TempDir(), Limits: remote.Limits{GatherBytes: 20_000, TenantPending: 20_000, PendingBytes: 50_000, Senders: 1 + int(seed%4)}})
			run(t, w)
			written := make([]int, 6)
			choose := rand.New(rand.NewPCG(seed, 2))
			for range 300 {
				i, n := choose.IntN(len(written)), 1+choose.IntN(60)
				write(t, w, metrics.Tenant{Org: hangar.OrgID(fmt.Sprintf("org%d", i)), Number: 1}, numbered(written[i], n))
				written[i] += n
				time.Sleep(time.Duration(choose.IntN(400)) * time.Millisecond)
			}
			mu.Lock()
			bad = 0
			mu.Unlock()
			time.Sleep(10 * time.Minute)
			for i, n := range written {
				got := s.values(metrics.Tenant{Org: hangar.OrgID(fmt.Sprintf("org%d", i))})
				var once []int // what was moved to the disk while it was under way comes twice
				for _, v := range got {
					if v >= len(once) {
						once = append(once, v)
					}
				}
				if !slices.Equal(once, upTo(n)) {
					t.Errorf("seed %d: org%d has %d samples of %d, or not in order", seed, i, len(got), n)
				}
			}
			if n := metricstest.Value(t, w, "hangar_remote_waiting_tenants", ""); n != 0 {
				t.Errorf("seed %d: %v tenants wait in the end", seed, n)
			}
			if !slices.Contains(s.order(), "") || !slices.ContainsFunc(s.order(), func(tenant string) bool { return strings.HasPrefix(tenant, "org") }) {
				t.Errorf("seed %d: the requests are all of one kind", seed)
			}
		})
	}
}
