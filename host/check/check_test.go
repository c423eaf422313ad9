package check_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/check"
	"github.com/hangar-platform/hangar/internal/pause"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errRefused = errors.New("connect: connection refused")

// guests are pretend Machines that answer as a function of the time says.
type guests struct {
	began  time.Time
	answer func(after time.Duration, port int) (time.Duration, error) // how long a dial takes, and how it ends

	mu    sync.Mutex
	dials map[int][]time.Duration // by port: when
	open  int
	most  int
}

func (g *guests) Dial(ctx context.Context, _ hangar.MachineID, port int) (net.Conn, error) {
	after := time.Since(g.began)
	g.mu.Lock()
	if g.dials == nil {
		g.dials = make(map[int][]time.Duration)
	}
	g.dials[port] = append(g.dials[port], after)
	g.open++
	g.most = max(g.most, g.open)
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		g.open--
		g.mu.Unlock()
	}()
	takes, err := g.answer(after, port)
	if err := pause.For(ctx, takes); err != nil {
		return nil, err
	}
	if err != nil {
		return nil, err
	}
	near, far := net.Pipe()
	_ = far.Close()
	return near, nil
}

// bench is a Checker that runs, on pretend Machines.
type bench struct {
	*check.Checker
	*guests
	mu   sync.Mutex
	said []string
}

// within plays a test in a bubble of time.
func within(t *testing.T, o check.Options, answer func(after time.Duration, port int) (time.Duration, error), play func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{guests: &guests{began: time.Now(), answer: answer}}
		o.Dialer, o.Now = b.guests, time.Now
		o.Changed = func(id hangar.MachineID, c check.Change) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.said = append(b.said, fmt.Sprintf("%s %s: %s to %s at %s, tell %t",
				id, c.Check.Name, c.Before, c.After.Status, c.After.UpdatedAt.Sub(b.began), c.Tell))
		}
		b.Checker = check.New(o)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); b.Run(ctx) }()
		play(t, b)
		cancel()
		<-done
	})
}

func (b *bench) want(t *testing.T, said ...string) {
	t.Helper()
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Equal(b.said, said) {
		t.Errorf("told\n%q\nwant\n%q", b.said, said)
	}
}

// times returns when a port was dialed.
func (g *guests) times(port int) []time.Duration {
	synctest.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.dials[port])
}

func tcp(name string, port int, interval, timeout, grace time.Duration) hangar.NamedCheck {
	return hangar.NamedCheck{Name: name, Type: "tcp", Port: port, Interval: interval, Timeout: timeout, Grace: grace}
}

// under returns how many dials are under way, and how many were at most.
func (g *guests) under() (now, most int) {
	synctest.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.open, g.most
}

const ms = time.Millisecond

// up answers from then on.
func up(from time.Duration) func(time.Duration, int) (time.Duration, error) {
	return func(after time.Duration, _ int) (time.Duration, error) {
		if after < from {
			return 0, errRefused
		}
		return 0, nil
	}
}

func TestUnknownBeforeTheFirstRun(t *testing.T) {
	within(t, check.Options{}, up(0), func(t *testing.T, b *bench) {
		b.Watch(check.Target{Machine: "m", Checks: []hangar.NamedCheck{tcp("c", 1, time.Second, time.Second, 30*time.Second)}, Booted: time.Now()})
		time.Sleep(29 * time.Second)
		want := []hangar.MachineCheck{{Name: "c", Status: hangar.CheckWarning, Output: check.Unknown, UpdatedAt: b.began}}
		if got := b.Results("m"); !slices.Equal(got, want) {
			t.Errorf("results in the grace period: %+v, want %+v", got, want)
		}
	})
}

func TestChecksAreEagerAfterABoot(t *testing.T) {
	within(t, check.Options{}, up(2*time.Second), func(t *testing.T, b *bench) {
		b.Watch(check.Target{Machine: "m", Checks: []hangar.NamedCheck{tcp("c", 1, 10*time.Second, time.Second, 0)}, Booted: time.Now()})
		time.Sleep(60 * time.Second)
		got := b.times(1)
		if want := []time.Duration{0, 50 * ms, 150 * ms, 350 * ms, 750 * ms, 1550 * ms, 2550 * ms}; !slices.Equal(got[:len(want)], want) {
			t.Errorf("ran at %v, want %v", got, want)
		}
		// Then at its interval, of which the first is a share, so that Machines that
		// started together part.
		first := got[7] - got[6]
		if first <= 5*time.Second || first > 10*time.Second {
			t.Errorf("the first interval is %s", first)
		}
		for i := 8; i < len(got); i++ {
			if got[i]-got[i-1] != 10*time.Second {
				t.Errorf("ran at %v, not every ten seconds", got[i:])
			}
		}
		b.want(t, "m c: warning to critical at 0s, tell false", "m c: critical to passing at 2.55s, tell true")
	})
}

