package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hangar-platform/hangar/bench/harness"
	"github.com/hangar-platform/hangar/bench/publish"
)

const partDNS = "dns"

// The goals, on a server with two cores that the clients share.
const (
	goalQueries    = 30_000 // a second
	goalQueryP99   = 2 * time.Millisecond
	goalUnderFlood = 2.0 // p99 of one client while another floods, to the same in peace
)

// The records: what one network of a busy server has.
const (
	dnsApps    = 100
	dnsPerApp  = 10
	askers     = 64     // clients of the load
	pacedRate  = 30_000 // a second, of all of them
	victimRate = 1_000  // a second
)

// dnsServer is a program that answers the same names.
type dnsServer struct {
	name    string
	version string
	addr    netip.AddrPort
	cmd     *exec.Cmd
	stdin   io.Closer
}

// dnsResult is the result of a server: for each measure the best of all rounds, because other
// work makes a round worse and never better.
type dnsResult struct {
	*dnsServer
	most  tally // clients ask again as soon as they have an answer
	paced tally // questions come at a fixed rate
	// Of one client: alone, while another program takes a core, and while another client
	// floods, which takes a core, too.
	peace, busy, flood tally
	flooded            float64
	cost               time.Duration // processor time for one answer of most
	memory             int64
}

// measureDNS measures all servers one after the other, each in every way.
func measureDNS(ctx context.Context, o options) (_ string, err error) {
	var cleanup harness.Undo
	defer func() { err = errors.Join(err, cleanup.Run()) }()
	dir, err := os.MkdirTemp("", "hgbdns")
	if err != nil {
		return "", err
	}
	cleanup.Add(func() error { return os.RemoveAll(dir) })
	others, err := harness.Busy(ctx, time.Second)
	if err != nil {
		return "", err
	}
	var results []*dnsResult
	for _, begin := range []struct {
		name  string
		start func(ctx context.Context, dir string) (*dnsServer, error)
	}{{"hangar", startHangarDNS}, {peerDnsmasq, startDnsmasq}, {peerUnbound, startUnbound}} {
		if _, err := exec.LookPath(begin.name); o.skip.Has(begin.name) || begin.name != "hangar" && err != nil {
			continue
		}
		server, err := begin.start(ctx, dir)
		if err != nil {
			return "", fmt.Errorf("%s: %w", begin.name, err)
		}
		cleanup.Add(server.stop)
		results = append(results, &dnsResult{dnsServer: server})
	}
	for round := range o.rounds {
		for _, r := range results {
			fmt.Fprintf(os.Stderr, "round %d of %d: %s\n", round+1, o.rounds, r.name)
			if err := r.measure(ctx, o.span); err != nil {
				return "", fmt.Errorf("%s: %w", r.name, err)
			}
		}
	}
	return dnsMarkdown(o, results, others), nil
}

// measure makes a round.
func (r *dnsResult) measure(ctx context.Context, span time.Duration) error {
	if err := r.ready(ctx); err != nil {
		return err
	}
	// What is kept of the first answers is not measured.
	if _, err := hammer(ctx, r.addr, askers, span/8); err != nil {
		return err
	}
	before, err := spent(r.cmd.Process.Pid)
	if err != nil {
		return err
	}
	most, err := hammer(ctx, r.addr, askers, span)
	if err != nil {
		return err
	}
	after, err := spent(r.cmd.Process.Pid)
	if err != nil {
		return err
	}
	if most.perSecond() > r.most.perSecond() {
		r.most, r.cost = most, (after-before)/time.Duration(max(1, len(most.took)))
	}
	paced, err := pace(ctx, r.addr, askers, pacedRate, span)
	if err != nil {
		return err
	}
	if paced.beats(r.paced) {
		r.paced = paced
	}
	peace, err := pace(ctx, r.addr, 1, victimRate, span)
	if err != nil {
		return err
	}
	if peace.beats(r.peace) {
		r.peace = peace
	}
	release := takeCore(ctx)
	busy, err := pace(ctx, r.addr, 1, victimRate, span)
	release()
	if err != nil {
		return err
	}
	if busy.beats(r.busy) {
		r.busy = busy
	}
	stop := flood(ctx, r.addr)
	flooded, err := pace(ctx, r.addr, 1, victimRate, span)
	sent := stop()
	if err != nil {
		return err
	}
	if flooded.beats(r.flood) {
		r.flood, r.flooded = flooded, float64(sent)/span.Seconds()
	}
	r.memory, err = resident(r.cmd.Process.Pid)
	return err
}

// ready waits until the server knows a name.
func (s *dnsServer) ready(ctx context.Context) error {
	const patience = 20 * time.Second
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if t, err := hammer(ctx, s.addr, 1, 10*time.Millisecond); err == nil && len(t.took) > 0 {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return fmt.Errorf("%s does not answer", s.name)
}

func (s *dnsServer) stop() error {
	if s.stdin != nil {
		_ = s.stdin.Close()
	} else {
		_ = s.cmd.Process.Signal(syscall.SIGTERM)
	}
	_ = s.cmd.Wait() // it was asked to end
	return nil
}

// spent is what a process has spent of processor time.
func spent(pid int) (time.Duration, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(raw), ") ") // behind the name, which may hold anything
	var sum time.Duration
	for _, f := range strings.Fields(rest)[11:13] {
		const tick = 10 * time.Millisecond
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read processor time: %w", err)
		}
		sum += time.Duration(n) * tick
	}
	return sum, nil
}

