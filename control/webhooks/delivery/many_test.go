package delivery_test

import (
	"math/rand/v2"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/webhooks/delivery"
)

// TestManyReceivers delivers events to 50 receivers of which 10 fail, are slow or hang. The others get
// everything in order, and what is in memory stays small. Afterwards those 10 get theirs. With
// HANGAR_EVENTS=100000 it does so on the full scale. It is not beside others, whose memory would count.
func TestManyReceivers(t *testing.T) {
	events := 3000
	if testing.Short() {
		events = 600
	}
	if text := os.Getenv("HANGAR_EVENTS"); text != "" {
		var err error
		if events, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	const receivers, bad, orgs, machines = 50, 10, 10, 40
	healed := make(chan struct{}) // closed when all receivers are well
	answer := func(i int) func(*http.Request, string) int {
		if i >= bad {
			return nil
		}
		return func(r *http.Request, _ string) int {
			select {
			case <-healed:
				return http.StatusOK
			default:
			}
			switch i % 3 {
			case 0:
				return http.StatusInternalServerError
			case 1:
				time.Sleep(20 * time.Millisecond)
				return http.StatusOK
			default:
				<-r.Context().Done()
				return http.StatusRequestTimeout
			}
		}
	}
	var sinks []*sink
	var set []hangar.EventReceiver
	org := func(i int) hangar.OrgID { return hangar.OrgID("org" + strconv.Itoa(i%orgs)) }
	for i := range receivers {
		sinks = append(sinks, newSink(t, answer(i)))
		set = append(set, to("r"+strconv.Itoa(i), org(i), sinks[i].URL))
	}
	rig := newRig(t, func(o *delivery.Options) {
		fast(o)
		o.Timing.LastPause, o.Timing.Attempt = time.Second, 30*time.Second
	}, set...)
	rig.await()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	want := map[hangar.OrgID][]hangar.MachineEvent{}
	for i := range events {
		o := org(i)
		e := rig.feed.record(event(o, i%machines, hangar.EventStart))
		want[o] = append(want[o], e...)
	}
	for i := bad; i < receivers; i++ {
		sinks[i].until(t.Context(), t, len(want[org(i)]))
		sinks[i].check(t, want[org(i)])
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	// The test itself keeps the events and their ids, some 600 bytes for each.
	grown := int64(after.HeapAlloc) - int64(before.HeapAlloc) - int64(events)*600 - int64(events/orgs*receivers)*60
	t.Logf("the heap has grown by %d KiB beyond what the test keeps", grown>>10)
	if limit := int64(bad*delivery.WindowSize*2<<10 + receivers*64<<10); grown > limit {
		t.Errorf("the heap has grown by %d bytes, want at most %d", grown, limit)
	}
	close(healed)
	for i := range bad {
		set[i].Version++ // so that the test need not wait for the next attempt
	}
	rig.registry.put(set...)
	for i, s := range sinks[:bad] {
		if i%3 == 2 {
			s.CloseClientConnections() // of requests that hang
		}
		s.until(t.Context(), t, len(want[org(i)]))
		s.check(t, want[org(i)])
	}
}

// TestKilled ends the process at any moment. Events are still delivered, those of a Machine in order,
// and few of them twice.
func TestKilled(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 2))
			s := newSink(t, func(*http.Request, string) int {
				if rand.N(4) == 0 {
					return http.StatusBadGateway
				}
				return http.StatusOK
			})
			rig := newRig(t, fast, to("hook", "acme", s.URL))
			rig.await()
			var want []hangar.MachineEvent
			for range 25 {
				for range 1 + rng.IntN(40) {
					want = append(want, rig.feed.record(event("acme", rng.IntN(6), hangar.EventStart))...)
				}
				if rng.IntN(3) == 0 {
					time.Sleep(time.Duration(rng.IntN(3000)) * time.Microsecond)
				}
				rig.kill()
				rig.start()
			}
			s.until(t.Context(), t, len(want))
			s.check(t, want)
			rig.until("hook", func(s hangar.WebhookStatus) bool { return s.Waiting == 0 })
		})
	}
}
