package machines_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver/fake"
	"github.com/hangar-platform/hangar/host/machines"
	"github.com/hangar-platform/hangar/internal/freeport"
)

// serving are the services of a loopback.
type serving struct{ loopback }

func (s serving) DialService(ctx context.Context, id hangar.MachineID, port int) (net.Conn, error) {
	return s.Dial(ctx, id, port)
}

func (serving) DialDatagrams(ctx context.Context, _ hangar.MachineID, port int) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "udp4", (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}).String())
}

func newServingRig(tb testing.TB) *rig {
	tb.Helper()
	r := newRig(tb)
	r.close()
	r.net = serving{}
	r.open()
	return r
}

// serves gives a Machine a service with autostop.
func serves(autostop any, after time.Duration, port ...int) func(*hangar.MachineSpec) {
	return func(s *hangar.MachineSpec) {
		service := hangar.Service{
			Protocol: "tcp", InternalPort: 8080, Autostop: autostop, AutostopAfter: new(hangar.Duration(after)),
			Ports: []hangar.ServicePort{{Port: 80}}, Concurrency: &hangar.ServiceConcurrency{HardLimit: 2},
		}
		if len(port) > 0 {
			service.InternalPort = port[0]
		}
		s.Config.Services = []hangar.Service{service}
	}
}

// enters enters a Machine, and leaves at once.
func (r *rig) enters(ref hangar.MachineRef) error {
	leave, err := r.EnterMachine(ref, 8080)
	if err == nil {
		leave()
	}
	return err
}

// enter enters a Machine, and wakes it as often as autostop stops it before.
func (r *rig) enter(ref hangar.MachineRef) (leave func()) {
	r.Helper()
	r.until(func() (in bool) {
		if r.WakeMachine(r.Context(), ref, 0) != nil {
			return false
		}
		var err error
		leave, err = r.EnterMachine(ref, 8080)
		return err == nil
	})
	return leave
}

// busy keeps a Machine busy, and starts it if autostop has stopped it.
func (r *rig) busy(ref hangar.MachineRef, ttl time.Duration) (busy hangar.MachineBusy, asked time.Time) {
	r.Helper()
	r.until(func() bool {
		if r.state(ref) != hangar.MachineStarted {
			_, _ = r.StartMachine(r.Context(), ref) // refused while it stops
			return false
		}
		var err error
		asked = time.Now()
		if busy, err = r.KeepMachineBusy(r.Context(), ref, ttl); err != nil {
			r.Declined(err, hangar.CodeFailedPrecondition, hangar.ReasonWrongState)
		}
		return err == nil
	})
	return busy, asked
}

func TestGate(t *testing.T) {
	r := newRig(t)
	r.Declined(r.enters(hangar.MachineRef{App: "web", AppID: "web", ID: hangar.NewMachineID()}), hangar.CodeNotFound, hangar.ReasonMachineNotFound)
	ref := r.create(nil, serves(false, 0))
	r.wait(ref, hangar.MachineStarted)
	r.must(r.enters(ref))
	r.must(r.CordonMachine(t.Context(), ref))
	r.Declined(r.enters(ref), hangar.CodeUnavailable, hangar.ReasonWrongState)
	r.Declined(r.WakeMachine(t.Context(), ref, 0), hangar.CodeFailedPrecondition, hangar.ReasonWrongState)
	r.must(r.UncordonMachine(t.Context(), ref))
	for range 2 {
		leave, err := r.EnterMachine(ref, 8080)
		r.must(err)
		defer leave()
	}
	r.Declined(r.enters(ref), hangar.CodeExhausted, hangar.ReasonAtLimit)
	for _, verb := range []func() error{
		func() error { return r.SuspendMachine(t.Context(), ref) },
		func() error { _, err := r.StartMachine(t.Context(), ref); return err },
		func() error { return r.StopMachine(t.Context(), ref, hangar.MachineStop{}) },
	} {
		r.must(verb())
		err := r.enters(ref)
		if hangar.ReasonOf(err) == hangar.ReasonAtLimit {
			continue // it is started by now
		}
		r.Declined(err, hangar.CodeUnavailable, hangar.ReasonWrongState)
		r.wait(ref, hangar.WaitSettled)
	}
	r.restart()
	r.start(ref)
	r.must(r.enters(ref))
}

