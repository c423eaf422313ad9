package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
)

// onlyMachine is the empty name, which means the App's only Machine.
const onlyMachine = ""

// FindMachine returns the Machine with an id or name, or the only one if name is empty.
func FindMachine(ctx context.Context, p *client.Client, app hangar.AppName, name string) (*hangar.Machine, error) {
	if id := hangar.MachineID(name); id.Valid() {
		return p.Machine(ctx, hangar.MachineRef{App: app, ID: id})
	}
	machines, err := p.Machines(ctx, app, hangar.MachineFilter{})
	if err != nil {
		return nil, err
	}
	if name == onlyMachine {
		return onlyOf(app, machines)
	}
	for _, m := range machines {
		if m.Name == name {
			return m, nil
		}
	}
	return nil, WithHint(hangar.Errorf(hangar.CodeNotFound, hangar.ReasonMachineNotFound, "App %s has no Machine %q", app, name),
		fmt.Sprintf("see `hangar machine list %s`", app))
}

func onlyOf(app hangar.AppName, machines []*hangar.Machine) (*hangar.Machine, error) {
	switch len(machines) {
	case 1:
		return machines[0], nil
	case 0:
		return nil, WithHint(hangar.Errorf(hangar.CodeNotFound, hangar.ReasonMachineNotFound, "App %s has no Machine", app),
			fmt.Sprintf("run one: hangar machine run %s IMAGE", app))
	}
	var names []string
	for _, m := range machines {
		names = append(names, fmt.Sprintf("%s (%s, %s)", m.ID, m.Name, m.State))
	}
	return nil, WithHint(UsageErrorf("App %s has %d Machines: say which one", app, len(machines)), "one of "+strings.Join(names, ", "))
}

// FindMachines returns the Machines with ids or names, or all Machines of the App.
func FindMachines(ctx context.Context, p *client.Client, app hangar.AppName, names []string, all bool) ([]*hangar.Machine, error) {
	if all && len(names) > 0 {
		return nil, UsageErrorf("name Machines or say --all, not both")
	}
	if all {
		return p.Machines(ctx, app, hangar.MachineFilter{})
	}
	if len(names) == 0 {
		names = []string{onlyMachine}
	}
	var found []*hangar.Machine
	for _, name := range names {
		m, err := FindMachine(ctx, p, app, name)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(found, func(x *hangar.Machine) bool { return x.ID == m.ID }) {
			found = append(found, m)
		}
	}
	return found, nil
}

// OneMachine returns the Machine of the arguments APP [MACHINE].
func (c *Invocation) OneMachine(ctx context.Context, args []string) (*client.Client, *hangar.Machine, error) {
	p, err := c.Connect()
	if err != nil {
		return nil, nil, err
	}
	name := onlyMachine
	if len(args) > 1 {
		name = args[1]
	}
	m, err := FindMachine(ctx, p, hangar.AppName(args[0]), name)
	return p, m, err
}

// OnMachine returns the RunE of a command with the arguments APP [MACHINE].
func (c *Invocation) OnMachine(work func(context.Context, *client.Client, *hangar.Machine) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		p, m, err := c.OneMachine(cmd.Context(), args)
		if err != nil {
			return err
		}
		return work(cmd.Context(), p, m)
	}
}

// AboutMachine adds the id of the Machine to an error that does not have it.
func AboutMachine(id hangar.MachineID, err error) error {
	if strings.Contains(err.Error(), string(id)) {
		return err
	}
	return fmt.Errorf("Machine %s: %w", id, err)
}
