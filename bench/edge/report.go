package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/bench/publish"
)

// What is measured of a front.
const (
	keepAlive     = "requests/s, HTTP/1.1 keep-alive"
	keepAliveTLS  = "requests/s, the same over TLS"
	handshake     = "TLS handshakes/s, each with a request"
	webSocket     = "WebSocket messages/s, there and back"
	body          = "one body, bytes/s"
	through       = "TCP passed through, bytes/s"
	latency50     = "µs at half load, p50"
	latency99     = "µs at half load, p99"
	idleMemory    = "KB per idle connection"
	idleMemoryTLS = "KB per idle connection, TLS"
	perCPU        = ", per second of the proxy's processor time"
)

// The goals.
const (
	mostOfCaddy   = 1.5
	partOfHAProxy = 0.6
	mostAdded50   = 300  // µs
	mostAdded99   = 2000 // µs
	throughPart   = 0.9
	mostIdle      = 20 // KB
	mostWake      = 5 * time.Millisecond
)

// report is everything that was measured.
type report struct {
	o      options
	fronts []*front // the Machine itself, hangar, then the others
	values map[string][]float64
	rate   float64 // of half load
	slept  map[string][]time.Duration
}

func newReport(o options) *report {
	return &report{o: o, values: map[string][]float64{}, slept: map[string][]time.Duration{}}
}

func (r *report) add(f *front, what string, v float64) {
	r.values[f.name+what] = append(r.values[f.name+what], v)
}

func (r *report) of(f *front, what string) []float64 { return r.values[f.name+what] }

// median is the middle one, or 0 of none.
func (r *report) median(name, what string) float64 {
	all := slices.Sorted(slices.Values(r.values[name+what]))
	if len(all) == 0 {
		return 0
	}
	return all[len(all)/2]
}

func wakeKey(state hangar.MachineState, n int, edge bool) string {
	return fmt.Sprint(state, n, edge)
}

func (r *report) woke(state hangar.MachineState, n int, edge bool, took []time.Duration) {
	key := wakeKey(state, n, edge)
	r.slept[key] = append(r.slept[key], took...)
}

// section is what goes into the file of results.
func (r *report) section(server string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "## The edge\n\n`go run ./bench/edge -rounds %d -for %s -clients %d -idle %d -body %d -wakes %d`\n\n- %s\n",
		r.o.rounds, r.o.seconds, r.o.clients, r.o.idle, r.o.body, r.o.wakes, server)
	if len(r.fronts) > 0 {
		for _, f := range r.fronts[2:] {
			fmt.Fprintf(&b, "- %s: %s\n", f.name, f.version)
		}
		r.load(&b)
	}
	if len(r.slept) > 0 {
		r.sleep(&b)
	}
	return b.String()
}

func (r *report) load(b *strings.Builder) {
	fmt.Fprintf(b, "- all in front of one and the same Machine, at its address, taking turns; medians of %d rounds; %d connections at once,\n"+
		"  8 for handshakes, 1 for bodies; client, proxy and Machine share the processors, so that the processor time of the\n"+
		"  proxy's own processes tells more than what came through in a second\n\n", r.o.rounds, r.o.clients)
	b.WriteString("| |")
	for _, f := range r.fronts {
		fmt.Fprintf(b, " %s |", f.name)
	}
	b.WriteString("\n|---|" + strings.Repeat("--:|", len(r.fronts)) + "\n")
	for _, what := range []string{keepAlive, keepAliveTLS, handshake, webSocket, body, through} {
		r.row(b, what)
		r.row(b, what+perCPU)
	}
	for _, what := range []string{latency50, latency99, idleMemory, idleMemoryTLS} {
		r.row(b, what)
	}
	fmt.Fprintf(b, "\nHalf load: %.0f requests/s.\n\n| goal | | |\n|---|--:|---|\n", r.rate)
	ratio := func(to, what string) float64 {
		if m := r.median(to, what); m > 0 {
			return r.median(nameHangar, what) / m
		}
		return 0
	}
	goal := func(name string, value float64, unit string, met bool) {
		fmt.Fprintf(b, "| %s | %.2f%s | %s |\n", name, value, unit, publish.Verdict(met))
	}
	if v := ratio(nameCaddy, keepAlive+perCPU); v > 0 {
		goal("requests per processor second, ≥ 1.5× Caddy", v, "×", v >= mostOfCaddy)
	}
	if v := ratio(nameHAProxy, keepAlive+perCPU); v > 0 {
		goal("requests per processor second, ≥ 0.6× HAProxy", v, "×", v >= partOfHAProxy)
	}
	if v := ratio(nameHAProxy, through); v > 0 {
		goal("TCP passed through, ≥ 0.9× HAProxy", v, "×", v >= throughPart)
	}
	added := func(what string) float64 { return r.median(nameHangar, what) - r.median(nameDirect, what) }
	goal("added at half load, p50 ≤ 300 µs", added(latency50), " µs", added(latency50) <= mostAdded50)
	goal("added at half load, p99 ≤ 2,000 µs", added(latency99), " µs", added(latency99) <= mostAdded99)
	if v := r.median(nameHangar, idleMemory); v > 0 {
		goal("memory per idle connection, ≤ 20 KB", v, " KB", v <= mostIdle)
	}
	b.WriteString("\n")
}

func (r *report) row(b *strings.Builder, what string) {
	fmt.Fprintf(b, "| %s |", what)
	for _, f := range r.fronts {
		switch v := r.median(f.name, what); {
		case v == 0:
			b.WriteString(" |")
		case v < 100:
			fmt.Fprintf(b, " %.1f |", v)
		default:
			fmt.Fprintf(b, " %s |", thousands(int64(v)))
		}
	}
	b.WriteString("\n")
}

// thousands writes a number with separators.
func thousands(n int64) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

func (r *report) sleep(b *strings.Builder) {
	b.WriteString("First byte from Machines at rest, in ms: a request at the edge, which starts them, next to a start by the API, a wait and\n" +
		"a request to the Machine itself, over and over until it answers.\n\n" +
		"| | at once | edge p50 | p99 | API p50 | p99 | added p50 | goal ≤ 5 ms |\n|---|--:|--:|--:|--:|--:|--:|---|\n")
	for _, state := range []hangar.MachineState{hangar.MachineStopped, hangar.MachineSuspended} {
		for _, n := range []int{1, 10, 50} {
			edge, api := r.slept[wakeKey(state, n, true)], r.slept[wakeKey(state, n, false)]
			if len(edge) == 0 {
				continue
			}
			ms := func(all []time.Duration, q float64) float64 {
				slices.Sort(all)
				return float64(all[int(q*float64(len(all)-1))].Microseconds()) / 1e3
			}
			added := ms(edge, 0.5) - ms(api, 0.5)
			fmt.Fprintf(b, "| %s | %d | %.1f | %.1f | %.1f | %.1f | %.1f | %s |\n", state, n, ms(edge, 0.5), ms(edge, 0.99), ms(api, 0.5), ms(api, 0.99),
				added, publish.Verdict(added <= float64(mostWake.Milliseconds())))
		}
	}
}
