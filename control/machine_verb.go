package control

import (
	"context"
	"errors"
	"iter"
	"net"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
)

// reservation returns where a Machine is, to whoever may do action to it.
func (m *Machines) reservation(ctx context.Context, ref hangar.MachineRef, action hangar.Action) (reservation, error) {
	return m.reservationIf(ctx, ref, func(p hangar.Principal, t hangar.Target) bool { return p.May(action, t) })
}

// reservationIf returns where a Machine is, to whom may allows that.
func (m *Machines) reservationIf(ctx context.Context, ref hangar.MachineRef, may permission) (reservation, error) {
	if _, _, err := m.appIf(ctx, ref, may); err != nil {
		return reservation{}, err
	}
	if !ref.ID.Valid() {
		return reservation{}, machineNotFound(ref.ID)
	}
	r, _, err := read[reservation](ctx, m.store, reservationKey(ref))
	if errors.Is(err, state.ErrNotFound) {
		return r, machineNotFound(ref.ID)
	}
	return r, stateError(err)
}

func machineNotFound(id hangar.MachineID) error {
	return hangar.Errorf(hangar.CodeNotFound, hangar.ReasonMachineNotFound, "machine not found: %s", id)
}

// owner returns the host of a Machine, to whoever may do action to it.
func (m *Machines) owner(ctx context.Context, ref hangar.MachineRef, action hangar.Action) (hangar.Agent, error) {
	r, err := m.reservation(ctx, ref, action)
	if err != nil {
		return nil, err
	}
	return m.agent(r.Host)
}

// ask passes a question about one Machine on to its host.
func ask[T any](
	ctx context.Context, m *Machines, ref hangar.MachineRef, action hangar.Action, question func(hangar.Agent) (T, error),
) (T, error) {
	agent, err := m.owner(ctx, ref, action)
	if err != nil {
		var none T
		return none, err
	}
	return question(agent)
}

// order passes an order to one Machine on to its host.
func (m *Machines) order(ctx context.Context, ref hangar.MachineRef, action hangar.Action, give func(hangar.Agent) error) error {
	agent, err := m.owner(ctx, ref, action)
	if err != nil {
		return err
	}
	return give(agent)
}

// Machine implements hangar.MachineService. While its host cannot be reached, the
// Machine is shown as it was published.
func (m *Machines) Machine(ctx context.Context, ref hangar.MachineRef) (*hangar.Machine, error) {
	r, err := m.reservation(ctx, ref, hangar.ActionRead)
	if err != nil {
		return nil, err
	}
	return m.machineOrRow(ctx, ref, r.Host)
}

// UpdateMachine implements hangar.MachineService.
func (m *Machines) UpdateMachine(ctx context.Context, ref hangar.MachineRef, in hangar.MachineUpdate) (*hangar.Machine, error) {
	return ask(ctx, m, ref, hangar.ActionWrite, func(a hangar.Agent) (*hangar.Machine, error) {
		if err := checkConfig(&in.Config); err != nil {
			return nil, err
		}
		if err := hangar.CheckLeaseTTL(in.LeaseTTL); err != nil {
			return nil, err
		}
		app, _, err := m.anyApp(ctx, ref.App)
		if err != nil {
			return nil, err
		}
		if in.Secrets, err = m.secretsFor(ctx, app, in.SkipSecrets, in.MinSecretsVersion); err != nil {
			return nil, err
		}
		return a.UpdateMachine(ctx, ref, in)
	})
}

// StartMachine implements hangar.MachineService.
func (m *Machines) StartMachine(ctx context.Context, ref hangar.MachineRef) (hangar.StartResult, error) {
	return ask(ctx, m, ref, hangar.ActionControl, func(a hangar.Agent) (hangar.StartResult, error) { return a.StartMachine(ctx, ref) })
}

// StopMachine implements hangar.MachineService.
func (m *Machines) StopMachine(ctx context.Context, ref hangar.MachineRef, in hangar.MachineStop) error {
	return m.order(ctx, ref, hangar.ActionControl, func(a hangar.Agent) error { return a.StopMachine(ctx, ref, in) })
}

// SuspendMachine implements hangar.MachineService.
func (m *Machines) SuspendMachine(ctx context.Context, ref hangar.MachineRef) error {
	return m.order(ctx, ref, hangar.ActionControl, func(a hangar.Agent) error { return a.SuspendMachine(ctx, ref) })
}

// RestartMachine implements hangar.MachineService.
func (m *Machines) RestartMachine(ctx context.Context, ref hangar.MachineRef, in hangar.MachineRestart) error {
	return m.order(ctx, ref, hangar.ActionControl, func(a hangar.Agent) error { return a.RestartMachine(ctx, ref, in) })
}

// SignalMachine implements hangar.MachineService.
func (m *Machines) SignalMachine(ctx context.Context, ref hangar.MachineRef, sig hangar.Signal) error {
	return m.order(ctx, ref, hangar.ActionControl, func(a hangar.Agent) error { return a.SignalMachine(ctx, ref, sig) })
}