func TestChecksThatNeverPassCalmDown(t *testing.T) {
	within(t, check.Options{}, up(time.Hour), func(t *testing.T, b *bench) {
		b.Watch(check.Target{Machine: "m", Checks: []hangar.NamedCheck{tcp("c", 1, 5*time.Second, time.Second, 0)}, Booted: time.Now()})
		time.Sleep(10 * time.Second)
		eager := len(b.times(1))
		if eager < 12 || eager > 16 {
			t.Errorf("%d runs in two intervals", eager)
		}
		time.Sleep(5 * time.Minute)
		if got := len(b.times(1)) - eager; got < 59 || got > 62 {
			t.Errorf("%d runs in five minutes, every five seconds", got)
		}
		if got := b.Results("m")[0]; got.Status != hangar.CheckCritical || got.Output != errRefused.Error() || !got.UpdatedAt.Equal(b.began) {
			t.Errorf("result %+v", got)
		}
		b.want(t, "m c: warning to critical at 0s, tell false", "m c: critical to critical at 0s, tell true")
	})
}

func TestGracePeriods(t *testing.T) {
	checks := []hangar.NamedCheck{tcp("c", 1, 5*time.Second, time.Second, 30*time.Second)}
	passing := []hangar.MachineCheck{{Name: "c", Status: hangar.CheckPassing, Output: "Success", UpdatedAt: time.Unix(1, 0)}}
	for name, test := range map[string]struct {
		booted time.Duration // ago; negative: unknown
		known  []hangar.MachineCheck
		first  func(time.Duration) bool
	}{
		"boot":               {0, nil, func(d time.Duration) bool { return d == 30*time.Second }},
		"resume":             {-1, nil, func(d time.Duration) bool { return d == 0 }},
		"daemon came back":   {10 * time.Second, nil, func(d time.Duration) bool { return d == 20*time.Second }},
		"long after":         {time.Hour, nil, func(d time.Duration) bool { return d == 0 }},
		"known to be well":   {time.Hour, passing, func(d time.Duration) bool { return d > 0 && d < 5*time.Second }},
		"booted in future":   {-2, nil, func(d time.Duration) bool { return d == 30*time.Second }},
		"known of a renamed": {time.Hour, []hangar.MachineCheck{{Name: "d"}}, func(d time.Duration) bool { return d == 0 }},
	} {
		t.Run(name, func(t *testing.T) {
			within(t, check.Options{}, up(0), func(t *testing.T, b *bench) {
				target := check.Target{Machine: "m", Checks: checks, Known: test.known}
				switch {
				case test.booted >= 0:
					target.Booted = time.Now().Add(-test.booted)
				case test.booted == -2: // the clock was set back
					target.Booted = time.Now().Add(time.Hour)
				}
				b.Watch(target)
				time.Sleep(time.Minute)
				if got := b.times(1)[0]; !test.first(got) {
					t.Errorf("the first run was after %s", got)
				}
			})
		})
	}
}

func TestFailureAndRecovery(t *testing.T) {
	down := func(after time.Duration, _ int) (time.Duration, error) {
		if after > 20*time.Second && after < 40*time.Second {
			return 0, errRefused
		}
		return 0, nil
	}
	within(t, check.Options{}, down, func(t *testing.T, b *bench) {
		b.Watch(check.Target{Machine: "m", Checks: []hangar.NamedCheck{tcp("c", 1, time.Second, time.Second, 0)}})
		time.Sleep(time.Minute)
		synctest.Wait()
		b.mu.Lock()
		told := len(b.said)
		b.mu.Unlock()
		if told != 3 {
			t.Fatalf("told of %d changes, want 3", told)
		}
		result := b.Results("m")[0]
		if result.Status != hangar.CheckPassing || result.Output != "Success" {
			t.Errorf("result %+v", result)
		}
		if after := result.UpdatedAt.Sub(b.began); after < 40*time.Second || after > 42*time.Second {
			t.Errorf("passes since %s", after)
		}
	})
}

