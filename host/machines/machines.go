// Package machines owns the Machines of a host: it does to them what control decided, and what
// they need of the host to run.
//
// A Store keeps every fact about its Machines in the journal and writes it there before it
// causes the effect, so that a kill at any moment leaves a record from which the next start
// finishes or undoes what was under way. State changes and their events are one commit, which
// wakes every waiter and queues the row that the other planes read.
//
// Each Machine is a small state machine of its own. A verb decides and commits under the
// Machine's lock and returns; a goroutine that exists only while there is something to do or to
// watch then makes it true, one step per state, and every step can run twice. The table of states
// is hangar.MachineState's. What only annotates a Machine, such as metadata or a cordon, is
// committed in the same way and does not disturb a step that is under way.
//
// A lease keeps users other than its holder from changing a Machine; see
// hangar.MachineLeaser. What the Store does by itself, such as to apply a restart policy, and
// what the edge asks of it, goes on.
//
// How a Machine runs is the driver's part, and what is on its volumes that of the Volumes.
package machines

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/admission"
	"github.com/hangar-platform/hangar/host/check"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/gate"
	"github.com/hangar-platform/hangar/host/image"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/host/logs"
	"github.com/hangar-platform/hangar/host/network"
	"github.com/hangar-platform/hangar/host/rootfs"
	"github.com/hangar-platform/hangar/internal/background"
	"github.com/hangar-platform/hangar/internal/diskspace"
	"github.com/hangar-platform/hangar/internal/keyset"
)

// Images is what a Store needs of an image store; image.Store has it.
type Images interface {
	Resolve(ctx context.Context, who image.Puller, ref string) (hangar.ImageRef, error)
	Pull(ctx context.Context, who image.Puller, ref string, progress func(hangar.PullProgress)) (*image.Image, error)
	Get(digest string) (*image.Image, error)
}

// Networks is what a Store needs of the private network; network.Network has it.
type Networks interface {
	Attach(ctx context.Context, e network.Endpoint) (network.Attachment, error)
	Detach(id hangar.MachineID) error
	List(ctx context.Context) ([]hangar.MachineID, error)
	check.Dialer
	// DialService connects to a TCP port of a service.
	DialService(ctx context.Context, id hangar.MachineID, port int) (net.Conn, error)
	// DialDatagrams returns a connected UDP socket to a port of a service.
	DialDatagrams(ctx context.Context, id hangar.MachineID, port int) (net.Conn, error)
}

// Options are what a Store is made of. Fields whose comment says what their zero value means may
// be left out.
type Options struct {
	Dir         string // the Machines' files live below it
	Host        hangar.Host
	Driver      driver.Driver
	Images      Images
	Network     Networks
	Volumes     Volumes
	Local       LocalAPI
	Identity    hangar.IdentityService // for the tokens by which Machines assume roles
	Layers      *rootfs.Layers         // what Machines write to their root file systems; open
	Logs        *logs.Store
	Journal     *journal.Journal
	Space       *diskspace.Space // of the disk of Dir; nil: its room is not looked at
	Publisher   hangar.Publisher
	View        hangar.MachineView // of the edge that serves the Machines; nil: it is not waited for
	Keys        *keyset.Keyset     // encrypts the secrets of Machines in the journal
	Nameservers []string           // for the resolv.conf of Machines
	PublicIP    netip.Addr         // from which Machines reach the internet over IPv6; the zero Addr: none
	Log         *slog.Logger
	Now         func() time.Time

	// MemoryOvercommit and CPUOvercommit are how many times what it has the host promises to
	// Machines that are not at rest; 0: DefaultMemoryOvercommit, DefaultCPUOvercommit.
	MemoryOvercommit, CPUOvercommit float64
	// MemoryReserve is how many bytes of the host's memory are not for Machines.
	MemoryReserve int64
	// AutostopAfter is how long a Machine has to be idle before it is stopped, where its
	// services do not say; 0: hangar.DefaultAutostopAfter.
	AutostopAfter time.Duration
}

// Store implements hangar.MachineAgent, and hangar.MachineGate for the edge.
type Store struct {
	o       Options
	creates singleflight.Group
	checks  *check.Checker
	news    unhealthy // statuses of checks that are not in the journal yet
	roles   roles
	secrets secrets
	gates   *gate.Keeper
	room    *admission.Ledger
	edge    edgeLog

	schedules chan struct{} // buffered 1: a Machine has a schedule that it had not

	mu       sync.RWMutex
	machines map[hangar.MachineID]*machine                  // guarded by mu
	apps     map[hangar.AppID]map[hangar.MachineID]*machine // the same by App; guarded by mu
	unread   map[hangar.MachineID]bool                      // have a record that does not parse; set by Open
	found    []hangar.MachineID                             // have something on the host; set by Open

	dialling atomic.Int32 // how many ports are dialled for who waits, see probe

	work    *background.Group  // the workers, which outlive every request; set by Open
	effects context.Context    //nolint:containedctx // of what is better finished; ends a while after work
	abandon context.CancelFunc // ends effects

	limits limits
}

