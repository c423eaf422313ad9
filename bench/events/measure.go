package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/bench/harness"
	"github.com/hangar-platform/hangar/control/webhooks/delivery"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/provider"
)

const (
	org      = hangar.OrgID("acme")
	machines = 100 // whose events they are
	inFlight = 32  // requests of one organization, as delivery has them
	pace     = 5 * time.Millisecond
)

// The load while delays were measured.
const (
	alone   = "one receiver, 200 events a second"
	several = "ten receivers, 200 events a second"
	hanging = "one receiver, while nine of others hang"
)

// host has the events of a journal, as the agent of a server does.
type host struct{ *journal.Journal }

// NextMachineEvents implements hangar.MachineEventFeed.
func (h host) NextMachineEvents(ctx context.Context, after uint64, limit int) (events []hangar.MachineEvent, upTo uint64, err error) {
	for {
		if events, upTo, err = h.FeedAfter(after, limit); err != nil || upTo != after {
			return events, upTo, err
		}
		select {
		case <-h.Fed():
		case <-ctx.Done():
			return nil, after, context.Cause(ctx)
		}
	}
}

// TookMachineEvents implements hangar.MachineEventFeed.
func (h host) TookMachineEvents(upTo uint64) error { return h.FeedTaken(upTo) }

// receivers are those of one run.
type receivers []hangar.EventReceiver

// WatchEventReceivers implements hangar.EventReceiverFeed.
func (r receivers) WatchEventReceivers(ctx context.Context) iter.Seq2[[]hangar.EventReceiver, error] {
	return func(yield func([]hangar.EventReceiver, error) bool) {
		if yield(r, nil) {
			<-ctx.Done()
		}
	}
}

func receiver(id, url string) hangar.EventReceiver {
	return hangar.EventReceiver{ID: id, Version: 1, Org: org, AllOf: org, URL: url, Secret: hangar.NewSensitive("a secret of the benchmark")}
}

// record is of a Machine as most are.
func record(n int) *journal.Record {
	return &journal.Record{OrgID: org, Machine: hangar.Machine{
		ID: hangar.MachineID(fmt.Sprintf("%014x", n)), Name: "web", App: "web", AppID: "app0123456789abc", State: hangar.MachineStarted,
		Config: hangar.MachineConfig{Image: "registry.example.com/web:1", Env: map[string]string{"PORT": "8080", "MODE": "production"}},
	}}
}

func event() hangar.Event {
	now := time.Now()
	exit := &hangar.ExitEvent{ExitCode: 1, GuestExitCode: 1, GuestSignal: -1, Signal: -1, ExitedAt: now}
	return hangar.Event{
		ID: hangar.NewEventID(now), Type: hangar.EventExit, Status: "stopped", Source: hangar.SourceAgent, Timestamp: now.UnixMilli(),
		Request: &hangar.EventRequest{ExitEvent: exit, MonitorEvent: &hangar.MonitorEvent{ExitEvent: exit}},
	}
}

// bench is a journal in a directory of its own.
type bench struct {
	*journal.Journal
	dir string
}

func newBench() (*bench, error) {
	dir, err := os.MkdirTemp("", "hgevents")
	if err != nil {
		return nil, err
	}
	j, err := journal.Open(filepath.Join(dir, "journal.db"), journal.Options{})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return &bench{j, dir}, nil
}

func (b *bench) end() error { return errors.Join(b.Close(), os.RemoveAll(b.dir)) }

// dispatch delivers to receivers until the end is called.
func (b *bench) dispatch(ctx context.Context, set receivers) (end func() error, err error) {
	dial := (&net.Dialer{}).DialContext
	d := delivery.New(delivery.Options{
		Dir: b.dir, Feed: host{b.Journal}, Receivers: []hangar.EventReceiverFeed{set}, Dial: dial, DialPrivate: dial, Log: slog.New(slog.DiscardHandler),
	})
	if err := d.Open(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	return func() error {
		cancel()
		return errors.Join(<-done, d.Close())
	}, nil
}

// counter is a server that accepts events and says when it has so many.
type counter struct {
	*httptest.Server
	want int

	mu   sync.Mutex
	at   map[string]time.Time // of the first acceptance, by the id of the event and the path
	full chan struct{}
}

func newCounter(want int) *counter {
	c := &counter{want: want, at: make(map[string]time.Time, want), full: make(chan struct{})}
	c.Server = httptest.NewServer(c)
	return c
}

// ServeHTTP implements http.Handler.
func (c *counter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.WriteHeader(http.StatusNoContent)
	id := r.Header.Get("Ce-Id") + r.URL.Path
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, twice := c.at[id]; twice {
		return
	}
	c.at[id] = time.Now()
	if len(c.at) == c.want {
		close(c.full)
	}
}

// deliver measures how long it takes to deliver what a journal has.
func (r *results) deliver(ctx context.Context, o options) (err error) {
	b, err := newBench()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.end()) }()
	for done := 0; done < o.events; {
		err := b.Commit(func(tx *journal.Tx) error {
			var errs []error
			for i := range min(200, o.events-done) {
				errs = append(errs, tx.AppendEvents(record((done+i)%machines), []hangar.Event{event()}))
			}
			return errors.Join(errs...)
		})
		if err != nil {
			return err
		}
		done += min(200, o.events-done)
	}
	c := newCounter(o.events * o.receivers)
	defer c.Close()
	var set receivers
	for i := range o.receivers {
		set = append(set, receiver("r"+strconv.Itoa(i), c.URL+"/"+strconv.Itoa(i)))
	}
	began := time.Now()
	end, err := b.dispatch(ctx, set)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	select {
	case <-c.full:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	r.delivered = append(r.delivered, float64(c.want)/time.Since(began).Seconds())
	return nil
}

