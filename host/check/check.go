// Package check probes the health of Machines and reports changes.
//
// A Machine is watched from its start to its stop. Each of its checks runs at its interval; right
// after a boot, once the grace period is over, it runs much more often until it passes or two
// intervals have passed, so that a healthy Machine is found early. One run decides: a failure is
// critical, a success passes. A slow run does not delay the next one of another check, and a check
// never runs twice at once. Nothing here acts on a Machine.
//
// One goroutine, Run, keeps the time of all checks; a run has a goroutine for as long as it takes.
// Concurrent runs are bounded, in total and for each Machine, and organizations share them fairly, so that
// Machines that do not answer cannot delay those of others. Methods may be called from any goroutine.
//
// The package stores nothing; the observer of changes records what must outlive the daemon.
package check

import (
	"cmp"
	"context"
	"hash/fnv"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/fairsem"
	"github.com/hangar-platform/hangar/internal/pqueue"
)

// Dialer reaches into the private network of Machines.
type Dialer interface {
	// Dial connects to a TCP port of a Machine, by whichever of its addresses
	// listens.
	Dial(ctx context.Context, id hangar.MachineID, port int) (net.Conn, error)
}

// DefaultAtOnce and DefaultPerMachine bound the runs at a time.
const (
	DefaultAtOnce     = 1024
	DefaultPerMachine = 4
)

// The pace after a boot: the first pause, which doubles up to the last.
const (
	minEager = 50 * time.Millisecond
	maxEager = time.Second
)

// Change is a check whose status has changed.
type Change struct {
	Check  hangar.NamedCheck
	Before hangar.CheckStatus
	After  hangar.MachineCheck
	Tell   bool // it is worth a log line: not the first failure of a booting Machine
}

// Options of a Checker. AtOnce and PerMachine may be zero for the defaults.
type Options struct {
	Dialer Dialer
	Now    func() time.Time // stamps results
	// Changed is called for every change, one after the other. It must not call the
	// Checker, and should be quick.
	Changed    func(id hangar.MachineID, change Change)
	AtOnce     int
	PerMachine int
}

// Target is a Machine to be watched.
type Target struct {
	Machine hangar.MachineID
	Org     hangar.OrgID
	Addr    netip.Addr // by which requests name the Machine
	Checks  []hangar.NamedCheck
	// Booted is when the Machine booted: grace periods are counted from then. Zero: no grace
	// periods, as after a resume.
	Booted time.Time
	// Known has the results of an earlier daemon, in the order of Checks; nil if nothing is known.
	Known []hangar.MachineCheck
}

// Unknown is the output of a check that has not run yet.
const Unknown = "the check has not run yet"

// Checker watches Machines. Use New, then Run.
type Checker struct {
	o     Options
	wake  chan struct{}                    // buffered 1: the queue has a new head, or a run has ended
	slots *fairsem.Semaphore[hangar.OrgID] // of runs
	runs  sync.WaitGroup

	mu       sync.Mutex // guards what follows
	machines map[hangar.MachineID]*machine
	queue    *pqueue.Queue[*probe] // the one that is due first on top
}

// machine is a Machine that is watched.
type machine struct {
	id     hangar.MachineID
	org    hangar.OrgID
	addr   netip.Addr
	probes []*probe
	active int      // runs under way
	behind []*probe // due, but the Machine has as many runs as it may
}

// probe is one check of a Machine.
type probe struct {
	machine *machine
	spec    hangar.NamedCheck
	result  hangar.MachineCheck
	due     time.Time
	eager   time.Duration      // the next pause after a boot; 0: it goes at its interval
	patient time.Time          // when it stops being eager
	calm    bool               // its eager phase has ended
	place   pqueue.Place       // in the queue
	cancel  context.CancelFunc // of the run under way; nil: there is none
}

// New returns a Checker that watches nothing yet.
func New(o Options) *Checker {
	o.AtOnce = cmp.Or(o.AtOnce, DefaultAtOnce)
	o.PerMachine = cmp.Or(o.PerMachine, DefaultPerMachine)
	return &Checker{
		o: o, wake: make(chan struct{}, 1), slots: fairsem.New[hangar.OrgID](o.AtOnce), machines: make(map[hangar.MachineID]*machine),
		queue: pqueue.New(
			func(a, b *probe) bool { return a.due.Before(b.due) },
			func(p *probe) *pqueue.Place { return &p.place },
		),
	}
}

