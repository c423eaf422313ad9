// Package host is the agent of one server: it owns the Machines that run there
// and does what control decided.
//
// The agent keeps every fact about its Machines in the journal and writes it there
// before it causes the effect, so that a kill at any moment leaves a record from
// which the next start finishes or undoes what was under way. Running Machines do
// not notice: a stop of the daemon is not a stop of a Machine. State changes and
// their events are one commit, which wakes every waiter and queues the row that
// the other planes read.
//
// Each Machine is a small state machine of its own. A verb decides and commits
// under the Machine's lock and returns; a goroutine that exists only while there
// is something to do or to watch then makes it true, one step per state, and every
// step can run twice. The table of states is hangar.MachineState's.
//
// The agent does not authorise, place or name; that is control's part. How a
// Machine runs is the driver's.
package host

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/singleflight"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/image"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/host/logs"
	"github.com/hangar-platform/hangar/host/network"
)

// Images is what the agent needs of an image store; image.Store has it.
type Images interface {
	Resolve(ctx context.Context, ref string) (hangar.ImageRef, error)
	Pull(ctx context.Context, ref string, progress func(hangar.PullProgress)) (*image.Image, error)
	Get(digest string) (*image.Image, error)
	List() ([]hangar.Image, error)
	Remove(ctx context.Context, digest string) error
	GC(ctx context.Context, policy image.Policy) (freed int64, err error)
}

// Networks is what the agent needs of the private network; network.Network has it.
type Networks interface {
	Attach(ctx context.Context, e network.Endpoint) (network.Attachment, error)
	Detach(ctx context.Context, id hangar.MachineID) error
	List(ctx context.Context) ([]hangar.MachineID, error)
}

// Options are what an agent is made of. All fields are required.
type Options struct {
	Dir         string // the Machines' files live below it
	Host        hangar.Host
	Driver      driver.Driver
	Images      Images
	Network     Networks
	Logs        *logs.Store
	Journal     *journal.Journal
	Publisher   hangar.Publisher
	Nameservers []string // for the resolv.conf of Machines
	Log         *slog.Logger
	Now         func() time.Time
}

// Agent implements hangar.Agent for the server it runs on.
type Agent struct {
	o       Options
	creates singleflight.Group

	mu       sync.RWMutex
	machines map[hangar.MachineID]*machine // guarded by mu
	unread   map[hangar.MachineID]bool     // have a record that does not parse; set by Open

	lifetime context.Context //nolint:containedctx // of the workers, which outlive every request
	stop     context.CancelFunc
	workers  sync.WaitGroup
}

var _ hangar.Agent = (*Agent)(nil)

// New returns an agent that has done nothing yet.
func New(o Options) *Agent {
	return &Agent{o: o, machines: make(map[hangar.MachineID]*machine)}
}

// Open takes up every Machine that the journal knows, then removes what no record
// claims. Afterwards the agent serves; its workers live until Close.
func (a *Agent) Open(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Join(a.o.Dir, "machines"), 0o711); err != nil { //nolint:gosec // Machines' users pass through
		return err
	}
	a.lifetime, a.stop = context.WithCancel(context.WithoutCancel(ctx))
	if err := a.recover(ctx); err != nil {
		a.stop()
		return err
	}
	a.workers.Go(func() { a.publish(a.lifetime) })
	a.workers.Go(func() { a.keepHouse(a.lifetime) })
	return nil
}

// Close ends the workers and leaves the Machines running.
func (a *Agent) Close() error {
	if a.stop != nil {
		a.stop()
	}
	a.workers.Wait()
	return nil
}

// Host returns the server's own description.
func (a *Agent) Host() hangar.Host { return a.o.Host }

// machine returns the Machine that ref names.
func (a *Agent) machine(ref hangar.MachineRef) (*machine, error) {
	a.mu.RLock()
	m := a.machines[ref.ID]
	a.mu.RUnlock()
	if m == nil || m.rec.Load().Machine.App != ref.App {
		return nil, notFound(ref.ID)
	}
	return m, nil
}

func notFound(id hangar.MachineID) error {
	return hangar.Errorf(hangar.CodeNotFound, hangar.ReasonMachineNotFound, "machine not found: %s", id)
}

// all returns every Machine, sorted by id.
func (a *Agent) all() []*machine {
	a.mu.RLock()
	list := make([]*machine, 0, len(a.machines))
	for _, m := range a.machines {
		list = append(list, m)
	}
	a.mu.RUnlock()
	slices.SortFunc(list, func(x, y *machine) int { return strings.Compare(string(x.id), string(y.id)) })
	return list
}

// Machines lists the Machines of an App, or of all, without events.
func (a *Agent) Machines(_ context.Context, app hangar.AppName, filter hangar.MachineFilter) ([]*hangar.Machine, error) {
	list := []*hangar.Machine{}
	for _, m := range a.all() {
		got := m.rec.Load().Machine
		if (app == "" || got.App == app) && filter.Matches(&got) {
			list = append(list, &got)
		}
	}
	return list, nil
}