// post measures how long it takes to post the same bodies, with as many requests at a time.
func (r *results) post(ctx context.Context, o options) error {
	c := newCounter(o.events * o.receivers)
	defer c.Close()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: inFlight}}
	defer client.CloseIdleConnections()
	// Built before the clock runs.
	var bodies [][]byte
	var headers []http.Header
	for i := range o.events {
		e := delivery.CloudEvent(&hangar.MachineEvent{Machine: record(i % machines).Machine.ID, App: "web", Event: event()}, false)
		req, err := e.NewRequest(ctx, c.URL+"/0")
		if err == nil {
			err = provider.Signer{Secret: "a secret of the benchmark"}.Sign(req)
		}
		if err != nil {
			return err
		}
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return err
		}
		bodies, headers = append(bodies, body), append(headers, req.Header)
	}
	began := time.Now()
	var posting sync.WaitGroup
	errs := make(chan error, inFlight)
	for j := range inFlight {
		posting.Go(func() {
			for n := j; n < c.want; n += inFlight {
				to, i := n%o.receivers, n/o.receivers
				if err := postOne(ctx, client, c.URL+"/"+strconv.Itoa(to), headers[i], bodies[i]); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	posting.Wait()
	close(errs)
	if err := <-errs; err != nil {
		return err
	}
	r.posted = append(r.posted, float64(c.want)/time.Since(began).Seconds())
	return nil
}

func postOne(ctx context.Context, client *http.Client, url string, header http.Header, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header = header.Clone()
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.Body.Close()
}

// wait measures how long single events take.
func (r *results) wait(ctx context.Context, o options) error {
	r.delays = map[string][]time.Duration{}
	for _, one := range []struct {
		name         string
		others, hang int
	}{{alone, 0, 0}, {several, 9, 0}, {hanging, 0, 9}} {
		delays, err := waitOnce(ctx, o.single, one.others, one.hang)
		if err != nil {
			return err
		}
		r.delays[one.name] = delays
		fmt.Fprintf(os.Stderr, "%s: p50 %s\n", one.name, harness.Quantile(delays, .5))
	}
	return nil
}

func waitOnce(ctx context.Context, events, others, hang int) (delays []time.Duration, err error) {
	b, err := newBench()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.end()) }()
	c := newCounter(events)
	defer c.Close()
	other := newCounter(-1)
	defer other.Close()
	held := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}))
	defer held.Close()
	set := receivers{receiver("r", c.URL)}
	for i := range others {
		set = append(set, receiver("other"+strconv.Itoa(i), other.URL+"/"+strconv.Itoa(i)))
	}
	for i := range hang {
		set = append(set, receiver("held"+strconv.Itoa(i), held.URL))
	}
	end, err := b.dispatch(ctx, set)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, end()) }()
	committed := make(map[string]time.Time, events)
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for i := range events {
		<-tick.C
		e, rec := event(), record(i%machines)
		if err := b.Commit(func(tx *journal.Tx) error {
			return errors.Join(tx.PutMachine(rec), tx.AppendEvents(rec, []hangar.Event{e}))
		}); err != nil {
			return nil, err
		}
		committed[string(e.ID)+"/"] = time.Now()
	}
	select {
	case <-c.full:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, at := range c.at {
		delays = append(delays, at.Sub(committed[id]))
	}
	return delays, nil
}

// commit measures commits with the feed and without, in turn.
func (r *results) commit(ctx context.Context, o options) (err error) {
	b, err := newBench()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.end()) }()
	for i := range 2 * o.commits {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		rec, e, with := record(i/2%machines), event(), i%2 == 0
		began := time.Now()
		err := b.Commit(func(tx *journal.Tx) error {
			if with {
				return errors.Join(tx.PutMachine(rec), tx.AppendEvents(rec, []hangar.Event{e}))
			}
			return errors.Join(tx.PutMachine(rec), tx.AppendEvent(rec.Machine.ID, e))
		})
		if err != nil {
			return err
		}
		if took := time.Since(began); with {
			r.with = append(r.with, took)
		} else {
			r.without = append(r.without, took)
		}
	}
	return nil
}