// limits bound the steps of Machines. What takes longer is given up or forced.
type limits struct {
	recover time.Duration // to take back a sandbox
	boot    time.Duration // a boot or a resume, once the image is on the host
	repair  time.Duration // the check of the file systems of volumes, as a part of a boot
	suspend time.Duration // the writing of memory
	stop    time.Duration // a stop, beyond its grace
	role    time.Duration // for an identity token, while a Machine waits for it
	release time.Duration // to release a sandbox that has ended, or to end it by force
	close   time.Duration // what Close waits for effects under way
}

func defaultLimits() limits {
	return limits{
		recover: 30 * time.Second, boot: 2 * time.Minute, repair: 30 * time.Minute, suspend: 5 * time.Minute, stop: 20 * time.Second,
		role: 2 * time.Second, release: time.Minute, close: 10 * time.Second,
	}
}

var (
	_ hangar.MachineAgent = (*Store)(nil)
	_ hangar.Resealer     = (*Store)(nil)
)

// New returns a Store that knows no Machines yet.
func New(o Options) *Store {
	s := &Store{
		o: o, machines: make(map[hangar.MachineID]*machine), apps: make(map[hangar.AppID]map[hangar.MachineID]*machine),
		schedules: make(chan struct{}, 1), limits: defaultLimits(), secrets: secrets{journal: o.Journal, keys: o.Keys, log: o.Log},
	}
	s.room = admission.NewLedger(o.capacity())
	s.news.init()
	s.roles.init()
	s.edge.init()
	s.gates = gate.NewKeeper(gate.Options{After: o.AutostopAfter, Ready: s.ready, Stop: s.stopIdle, Now: o.Now})
	s.checks = check.New(check.Options{Dialer: o.Network, Now: o.Now, Changed: s.healthChanged})
	return s
}

// Stop ends the workers and leaves the Machines running, without waiting for that. It may be
// repeated.
func (s *Store) Stop() {
	if s.work != nil {
		s.work.Stop()
	}
}

// Close waits for the end of what Stop ends. A boot, resume or suspend that is under way may
// take a moment to end, so that no memory is lost to a restart of the daemon. It may be repeated.
func (s *Store) Close() {
	if s.work == nil {
		return
	}
	s.Stop()
	impatience := time.AfterFunc(s.limits.close, s.abandon)
	s.work.Wait()
	impatience.Stop()
	s.abandon()
}

// machine returns the Machine that ref names. One that is destroyed is read from the journal:
// nothing can be done to it any more.
func (s *Store) machine(ref hangar.MachineRef) (*machine, error) {
	s.mu.RLock()
	m := s.machines[ref.ID]
	s.mu.RUnlock()
	if m == nil {
		rec, err := s.o.Journal.Destroyed(ref.ID)
		if errors.Is(err, journal.ErrNotFound) {
			return nil, notFound(ref.ID)
		}
		if err != nil {
			return nil, err
		}
		m = s.newMachine(rec, nil, true)
	}
	if m.rec.Load().Machine.AppID != ref.AppID {
		return nil, notFound(ref.ID)
	}
	return m, nil
}

func notFound(id hangar.MachineID) error {
	return hangar.Errorf(hangar.CodeNotFound, hangar.ReasonMachineNotFound, "machine not found: %s", id)
}

// find returns a Machine that is not destroyed, or nil.
func (s *Store) find(id hangar.MachineID) *machine {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.machines[id]
}

// add makes a Machine known.
func (s *Store) add(m *machine) {
	ref := m.rec.Load().Machine.Ref() // never changes
	app := ref.AppID
	m.gate = s.gates.Add(ref)
	s.room.Set(m.id, loadOf(m.rec.Load()))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.machines[m.id] = m
	if s.apps[app] == nil {
		s.apps[app] = make(map[hangar.MachineID]*machine)
	}
	s.apps[app][m.id] = m
}

// remove is the inverse of add.
func (s *Store) remove(m *machine) {
	s.gates.Remove(m.gate)
	s.room.Set(m.id, admission.Load{})
	app := m.rec.Load().Machine.AppID
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.machines, m.id)
	if delete(s.apps[app], m.id); len(s.apps[app]) == 0 {
		delete(s.apps, app)
	}
}