// TestAutostop stops and suspends idle Machines, and checks the records.
func TestAutostop(t *testing.T) {
	r := newRig(t)
	stopped := r.create(nil, serves(true, 100*time.Millisecond))
	suspended := r.create(nil, serves("suspend", 100*time.Millisecond))
	large := r.create(nil, serves("suspend", 100*time.Millisecond), func(s *hangar.MachineSpec) { s.Config.Guest.MemoryMB = 4096 })
	used := r.create(nil, serves(true, 100*time.Millisecond))
	scheduled := r.create(nil, serves(true, 100*time.Millisecond), func(s *hangar.MachineSpec) { s.Config.Schedule = "monthly" })
	leave := r.enter(used)
	r.wait(scheduled, hangar.MachineStarted)
	r.wait(stopped, hangar.MachineStopped)
	r.wait(suspended, hangar.MachineSuspended)
	r.wait(large, hangar.MachineStopped)
	events, err := r.MachineEvents(t.Context(), suspended, 2)
	r.must(err)
	if e := events[1]; e.Type != hangar.EventSuspend || e.Source != hangar.SourceProxy {
		t.Errorf("the suspend began with %+v", e)
	}
	r.until(func() bool {
		return r.logged(stopped, "App web has excess capacity, autostopping machine "+string(stopped.ID))
	})
	if state := r.state(used); state != hangar.MachineStarted {
		t.Errorf("a machine that is in use is %s", state)
	}
	leave()
	r.wait(used, hangar.MachineStopped)
	if state := r.state(scheduled); state != hangar.MachineStarted {
		t.Errorf("a machine that runs for its schedule is %s", state)
	}
}

// TestAutostopInsteadOfSuspend: a Machine that cannot be suspended is stopped instead.
func TestAutostopInsteadOfSuspend(t *testing.T) {
	r := newRig(t)
	r.failing(fake.OpSuspend, -1)
	ref := r.create(nil, serves("suspend", 50*time.Millisecond))
	r.wait(ref, hangar.MachineStopped)
	if h := r.history(ref); strings.Count(h, "suspend/suspending") != 1 {
		t.Errorf("it was suspended more than once: %s", h)
	}
}

// TestAutostopSurvivesKill: after a kill during the stop of an idle Machine, the next agent
// finishes it; after a kill before that, idle time starts from zero.
func TestAutostopSurvivesKill(t *testing.T) {
	r := newRig(t)
	reached := r.hangAt(fake.OpStop)
	ref := r.create(nil, serves(true, 50*time.Millisecond))
	<-reached
	lasting := r.create(nil, serves(true, 2*time.Second))
	r.enter(lasting) // permanently: it is not idle before the kill
	r.crash()
	r.inject(nil)
	began := time.Now()
	r.open()
	r.wait(ref, hangar.MachineStopped)
	r.wait(lasting, hangar.MachineStopped)
	if took := time.Since(began); took < 2*time.Second {
		t.Errorf("it was stopped %s after the agent was started", took)
	}
}

// TestBusy: a busy Machine is not stopped, even across a restart of the daemon, but no longer than
// requested.
func TestBusy(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil, serves(true, 500*time.Millisecond))
	_, err := r.KeepMachineBusy(t.Context(), ref, hangar.MaxBusy+1)
	r.Declined(err, hangar.CodeInvalid, "")
	busy, began := r.busy(ref, 2*time.Second)
	if busy.Until.Sub(began) < 2*time.Second || time.Until(busy.Until) > 2*time.Second {
		t.Errorf("busy until %s, asked at %s", busy.Until, began)
	}
	r.crash()
	r.open()
	r.wait(ref, hangar.MachineStopped)
	if took := time.Since(began); took < 2500*time.Millisecond {
		t.Errorf("stopped after %s", took)
	}
	r.start(ref)
	r.wait(ref, hangar.MachineStopped) // the busy program is gone
	_, err = r.KeepMachineBusy(t.Context(), ref, time.Minute)
	r.Declined(err, hangar.CodeFailedPrecondition, hangar.ReasonWrongState)

	r.busy(ref, time.Hour)
	r.must(r.RestartMachine(t.Context(), ref, hangar.MachineRestart{}))
	r.wait(ref, hangar.MachineStopped) // likewise

	r.busy(ref, time.Hour)
	_, err = r.KeepMachineBusy(t.Context(), ref, 0)
	r.must(err)
	r.wait(ref, hangar.MachineStopped)
}