// ImagesInUse returns the digests that Machines need to start again.
func (a *Agent) ImagesInUse() map[string]bool {
	used := make(map[string]bool)
	for _, m := range a.all() {
		rec := m.rec.Load()
		if rec.Machine.State == hangar.MachineDestroyed {
			continue
		}
		used[rec.Machine.ImageRef.Digest] = true
		if rec.Previous != nil {
			used[rec.Previous.ImageRef.Digest] = true
		}
	}
	return used
}

// recoverers bounds how many Machines are taken up at once.
const recoverers = 8

// recover reads the journal, re-attaches to what still runs and sweeps away what
// no record claims. Only then do workers start, so that no step meets leftovers of
// another Machine.
func (a *Agent) recover(ctx context.Context) error {
	err := a.o.Journal.Machines(func(rec *journal.Record) error {
		a.adopt(rec, rec.Handle == nil && rec.Machine.State.Settled())
		return nil
	})
	if err != nil {
		return err
	}
	if err := a.findUnread(); err != nil {
		return err
	}
	var group errgroup.Group
	group.SetLimit(recoverers)
	for _, m := range a.all() {
		group.Go(func() error {
			m.reattach(ctx)
			return nil
		})
	}
	_ = group.Wait() // no error is returned to it
	if err := a.sweep(ctx); err != nil {
		return err
	}
	for _, m := range a.all() {
		m.mu.Lock()
		m.wake()
		m.mu.Unlock()
	}
	return nil
}

// adopt makes the Machine of a record known; clean says that nothing of a sandbox
// of it can be on the host.
func (a *Agent) adopt(rec *journal.Record, clean bool) *machine {
	m := &machine{agent: a, id: rec.Machine.ID, clean: clean}
	m.rec.Store(rec)
	a.mu.Lock()
	a.machines[m.id] = m
	a.mu.Unlock()
	return m
}

// reattach takes back the sandbox of a record, if there is one. What goes wrong
// with one Machine must not keep the others from being served: the step of its
// state meets the fault again and acts on it.
func (m *machine) reattach(ctx context.Context) {
	rec := m.rec.Load()
	if rec.Handle == nil || rec.Machine.State == hangar.MachineDestroying {
		return
	}
	// The output first: what a sandbox wrote while nobody read is still there.
	if err := m.agent.o.Logs.Capture(rec.Machine.Ref(), m.path(outputFile)); err != nil {
		m.agent.o.Log.Error("capture output", keyMachine, m.id, keyError, err)
	}
	switch err := m.agent.o.Driver.Recover(ctx, rec.Handle); {
	case errors.Is(err, driver.ErrNotFound):
		m.agent.o.Log.Warn("machine left no sandbox", keyMachine, m.id, keyState, rec.Machine.State)
	case err != nil:
		m.agent.o.Log.Error("take back machine", keyMachine, m.id, keyError, err)
	}
}

// sweep destroys what is on the host and claimed by no record.
func (a *Agent) sweep(ctx context.Context) error {
	sandboxes, err := a.o.Driver.List(ctx)
	if err != nil {
		return err
	}
	for _, id := range sandboxes {
		if a.claims(id) {
			continue
		}
		a.o.Log.Warn("sweeping a sandbox that no record claims", keyMachine, id)
		if err := a.o.Driver.Destroy(ctx, id, a.sandboxDir(id)); err != nil {
			return err
		}
	}
	endpoints, err := a.o.Network.List(ctx)
	if err != nil {
		return err
	}
	for _, id := range endpoints {
		if a.claims(id) {
			continue
		}
		if err := a.o.Network.Detach(ctx, id); err != nil {
			return err
		}
	}
	dirs, err := os.ReadDir(filepath.Join(a.o.Dir, "machines"))
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if id := hangar.MachineID(dir.Name()); !a.claims(id) {
			// Mounts go before files: Destroy releases them, whoever made them.
			if err := a.o.Driver.Destroy(ctx, id, a.sandboxDir(id)); err != nil {
				return err
			}
			if err := os.RemoveAll(filepath.Join(a.o.Dir, "machines", dir.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// claims reports whether a Machine with that id may own things on the host. One
// whose record cannot be read keeps what it has, for whoever mends the record.
func (a *Agent) claims(id hangar.MachineID) bool {
	a.mu.RLock()
	m := a.machines[id]
	a.mu.RUnlock()
	return a.unread[id] || m != nil && m.rec.Load().Machine.State != hangar.MachineDestroyed
}

// findUnread finds the records that the journal could not read.
func (a *Agent) findUnread() error {
	ids, err := a.o.Journal.IDs()
	if err != nil {
		return err
	}
	a.unread = make(map[hangar.MachineID]bool)
	for _, id := range ids {
		if a.machines[id] == nil {
			a.unread[id] = true
		}
	}
	return nil
}

func (a *Agent) sandboxDir(id hangar.MachineID) string { return SandboxDir(a.o.Dir, id) }

// SandboxDir is the driver's directory of a Machine, in the data directory dir.
func SandboxDir(dir string, id hangar.MachineID) string {
	return filepath.Join(dir, "machines", string(id), sandboxDir)
}

// Keys of log lines.
const (
	keyMachine = "machine"
	keyApp     = "app"
	keyState   = "state"
	keyError   = "error"
)
