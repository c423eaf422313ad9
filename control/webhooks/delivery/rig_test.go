package delivery_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/webhooks/delivery"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// feed is a host that has recorded events. It outlives Dispatchers, as a journal does.
type feed struct {
	mu     sync.Mutex
	events []hangar.MachineEvent
	more   chan struct{} // closed when there are more
	took   uint64
	floor  int // events that are not kept any more
}

func newFeed() *feed { return &feed{more: make(chan struct{})} }

// record records events, numbers them, and returns them.
func (f *feed) record(events ...hangar.MachineEvent) []hangar.MachineEvent {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range events {
		now := time.Now()
		events[i].Seq = uint64(len(f.events) + 1)
		events[i].Event.ID, events[i].Event.Timestamp = hangar.NewEventID(now), now.UnixMilli()
		f.events = append(f.events, events[i])
	}
	close(f.more)
	f.more = make(chan struct{})
	return events
}

func (f *feed) NextMachineEvents(ctx context.Context, after uint64, limit int) ([]hangar.MachineEvent, uint64, error) {
	for {
		f.mu.Lock()
		if after > uint64(len(f.events)) {
			after = 0
		}
		list, more := f.events[max(int(after), f.floor):], f.more
		f.mu.Unlock()
		if len(list) > 0 {
			list = list[:min(len(list), limit)]
			return list, list[len(list)-1].Seq, nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return nil, after, context.Cause(ctx)
		}
	}
}

func (f *feed) TookMachineEvents(upTo uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.took = upTo
	return nil
}

// registry says who gets events, as a provider's registry in memory does.
type registry struct {
	mu      sync.Mutex
	set     []hangar.EventReceiver
	changed chan struct{}
	late    chan struct{} // not nil: closed by a watcher, to which the set is yielded when it ends
}

func newRegistry(set ...hangar.EventReceiver) *registry {
	return &registry{set: slices.Clone(set), changed: make(chan struct{})}
}