// later is a port that accepts connections after a while.
func later(t *testing.T, after time.Duration) (port int) {
	t.Helper()
	port, err := freeport.Port(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var done sync.WaitGroup
	t.Cleanup(done.Wait)
	done.Go(func() {
		select {
		case <-time.After(after):
		case <-t.Context().Done():
			return
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			t.Error(err)
			return
		}
		done.Go(func() {
			<-t.Context().Done()
			_ = l.Close()
		})
		done.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_ = c.Close()
			}
		})
	})
	return port
}

// TestWake starts a Machine once for all waiters, and releases them when it can serve.
func TestWake(t *testing.T) {
	r := newServingRig(t)
	port := later(t, 300*time.Millisecond)
	ref := r.create(nil, serves(false, 0, port), func(s *hangar.MachineSpec) { s.SkipLaunch = true })
	r.wait(ref, hangar.MachineStopped)
	r.lease(ref, time.Hour) // it blocks users
	var woken sync.WaitGroup
	for range 50 {
		woken.Go(func() {
			if err := r.WakeMachine(t.Context(), ref, port); err != nil {
				t.Error(err)
			}
		})
	}
	woken.Wait()
	for range 2 {
		c, err := r.DialService(t.Context(), ref, port)
		r.must(err)
		if _, ok := c.(*net.TCPConn); !ok {
			t.Errorf("the connection is a %T", c)
		}
		_ = c.Close()
	}
	if h := r.history(ref); strings.Count(h, "start/starting") != 1 {
		t.Errorf("it was started more than once: %s", h)
	}
	if _, err := r.DialDatagrams(t.Context(), ref, port); err != nil {
		t.Error(err)
	}
	impatient, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	r.Declined(r.WakeMachine(impatient, ref, 1), hangar.CodeTimeout, "")
	_, err := r.DialService(t.Context(), ref, 1)
	r.Declined(err, hangar.CodeUnavailable, hangar.ReasonConnectionRefused)
}

// TestWakeWhileStopping waits for the end of the current step, and then starts the Machine.
func TestWakeWhileStopping(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil, serves(false, 0))
	r.wait(ref, hangar.MachineStarted)
	for _, verb := range []func() error{
		func() error { return r.SuspendMachine(t.Context(), ref) },
		func() error { return r.StopMachine(t.Context(), ref, hangar.MachineStop{}) },
	} {
		r.must(verb())
		r.must(r.WakeMachine(t.Context(), ref, 0))
		r.must(r.enters(ref))
	}
	r.must(r.DestroyMachine(t.Context(), ref, hangar.MachineDestroy{Force: true}))
	r.Declined(r.WakeMachine(t.Context(), ref, 0), hangar.CodeFailedPrecondition, hangar.ReasonWrongState)
}

// TestWakeInBackOff: a Machine that has crashed often is started for a request before its policy
// would start it, a second after its exit.
func TestWakeInBackOff(t *testing.T) {
	r := newRig(t)
	ref := r.create(map[string]string{fake.EnvExit: "1@10ms"}, serves(false, 0), func(s *hangar.MachineSpec) {
		s.Config.Restart = &hangar.RestartConfig{Policy: hangar.RestartAlways}
	})
	r.until(func() bool { return machines.RestartPause(r.machines(), ref) > 2*time.Second })
	waiting, give := context.WithCancel(t.Context())
	woken := make(chan struct{})
	go func() {
		defer close(woken)
		for waiting.Err() == nil {
			_ = r.WakeMachine(waiting, ref, 0) // it may crash before a visit, or its policy may start it first
		}
	}()
	r.until(func() bool { return machines.RestartPause(r.machines(), ref) == time.Second })
	give()
	<-woken
}

