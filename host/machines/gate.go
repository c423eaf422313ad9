package machines

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/gate"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/host/logs"
)

// Package gate counts the requests in a Machine; this file sets the gates from the records. The
// Machine's lock is held whenever a record changes, so a gate is never open while the record says
// that its Machine does not serve.

var _ hangar.MachineGate = (*machineGate)(nil)

// machineGate implements hangar.MachineGate for the edge's requests to Machines.
type machineGate struct {
	index   *index
	gates   *gate.Gates
	network Networks
	logs    *logs.Store
	log     *slog.Logger
	lines   edgeLog // log lines of the edge that are not written yet

	dialling atomic.Int32 // ports that are being dialled for waiters, see probe
}

func newMachineGate(index *index, o *Options) *machineGate {
	mg := &machineGate{index: index, network: o.Network, logs: o.Logs, log: o.Log, lines: edgeLog{some: make(chan struct{}, 1)}}
	mg.gates = gate.New(gate.Options{After: o.AutostopAfter, Ready: mg.ready, Stop: mg.stopIdle, Now: o.Now})
	return mg
}

// errNoGate is shared by all Machines: building a message takes longer than admitting a request.
//
//nolint:gochecknoglobals // it never changes
var errNoGate = &hangar.Error{Code: hangar.CodeNotFound, Reason: hangar.ReasonMachineNotFound, Message: "machine not found"}

// EnterMachine implements hangar.MachineGate.
func (mg *machineGate) EnterMachine(ref hangar.MachineRef, port int) (leave func(), err error) {
	g := mg.gates.Find(ref)
	if g == nil {
		return nil, errNoGate
	}
	return g.Enter(port)
}

// setGate sets the gate of a Machine from its record. m.mu is held.
func (m *machine) setGate(rec *journal.Record) {
	c := &rec.Machine.Config
	m.gate.Set(gate.Terms{
		Open:     rec.Machine.State == hangar.MachineStarted && !rec.Machine.Cordoned,
		Services: c.Services, Region: rec.Machine.Region, Primary: primaryRegion(c),
		Kept: c.Schedule != "" || c.StandsBy(), Busy: m.busy,
	})
}

// primaryRegion is the region of an App in which min_machines_running counts, or empty.
func primaryRegion(c *hangar.MachineConfig) hangar.Region {
	const name = "PRIMARY_REGION"
	if region := c.Env[name]; region != "" {
		return hangar.Region(region)
	}
	return hangar.Region(c.Metadata["primary_region"])
}

// ready reports whether the checks of a Machine allow requests to all of its services.
func (mg *machineGate) ready(ref hangar.MachineRef) bool {
	m, err := mg.index.machine(ref)
	if err != nil {
		return true
	}
	now := m.shown(m.rec.Load())
	return !slices.ContainsFunc(now.Config.Services, func(s hangar.Service) bool { return !now.Ready(s.InternalPort) })
}

// excessText is the log line about stopping an idle Machine, in the words of the public platform.
func excessText(s gate.Stopping, verb string, region hangar.Region) string {
	return fmt.Sprintf("App %s has excess capacity, %s machine %s. %d out of %d machines left running (region=%s)",
		s.Ref.App, verb, s.Ref.ID, s.Left, s.Running, region)
}

// lookAtGate makes the gate reconsider a Machine whose checks have changed.
func (mg *machineGate) lookAtGate(id hangar.MachineID) {
	m := mg.index.find(id)
	if m != nil {
		mg.gates.Look(m.rec.Load().Machine.Ref())
	}
}

// KeepMachineBusy implements hangar.MachineBusier.
func (s *Store) KeepMachineBusy(ctx context.Context, ref hangar.MachineRef, ttl time.Duration) (hangar.MachineBusy, error) {
	if err := hangar.CheckBusy(ttl); err != nil {
		return hangar.MachineBusy{}, err
	}
	m, err := s.machine(ref)
	if err != nil {
		return hangar.MachineBusy{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if state := m.rec.Load().Machine.State; state.Answers(hangar.VerbExec) != hangar.Accept {
		return hangar.MachineBusy{}, refusal(hangar.VerbExec, state)
	}
	var until time.Time
	if ttl > 0 {
		until = s.o.Now().UTC().Add(ttl)
	}
	if !until.Equal(m.busy) {
		err := s.o.Journal.Commit(func(tx *journal.Tx) error { return tx.PutBusy(m.id, until) })
		if err != nil {
			return hangar.MachineBusy{}, notRecorded(m.id, err)
		}
	}
	m.busy = until
	m.setGate(m.rec.Load())
	return hangar.MachineBusy{Until: until}, nil
}

// busyAfter is the time until which a Machine stays busy after a transition: as long as the program
// that said so still runs. m.mu is held.
func (m *machine) busyAfter(next *journal.Record) time.Time {
	if !keepsConnections(next) {
		return time.Time{}
	}
	return m.busy
}

// serviceTimeout bounds how long a program in a Machine may take to accept a connection of the
// edge.
const serviceTimeout = 5 * time.Second

// DialService implements hangar.MachineGate.
func (mg *machineGate) DialService(ctx context.Context, ref hangar.MachineRef, port int) (net.Conn, error) {
	m, err := mg.index.machine(ref)
	if err != nil {
		return nil, err
	}
	if conn := m.probes.take(port); conn != nil {
		return conn, nil
	}
	if rec := m.rec.Load(); !keepsConnections(rec) || rec.Snapshot {
		return nil, hangar.Errorf(hangar.CodeUnavailable, hangar.ReasonWrongState, "the machine is %s", rec.Machine.State)
	}
	ctx, cancel := context.WithTimeout(ctx, serviceTimeout)
	defer cancel()
	conn, err := mg.network.DialService(ctx, ref.ID, port)
	if err != nil {
		return nil, undialled(ref, port, serviceTimeout, err)
	}
	return conn, nil
}

// DialDatagrams implements hangar.MachineGate.
func (mg *machineGate) DialDatagrams(ctx context.Context, ref hangar.MachineRef, port int) (net.Conn, error) {
	if _, err := mg.index.machine(ref); err != nil {
		return nil, err
	}
	return mg.network.DialDatagrams(ctx, ref.ID, port)
}
