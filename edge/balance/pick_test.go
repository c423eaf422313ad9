package balance_test

import (
	"errors"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/balance"
)

// TestPick: after so many requests, this is how many are in flight in each Machine.
func TestPick(t *testing.T) {
	type m = []option
	for _, tc := range []struct {
		name     string
		machines []m
		requests int
		want     []int
	}{
		{"least loaded first", []m{{limits(10, 20)}, {limits(10, 20)}, {limits(10, 20)}}, 9, []int{3, 3, 3}},
		{"up to the soft limits, also where they differ", []m{{limits(2, 20)}, {limits(7, 20)}}, 9, []int{2, 7}},
		{"above the soft limits when all are", []m{{limits(2, 20)}, {limits(2, 20)}}, 10, []int{5, 5}},
		{"one below its soft limit goes before an idler one above", []m{{limits(1, 20)}, {limits(10, 20)}}, 9, []int{1, 8}},
		{"the default soft limit", []m{{}, {}}, 42, []int{21, 21}},
		{"no hard limit", []m{{}}, 1000, []int{1000}},
		{"near goes before far, however loaded", []m{{limits(2, 8)}, {limits(2, 8), region("fra")}}, 8, []int{8, 0}},
		{"far when near is at its hard limit", []m{{limits(2, 4)}, {limits(2, 8), region("fra")}}, 9, []int{4, 5}},
		{"far when near is cordoned", []m{{cordoned(true)}, {region("fra")}}, 3, []int{0, 3}},
		{"far when near is unready", []m{{checked(hangar.CheckCritical)}, {region("fra")}}, 3, []int{0, 3}},
		{"checks that pass", []m{{checked(hangar.CheckPassing)}, {checked(hangar.CheckWarning)}}, 3, []int{3, 0}},
		{"far ones by name", []m{{limits(1, 2), region("fra")}, {limits(1, 2), region("bom")}}, 3, []int{1, 2}},
		{"on a host that cannot be reached", []m{{func(r *hangar.MachineRow) { r.Machine.HostStatus = "unreachable" }}, {}}, 2, []int{0, 2}},
		{"not started", []m{{state(hangar.MachineStopped), autostart(false)}, {state(hangar.MachineStarting)}, {}}, 2, []int{0, 0, 2}},
		{"of two versions", []m{{limits(5, 10)}, {limits(5, 10), version("2"), services(web(hangar.ServicePort{Port: 80, Handlers: []string{"http"}}))}}, 2, []int{1, 1}},
		{"another handling is no candidate", []m{{}, {version("2"), services(web(hangar.ServicePort{Port: 80}))}}, 2, []int{0, 2}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			within(t, nil, func(t *testing.T, w *world) {
				for i, options := range tc.machines {
					w.put(i+1, options...)
				}
				for range tc.requests {
					defer w.acquire().Release()
				}
				w.wantInFlight(t, tc.want...)
			})
		})
	}
}

// TestTies: equally loaded Machines share requests evenly.
func TestTies(t *testing.T) {
	within(t, nil, func(t *testing.T, w *world) {
		got := map[hangar.MachineID]int{}
		for n := range 4 {
			w.put(n + 1)
		}
		w.put(5, services(web(hangar.ServicePort{Port: 80, Handlers: []string{"http"}}))) // of another serviceSet
		for range 1000 {
			permit := w.acquire()
			got[permit.Row.Machine.ID]++
			permit.Release()
		}
		for n := range 5 {
			if got[id(n+1)] < 120 {
				t.Errorf("machine %d got %d of 1000", n+1, got[id(n+1)])
			}
		}
	})
}