// TestWakeInVain: waiters get an error if the Machine fails to serve.
func TestWakeInVain(t *testing.T) {
	r := newServingRig(t)
	ref := r.create(nil, serves(false, 0), func(s *hangar.MachineSpec) {
		s.SkipLaunch, s.Config.Restart = true, &hangar.RestartConfig{Policy: hangar.RestartNo}
	})
	r.wait(ref, hangar.MachineStopped)
	r.failing(fake.OpStart, 1)
	r.Declined(r.WakeMachine(t.Context(), ref, 0), hangar.CodeFailedPrecondition, hangar.ReasonStartFailed)
	ended := make(chan error, 1)
	go func() { ended <- r.WakeMachine(t.Context(), ref, 1) }()
	r.until(func() bool { return r.state(ref) == hangar.MachineStarted })
	r.must(r.StopMachine(t.Context(), ref, hangar.MachineStop{}))
	r.Declined(<-ended, hangar.CodeFailedPrecondition, hangar.ReasonStartFailed)
	r.wait(ref, hangar.MachineStopped)
	r.start(ref)
	go func() { ended <- r.WakeMachine(t.Context(), ref, 1) }()
	r.until(func() bool { return machines.Probed(r.machines(), ref) })
	r.close()
	r.Declined(<-ended, hangar.CodeUnavailable, "")
}

// TestWakeAgainstAutostop wakes a Machine while autostop keeps stopping it: each waiter enters or
// learns immediately that it is stopped again.
func TestWakeAgainstAutostop(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil, serves("suspend", time.Millisecond))
	in, late := 0, 0
	for range 100 {
		if err := r.WakeMachine(t.Context(), ref, 0); err != nil { // it was idle before the waiter could enter
			r.Declined(err, hangar.CodeFailedPrecondition, hangar.ReasonStartFailed)
			late++
			continue
		}
		leave, err := r.EnterMachine(ref, 8080)
		if err != nil {
			r.Declined(err, hangar.CodeUnavailable, hangar.ReasonWrongState)
			late++
			continue
		}
		in++
		if state := r.state(ref); state != hangar.MachineStarted {
			t.Fatalf("a visit is in a machine that is %s", state)
		}
		time.Sleep(time.Millisecond)
		if state := r.state(ref); state != hangar.MachineStarted {
			t.Fatalf("a visit is in a machine that is %s", state)
		}
		leave()
	}
	t.Logf("%d got in, %d were late", in, late)
}

// TestEdgeLog writes lines of the edge to the log of the Machine that they are about, or of another
// one of the App, and drops surplus lines.
func TestEdgeLog(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil)
	r.wait(ref, hangar.MachineStarted)
	r.LogEdge(ref, "error", "[PC01] nothing listens")
	r.LogEdge(hangar.MachineRef{App: "web", AppID: "web"}, "warn", "[PR03] no machine")
	r.LogEdge(hangar.MachineRef{App: "other", AppID: "other"}, "warn", "of another app")
	r.until(func() bool { return r.logged(ref, "[PC01] nothing listens") && r.logged(ref, "[PR03] no machine") })
	page, err := r.Logs(t.Context(), "web", hangar.LogQuery{Instance: ref.ID, Limit: 100})
	r.must(err)
	for _, e := range page.Entries {
		if strings.HasPrefix(e.Message, "[P") != (e.Provider == hangar.LogProxy) {
			t.Errorf("entry %+v", e)
		}
	}
	release := machines.HoldEdgeLog(r.machines())
	for range 10_000 { // more than may wait, and those that the writer has taken
		r.LogEdge(ref, "info", "many")
	}
	release()
	next := page.Next // the newest lines alone may be those that came after
	r.until(func() bool {
		page, err := r.Logs(t.Context(), "web", hangar.LogQuery{Instance: ref.ID, Token: next, Limit: 1000})
		r.must(err)
		next = page.Next
		return slices.ContainsFunc(page.Entries, func(e hangar.LogEntry) bool {
			return strings.Contains(e.Message, "lines of the edge were lost")
		})
	})
}
