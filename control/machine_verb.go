package control

import (
	"context"
	"errors"
	"iter"
	"net"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/internal/finish"
)

// findFor returns the host of a Machine, and its ref with the App's id, if the caller may do action
// to it.
func (s *reservations) findFor(ctx context.Context, ref hangar.MachineRef, action hangar.Action) (reservation, hangar.MachineRef, error) {
	return s.find(ctx, ref, func(p hangar.Principal, t hangar.Target) bool { return p.May(action, t) })
}

// find is findFor for callers that may allows.
func (s *reservations) find(ctx context.Context, ref hangar.MachineRef, may tenants.Permission) (reservation, hangar.MachineRef, error) {
	app, _, err := s.tenants.AppIf(ctx, ref, may)
	if err != nil {
		return reservation{}, ref, err
	}
	if !ref.ID.Valid() {
		return reservation{}, ref, tenants.MachineNotFound(ref.ID)
	}
	ref = app.Ref(ref.ID)
	r, err := s.of(ctx, ref)
	return r, ref, err
}

// of returns the reservation of a Machine. For a destroyed one, of which the state knows nothing,
// it asks all hosts and returns a reservation that names the host.
func (s *reservations) of(ctx context.Context, ref hangar.MachineRef) (reservation, error) {
	r, _, err := state.Read[reservation](ctx, s.store, state.ReservationKey(ref))
	if !errors.Is(err, state.ErrNotFound) {
		return r, state.HangarError(err)
	}
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	hosts := s.hosts.agents.Known()
	found := make([]bool, len(hosts))
	var group errgroup.Group
	group.SetLimit(askedAtOnce)
	for i, host := range hosts {
		group.Go(func() error {
			agent, err := s.hosts.agent(host.ID)
			if err != nil {
				return err
			}
			m, err := agent.Machine(ctx, ref)
			found[i] = err == nil && gone(m.State)
			return err
		})
	}
	_ = group.Wait() // a host that does not answer counts as one that does not know the Machine
	if i := slices.Index(found, true); i >= 0 {
		return reservation{ID: ref.ID, Host: hosts[i].ID, Confirmed: true}, nil
	}
	return reservation{}, tenants.MachineNotFound(ref.ID)
}

// owner returns the agent of a Machine's host, and the Machine's ref there, if the caller may do
// action to the Machine.
func (m *Machines) owner(ctx context.Context, ref hangar.MachineRef, action hangar.Action) (hangar.MachineAgent, hangar.MachineRef, error) {
	r, ref, err := m.reservations.findFor(ctx, ref, action)
	if err != nil {
		return nil, ref, err
	}
	agent, err := m.hosts.agent(r.Host)
	return agent, ref, err
}

// ask forwards a question about a Machine to its host.
func ask[T any](
	ctx context.Context, m *Machines, ref hangar.MachineRef, action hangar.Action, question func(hangar.MachineAgent, hangar.MachineRef) (T, error),
) (T, error) {
	agent, ref, err := m.owner(ctx, ref, action)
	if err != nil {
		var none T
		return none, err
	}
	return question(agent, ref)
}

// order forwards a change of a Machine to its host.
func (m *Machines) order(ctx context.Context, ref hangar.MachineRef, action hangar.Action, give func(hangar.MachineAgent, hangar.MachineRef) error) error {
	agent, ref, err := m.owner(ctx, ref, action)
	if err != nil {
		return err
	}
	return give(agent, ref)
}

// Machine implements hangar.MachineService. While its host cannot be reached, the
// Machine is shown as it was published.
func (m *Machines) Machine(ctx context.Context, ref hangar.MachineRef) (*hangar.Machine, error) {
	r, ref, err := m.reservations.findFor(ctx, ref, hangar.ActionRead)
	if err != nil {
		return nil, err
	}
	return m.reservations.machineOrRow(ctx, ref, r.Host)
}

