package remote

import (
	"context"

	"github.com/hangar-platform/hangar"
)

// method is how a host answers calls of one method that returns once.
type method struct {
	args  int
	serve func(ctx context.Context, o *owner, c *call) (any, error)
	// repeats says that a call whose answer was lost may be made again.
	repeats bool
	// reads says that nothing changes, so that the call ends with the connection. Others finish.
	reads bool
}

// owner is what calls are made of: the agent of a host and the gate of its Machines.
type owner struct {
	agent hangar.Agent
	gate  hangar.MachineGate
}

// reading is a method without effects.
func reading(m method) method {
	m.reads, m.repeats = true, true
	return m
}

// repeating is a method of which the interface says that it may be repeated.
func repeating(m method) method {
	m.repeats = true
	return m
}

// The constructors of methods: answerN of those with N arguments and a result, orderN of those with
// an error alone.

func answer0[R any](f func(hangar.Agent, context.Context) (R, error)) method {
	return method{serve: func(ctx context.Context, o *owner, _ *call) (any, error) { return f(o.agent, ctx) }}
}

func answer1[A, R any](f func(hangar.Agent, context.Context, A) (R, error)) method {
	return method{args: 1, serve: func(ctx context.Context, o *owner, c *call) (any, error) {
		a, err := argument[A](c, 0)
		if err != nil {
			return nil, err
		}
		return f(o.agent, ctx, a)
	}}
}

func answer2[A, B, R any](f func(hangar.Agent, context.Context, A, B) (R, error)) method {
	return method{args: 2, serve: func(ctx context.Context, o *owner, c *call) (any, error) {
		a, b, err := arguments[A, B](c)
		if err != nil {
			return nil, err
		}
		return f(o.agent, ctx, a, b)
	}}
}

func order1[A any](f func(hangar.Agent, context.Context, A) error) method {
	return answer1(func(agent hangar.Agent, ctx context.Context, a A) (struct{}, error) {
		return struct{}{}, f(agent, ctx, a)
	})
}

func order2[A, B any](f func(hangar.Agent, context.Context, A, B) error) method {
	return answer2(func(agent hangar.Agent, ctx context.Context, a A, b B) (struct{}, error) {
		return struct{}{}, f(agent, ctx, a, b)
	})
}

func arguments[A, B any](c *call) (a A, b B, err error) {
	if a, err = argument[A](c, 0); err == nil {
		b, err = argument[B](c, 1)
	}
	return a, b, err
}

// orgMachines is that of OrgMachines, which has more arguments than others.
func orgMachines(ctx context.Context, o *owner, c *call) (any, error) {
	var org hangar.OrgID
	var after hangar.MachineID
	var limit int
	var filter hangar.MachineFilter
	for i, p := range []any{&org, &after, &limit, &filter} {
		if err := decode(c.Args[i], p); err != nil {
			return nil, hangar.Errorf(hangar.CodeInvalid, "", "argument %d of a call between hosts cannot be read: %w", i, err)
		}
	}
	return o.agent.OrgMachines(ctx, org, after, limit, filter)
}

// wakeMachine is that of WakeMachine, which the gate has.
func wakeMachine(ctx context.Context, o *owner, c *call) (any, error) {
	ref, port, err := arguments[hangar.MachineRef, int](c)
	if err != nil {
		return nil, err
	}
	return struct{}{}, o.gate.WakeMachine(ctx, ref, port)
}

// methods returns all methods that return once, by name. The interfaces say which of them may be
// repeated.
func methods() map[string]method {
	type agent = hangar.Agent
	return map[string]method{
		"Room": reading(answer0(agent.Room)),
		"Bid":  reading(answer1(agent.Bid)),

		"CreateMachine":          repeating(answer1(agent.CreateMachine)),
		"Machines":               reading(answer2(agent.Machines)),
		"OrgMachines":            reading(method{args: 4, serve: orgMachines}),
		"Machine":                reading(answer1(agent.Machine)),
		"UpdateMachine":          answer2(agent.UpdateMachine),
		"StartMachine":           repeating(answer1(agent.StartMachine)),
		"StopMachine":            repeating(order2(agent.StopMachine)),
		"SuspendMachine":         order1(agent.SuspendMachine),
		"RestartMachine":         order2(agent.RestartMachine),
		"SignalMachine":          order2(agent.SignalMachine),
		"DestroyMachine":         repeating(order2(agent.DestroyMachine)),
		"CordonMachine":          repeating(order1(agent.CordonMachine)),
		"UncordonMachine":        repeating(order1(agent.UncordonMachine)),
		"WaitMachine":            reading(answer2(agent.WaitMachine)),
		"MachineEvents":          reading(answer2(agent.MachineEvents)),
		"MachineVersions":        reading(answer1(agent.MachineVersions)),
		"MachineProcesses":       reading(answer1(agent.MachineProcesses)),
		"AcquireLease":           answer2(agent.AcquireLease),
		"MachineLease":           reading(answer1(agent.MachineLease)),
		"ReleaseLease":           order1(agent.ReleaseLease),
		"MachineMetadata":        reading(answer1(agent.MachineMetadata)),
		"SetMachineMetadata":     repeating(order2(agent.SetMachineMetadata)),
		"RemoveMachineMetadata":  repeating(order2(agent.RemoveMachineMetadata)),
		"ReplaceMachineMetadata": repeating(order2(agent.ReplaceMachineMetadata)),
		"MergeMachineMetadata":   repeating(order2(agent.MergeMachineMetadata)),
		"KeepMachineBusy":        repeating(answer2(agent.KeepMachineBusy)),
		"WakeMachine":            reading(method{args: 2, serve: wakeMachine}),

		"CreateVolume":   repeating(answer1(agent.CreateVolume)),
		"VolumeRow":      reading(answer1(agent.VolumeRow)),
		"VolumeRows":     reading(answer1(agent.VolumeRows)),
		"UpdateVolume":   answer2(agent.UpdateVolume),
		"ExtendVolume":   answer2(agent.ExtendVolume),
		"DestroyVolume":  answer1(agent.DestroyVolume),
		"UndeleteVolume": answer1(agent.UndeleteVolume),
		"PurgeVolume":    repeating(answer1(agent.PurgeVolume)),
		"VolumeEvents":   reading(answer1(agent.VolumeEvents)),
		"Snapshots":      reading(answer1(agent.Snapshots)),
		"CreateSnapshot": answer1(agent.CreateSnapshot),
		"DrillVolumes":   answer1(agent.DrillVolumes),
		"VolumeDrill":    reading(answer1(agent.VolumeDrill)),

		"Images":      reading(answer0(agent.Images)),
		"RemoveImage": order1(agent.RemoveImage),
		"Resolve":     reading(answer2(agent.Resolve)),
		"ImageUsage":  reading(answer1(agent.ImageUsage)),
		"RemoveOrg":   repeating(order1(agent.RemoveOrg)),

		"Logs": reading(answer2(agent.Logs)),
	}
}

// encodeCall writes the first frame of a request.
func encodeCall(ctx context.Context, args []any) ([]byte, error) {
	c, err := newCall(ctx, args)
	if err != nil {
		return nil, hangar.Errorf(hangar.CodeInvalid, "", "encode a call to another host: %w", err)
	}
	return hangar.EncodeJSON(c)
}
