// Package machines owns the Machines of a host: it carries out the decisions of control, and gives
// Machines what they need of the host to run.
//
// A Store keeps every fact about its Machines in the journal and writes it there before it
// causes the effect, so that a kill at any moment leaves a record from which the next start
// finishes or undoes what was under way. State changes and their events are one commit, which
// wakes every waiter and queues the row that the other planes read.
//
// Each Machine is a small state machine of its own. A verb decides and commits under the Machine's
// lock and returns; the Machine's worker, a goroutine that exists only while there is something to
// do or to watch, then carries it out, one step per state, and every step can run twice. The table
// of states is hangar.MachineState's. Changes that only annotate a Machine, such as metadata or a
// cordon, are committed in the same way and do not interrupt a step in progress.
//
// A lease keeps users other than its holder from changing a Machine; see hangar.MachineLeaser. It
// does not stop what the Store does by itself, such as applying a restart policy, nor requests of
// the edge.
//
// Running a Machine is the driver's part, and the content of its volumes that of the Volumes.
package machines

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/admission"
	"github.com/hangar-platform/hangar/host/check"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/image"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/host/logs"
	"github.com/hangar-platform/hangar/host/network"
	"github.com/hangar-platform/hangar/host/rootfs"
	"github.com/hangar-platform/hangar/internal/background"
	"github.com/hangar-platform/hangar/internal/diskspace"
	"github.com/hangar-platform/hangar/internal/keyset"
)

// Images pulls and finds images; image.Store implements it.
type Images interface {
	// Resolve finds the image that a reference names. It answers CodeInvalid for one that may not
	// or cannot be used, and CodeUnavailable or CodeTimeout, with the parts that the reference
	// itself names, when the registry does not answer.
	Resolve(ctx context.Context, who image.Puller, ref string) (hangar.ImageRef, error)
	// Pull returns an image once all of its layers are unpacked on this host. It may be repeated.
	// Errors are those of Resolve.
	Pull(ctx context.Context, who image.Puller, ref string, progress func(hangar.PullProgress)) (*image.Image, error)
	// Get returns an image that is on this host, by its digest, or image.ErrNotFound.
	Get(digest string) (*image.Image, error)
}

// Networks is the private network; network.Network implements it.
type Networks interface {
	// Attach gives a Machine its network namespace and addresses, before each start and resume. It
	// may be repeated while the Machine does not run.
	Attach(ctx context.Context, e network.Endpoint) (network.Attachment, error)
	// Detach undoes Attach. A Machine that is not attached is not an error.
	Detach(id hangar.MachineID) error
	// List returns the Machines that are attached, also by an earlier daemon.
	List(ctx context.Context) ([]hangar.MachineID, error)
	check.Dialer
	// DialService connects to a TCP port of a service.
	DialService(ctx context.Context, id hangar.MachineID, port int) (net.Conn, error)
	// DialDatagrams returns a connected UDP socket to a port of a service.
	DialDatagrams(ctx context.Context, id hangar.MachineID, port int) (net.Conn, error)
}

// Options are the dependencies of a Store. Fields with a documented zero value are optional.
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
	// DatabaseProgram finds the host's hangar-db, which Machines may run; it answers "" where there is none.
	// Nil: there is none.
	DatabaseProgram func() (string, error)
	PublicIP        netip.Addr // from which Machines reach the internet over IPv6; the zero Addr: none
	Log             *slog.Logger
	Now             func() time.Time

	// MemoryOvercommit and CPUOvercommit are how many times its own resources the host promises to
	// Machines that are not at rest; 0: DefaultMemoryOvercommit, DefaultCPUOvercommit.
	MemoryOvercommit, CPUOvercommit float64
	// MemoryReserve is how many bytes of the host's memory are not for Machines.
	MemoryReserve int64
	// AutostopAfter is how long a Machine has to be idle before it is stopped, where its
	// services do not say; 0: hangar.DefaultAutostopAfter.
	AutostopAfter time.Duration
}

// Store implements hangar.MachineAgent, and hangar.MachineGate for the edge. The verbs are its own.
type Store struct {
	*index       // its Machines
	*machineGate // lets the edge's requests in
	*rows        // publishes their rows
	*secrets     // encrypts their secrets for the journal

	health    *health
	roles     *roles
	schedules *schedules
	room      *admission.Ledger
	counts    counts

	o       Options
	creates singleflight.Group
	found   []hangar.MachineID // have something on the host; set by Open

	work    *background.Group  // the workers, which outlive every request; set by Open
	effects context.Context    //nolint:containedctx // of steps that should finish; ends a while after work
	abandon context.CancelFunc // ends effects

	limits limits
}

// limits bound the steps of Machines. A step that takes longer is abandoned or forced.
type limits struct {
	recover time.Duration // recovering a sandbox
	boot    time.Duration // a boot or a resume, once the image is on the host
	repair  time.Duration // the check of the file systems of volumes, as a part of a boot
	suspend time.Duration // the writing of memory
	stop    time.Duration // a stop, beyond its grace
	role    time.Duration // for an identity token, while a Machine waits for it
	release time.Duration // to release a sandbox that has ended, or to end it by force
	close   time.Duration // wait of Close for effects in progress
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
	s := &Store{o: o, room: admission.NewLedger(o.capacity()), counts: newCounts(), limits: defaultLimits()}
	s.index = newIndex(o.Journal, func(rec *journal.Record) *machine { return s.newMachine(rec, nil, true) })
	s.machineGate = newMachineGate(s.index, &o)
	s.rows = &rows{index: s.index, journal: o.Journal, to: o.Publisher, view: o.View, host: o.Host.ID, log: o.Log}
	s.secrets = &secrets{journal: o.Journal, keys: o.Keys, log: o.Log}
	s.health = newHealth(s.index, s.machineGate, &o)
	s.roles = newRoles(s.index, o.Now)
	s.schedules = &schedules{index: s.index, changed: make(chan struct{}, 1), now: o.Now, log: o.Log}
	return s
}

// Stop ends the workers and leaves the Machines running, without waiting for that. It may be
// repeated.
func (s *Store) Stop() {
	if s.work != nil {
		s.work.Stop()
	}
}

// Close waits for everything that Stop ends. A boot, resume or suspend that is under way may take
// a moment to end, so that no memory is lost to a restart of the daemon. It may be repeated.
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

// add adds a Machine.
func (s *Store) add(m *machine) {
	m.gate = s.gates.Add(m.rec.Load().Machine.Ref())
	s.room.Set(m.id, loadOf(m.rec.Load()))
	s.index.add(m)
}

// remove is the inverse of add.
func (s *Store) remove(m *machine) {
	s.gates.Remove(m.gate)
	s.room.Set(m.id, admission.Load{})
	s.index.remove(m)
}

// Memory is how many bytes of memory the host has for Machines, and has left. A Machine is
// promised its memory until it is at rest.
func (s *Store) Memory() (capacity, left int64) {
	return s.room.Capacity().Memory, s.room.Left().Memory
}

// Bid returns how many processors are not promised to Machines, and why a Machine of a size would
// be refused now.
func (s *Store) Bid(g *hangar.Guest) (cpus int64, refusal error) {
	left := s.room.Left()
	return left.CPUs, errors.Join(s.room.Has(loadOfGuest(g)), s.o.Space.Admit(diskspace.CreateMachine, 0))
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