// Watch begins to watch a Machine, from the start even if it is watched.
func (c *Checker) Watch(t Target) {
	now := time.Now()
	m := &machine{id: t.Machine, org: t.Org, addr: t.Addr}
	since := c.o.Now()
	for i, spec := range t.Checks {
		p := &probe{machine: m, spec: spec, due: now, eager: minEager}
		if len(t.Known) == len(t.Checks) && t.Known[i].Name == spec.Name {
			// The check is known from an earlier daemon. Such checks are spread, so that they do
			// not all run when a daemon starts.
			p.result = t.Known[i]
			if p.result.Status == hangar.CheckPassing {
				p.eager, p.calm = 0, true
				p.due = now.Add(p.share(spec.Interval))
			}
		} else {
			p.result = hangar.MachineCheck{Name: spec.Name, Status: hangar.CheckWarning, Output: Unknown, UpdatedAt: since}
		}
		if !t.Booted.IsZero() {
			if left := spec.Grace - since.Sub(t.Booted); p.due.Before(now.Add(left)) {
				p.due = now.Add(min(left, spec.Grace))
			}
		}
		p.patient = p.due.Add(2 * spec.Interval)
		m.probes = append(m.probes, p)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget(t.Machine)
	if len(m.probes) == 0 {
		return
	}
	c.machines[m.id] = m
	for _, p := range m.probes {
		c.queue.Put(p)
	}
	c.signal()
}

// share is a part of d that is the probe's own, so that checks which began at the same moment do
// not keep running at the same moment.
func (p *probe) share(d time.Duration) time.Duration {
	h := fnv.New32a()
	_, _ = h.Write([]byte(p.machine.id)) // never fails
	_, _ = h.Write([]byte(p.spec.Name))
	return time.Duration(float64(d) * float64(h.Sum32()) / (1 << 32))
}

// Forget ends the watch of a Machine. Runs in progress are cut off and their results dropped:
// after Forget, Changed is not called for the Machine.
func (c *Checker) Forget(id hangar.MachineID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget(id)
}

func (c *Checker) forget(id hangar.MachineID) {
	m := c.machines[id]
	if m == nil {
		return
	}
	delete(c.machines, id)
	for _, p := range m.probes {
		if p.cancel != nil {
			p.cancel()
		}
		c.queue.Remove(p)
	}
	m.behind = nil
}

// Results returns the last results of a Machine's checks, in their order; nil for a Machine that
// is not watched.
func (c *Checker) Results(id hangar.MachineID) []hangar.MachineCheck {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.machines[id]
	if m == nil {
		return nil
	}
	list := make([]hangar.MachineCheck, len(m.probes))
	for i, p := range m.probes {
		list[i] = p.result
	}
	return list
}

// Run runs checks until ctx ends and all runs have.
func (c *Checker) Run(ctx context.Context) {
	defer c.runs.Wait()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		p, pause := c.next(time.Now())
		if p != nil {
			c.begin(ctx, p)
			continue
		}
		timer.Reset(pause)
		select {
		case <-timer.C:
		case <-c.wake:
		case <-ctx.Done():
		}
	}
}

// next takes a probe that is due off the queue, or returns how long until one is.
func (c *Checker) next(now time.Time) (*probe, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		p, ok := c.queue.First()
		if !ok {
			return nil, time.Hour
		}
		if pause := p.due.Sub(now); pause > 0 {
			return nil, pause
		}
		c.queue.Pop()
		if p.machine.active >= c.o.PerMachine {
			p.machine.behind = append(p.machine.behind, p)
			continue
		}
		p.machine.active++
		return p, 0
	}
}

// begin runs a probe, once there is a slot for it.
func (c *Checker) begin(ctx context.Context, p *probe) {
	c.runs.Go(func() {
		release, err := c.slots.Acquire(ctx, p.machine.org)
		if err != nil {
			return
		}
		defer release()
		bounded, cancel := context.WithTimeout(ctx, p.spec.Timeout)
		defer cancel()
		if !c.claim(p, cancel) {
			return
		}
		output, err := run(bounded, c.o.Dialer, p.machine, &p.spec)
		if ctx.Err() == nil {
			c.end(p, output, err)
		}
	})
}

// claim registers how to cut off a run. It reports false for a Machine that has been forgotten
// meanwhile.
func (c *Checker) claim(p *probe, cancel context.CancelFunc) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p.cancel = cancel
	return c.machines[p.machine.id] == p.machine
}

// end takes the result of a run, and plans the next.
func (c *Checker) end(p *probe, output string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := p.machine
	if c.machines[m.id] != m {
		return
	}
	m.active--
	p.cancel = nil
	if len(m.behind) > 0 {
		c.queue.Put(m.behind[0])
		m.behind = slices.Delete(m.behind, 0, 1)
	}
	now := time.Now()
	wasEager := p.eager > 0
	p.due = now.Add(p.pause(now, err == nil))
	c.queue.Put(p)
	c.signal()

	before := p.result
	p.result.Status, p.result.Output = hangar.CheckPassing, clean(output)
	if err != nil {
		p.result.Status, p.result.Output = hangar.CheckCritical, clean(err.Error())
	}
	gaveUp := wasEager && p.eager == 0 && err != nil
	if before.Status == p.result.Status && !gaveUp {
		return
	}
	if before.Status != p.result.Status {
		p.result.UpdatedAt = c.o.Now()
	}
	c.o.Changed(m.id, Change{Check: p.spec, Before: before.Status, After: p.result, Tell: err == nil || gaveUp || !wasEager})
}

// pause returns how long until the next run.
func (p *probe) pause(now time.Time, passed bool) time.Duration {
	if p.eager > 0 && !passed && now.Before(p.patient) {
		pause := min(p.eager, p.spec.Interval)
		p.eager = min(2*p.eager, maxEager)
		return pause
	}
	p.eager = 0
	if !p.calm {
		p.calm = true
		return p.spec.Interval - p.share(p.spec.Interval/2)
	}
	return p.spec.Interval
}

// signal makes Run check the queue. c.mu is held.
func (c *Checker) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}
