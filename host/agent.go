// Package host is the agent of one server: it owns the server's Machines and volumes and carries
// out the decisions of control.
//
// The parts are the children: package machines owns the Machines, package volumes the volumes, and
// each keeps its records in the one journal. They do not know each other, and meet here: the Agent
// opens them in the order in which a start recovers, publishes the changes in their journal to the
// other planes, runs periodic cleanup, and implements the root's interfaces with them.
//
// Running Machines do not notice when the daemon stops: that is not a stop of a Machine.
//
// The agent does not authorise, place or name; that is control's part. How a
// Machine runs is the driver's.
package host

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/image"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/host/logs"
	"github.com/hangar-platform/hangar/host/machines"
	"github.com/hangar-platform/hangar/host/rootfs"
	"github.com/hangar-platform/hangar/host/volumes"
	"github.com/hangar-platform/hangar/internal/background"
	"github.com/hangar-platform/hangar/internal/diskspace"
	"github.com/hangar-platform/hangar/internal/keyset"
)

// Images is what the agent needs of an image store. Each method is that of image.Store.
type Images interface {
	machines.Images

	Inspect(ctx context.Context, who image.Puller, ref string) (*hangar.ResolvedImage, error)
	Holds(ref string) bool
	List() ([]hangar.Image, error)
	Remove(ctx context.Context, digest string) error
	RemoveOrg(ctx context.Context, org hangar.OrgID) error
	Usage(ctx context.Context, org hangar.OrgID) (hangar.ImageUsage, error)
	GC(ctx context.Context, policy image.Policy) (freed int64, err error)
}

// Options are the dependencies of an agent. All fields are required, except those with a
// documented zero value.
type Options struct {
	Dir         string // the Machines' files live below it
	Host        hangar.Host
	Driver      driver.Driver
	Images      Images
	Network     machines.Networks
	Local       machines.LocalAPI
	Identity    hangar.IdentityService // for the tokens by which Machines assume roles
	Layers      *rootfs.Layers         // what Machines write to their root file systems; open
	Logs        *logs.Store
	Journal     *journal.Journal
	Space       *diskspace.Space // of the disk of Dir; nil: its room is not looked at
	Publisher   hangar.Publisher
	View        hangar.MachineView // of the edge that serves the Machines; nil: there is no edge to wait for
	Keys        *keyset.Keyset     // encrypts the secrets of Machines and the keys of volumes in the journal
	Nameservers []string           // for the resolv.conf of Machines
	// DatabaseProgram finds the host's hangar-db, which Machines may run; it answers "" where there is none.
	// Nil: there is none.
	DatabaseProgram func() (string, error)
	PublicIP        netip.Addr // from which Machines reach the internet over IPv6; the zero Addr: none
	Log             *slog.Logger
	Now             func() time.Time

	Devices         volumes.Devices
	VolumePublisher hangar.VolumePublisher
	Archive         volumes.Archive       // of snapshots; nil: there are none
	Metrics         prometheus.Registerer // nil: none
	// MemoryOvercommit, CPUOvercommit, MemoryReserve and AutostopAfter are those of
	// machines.Options.
	MemoryOvercommit, CPUOvercommit float64
	MemoryReserve                   int64
	AutostopAfter                   time.Duration
	// VolumeOvercommit, VolumesPerMachine and ArchivePatience are Overcommit, PerMachine and
	// ArchivePatience of volumes.Options.
	VolumeOvercommit  float64
	VolumesPerMachine int
	ArchivePatience   time.Duration
}

// Agent implements hangar.Agent for the server it runs on.
type Agent struct {
	hangar.MachineAgent   // machines
	hangar.MachineGate    // machines
	hangar.MachineAwaiter // machines
	hangar.VolumeAgent    // volumes
	hangar.SSHHost        // machines

	o        Options
	machines *machines.Store
	volumes  *volumes.Store
	work     *background.Group // set by Open
}

var (
	_ hangar.Agent        = (*Agent)(nil)
	_ hangar.Resealer     = (*Agent)(nil)
	_ hangar.MetricSource = (*Agent)(nil)
)

// New returns an agent that Open makes usable.
func New(o Options) *Agent {
	forMachines := &machineVolumes{}
	ms := machines.New(machines.Options{
		Dir: o.Dir, Host: o.Host, Driver: o.Driver, Images: o.Images, Network: o.Network, Volumes: forMachines, Local: o.Local, Identity: o.Identity,
		Layers: o.Layers, Logs: o.Logs, Journal: o.Journal, Space: o.Space, Publisher: o.Publisher, View: o.View, Keys: o.Keys,
		Nameservers: o.Nameservers, DatabaseProgram: o.DatabaseProgram, PublicIP: o.PublicIP, Log: o.Log, Now: o.Now,
		MemoryOvercommit: o.MemoryOvercommit, CPUOvercommit: o.CPUOvercommit, MemoryReserve: o.MemoryReserve, AutostopAfter: o.AutostopAfter,
	})
	vs := volumes.New(volumes.Options{
		Host: o.Host.ID, Driver: o.Driver.Capabilities().Name, Machines: ms, Devices: o.Devices, Journal: o.Journal, Logs: o.Logs, Keys: o.Keys,
		Publisher: o.VolumePublisher, Archive: o.Archive, Space: o.Space, Metrics: o.Metrics, Log: o.Log, Now: o.Now,
		Overcommit: o.VolumeOvercommit, PerMachine: o.VolumesPerMachine, ArchivePatience: o.ArchivePatience,
	})
	forMachines.Store = vs
	if o.Metrics != nil {
		o.Metrics.MustRegister(ms)
	}
	return &Agent{MachineAgent: ms, MachineGate: ms, MachineAwaiter: ms, VolumeAgent: vs, SSHHost: ms, o: o, machines: ms, volumes: vs}
}