// resident is the memory of a process, in bytes.
func resident(pid int) (int64, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	pages, err := strconv.ParseInt(strings.Fields(string(raw))[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}

func dnsMarkdown(o options, results []*dnsResult, others float64) string {
	var w strings.Builder
	fmt.Fprintf(&w, "## DNS for Machines: `make bench-net`\n\n`go run ./bench/net %s`\n\n- %s\n", o, publish.Server())
	versions := []string{runtime.Version()}
	for _, r := range results {
		if r.version != "" {
			versions = append(versions, r.version)
		}
	}
	fmt.Fprintf(&w, "- %s\n- %d Apps with %d Machines each; half of the questions are for an App, half for a Machine\n"+
		"- %d rounds in which each server is measured in turn; of each thing the best round counts\n"+
		"- before it began, other work took %.0f%% of the processors\n",
		strings.Join(versions, "; "), dnsApps, dnsPerApp, o.rounds, 100*others)
	own := results[0]
	fmt.Fprint(&w, "\n### Goals\n\n| | | goal | |\n|---|--:|--:|---|\n")
	goal := func(name, got, want string, met bool) {
		fmt.Fprintf(&w, "| %s | %s | %s | %s |\n", name, got, want, publish.Verdict(met))
	}
	goal("answers a second", fmt.Sprintf("%.0f", own.most.perSecond()), fmt.Sprintf("≥ %d", goalQueries), own.most.perSecond() >= goalQueries)
	goal(fmt.Sprintf("p99 at %d questions a second", pacedRate), brief(own.paced.quantile(.99)), "≤ "+brief(goalQueryP99), own.paced.quantile(.99) <= goalQueryP99)
	for _, to := range []struct {
		what string
		t    tally
	}{{"alone", own.peace}, {"beside a busy core", own.busy}} {
		ratio := float64(own.flood.quantile(.99)) / float64(to.t.quantile(.99))
		goal("p99 of a client while another floods, to the same "+to.what, fmt.Sprintf("%.2f×", ratio), fmt.Sprintf("≤ %.0f×", goalUnderFlood),
			ratio <= goalUnderFlood && own.flood.lost == 0)
	}
	fmt.Fprintf(&w, "\n### Answers\n\n%d clients ask again as soon as they have an answer; \"to hangar\" is their rate to hangar's. Then all together ask %d times a second.\n\n"+
		"| | per second | to hangar | p50 | p99 | cpu | memory | p50 at %d/s | p99 at %d/s | lost |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
		askers, pacedRate, pacedRate, pacedRate)
	for _, r := range results {
		fmt.Fprintf(&w, "| %s | %.0f | %.2f× | %s | %s | %.1f µs | %d MiB | %s | %s | %d |\n", r.name, r.most.perSecond(), r.most.perSecond()/own.most.perSecond(),
			brief(r.most.quantile(.5)), brief(r.most.quantile(.99)), float64(r.cost)/1000, r.memory>>20,
			brief(r.paced.quantile(.5)), brief(r.paced.quantile(.99)), r.paced.lost)
	}
	fmt.Fprintf(&w, "\n### A flood\n\nOne client asks %d times a second: alone, beside a program that takes a core, and while another client sends as much as it can, "+
		"which takes a core, and reads no answer.\n\n"+
		"| | p50 | p99 | p99 beside a busy core | p50 in the flood | p99 in the flood | p99 to that in peace | lost | questions of the flood |\n"+
		"|---|--:|--:|--:|--:|--:|--:|--:|--:|\n", victimRate)
	for _, r := range results {
		fmt.Fprintf(&w, "| %s | %s | %s | %s | %s | %s | %.2f× | %d of %d | %.0f/s |\n", r.name, brief(r.peace.quantile(.5)), brief(r.peace.quantile(.99)),
			brief(r.busy.quantile(.99)), brief(r.flood.quantile(.5)), brief(r.flood.quantile(.99)), float64(r.flood.quantile(.99))/float64(r.peace.quantile(.99)),
			r.flood.lost, r.flood.lost+len(r.flood.took), r.flooded)
	}
	return w.String()
}

// hostsOf writes the records of all names, as other servers read them.
func hostsOf(dir, name string, line func(name string, addr netip.Addr) string) (string, error) {
	path := filepath.Join(dir, name)
	var b strings.Builder
	for n := range dnsApps * dnsPerApp {
		addr := machineAddress(n)
		b.WriteString(line(appName(n)+".internal", addr))
		b.WriteString(line(machineName(n)+".vm."+appName(n)+".internal", addr))
	}
	return path, os.WriteFile(path, []byte(b.String()), 0o644) //nolint:gosec // its reader may drop its rights
}

func appName(n int) string     { return fmt.Sprintf("app%d", n%dnsApps) }
func machineName(n int) string { return fmt.Sprintf("%014x", n+1) }

func machineAddress(n int) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf("fdaa:0:1:a7b:7d:0:%x:2", n+1))
}
