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
// A lease keeps users other than its holder from changing a Machine; see
// hangar.MachineLeaser. What the agent does by itself, such as to apply a restart
// policy, and what the edge asks of it, goes on.
//
// Each Machine is a small state machine of its own. A verb decides and commits
// under the Machine's lock and returns; a goroutine that exists only while there
// is something to do or to watch then makes it true, one step per state, and every
// step can run twice. The table of states is hangar.MachineState's. What only
// annotates a Machine, such as metadata or a cordon, is committed in the same way and
// does not disturb a step that is under way.
//
// Volumes are records of their own, which package volumes owns. That a Machine has one, or
// has it no more, is decided together with the life of the Machine, in the same commit.
//
// The agent does not authorise, place or name; that is control's part. How a
// Machine runs is the driver's.
package host

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
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
	"github.com/hangar-platform/hangar/host/volumes"
	"github.com/hangar-platform/hangar/internal/background"
	"github.com/hangar-platform/hangar/internal/diskspace"
	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/internal/keyset"
)

// Images is what the agent needs of an image store; image.Store has it.
type Images interface {
	Resolve(ctx context.Context, who image.Puller, ref string) (hangar.ImageRef, error)
	Pull(ctx context.Context, who image.Puller, ref string, progress func(hangar.PullProgress)) (*image.Image, error)
	Get(digest string) (*image.Image, error)
	List() ([]hangar.Image, error)
	Remove(ctx context.Context, digest string) error
	RemoveOrg(ctx context.Context, org hangar.OrgID) error
	Usage(ctx context.Context, org hangar.OrgID) (hangar.ImageUsage, error)
	GC(ctx context.Context, policy image.Policy) (freed int64, err error)
}

// Networks is what the agent needs of the private network; network.Network has it.
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

// Options are what an agent is made of. All fields are required, but those of which is
// said what their zero value means.
type Options struct {
	Dir         string // the Machines' files live below it
	Host        hangar.Host
	Driver      driver.Driver
	Images      Images
	Network     Networks
	Local       LocalAPI
	Identity    hangar.IdentityService // for the tokens by which Machines assume roles
	Layers      *rootfs.Layers         // what Machines write to their root file systems; open
	Logs        *logs.Store
	Journal     *journal.Journal
	Space       *diskspace.Space // of the disk of Dir; nil: its room is not looked at
	Publisher   hangar.Publisher
	View        hangar.MachineView // of the edge that serves the Machines; nil: nobody is waited for
	Keys        *keyset.Keyset     // encrypts the secrets of Machines and the keys of volumes in the journal
	Nameservers []string           // for the resolv.conf of Machines
	PublicIP    netip.Addr         // from which Machines reach the internet over IPv6; the zero Addr: none
	Log         *slog.Logger
	Now         func() time.Time

	Devices         volumes.Devices
	VolumePublisher hangar.VolumePublisher
	Archive         volumes.Archive       // of snapshots; nil: there are none
	Metrics         prometheus.Registerer // nil: nobody reads them
	// VolumeOvercommit is how many times what it holds the disk is promised to volumes;
	// 0: once.
	VolumeOvercommit float64
	// MemoryOvercommit and CPUOvercommit are how many times what it has the host promises to
	// Machines that are not at rest; 0: DefaultMemoryOvercommit, DefaultCPUOvercommit.
	MemoryOvercommit, CPUOvercommit float64
	// MemoryReserve is how many bytes of the host's memory are not for Machines.
	MemoryReserve int64
	// VolumesPerMachine is how many volumes a Machine may mount; 0: one.
	VolumesPerMachine int
	// ArchivePatience and FillPatience are those of volumes.Options.
	ArchivePatience, FillPatience time.Duration
	// AutostopAfter is how long a Machine has to be idle before it is stopped, where its
	// services do not say; 0: hangar.DefaultAutostopAfter.
	AutostopAfter time.Duration
}

// Agent implements hangar.Agent for the server it runs on.
type Agent struct {
	hangar.VolumeAgent // volumes

	o       Options
	creates singleflight.Group
	checks  *check.Checker
	news    unhealthy // statuses of checks that are not in the journal yet
	roles   roles
	volumes *volumes.Store
	gates   *gate.Keeper
	room    *admission.Ledger
	edge    edgeLog

	schedules chan struct{} // buffered 1: a Machine has a schedule that it had not

	mu       sync.RWMutex
	machines map[hangar.MachineID]*machine                  // guarded by mu
	apps     map[hangar.AppID]map[hangar.MachineID]*machine // the same by App; guarded by mu
	unread   map[hangar.MachineID]bool                      // have a record that does not parse; set by Open

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
	_ hangar.Agent    = (*Agent)(nil)
	_ hangar.Resealer = (*Agent)(nil)
)