// machineVolumes implements machines.Volumes, which package volumes does not know.
type machineVolumes struct{ *volumes.Store }

// Claim implements machines.Volumes.
func (m *machineVolumes) Claim(spec *hangar.MachineSpec) (machines.Claims, error) {
	return m.Store.Claim(spec)
}

// Release implements machines.Volumes.
func (m *machineVolumes) Release(id hangar.MachineID, config *hangar.MachineConfig) machines.Claims {
	return m.Store.Release(id, config)
}

// Open takes up every Machine and volume that the journal knows, re-attaches to running ones and
// removes what no record claims. Only then do workers start: no step of theirs meets leftovers of
// another Machine. Afterwards the agent serves, until Close.
func (a *Agent) Open(ctx context.Context) error {
	a.work = background.New(ctx)
	if err := a.recover(ctx); err != nil {
		return errors.Join(err, a.Close())
	}
	a.work.Go(func() { a.publish(a.work.Context) })
	a.work.Go(func() { a.keepHouse(a.work.Context) })
	return nil
}

func (a *Agent) recover(ctx context.Context) error {
	if err := a.machines.Open(ctx); err != nil {
		return err
	}
	if err := a.volumes.Open(ctx); err != nil {
		return err
	}
	a.machines.Reattach(ctx)
	if err := errors.Join(a.machines.Sweep(ctx), a.volumes.Sweep(ctx)); err != nil {
		return err
	}
	a.machines.Run()
	return a.volumes.Run()
}

// Close ends the workers and leaves the Machines running; see machines.Store. It may be
// repeated.
func (a *Agent) Close() error {
	if a.work == nil {
		return nil
	}
	a.work.Stop()
	a.machines.Stop()
	a.volumes.Stop()
	a.machines.Close()
	a.work.Wait()
	return a.volumes.Close()
}

// Reseal implements hangar.Resealer.
func (a *Agent) Reseal(ctx context.Context) (resealed int, err error) {
	resealed, err = a.machines.Reseal(ctx)
	if err != nil {
		return resealed, err
	}
	keys, err := a.volumes.Reseal(ctx)
	return resealed + keys, err
}

// TryArchive opens the archive of snapshots before it is needed; see volumes.Store.
func (a *Agent) TryArchive(ctx context.Context) { a.volumes.TryArchive(ctx) }

// Host returns the server's own description.
func (a *Agent) Host() hangar.Host { return a.o.Host }

// Room implements hangar.Agent. A host that cannot read its disk usage has no room for volumes.
func (a *Agent) Room(ctx context.Context) (hangar.HostRoom, error) {
	room := hangar.HostRoom{Region: a.o.Host.Region}
	room.Memory, room.Free = a.machines.Memory()
	if left, promised, err := a.volumes.Room(ctx); err == nil {
		room.Volumes, room.VolumesPromised = left, promised
	}
	return room, nil
}

// Bid implements hangar.Agent.
func (a *Agent) Bid(ctx context.Context, ask hangar.MachineAsk) (hangar.MachineBid, error) {
	room, err := a.Room(ctx)
	if err != nil {
		return hangar.MachineBid{}, err
	}
	bid := hangar.MachineBid{HostRoom: room}
	if ask.Volume > 0 && ask.Guest.CPUs == 0 {
		return bid, nil
	}
	bid.Image = a.o.Images.Holds(ask.Image)
	if bid.CPUs, err = a.machines.Bid(&ask.Guest); err != nil {
		bid.Refusal = hangar.MessageOf(err)
	}
	return bid, nil
}

// Logs implements hangar.LogAgent.
func (a *Agent) Logs(_ context.Context, app hangar.AppID, q hangar.LogQuery) (hangar.LogPage, error) {
	return a.o.Logs.Read(app, q)
}

// FollowLogs implements hangar.LogAgent.
func (a *Agent) FollowLogs(ctx context.Context, app hangar.AppID, q hangar.LogQuery) iter.Seq2[hangar.LogEntry, error] {
	return a.o.Logs.Follow(ctx, app, q)
}

// keyError is the key of log lines.
const keyError = "error"