// DestroyMachine implements hangar.MachineService. The name of the Machine is free
// when it returns.
func (m *Machines) DestroyMachine(ctx context.Context, ref hangar.MachineRef, in hangar.MachineDestroy) error {
	r, err := m.reservation(ctx, ref, hangar.ActionDelete)
	if err != nil {
		return err
	}
	agent, err := m.agent(r.Host)
	if err != nil {
		return err
	}
	if err := agent.DestroyMachine(ctx, ref, in); err != nil {
		return err
	}
	if err := releaseName(ctx, m.store, ref, r.Name); err != nil {
		// The Machine is as good as gone; whoever wants its name finds that out.
		m.log.Warn("name was not released", keyApp, ref.App, keyMachine, ref.ID, keyError, err)
	}
	return nil
}

// CordonMachine implements hangar.MachineService.
func (m *Machines) CordonMachine(ctx context.Context, ref hangar.MachineRef) error {
	return m.order(ctx, ref, hangar.ActionWrite, func(a hangar.Agent) error { return a.CordonMachine(ctx, ref) })
}

// UncordonMachine implements hangar.MachineService.
func (m *Machines) UncordonMachine(ctx context.Context, ref hangar.MachineRef) error {
	return m.order(ctx, ref, hangar.ActionWrite, func(a hangar.Agent) error { return a.UncordonMachine(ctx, ref) })
}

// AwaitMachine implements hangar.MachineAwaiter, as far as the Machine's host does.
func (m *Machines) AwaitMachine(
	ctx context.Context, ref hangar.MachineRef, in hangar.MachineWait, told func(hangar.MachineReached, error),
) (func(), error) {
	return ask(ctx, m, ref, hangar.ActionRead, func(a hangar.Agent) (func(), error) {
		if awaiter, ok := a.(hangar.MachineAwaiter); ok {
			return awaiter.AwaitMachine(ctx, ref, in, told)
		}
		return nil, errors.ErrUnsupported
	})
}

// WaitMachine implements hangar.MachineService.
func (m *Machines) WaitMachine(ctx context.Context, ref hangar.MachineRef, in hangar.MachineWait) (hangar.MachineReached, error) {
	return ask(ctx, m, ref, hangar.ActionRead, func(a hangar.Agent) (hangar.MachineReached, error) { return a.WaitMachine(ctx, ref, in) })
}

// MachineEvents implements hangar.MachineService.
func (m *Machines) MachineEvents(ctx context.Context, ref hangar.MachineRef, limit int) ([]hangar.Event, error) {
	return ask(ctx, m, ref, hangar.ActionRead, func(a hangar.Agent) ([]hangar.Event, error) { return a.MachineEvents(ctx, ref, limit) })
}

// MachineVersions implements hangar.MachineService.
func (m *Machines) MachineVersions(ctx context.Context, ref hangar.MachineRef) ([]hangar.MachineVersion, error) {
	return ask(ctx, m, ref, hangar.ActionRead, func(a hangar.Agent) ([]hangar.MachineVersion, error) { return a.MachineVersions(ctx, ref) })
}

// MachineProcesses implements hangar.MachineService.
func (m *Machines) MachineProcesses(ctx context.Context, ref hangar.MachineRef) ([]hangar.Process, error) {
	return ask(ctx, m, ref, hangar.ActionRead, func(a hangar.Agent) ([]hangar.Process, error) { return a.MachineProcesses(ctx, ref) })
}

// ExecMachine implements hangar.MachineService.
func (m *Machines) ExecMachine(
	ctx context.Context, ref hangar.MachineRef, req hangar.ExecRequest, streams hangar.ExecStreams,
) (hangar.ExecResult, error) {
	r, err := m.reservationIf(ctx, ref, func(p hangar.Principal, t hangar.Target) bool { return p.MayExec(req.Command, t) })
	if err != nil {
		return hangar.ExecResult{}, err
	}
	agent, err := m.agent(r.Host)
	if err != nil {
		return hangar.ExecResult{}, err
	}
	return agent.ExecMachine(ctx, ref, req, streams)
}

// DialMachine implements hangar.MachineService.
func (m *Machines) DialMachine(ctx context.Context, ref hangar.MachineRef, port int) (net.Conn, error) {
	return ask(ctx, m, ref, hangar.ActionControl, func(a hangar.Agent) (net.Conn, error) { return a.DialMachine(ctx, ref, port) })
}

// WatchMachine implements hangar.MachineService.
func (m *Machines) WatchMachine(ctx context.Context, ref hangar.MachineRef) iter.Seq2[hangar.MachineChange, error] {
	return func(yield func(hangar.MachineChange, error) bool) {
		agent, err := m.owner(ctx, ref, hangar.ActionRead)
		if err != nil {
			yield(hangar.MachineChange{}, err)
			return
		}
		agent.WatchMachine(ctx, ref)(yield)
	}
}