func (r *registry) put(set ...hangar.EventReceiver) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.set = slices.Clone(set)
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *registry) WatchEventReceivers(ctx context.Context) iter.Seq2[[]hangar.EventReceiver, error] {
	return func(yield func([]hangar.EventReceiver, error) bool) {
		for {
			r.mu.Lock()
			set, changed, late := slices.Clone(r.set), r.changed, r.late
			r.mu.Unlock()
			if late != nil {
				close(late)
				<-ctx.Done()
			}
			if !yield(set, nil) {
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}
}

// rig is a Dispatcher with what is around it.
type rig struct {
	t        *testing.T
	dir      string
	feed     *feed
	registry *registry
	options  func(*delivery.Options)

	*delivery.Dispatcher
	stop func()
	kill func() // as the end of the process would
}

func newRig(t *testing.T, options func(*delivery.Options), set ...hangar.EventReceiver) *rig {
	t.Helper()
	r := &rig{t: t, dir: t.TempDir(), feed: newFeed(), registry: newRegistry(set...), options: options}
	r.start()
	t.Cleanup(func() { r.stop() })
	return r
}

// fast is timing for tests in which attempts fail.
func fast(o *delivery.Options) {
	o.Timing = delivery.Timing{Attempt: time.Minute, FirstPause: time.Millisecond, LastPause: 10 * time.Millisecond, Flush: time.Millisecond}
}

// start opens what is on the disk.
func (r *rig) start() {
	r.t.Helper()
	o := delivery.Options{
		Dir: r.dir, Feed: r.feed, Receivers: []hangar.EventReceiverFeed{r.registry}, NoSync: true,
		Dial: (&net.Dialer{}).DialContext, DialPrivate: (&net.Dialer{}).DialContext, Log: slog.New(slog.DiscardHandler),
	}
	if r.options != nil {
		r.options(&o)
	}
	d := delivery.New(o)
	if err := d.Open(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.t.Context()))
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	r.Dispatcher = d
	var once sync.Once
	end := func(how func() error) func() {
		return func() {
			once.Do(func() {
				err := how()
				cancel()
				if err := errors.Join(err, <-done); err != nil {
					r.t.Error(err)
				}
			})
		}
	}
	r.stop = end(func() error {
		cancel()
		return d.Close()
	})
	r.kill = end(d.Kill)
}

// restart ends the Dispatcher and opens another one from the disk.
func (r *rig) restart() {
	r.t.Helper()
	r.stop()
	r.start()
}

// await waits until every receiver has the version that the registry says.
func (r *rig) await() {
	r.t.Helper()
	r.registry.mu.Lock()
	set := slices.Clone(r.registry.set)
	r.registry.mu.Unlock()
	for _, one := range set {
		if err := r.AwaitReceiver(r.t.Context(), one.ID, one.Version); err != nil {
			r.t.Fatal(err)
		}
	}
}

// until waits until ok holds of the status of a receiver.
func (r *rig) until(id string, ok func(hangar.WebhookStatus) bool) hangar.WebhookStatus {
	r.t.Helper()
	for {
		status := r.ReceiverStatus(id)
		if ok(status) {
			return status
		}
		if r.t.Context().Err() != nil {
			r.t.Fatalf("status %+v", status)
		}
		time.Sleep(time.Millisecond)
	}
}

const testSecret = "a secret of the test"

// to is a receiver of all events of an organization.
func to(id string, org hangar.OrgID, url string) hangar.EventReceiver {
	return hangar.EventReceiver{ID: id, Version: 1, Org: org, AllOf: org, URL: url, Secret: hangar.NewSensitive(testSecret)}
}

// event is one of a Machine of an organization.
func event(org hangar.OrgID, machine int, kind hangar.EventType) hangar.MachineEvent {
	return hangar.MachineEvent{
		Machine: hangar.MachineID(fmt.Sprintf("%014x", machine)), App: "web", AppID: "app-of-" + hangar.AppID(org), OrgID: org,
		Event: hangar.Event{Type: kind, Status: "started", Source: hangar.SourceUser},
	}
}

// sink is a server that notes which events it has accepted.
type sink struct {
	*httptest.Server
	answer func(r *http.Request, machine string) int // nil: 204

	mu   sync.Mutex
	got  []string            // ids, in order
	of   map[string][]string // by Machine
	more chan struct{}       // closed when there is more
}

func newSink(t *testing.T, answer func(r *http.Request, machine string) int) *sink {
	t.Helper()
	s := &sink{answer: answer, of: map[string][]string{}, more: make(chan struct{})}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Machine string `json:"machine_id"`
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	status := http.StatusNoContent
	if s.answer != nil {
		status = s.answer(r, body.Machine)
	}
	if status/100 == 2 {
		s.mu.Lock()
		id := r.Header.Get("Ce-Id")
		s.got = append(s.got, id)
		s.of[body.Machine] = append(s.of[body.Machine], id)
		close(s.more)
		s.more = make(chan struct{})
		s.mu.Unlock()
	}
	w.WriteHeader(status)
}

// until waits until n different events were accepted.
func (s *sink) until(ctx context.Context, t *testing.T, n int) {
	t.Helper()
	for {
		s.mu.Lock()
		different, more := len(unique(s.got)), s.more
		s.mu.Unlock()
		if different >= n {
			return
		}
		select {
		case <-more:
		case <-ctx.Done():
			t.Fatalf("%d events were accepted, want %d", different, n)
		}
	}
}

// unique are the different ids, in the order in which each came first.
func unique(ids []string) (list []string) {
	seen := map[string]bool{}
	for _, id := range ids {
		if !seen[id] {
			seen[id] = true
			list = append(list, id)
		}
	}
	return list
}

// check reports whether exactly these events were accepted, those of each Machine in order.
func (s *sink) check(t *testing.T, want []hangar.MachineEvent) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	of := map[string][]string{}
	for _, e := range want {
		of[string(e.Machine)] = append(of[string(e.Machine)], string(e.Event.ID))
	}
	for machine, ids := range of {
		if got := unique(s.of[machine]); !slices.Equal(got, ids) {
			t.Errorf("of Machine %s %d events were accepted, want %d in order", machine, len(got), len(ids))
		}
	}
	for machine := range s.of {
		if of[machine] == nil {
			t.Errorf("events of Machine %s were accepted", machine)
		}
	}
}
