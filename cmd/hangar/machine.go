package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
)

const machineLong = `Run and look after Machines.

A Machine is named by its App and its id or name: ` + "`hangar machine stop hello 3d8d413b29d089`" + `.
Where an App has exactly one Machine, its name may be left out.

A Machine that is leased is changed only by a caller that shows the nonce of the
lease, with --nonce or HANGAR_LEASE_NONCE; see ` + "`hangar machine lease`" + `.`

func newMachineCommand(c *cli) *cobra.Command {
	cmd := group("machine", "Run and look after Machines", "machines", "m")
	cmd.Long = machineLong
	cmd.AddCommand(
		newMachineRunCommand(c), newMachineCreateCommand(c), newMachineCloneCommand(c), newMachineUpdateCommand(c),
		newMachineListCommand(c), newMachineStatusCommand(c), newMachineEventsCommand(c), newMachinePsCommand(c),
		newMachineStartCommand(c), newMachineStopCommand(c), newMachineSuspendCommand(c), newMachineRestartCommand(c),
		newMachineDestroyCommand(c), newMachineSignalCommand(c), newMachineWaitCommand(c), newMachineExecCommand(c),
		newMachineCordonCommand(c), newMachineUncordonCommand(c), newMachineMetadataCommand(c), newMachineLeaseCommand(c), newMachineBusyCommand(c),
	)
	cmd.PersistentFlags().StringVar(&c.leaseNonce, "nonce", "", "nonce of the Machine's lease (or HANGAR_LEASE_NONCE)")
	return cmd
}

// onlyMachine stands for a Machine that was left out: the App's only one.
const onlyMachine = ""

// find returns the Machine that a person named by id or name.
func find(ctx context.Context, p *client.Client, app hangar.AppName, name string) (*hangar.Machine, error) {
	if id := hangar.MachineID(name); id.Valid() {
		return p.Machine(ctx, hangar.MachineRef{App: app, ID: id})
	}
	machines, err := p.Machines(ctx, app, hangar.MachineFilter{})
	if err != nil {
		return nil, err
	}
	if name == onlyMachine {
		return only(app, machines)
	}
	for _, m := range machines {
		if m.Name == name {
			return m, nil
		}
	}
	return nil, withHint(hangar.Errorf(hangar.CodeNotFound, hangar.ReasonMachineNotFound, "App %s has no Machine %q", app, name),
		fmt.Sprintf("see `hangar machine list %s`", app))
}

func only(app hangar.AppName, machines []*hangar.Machine) (*hangar.Machine, error) {
	switch len(machines) {
	case 1:
		return machines[0], nil
	case 0:
		return nil, withHint(hangar.Errorf(hangar.CodeNotFound, hangar.ReasonMachineNotFound, "App %s has no Machine", app),
			fmt.Sprintf("run one: hangar machine run %s IMAGE", app))
	}
	var names []string
	for _, m := range machines {
		names = append(names, fmt.Sprintf("%s (%s, %s)", m.ID, m.Name, m.State))
	}
	return nil, withHint(usageErrorf("App %s has %d Machines: say which one", app, len(machines)), "one of "+strings.Join(names, ", "))
}

// findAll returns the Machines that a person named, or all of the App's.
func findAll(ctx context.Context, p *client.Client, app hangar.AppName, names []string, all bool) ([]*hangar.Machine, error) {
	if all && len(names) > 0 {
		return nil, usageErrorf("name Machines or say --all, not both")
	}
	if all {
		return p.Machines(ctx, app, hangar.MachineFilter{})
	}
	if len(names) == 0 {
		names = []string{onlyMachine}
	}
	var found []*hangar.Machine
	for _, name := range names {
		m, err := find(ctx, p, app, name)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(found, func(x *hangar.Machine) bool { return x.ID == m.ID }) {
			found = append(found, m)
		}
	}
	return found, nil
}

// oneMachine finds the Machine of the arguments APP [MACHINE].
func (c *cli) oneMachine(ctx context.Context, args []string) (*client.Client, *hangar.Machine, error) {
	p, err := c.connect()
	if err != nil {
		return nil, nil, err
	}
	name := onlyMachine
	if len(args) > 1 {
		name = args[1]
	}
	m, err := find(ctx, p, hangar.AppName(args[0]), name)
	return p, m, err
}

// onMachine is the work of a command whose arguments name an App and a Machine.
func (c *cli) onMachine(work func(context.Context, *client.Client, *hangar.Machine) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		p, m, err := c.oneMachine(cmd.Context(), args)
		if err != nil {
			return err
		}
		return work(cmd.Context(), p, m)
	}
}