func TestSelector(t *testing.T) {
	within(t, nil, func(t *testing.T, w *world) {
		w.put(1)
		w.put(2, region("fra"))
		w.put(3, region("ord"))
		w.put(4, region("fra"), state(hangar.MachineStopped))
		w.put(5, cordoned(true))
		w.put(6, services())
		for _, tc := range []struct {
			name   string
			sel    balance.Selector
			want   int // 0: an error
			missed bool
			code   hangar.EdgeCode
			status int
		}{
			{name: "none", want: 1},
			{name: "prefer", sel: balance.Selector{Prefer: id(3)}, want: 3},
			{name: "prefer a stopped one", sel: balance.Selector{Prefer: id(4)}, want: 1, missed: true},
			{name: "prefer one that is not", sel: balance.Selector{Prefer: id(99)}, want: 1, missed: true},
			{name: "prefer a region", sel: balance.Selector{Regions: []hangar.Region{"fra"}}, want: 2},
			{name: "the first of regions", sel: balance.Selector{Regions: []hangar.Region{"syd", "ord", "fra"}}, want: 3},
			{name: "a word for regions", sel: balance.Selector{Regions: []hangar.Region{"us"}, OnlyRegions: true}, want: 3},
			{name: "any region", sel: balance.Selector{Regions: []hangar.Region{"any"}, OnlyRegions: true}, want: 1},
			{name: "prefer a region without", sel: balance.Selector{Regions: []hangar.Region{"syd"}}, want: 1},
			{name: "only a region without", sel: balance.Selector{Regions: []hangar.Region{"syd"}, OnlyRegions: true}, code: hangar.EdgeNoCandidate, status: 503},
			{name: "exclude", sel: balance.Selector{Exclude: []hangar.MachineID{id(1), id(2)}}, want: 3},
			{name: "exclude all", sel: balance.Selector{Exclude: []hangar.MachineID{id(1), id(2), id(3), id(4), id(5)}}, code: hangar.EdgeNoCandidate, status: 503},
			{name: "exclude prefer", sel: balance.Selector{Prefer: id(3), Exclude: []hangar.MachineID{id(3)}}, want: 1, missed: true},
			{name: "instance", sel: balance.Selector{Instance: id(2)}, want: 2},
			{name: "instance that is not", sel: balance.Selector{Instance: id(99)}, code: hangar.EdgeNoMachine, status: 404},
			{name: "instance without the port", sel: balance.Selector{Instance: id(6)}, code: hangar.EdgeNoMachine, status: 404},
			{name: "instance that is cordoned", sel: balance.Selector{Instance: id(5)}, code: hangar.EdgeNoMachine, status: 503},
			{name: "instance that is excluded", sel: balance.Selector{Instance: id(2), Exclude: []hangar.MachineID{id(2)}}, code: hangar.EdgeNoMachine, status: 503},
			{name: "instance, not waiting", sel: balance.Selector{Instance: id(4), NoWait: true}, code: hangar.EdgeNoCandidate, status: 503},
			{name: "instance that is woken", sel: balance.Selector{Instance: id(4)}, want: 4},
		} {
			permit, err := w.tryAcquire(tc.sel)
			if tc.want == 0 {
				wantCode(t, err, tc.code, tc.status)
				continue
			}
			if err != nil || permit.Row.Machine.ID != id(tc.want) || permit.PreferredMissed != tc.missed {
				t.Errorf("%s: got %+v, %v; want machine %d", tc.name, permit, err, tc.want)
				continue
			}
			permit.Release()
		}
		w.wantWoken(t, 4)
	})
}

