package cli

import (
	"bufio"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
)

// MachineChoice selects one of the started Machines of an App.
type MachineChoice struct {
	Machine string // id or name; empty: any
	Ask     bool   // let the user choose
}

// Add adds --machine and --select to a command whose last argument is the App.
func (w *MachineChoice) Add(c *Invocation, cmd *cobra.Command) {
	cmd.Flags().StringVar(&w.Machine, "machine", "", "this Machine, by its id or name")
	cmd.Flags().BoolVarP(&w.Ask, "select", "s", false, "ask which of the started Machines")
	_ = cmd.RegisterFlagCompletionFunc("machine", func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return c.CompleteMachine(cmd, args[len(args)-1:], prefix)
	})
}

// StartedMachines returns the started Machines of an App that match a choice, at least one. If no Machine is started,
// it wakes one that sleeps.
func (c *Invocation) StartedMachines(ctx context.Context, p *client.Client, app hangar.AppName, which MachineChoice) ([]*hangar.Machine, error) {
	if which.Machine != "" && which.Ask {
		return nil, UsageErrorf("name a Machine or say --select, not both")
	}
	if which.Machine != "" {
		m, err := FindMachine(ctx, p, app, which.Machine)
		if err != nil {
			return nil, err
		}
		return c.awake(ctx, p, m)
	}
	all, err := p.Machines(ctx, app, hangar.MachineFilter{})
	if err != nil {
		return nil, err
	}
	started := slices.Clone(all)
	started = slices.DeleteFunc(started, func(m *hangar.Machine) bool { return m.State != hangar.MachineStarted })
	switch {
	case len(all) == 0:
		return nil, WithHint(hangar.Errorf(hangar.CodeNotFound, hangar.ReasonMachineNotFound, "App %s has no Machine", app),
			fmt.Sprintf("run one: hangar machine run %s IMAGE", app))
	case len(all) == 1 && len(started) == 0:
		return c.awake(ctx, p, all[0])
	case len(started) == 0:
		if i := slices.IndexFunc(all, sleeps); i >= 0 {
			return c.awake(ctx, p, all[i])
		}
		return nil, WithHint(hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonWrongState, "none of the %d Machines of App %s is started", len(all), app),
			fmt.Sprintf("start them: hangar machine start %s --all", app))
	case which.Ask:
		m, err := c.selectOne(started)
		return []*hangar.Machine{m}, err
	}
	return started, nil
}

// wokenWithin bounds how long awake waits.
const wokenWithin = time.Minute

// sleeps reports whether a Machine is suspended, or stopped but started by requests: commands start it, too.
func sleeps(m *hangar.Machine) bool {
	return m.State == hangar.MachineSuspended || m.State == hangar.MachineStopped &&
		slices.ContainsFunc(m.Config.Services, func(s hangar.Service) bool { return m.Config.Autostarts(&s, false) })
}

// awake returns a started Machine. It starts one that sleeps.
func (c *Invocation) awake(ctx context.Context, p *client.Client, m *hangar.Machine) ([]*hangar.Machine, error) {
	switch {
	case m.State == hangar.MachineStarted:
		return []*hangar.Machine{m}, nil
	case !sleeps(m):
		return nil, notStarted(m)
	}
	fmt.Fprintf(c.Stderr, "Machine %s is %s: waking it\n", m.ID, m.State)
	if _, err := p.StartMachine(ctx, m.Ref()); err != nil {
		return nil, AboutMachine(m.ID, err)
	}
	if _, err := p.WaitMachine(ctx, m.Ref(), hangar.MachineWait{Timeout: wokenWithin}); err != nil {
		return nil, AboutMachine(m.ID, err)
	}
	m, err := p.Machine(ctx, m.Ref())
	if err != nil {
		return nil, err
	}
	return []*hangar.Machine{m}, nil
}

func notStarted(m *hangar.Machine) error {
	return WithHint(hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonWrongState, "Machine %s is %s, not started", m.ID, m.State),
		fmt.Sprintf("start it: hangar machine start %s %s", m.App, m.ID))
}

// selectOne lets the user choose one of several Machines.
func (s *Streams) selectOne(machines []*hangar.Machine) (*hangar.Machine, error) {
	if !IsTerminal(s.Stdin) || !IsTerminal(s.Stderr) {
		return nil, UsageErrorf("--select needs a terminal: name one with --machine")
	}
	for i, m := range machines {
		fmt.Fprintf(s.Stderr, "%3d  %s  %s  %s\n", i+1, m.ID, m.Name, m.Region)
	}
	fmt.Fprintf(s.Stderr, "Which one? [1-%d] ", len(machines))
	line, err := bufio.NewReader(s.Stdin).ReadString('\n')
	if err != nil && line == "" {
		return nil, ExitStatus(ExitFailed)
	}
	n, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || n < 1 || n > len(machines) {
		return nil, UsageErrorf("%q is not a number from 1 to %d", strings.TrimSpace(line), len(machines))
	}
	return machines[n-1], nil
}