// New returns an agent that has done nothing yet.
func New(o Options) *Agent {
	a := &Agent{
		o: o, machines: make(map[hangar.MachineID]*machine), apps: make(map[hangar.AppID]map[hangar.MachineID]*machine),
		schedules: make(chan struct{}, 1), limits: defaultLimits(),
	}
	a.room = admission.NewLedger(o.capacity())
	a.volumes = volumes.New(volumes.Options{
		Host: o.Host.ID, Driver: o.Driver.Capabilities().Name, Machines: mounters{a}, Devices: o.Devices, Journal: o.Journal, Logs: o.Logs, Keys: o.Keys,
		Publisher: o.VolumePublisher, Archive: o.Archive, Space: o.Space, Metrics: o.Metrics, Log: o.Log, Now: o.Now,
		Overcommit: o.VolumeOvercommit, PerMachine: o.VolumesPerMachine, ArchivePatience: o.ArchivePatience, FillPatience: o.FillPatience,
	})
	a.VolumeAgent = a.volumes
	a.news.init()
	a.roles.init()
	a.edge.init()
	a.gates = gate.NewKeeper(gate.Options{After: o.AutostopAfter, Ready: a.ready, Stop: a.stopIdle, Now: o.Now})
	a.checks = check.New(check.Options{Dialer: o.Network, Now: o.Now, Changed: a.healthChanged})
	return a
}

// Open takes up every Machine that the journal knows, then removes what no record
// claims. Afterwards the agent serves; its workers live until Close.
func (a *Agent) Open(ctx context.Context) error {
	// What Machines write is in here, with owners and modes of their choice, such as
	// programs that run as their owner. No other user of the server may come there.
	machines := filepath.Join(a.o.Dir, "machines")
	if err := errors.Join(os.MkdirAll(machines, 0o700), os.Chmod(machines, 0o700)); err != nil { //nolint:gosec // a directory
		return err
	}
	a.work = background.New(ctx)
	a.effects, a.abandon = finish.Lifetime(ctx)
	err := a.recover(ctx)
	if err == nil {
		err = a.volumes.Run()
	}
	if err != nil {
		a.work.Stop()
		a.volumes.Stop()
		a.abandon()
		return err
	}
	a.work.Go(func() { a.publish(a.work.Context) })
	a.work.Go(func() { a.keepHouse(a.work.Context) })
	a.work.Go(func() { a.checks.Run(a.work.Context) })
	a.work.Go(func() { a.keepHealth(a.work.Context) })
	a.work.Go(func() { a.keepSchedules(a.work.Context) })
	a.work.Go(func() { a.keepRoles(a.work.Context) })
	a.work.Go(func() { a.gates.Run(a.work.Context) })
	a.work.Go(func() { a.writeEdgeLog(a.work.Context) })
	return nil
}

// Close ends the workers and leaves the Machines running. A boot, resume or suspend
// that is under way may take a moment to end, so that nobody's memory is lost to a
// restart of the daemon. It may be repeated.
func (a *Agent) Close() error {
	if a.work == nil {
		return nil
	}
	a.work.Stop()
	a.volumes.Stop()
	impatience := time.AfterFunc(a.limits.close, a.abandon)
	a.work.Wait()
	impatience.Stop()
	a.abandon()
	return a.volumes.Close()
}

// TryArchive opens the archive of snapshots before it is needed; see volumes.Store.
func (a *Agent) TryArchive(ctx context.Context) { a.volumes.TryArchive(ctx) }

// Host returns the server's own description.
func (a *Agent) Host() hangar.Host { return a.o.Host }

// machine returns the Machine that ref names. One that is destroyed is read from the journal:
// nothing can be done to it any more.
func (a *Agent) machine(ref hangar.MachineRef) (*machine, error) {
	a.mu.RLock()
	m := a.machines[ref.ID]
	a.mu.RUnlock()
	if m == nil {
		rec, err := a.o.Journal.Destroyed(ref.ID)
		if errors.Is(err, journal.ErrNotFound) {
			return nil, notFound(ref.ID)
		}
		if err != nil {
			return nil, err
		}
		m = a.newMachine(rec, nil, true)
	}
	if m.rec.Load().Machine.AppID != ref.AppID {
		return nil, notFound(ref.ID)
	}
	return m, nil
}