// TestPorts: ports follow the rows, and the newest version decides how they are handled.
func TestPorts(t *testing.T) {
	within(t, nil, func(t *testing.T, w *world) {
		http := hangar.ServicePort{Port: 80, Handlers: []string{"http"}}
		if _, ok := w.b.Endpoint(w.route, false, 80); ok || w.b.Ports(w.route) != nil {
			t.Error("an app without machines serves a port")
		}
		changed := w.b.PortsChanged()
		expect := func(name string, want ...balance.PortRange) {
			t.Helper()
			synctest.Wait()
			time.Sleep(time.Second) // for compilation that was put off
			if got := w.b.Ports(w.route); !slices.Equal(got, want) {
				t.Errorf("%s: ports are %v, want %v", name, got, want)
			}
			select {
			case <-changed:
			default:
				t.Errorf("%s: PortsChanged was not closed", name)
			}
			changed = w.b.PortsChanged()
		}
		asHTTP, raw := hangar.Handling{HTTP: true}, hangar.Handling{}
		dns := hangar.Service{Protocol: "udp", InternalPort: 53, Ports: []hangar.ServicePort{{Port: 53, Handlers: []string{"tls"}}}}
		w.put(1, services(web(http, hangar.ServicePort{StartPort: 5000, EndPort: 5999}), dns))
		expect("one machine", balance.PortRange{First: 80, Last: 80, Handling: asHTTP}, balance.PortRange{First: 5000, Last: 5999}, balance.PortRange{UDP: true, First: 53, Last: 53})
		ep := w.endpoint(5432)
		if permit, err := w.b.Acquire(t.Context(), ep, balance.Selector{}); err != nil || permit.Port != 8080 || permit.Options.StartPort != 5000 || permit.Service.InternalPort != 8080 {
			t.Errorf("a permit of a range: %+v, %v", permit, err)
		}
		w.put(2, version("2"), services(web(hangar.ServicePort{StartPort: 5500, EndPort: 6500, Handlers: []string{"tls"}})))
		expect("another that overlaps", balance.PortRange{First: 80, Last: 80, Handling: asHTTP}, balance.PortRange{First: 5000, Last: 5499},
			balance.PortRange{First: 5500, Last: 6500, Handling: hangar.Handling{TLS: true}}, balance.PortRange{UDP: true, First: 53, Last: 53})
		w.put(2, state(hangar.MachineStopped))
		expect("which is stopped: one that runs decides", balance.PortRange{First: 80, Last: 80, Handling: asHTTP}, balance.PortRange{First: 5000, Last: 5999, Handling: raw},
			balance.PortRange{First: 6000, Last: 6500, Handling: hangar.Handling{TLS: true}}, balance.PortRange{UDP: true, First: 53, Last: 53})
		w.forget(1)
		expect("alone", balance.PortRange{First: 5500, Last: 6500, Handling: hangar.Handling{TLS: true}})
		w.put(2, state(hangar.MachineDestroyed))
		expect("none")
		w.put(3, services(web(http)))
		expect("back again", balance.PortRange{First: 80, Last: 80, Handling: asHTTP})
		_, err := w.b.Acquire(t.Context(), ep, balance.Selector{})
		wantCode(t, err, hangar.EdgeNoneHealthy, 503)
	})
}

// TestOnStale: observers learn when connections to Machines are stale.
func TestOnStale(t *testing.T) {
	within(t, nil, func(t *testing.T, w *world) {
		var gone []hangar.MachineID
		w.b.OnStale(func(id hangar.MachineID) { gone = append(gone, id) })
		for n := 1; n <= 4; n++ {
			w.put(n)
		}
		w.acquire().Release()
		w.put(1, cordoned(true))
		w.put(2, state(hangar.MachineSuspending))
		w.put(2, state(hangar.MachineSuspended))
		w.put(3, version("2"))
		w.put(3, version("2"), func(r *hangar.MachineRow) { r.Losses++ })
		w.forget(4)
		synctest.Wait()
		if want := []hangar.MachineID{id(2), id(3), id(3), id(4)}; !slices.Equal(gone, want) {
			t.Errorf("gone are %v, want %v", gone, want)
		}
	})
}

// TestExit: a program has exited when it can no longer answer, not when it is asked to stop or is
// suspended, and an exit does not cover permits that were given by stale rows.
func TestExit(t *testing.T) {
	within(t, nil, func(t *testing.T, w *world) {
		var last balance.Exit
		expect := func(what string, want int, change ...option) {
			t.Helper()
			before := last
			w.put(1, change...)
			synctest.Wait()
			if last = w.b.LastExit(testApp, id(1)); (last != before) != (want == 1) {
				t.Errorf("%s: ended: %t, want %d", what, last != before, want)
			}
		}
		w.put(1)
		permit := w.acquire()
		first := permit.Row
		permit.Release()
		expect("cordoned", 0, cordoned(true))
		expect("uncordoned", 0, cordoned(false))
		expect("suspending", 0, state(hangar.MachineSuspending))
		expect("suspended", 0, state(hangar.MachineSuspended))
		expect("resuming", 0, state(hangar.MachineStarting))
		expect("resumed", 0, state(hangar.MachineStarted))
		expect("stopping", 0, state(hangar.MachineStopping))
		ahead, _ := w.feed.Row(id(1))
		expect("stopped", 1, state(hangar.MachineStopped))
		after, _ := w.feed.Row(id(1))
		if !last.Covers(first) || last.Covers(&ahead) || last.Covers(&after) {
			t.Error("the exit covers the wrong permits")
		}
		expect("starting", 0, state(hangar.MachineStarting))
		expect("started", 0, state(hangar.MachineStarted))
		expect("crashed", 0, state(hangar.MachineRestarting))
		expect("starting again", 1, state(hangar.MachineStarting))
		if !last.Covers(&ahead) {
			t.Error("the exit does not cover a permit that was given by a stale row")
		}
		expect("started again", 0, state(hangar.MachineStarted))
		expect("another version", 1, version("2"))
		permit = w.acquire()
		defer permit.Release()
		ends := 0
		permit.OnExit(func() { ends++ })
		w.forget(1)
		synctest.Wait()
		if ends != 1 {
			t.Errorf("%d ends, want one more", ends)
		}
	})
}