// TestSlowChecksDelayNoOther has one port that never answers beside one that does.
func TestSlowChecksDelayNoOther(t *testing.T) {
	slow := func(_ time.Duration, port int) (time.Duration, error) {
		if port == 1 {
			return time.Hour, nil
		}
		return 0, nil
	}
	within(t, check.Options{}, slow, func(t *testing.T, b *bench) {
		b.Watch(check.Target{Machine: "m", Checks: []hangar.NamedCheck{
			tcp("slow", 1, 2*time.Second, 10*time.Second, 0), tcp("quick", 2, 2*time.Second, time.Second, 0),
		}})
		time.Sleep(time.Minute)
		if got := b.Results("m"); got[0].Status != hangar.CheckCritical || got[0].Output != "no answer from port 1 within 10s" || got[1].Status != hangar.CheckPassing {
			t.Errorf("results %+v", got)
		}
		slow, quick := b.times(1), b.times(2)
		if len(quick) < 29 {
			t.Errorf("the quick one ran %d times in a minute", len(quick))
		}
		for i := 1; i < len(slow); i++ {
			if slow[i]-slow[i-1] < 10*time.Second {
				t.Errorf("the slow one ran at %v: twice at once", slow)
			}
		}
	})
}

func TestRunsAtOnceAreBounded(t *testing.T) {
	hang := func(time.Duration, int) (time.Duration, error) { return time.Hour, nil }
	for name, test := range map[string]struct {
		machines, checks, most int
		o                      check.Options
	}{
		"of a Machine": {1, 20, 3, check.Options{PerMachine: 3}},
		"of all":       {20, 2, 10, check.Options{AtOnce: 10}},
	} {
		t.Run(name, func(t *testing.T) {
			within(t, test.o, hang, func(t *testing.T, b *bench) {
				var checks []hangar.NamedCheck
				for port := range test.checks {
					checks = append(checks, tcp(fmt.Sprint(port), port, time.Second, time.Second, 0))
				}
				for m := range test.machines {
					b.Watch(check.Target{Machine: hangar.MachineID(fmt.Sprint(m)), Org: hangar.OrgID(fmt.Sprint(m)), Checks: checks})
				}
				time.Sleep(2 * time.Minute)
				if _, most := b.under(); most != test.most {
					t.Errorf("%d runs at once, want %d", most, test.most)
				}
				for port := range test.checks { // each has a turn
					if got := len(b.times(port)); got < 5*test.machines {
						t.Errorf("port %d was tried %d times", port, got)
					}
				}
			})
		})
	}
}

// TestChecksOfOneOrganization: Machines of an organization that do not answer, of which there are more than all runs
// at a time, delay no check of another.
func TestChecksOfOneOrganization(t *testing.T) {
	const hanging, quick = 1, 2
	answer := func(_ time.Duration, port int) (time.Duration, error) {
		if port == hanging {
			return time.Hour, nil
		}
		return 0, nil
	}
	within(t, check.Options{AtOnce: 4}, answer, func(t *testing.T, b *bench) {
		for i := range 20 {
			b.Watch(check.Target{Machine: hangar.MachineID(fmt.Sprint(i)), Org: "evil", Checks: []hangar.NamedCheck{tcp("c", hanging, time.Second, time.Minute, 0)}})
		}
		time.Sleep(time.Second)
		b.Watch(check.Target{Machine: "good", Org: "good", Checks: []hangar.NamedCheck{tcp("c", quick, time.Second, time.Second, 0)}})
		time.Sleep(time.Minute)
		if n := len(b.times(quick)); n < 59 {
			t.Errorf("it was checked %d times in a minute", n)
		}
	})
}

// TestForgetCutsOff also watches again, and must not mix up the two.
func TestForgetCutsOff(t *testing.T) {
	hang := func(time.Duration, int) (time.Duration, error) { return time.Minute, nil }
	within(t, check.Options{PerMachine: 1}, hang, func(t *testing.T, b *bench) {
		target := check.Target{Machine: "m", Checks: []hangar.NamedCheck{
			tcp("a", 1, time.Second, time.Hour, 0), tcp("b", 2, time.Second, time.Hour, 0),
		}}
		b.Watch(target)
		time.Sleep(time.Second)
		b.Forget("m")
		if open, _ := b.under(); open != 0 || b.Results("m") != nil {
			t.Errorf("%d runs of a Machine that is forgotten, results %v", open, b.Results("m"))
		}
		b.Watch(target)
		b.Watch(target)
		time.Sleep(10 * time.Second)
		if open, _ := b.under(); open != 1 {
			t.Errorf("%d runs at once, want 1", open)
		}
		b.Watch(check.Target{Machine: "m"})
		b.Forget("m")
		b.Forget("m")
		time.Sleep(time.Hour)
		b.want(t)
	})
}