func notFound(id hangar.MachineID) error {
	return hangar.Errorf(hangar.CodeNotFound, hangar.ReasonMachineNotFound, "machine not found: %s", id)
}

// add makes a Machine known.
func (a *Agent) add(m *machine) {
	ref := m.rec.Load().Machine.Ref() // never changes
	app := ref.AppID
	m.gate = a.gates.Add(ref)
	a.room.Set(m.id, loadOf(m.rec.Load()))
	a.mu.Lock()
	defer a.mu.Unlock()
	a.machines[m.id] = m
	if a.apps[app] == nil {
		a.apps[app] = make(map[hangar.MachineID]*machine)
	}
	a.apps[app][m.id] = m
}

// remove is the inverse of add.
func (a *Agent) remove(m *machine) {
	a.gates.Remove(m.gate)
	a.room.Set(m.id, admission.Load{})
	app := m.rec.Load().Machine.AppID
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.machines, m.id)
	if delete(a.apps[app], m.id); len(a.apps[app]) == 0 {
		delete(a.apps, app)
	}
}

// all returns every Machine that is not destroyed, sorted by id.
func (a *Agent) all() []*machine { return a.of("") }

// of returns the Machines of an App that are not destroyed, empty: of all, sorted by id.
func (a *Agent) of(app hangar.AppID) []*machine {
	a.mu.RLock()
	from := a.machines
	if app != "" {
		from = a.apps[app]
	}
	list := slices.AppendSeq(make([]*machine, 0, len(from)), maps.Values(from))
	a.mu.RUnlock()
	slices.SortFunc(list, byID)
	return list
}

// listedDestroyed is how many of an App's destroyed Machines are listed at most, the newest: a list
// is in memory as a whole.
const listedDestroyed = 1000

// Machines implements hangar.Agent.
func (a *Agent) Machines(_ context.Context, app hangar.AppID, filter hangar.MachineFilter) ([]*hangar.Machine, error) {
	from := a.of(app)
	if filter.IncludeDestroyed {
		destroyed, err := a.o.Journal.DestroyedOfApp(app, listedDestroyed)
		if err != nil {
			return nil, err
		}
		from = a.withDestroyed(from, destroyed)
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
func (a *Agent) OrgMachines(
	_ context.Context, org hangar.OrgID, after hangar.MachineID, limit int, filter hangar.MachineFilter,
) ([]*hangar.Machine, error) {
	from := slices.DeleteFunc(a.all(), func(m *machine) bool { return m.id <= after || m.rec.Load().OrgID != org })
	if filter.IncludeDestroyed {
		var destroyed []*journal.Record
		for rec, err := range a.o.Journal.DestroyedOfOrg(org, after) {
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
		from = a.withDestroyed(from, destroyed)
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
func (a *Agent) withDestroyed(living []*machine, destroyed []*journal.Record) []*machine {
	list := make([]*machine, 0, len(destroyed)+len(living))
	for _, rec := range destroyed {
		list = append(list, a.newMachine(rec, nil, true))
	}
	list = append(list, living...)
	slices.SortStableFunc(list, byID)
	return slices.CompactFunc(list, func(x, y *machine) bool { return x.id == y.id })
}

func byID(x, y *machine) int { return strings.Compare(string(x.id), string(y.id)) }

// Room implements hangar.Agent. A Machine is promised its memory until it is at
// rest. A host that cannot tell of its disk has no room for volumes.
func (a *Agent) Room(ctx context.Context) (hangar.HostRoom, error) {
	room := hangar.HostRoom{Region: a.o.Host.Region, Memory: a.room.Capacity().Memory, Free: a.room.Left().Memory}
	if left, promised, err := a.volumes.Room(ctx); err == nil {
		room.Volumes, room.VolumesPromised = left, promised
	}
	return room, nil
}

// ImagesInUse returns the digests that Machines need to start again.
func (a *Agent) ImagesInUse() map[string]bool {
	used := make(map[string]bool)
	for _, m := range a.all() {
		rec := m.rec.Load()
		used[rec.Machine.ImageRef.Digest] = true
		if rec.Previous != nil {
			used[rec.Previous.ImageRef.Digest] = true
		}
	}
	return used
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
	keyVolume  = "volume"
	keyState   = "state"
	keyError   = "error"
)