// TestFailed: during the cooldown after a failed connection, requests go to another Machine.
func TestFailed(t *testing.T) {
	within(t, nil, func(t *testing.T, w *world) {
		w.put(1)
		w.put(2, region("fra"))
		fail := func() {
			t.Helper()
			permit, err := w.tryAcquire(balance.Selector{Instance: id(1)})
			if err != nil {
				t.Fatal(err)
			}
			permit.Failed(errors.New("reset"))
			permit.Failed(errors.New("reset again"))
			permit.Release()
		}
		expect := func(n int) {
			t.Helper()
			permit := w.acquire()
			if permit.Row.Machine.ID != id(n) {
				t.Errorf("got machine %s, want %d", permit.Row.Machine.ID, n)
			}
			permit.Release()
		}
		expect(1)
		for _, pause := range []time.Duration{1, 2, 4, 8, 10, 10} {
			fail()
			time.Sleep(pause*time.Second - time.Millisecond)
			expect(2)
			time.Sleep(2 * time.Millisecond)
			synctest.Wait() // a request that succeeds would end the cooldown
		}
		expect(1)
		fail()
		time.Sleep(999 * time.Millisecond)
		expect(2)
		w.put(2, cordoned(true))
		expect(1) // there is no other
		w.put(2, cordoned(false))
		expect(1) // a success ended it
	})
}

func TestDial(t *testing.T) {
	within(t, nil, func(t *testing.T, w *world) {
		w.put(1)
		permit := w.acquire()
		conn, err := permit.Dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
		for _, tc := range []struct {
			err  error
			code hangar.EdgeCode
		}{
			{hangar.Errorf(hangar.CodeUnavailable, hangar.ReasonConnectionRefused, "refused"), hangar.EdgeRefusedPort},
			{hangar.Errorf(hangar.CodeTimeout, "", "slow"), hangar.EdgeConnectTimeout},
			{hangar.Errorf(hangar.CodeUnavailable, "", "away"), hangar.EdgeHostUnreachable},
			{errors.New("odd"), hangar.EdgeIO},
		} {
			w.gate.set(id(1), func(g *guest) { g.dialErr = tc.err })
			_, err := permit.Dial(t.Context())
			wantCode(t, err, tc.code, 502)
			if !errors.Is(err, tc.err) {
				t.Errorf("%v does not tell its cause", err)
			}
		}
		permit.Release()
		permit.Release()
		w.wantInFlight(t, 0)
	})
}

// TestRefusals: the host has the last word, and a refused Machine is tried again after a cooldown.
func TestRefusals(t *testing.T) {
	within(t, nil, func(t *testing.T, w *world) {
		w.put(1)
		w.put(2, region("fra"))
		expect := func(n int) {
			t.Helper()
			permit := w.acquire()
			if permit.Row.Machine.ID != id(n) {
				t.Errorf("got machine %s, want %d", permit.Row.Machine.ID, n)
			}
			permit.Release()
		}
		w.gate.set(id(1), func(g *guest) { g.draining = true })
		expect(2)
		w.gate.set(id(1), func(g *guest) { g.draining = false })
		expect(2)
		time.Sleep(260 * time.Millisecond)
		expect(1)
		w.gate.set(id(1), func(g *guest) { g.draining = true })
		expect(2)
		w.gate.set(id(1), func(g *guest) { g.draining = false })
		w.put(1) // the row changed
		expect(1)
		w.gate.set(id(1), func(g *guest) { g.hard, g.in = 5, 5 }) // full of others' requests
		expect(2)
		w.gate.set(id(1), func(g *guest) { g.in = 4 })
		time.Sleep(60 * time.Millisecond)
		expect(1)
	})
}

// enteringConn is a connection over which requests enter.
type enteringConn struct {
	net.Conn
	in, left int
}

func (c *enteringConn) EnterMachine() (func(), error) {
	c.in++
	return func() { c.left++ }, nil
}