// all returns every Machine that is not destroyed, sorted by id.
func (s *Store) all() []*machine { return s.of("") }

// of returns the Machines of an App that are not destroyed, empty: of all, sorted by id.
func (s *Store) of(app hangar.AppID) []*machine {
	s.mu.RLock()
	from := s.machines
	if app != "" {
		from = s.apps[app]
	}
	list := slices.AppendSeq(make([]*machine, 0, len(from)), maps.Values(from))
	s.mu.RUnlock()
	slices.SortFunc(list, byID)
	return list
}

// listedDestroyed is how many of an App's destroyed Machines are listed at most, the newest: a list
// is in memory as a whole.
const listedDestroyed = 1000

// Machines implements hangar.Agent.
func (s *Store) Machines(_ context.Context, app hangar.AppID, filter hangar.MachineFilter) ([]*hangar.Machine, error) {
	from := s.of(app)
	if filter.IncludeDestroyed {
		destroyed, err := s.o.Journal.DestroyedOfApp(app, listedDestroyed)
		if err != nil {
			return nil, err
		}
		from = s.withDestroyed(from, destroyed)
	}
	list := []*hangar.Machine{}
	for _, m := range from {
		rec := m.rec.Load()
		if !filter.Matches(&rec.Machine) {
			continue
		}
		got := m.shown(rec)
		if filter.Events {
			var err error
			if got.Events, err = m.newest(); err != nil {
				return nil, err
			}
		}
		list = append(list, &got)
	}
	return list, nil
}

// OrgMachines implements hangar.Agent.
func (s *Store) OrgMachines(
	_ context.Context, org hangar.OrgID, after hangar.MachineID, limit int, filter hangar.MachineFilter,
) ([]*hangar.Machine, error) {
	from := slices.DeleteFunc(s.all(), func(m *machine) bool { return m.id <= after || m.rec.Load().OrgID != org })
	if filter.IncludeDestroyed {
		var destroyed []*journal.Record
		for rec, err := range s.o.Journal.DestroyedOfOrg(org, after) {
			if err != nil {
				return nil, err
			}
			if len(destroyed) == limit {
				break
			}
			if filter.Matches(&rec.Machine) {
				destroyed = append(destroyed, rec)
			}
		}
		from = s.withDestroyed(from, destroyed)
	}
	list := []*hangar.Machine{}
	for _, m := range from {
		if rec := m.rec.Load(); len(list) < limit && filter.Matches(&rec.Machine) {
			got := rec.Machine
			list = append(list, &got)
		}
	}
	return list, nil
}

// withDestroyed merges Machines with those that are destroyed, sorted by id. The living ones were
// listed before: what was destroyed meanwhile is in both.
func (s *Store) withDestroyed(living []*machine, destroyed []*journal.Record) []*machine {
	list := make([]*machine, 0, len(destroyed)+len(living))
	for _, rec := range destroyed {
		list = append(list, s.newMachine(rec, nil, true))
	}
	list = append(list, living...)
	slices.SortStableFunc(list, byID)
	return slices.CompactFunc(list, func(x, y *machine) bool { return x.id == y.id })
}

func byID(x, y *machine) int { return strings.Compare(string(x.id), string(y.id)) }

// AllRead reports whether the records of all Machines could be read.
func (s *Store) AllRead() bool { return len(s.unread) == 0 }

// Memory is how many bytes of memory the host has for Machines, and has left. A Machine is
// promised its memory until it is at rest.
func (s *Store) Memory() (capacity, left int64) {
	return s.room.Capacity().Memory, s.room.Left().Memory
}

// ImagesInUse returns the digests that Machines need to start again.
func (s *Store) ImagesInUse() map[string]bool {
	used := make(map[string]bool)
	for _, m := range s.all() {
		rec := m.rec.Load()
		used[rec.Machine.ImageRef.Digest] = true
		if rec.Previous != nil {
			used[rec.Previous.ImageRef.Digest] = true
		}
	}
	return used
}

func (s *Store) sandboxDir(id hangar.MachineID) string { return SandboxDir(s.o.Dir, id) }

// SandboxDir is the driver's directory of a Machine, in the data directory dir.
func SandboxDir(dir string, id hangar.MachineID) string {
	return filepath.Join(dir, "machines", string(id), sandboxDir)
}

// Keys of log lines.
const (
	keyMachine = "machine"
	keyApp     = "app"
	keyVolume  = "volume"
	keyState   = "state"
	keyError   = "error"
)