// UpdateMachine implements hangar.MachineService.
func (m *Machines) UpdateMachine(ctx context.Context, ref hangar.MachineRef, in hangar.MachineUpdate) (*hangar.Machine, error) {
	return ask(ctx, m, ref, hangar.ActionWrite, func(a hangar.MachineAgent, ref hangar.MachineRef) (*hangar.Machine, error) {
		if err := checkConfig(&in.Config); err != nil {
			return nil, err
		}
		if err := hangar.CheckLeaseTTL(in.LeaseTTL); err != nil {
			return nil, err
		}
		app, err := m.tenants.AppOf(ctx, ref.App, ref.AppID)
		if err != nil {
			return nil, err
		}
		if in.Secrets, err = m.secrets.For(ctx, app, in.SkipSecrets, in.MinSecretsVersion); err != nil {
			return nil, err
		}
		in.AnyRegistry = tenants.Administrator(ctx)
		return m.resize(ctx, app, ref, in.Config.Guest, func(ctx context.Context) (*hangar.Machine, error) { return a.UpdateMachine(ctx, ref, in) })
	})
}

// StartMachine implements hangar.MachineService.
func (m *Machines) StartMachine(ctx context.Context, ref hangar.MachineRef) (hangar.StartResult, error) {
	return ask(ctx, m, ref, hangar.ActionControl, func(a hangar.MachineAgent, ref hangar.MachineRef) (hangar.StartResult, error) {
		return a.StartMachine(ctx, ref)
	})
}

// StopMachine implements hangar.MachineService.
func (m *Machines) StopMachine(ctx context.Context, ref hangar.MachineRef, in hangar.MachineStop) error {
	return m.order(ctx, ref, hangar.ActionControl, func(a hangar.MachineAgent, ref hangar.MachineRef) error { return a.StopMachine(ctx, ref, in) })
}

// SuspendMachine implements hangar.MachineService.
func (m *Machines) SuspendMachine(ctx context.Context, ref hangar.MachineRef) error {
	return m.order(ctx, ref, hangar.ActionControl, func(a hangar.MachineAgent, ref hangar.MachineRef) error { return a.SuspendMachine(ctx, ref) })
}

// RestartMachine implements hangar.MachineService.
func (m *Machines) RestartMachine(ctx context.Context, ref hangar.MachineRef, in hangar.MachineRestart) error {
	return m.order(ctx, ref, hangar.ActionControl, func(a hangar.MachineAgent, ref hangar.MachineRef) error { return a.RestartMachine(ctx, ref, in) })
}

// SignalMachine implements hangar.MachineService.
func (m *Machines) SignalMachine(ctx context.Context, ref hangar.MachineRef, sig hangar.Signal) error {
	return m.order(ctx, ref, hangar.ActionControl, func(a hangar.MachineAgent, ref hangar.MachineRef) error { return a.SignalMachine(ctx, ref, sig) })
}

// DestroyMachine implements hangar.MachineService. The name of the Machine is free
// when it returns.
func (m *Machines) DestroyMachine(ctx context.Context, ref hangar.MachineRef, in hangar.MachineDestroy) error {
	r, ref, err := m.reservations.findFor(ctx, ref, hangar.ActionDelete)
	if err != nil {
		return err
	}
	agent, err := m.hosts.agent(r.Host)
	if err != nil {
		return err
	}
	if err := agent.DestroyMachine(ctx, ref, in); err != nil {
		return err
	}
	ctx, cancel := finish.Within(ctx, undoTimeout) // the caller may have left
	defer cancel()
	if err := releaseName(ctx, m.store, ref, r.Name); err != nil {
		// The Machine is being destroyed; the next request for its name finds that out.
		m.log.Warn("name was not released", keyApp, ref.App, keyMachine, ref.ID, keyError, err)
	}
	if err := m.rows.forget(ctx, ref); err != nil {
		// Its row will end that.
		m.log.Warn("destroyed machine is still counted", keyApp, ref.App, keyMachine, ref.ID, keyError, err)
	}
	return nil
}

// CordonMachine implements hangar.MachineService.
func (m *Machines) CordonMachine(ctx context.Context, ref hangar.MachineRef) error {
	return m.order(ctx, ref, hangar.ActionWrite, func(a hangar.MachineAgent, ref hangar.MachineRef) error { return a.CordonMachine(ctx, ref) })
}

// UncordonMachine implements hangar.MachineService.
func (m *Machines) UncordonMachine(ctx context.Context, ref hangar.MachineRef) error {
	return m.order(ctx, ref, hangar.ActionWrite, func(a hangar.MachineAgent, ref hangar.MachineRef) error { return a.UncordonMachine(ctx, ref) })
}