// TestDeferred: the caller enters the Machine, over a connection or through the gate, and says if it was refused.
func TestDeferred(t *testing.T) {
	within(t, nil, func(t *testing.T, w *world) {
		w.put(1)
		w.put(2, region("fra"))
		acquire := func() *balance.Permit {
			t.Helper()
			permit, err := w.tryAcquire(balance.Selector{Deferred: true})
			if err != nil {
				t.Fatal(err)
			}
			return permit
		}
		permit := acquire()
		if permit.Row.Machine.ID != id(1) || w.gate.in(id(1)) != 0 {
			t.Fatalf("got machine %s, %d are in", permit.Row.Machine.ID, w.gate.in(id(1)))
		}
		first, second := &enteringConn{}, &enteringConn{}
		for _, conn := range []net.Conn{first, first, second} { // the first is lost
			if err := permit.Enter(conn); err != nil {
				t.Fatal(err)
			}
		}
		if first.in != 1 || first.left != 1 || second.in != 1 || second.left != 0 {
			t.Errorf("entered %+v and %+v", first, second)
		}
		if err := permit.Enter(nil); err != nil || w.gate.in(id(1)) != 1 || second.left != 1 {
			t.Errorf("%d are in by the gate, %v", w.gate.in(id(1)), err)
		}
		if err := permit.Enter(first); err != nil || first.in != 1 {
			t.Errorf("it was in already: %+v, %v", first, err)
		}
		permit.Release()
		permit.Refused(errors.New("too late"))
		if w.gate.in(id(1)) != 0 {
			t.Error("it has not left")
		}

		permit = acquire()
		if err := permit.Enter(first); err != nil || permit.Row.Machine.ID != id(1) {
			t.Fatalf("got machine %s, %v", permit.Row.Machine.ID, err)
		}
		permit.Refused(&hangar.Error{Code: hangar.CodeUnavailable, Reason: hangar.ReasonWrongState})
		permit.Release()
		if first.left != 2 {
			t.Errorf("it has not left: %+v", first)
		}
		for _, want := range []int{2, 1} {
			permit = acquire()
			if permit.Row.Machine.ID != id(want) {
				t.Errorf("got machine %s, want %d", permit.Row.Machine.ID, want)
			}
			permit.Release() // it has never entered
			time.Sleep(260 * time.Millisecond)
		}
		w.gate.set(id(1), func(g *guest) { g.draining = true })
		permit = acquire()
		if err := permit.Enter(nil); hangar.ReasonOf(err) != hangar.ReasonWrongState {
			t.Errorf("got %v", err)
		} else {
			permit.Refused(err)
		}
		w.gate.mu.Lock()
		w.gate.down = true
		w.gate.mu.Unlock()
		if _, err := w.tryAcquire(balance.Selector{Deferred: true, NoWait: true}); err == nil {
			t.Error("a host that is away gave a permit")
		}
	})
}

// TestBlame: whether a request was alone in its Machine, and whether the program has crashed since.
func TestBlame(t *testing.T) {
	within(t, nil, func(t *testing.T, w *world) {
		w.put(1)
		first := w.acquire()
		if !first.Alone() {
			t.Error("the first is not alone")
		}
		second := w.acquire()
		if first.Alone() || second.Alone() {
			t.Error("two are alone")
		}
		first.Release()
		if second.Alone() {
			t.Error("the earlier request is forgotten")
		}
		third := w.acquire()
		second.Release()
		w.put(1, state(hangar.MachineStopping))
		w.put(1, state(stopped))
		synctest.Wait()
		if crashed, known := third.Crashed(); crashed || !known {
			t.Errorf("a stop is a crash: %t, %t", crashed, known)
		}
		w.put(1, state(hangar.MachineRestarting), func(r *hangar.MachineRow) { r.Crashes++ })
		synctest.Wait()
		if crashed, known := third.Crashed(); !crashed || !known {
			t.Errorf("a crash is none: %t, %t", crashed, known)
		}
		third.Release()
		w.put(1, state(hangar.MachineStarted))
		fourth := w.acquire()
		if crashed, known := fourth.Crashed(); !fourth.Alone() || crashed || known {
			t.Errorf("the next is blamed for the crash before: %t, %t, %t", fourth.Alone(), crashed, known)
		}
		fourth.Release()
	})
}