// AwaitMachine implements hangar.MachineAwaiter, as far as the Machine's host does.
func (m *Machines) AwaitMachine(
	ctx context.Context, ref hangar.MachineRef, in hangar.MachineWait, done func(hangar.MachineReached, error),
) (func(), error) {
	return ask(ctx, m, ref, hangar.ActionRead, func(a hangar.MachineAgent, ref hangar.MachineRef) (func(), error) {
		if awaiter, ok := a.(hangar.MachineAwaiter); ok {
			return awaiter.AwaitMachine(ctx, ref, in, done)
		}
		return nil, errors.ErrUnsupported
	})
}

// WaitMachine implements hangar.MachineService.
func (m *Machines) WaitMachine(ctx context.Context, ref hangar.MachineRef, in hangar.MachineWait) (hangar.MachineReached, error) {
	return ask(ctx, m, ref, hangar.ActionRead, func(a hangar.MachineAgent, ref hangar.MachineRef) (hangar.MachineReached, error) {
		return a.WaitMachine(ctx, ref, in)
	})
}

// MachineEvents implements hangar.MachineService.
func (m *Machines) MachineEvents(ctx context.Context, ref hangar.MachineRef, limit int) ([]hangar.Event, error) {
	return ask(ctx, m, ref, hangar.ActionRead, func(a hangar.MachineAgent, ref hangar.MachineRef) ([]hangar.Event, error) {
		return a.MachineEvents(ctx, ref, limit)
	})
}

// MachineVersions implements hangar.MachineService.
func (m *Machines) MachineVersions(ctx context.Context, ref hangar.MachineRef) ([]hangar.MachineVersion, error) {
	return ask(ctx, m, ref, hangar.ActionRead, func(a hangar.MachineAgent, ref hangar.MachineRef) ([]hangar.MachineVersion, error) {
		return a.MachineVersions(ctx, ref)
	})
}

// MachineProcesses implements hangar.MachineService.
func (m *Machines) MachineProcesses(ctx context.Context, ref hangar.MachineRef) ([]hangar.Process, error) {
	return ask(ctx, m, ref, hangar.ActionRead, func(a hangar.MachineAgent, ref hangar.MachineRef) ([]hangar.Process, error) {
		return a.MachineProcesses(ctx, ref)
	})
}

// ExecMachine implements hangar.MachineService.
func (m *Machines) ExecMachine(
	ctx context.Context, ref hangar.MachineRef, req hangar.ExecRequest, streams hangar.ExecStreams,
) (hangar.ExecResult, error) {
	r, ref, err := m.reservations.find(ctx, ref, func(p hangar.Principal, t hangar.Target) bool { return p.MayExec(req.Command, t) })
	if err != nil {
		return hangar.ExecResult{}, err
	}
	agent, err := m.hosts.agent(r.Host)
	if err != nil {
		return hangar.ExecResult{}, err
	}
	if !m.execs.Take(r.OrgID) {
		return hangar.ExecResult{}, hangar.Errorf(hangar.CodeExhausted, hangar.ReasonAtLimit,
			"too many commands run in Machines of the organization at once: at most %d may, and fewer while those of others run", orgExecs)
	}
	defer m.execs.Leave(r.OrgID)
	return agent.ExecMachine(ctx, ref, req, streams)
}

// DialMachine implements hangar.MachineService.
func (m *Machines) DialMachine(ctx context.Context, ref hangar.MachineRef, port int) (net.Conn, error) {
	return ask(ctx, m, ref, hangar.ActionControl, func(a hangar.MachineAgent, ref hangar.MachineRef) (net.Conn, error) {
		return a.DialMachine(ctx, ref, port)
	})
}

// WatchMachine implements hangar.MachineService.
func (m *Machines) WatchMachine(ctx context.Context, ref hangar.MachineRef) iter.Seq2[hangar.MachineChange, error] {
	return func(yield func(hangar.MachineChange, error) bool) {
		agent, ref, err := m.owner(ctx, ref, hangar.ActionRead)
		if err != nil {
			yield(hangar.MachineChange{}, err)
			return
		}
		agent.WatchMachine(ctx, ref)(yield)
	}
}
