package machine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/cmd/hangar/cli/follow"
)

// verbsAtOnce bounds how many Machines a verb with --all acts on at a time.
const verbsAtOnce = 16

// verb is a command that acts on Machines and waits for the effect.
type verb struct {
	name, short string
	long        string
	done        string                // the participle in "Machine X is …"
	reaches     []hangar.MachineState // the states to wait for; none if act itself is complete
	flags       func(cmd *cobra.Command)
	prepare     func() error // reads the flags, once
	act         func(ctx context.Context, p *client.Client, ref hangar.MachineRef) error
	before      func(c commands, machines []*hangar.Machine) error
	aliases     []string
}

// command returns the command of a verb. All verbs have the arguments APP [MACHINE...] and the flags --all, --no-wait and --timeout.
func (c commands) command(v verb) *cobra.Command {
	var (
		all bool
		w   waiting
	)
	cmd := &cobra.Command{
		Use:               v.name + " APP [MACHINE...]",
		Aliases:           v.aliases,
		Short:             v.short,
		Long:              v.long,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: c.CompleteMachine,
		RunE: func(cmd *cobra.Command, args []string) error {
			if v.prepare != nil {
				if err := v.prepare(); err != nil {
					return err
				}
			}
			p, err := c.Connect()
			if err != nil {
				return err
			}
			machines, err := cli.FindMachines(cmd.Context(), p, hangar.AppName(args[0]), args[1:], all)
			if err != nil {
				return err
			}
			if v.before != nil {
				if err := v.before(c, machines); err != nil {
					return err
				}
			}
			return c.each(cmd.Context(), machines, func(ctx context.Context, m *hangar.Machine) (string, error) {
				return v.do(ctx, p, m, w)
			})
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "every Machine of the App")
	if len(v.reaches) > 0 {
		cmd.Flags().BoolVar(&w.skip, "no-wait", false, "return at once")
		cmd.Flags().DurationVar(&w.patience, "timeout", cli.DefaultPatience, "how long to wait")
	}
	if v.flags != nil {
		v.flags(cmd)
	}
	return cmd
}

// waiting says how long a verb waits for its effect.
type waiting struct {
	skip     bool // do not wait
	patience time.Duration
}

// do acts on a Machine, waits for the effect, and returns a line that says what was reached.
func (v *verb) do(ctx context.Context, p *client.Client, m *hangar.Machine, w waiting) (string, error) {
	began := time.Now()
	if err := v.act(ctx, p, m.Ref()); err != nil {
		return "", err
	}
	switch {
	case len(v.reaches) == 0:
		return fmt.Sprintf("Machine %s is %s", m.ID, v.done), nil
	case w.skip:
		return fmt.Sprintf("Machine %s: %s requested", m.ID, v.name), nil
	}
	reached, err := await(ctx, p, m.Ref(), hangar.MachineWait{States: v.reaches}, w.patience)
	if err != nil && !gone(err, v.reaches) {
		return "", err
	}
	// A verb that stops Machines is content with a failed one.
	if reached.State == hangar.MachineFailed && v.reaches[0] == hangar.MachineStarted {
		return "", follow.WhyFailed(ctx, p, m.Ref())
	}
	return fmt.Sprintf("Machine %s is %s (%s)", m.ID, cmp.Or(string(reached.State), v.done), cli.Brief(time.Since(began))), nil
}

// each runs step for every Machine, several at a time, and prints the results in the order of the Machines. A failure
// does not end the other steps.
func (c commands) each(ctx context.Context, machines []*hangar.Machine, step func(context.Context, *hangar.Machine) (string, error)) error {
	lines := make([]string, len(machines))
	errs := make([]error, len(machines))
	var g errgroup.Group
	g.SetLimit(verbsAtOnce)
	for i, m := range machines {
		g.Go(func() error {
			lines[i], errs[i] = step(ctx, m)
			return nil
		})
	}
	_ = g.Wait() // errors are in errs
	for _, line := range lines {
		if line != "" {
			fmt.Fprintln(c.Stdout, line)
		}
	}
	if len(machines) == 1 {
		return errs[0]
	}
	for i, err := range errs {
		if err != nil {
			errs[i] = cli.AboutMachine(machines[i].ID, err)
		}
	}
	return errors.Join(errs...)
}

// gone reports whether a missing Machine is the wanted result.
func gone(err error, wanted []hangar.MachineState) bool {
	return hangar.CodeOf(err) == hangar.CodeNotFound && len(wanted) > 0 && wanted[0] == hangar.MachineDestroyed
}

// await waits for a state of a Machine for up to patience, with as many requests as that takes.
func await(ctx context.Context, p *client.Client, ref hangar.MachineRef, in hangar.MachineWait, patience time.Duration) (hangar.MachineReached, error) {
	deadline := time.Now().Add(patience)
	for {
		in.Timeout = min(max(time.Until(deadline), time.Second).Round(time.Second), hangar.MaxWaitTimeout)
		reached, err := p.WaitMachine(ctx, ref, in)
		if hangar.CodeOf(err) == hangar.CodeTimeout && time.Now().Before(deadline) {
			continue
		}
		return reached, err
	}
}

func newStartCommand(c commands) *cobra.Command {
	return c.command(verb{
		name: "start", short: "Start stopped Machines, resume suspended ones", done: "started",
		reaches: []hangar.MachineState{hangar.MachineStarted, hangar.MachineFailed},
		act: func(ctx context.Context, p *client.Client, ref hangar.MachineRef) error {
			_, err := p.StartMachine(ctx, ref)
			return err
		},
	})
}

// stopFlags say how to stop a Machine.
type stopFlags struct {
	signal string
	grace  time.Duration
	in     hangar.MachineStop
}

func (f *stopFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.signal, "signal", "", "signal to send first (default the Machine's, else SIGINT)")
	cmd.Flags().DurationVar(&f.grace, "grace", 0, "time until the Machine is killed (default the Machine's, else 5s)")
}

func (f *stopFlags) parse() error {
	f.in.Timeout = f.grace
	if f.signal == "" {
		return nil
	}
	s, err := hangar.ParseSignal(f.signal)
	f.in.Signal = s
	return err
}

func newStopCommand(c commands) *cobra.Command {
	var stop stopFlags
	return c.command(verb{
		name: "stop", short: "Stop Machines", done: "stopped",
		reaches: []hangar.MachineState{hangar.MachineStopped, hangar.MachineFailed, hangar.MachineDestroyed},
		flags:   stop.add,
		prepare: stop.parse,
		act: func(ctx context.Context, p *client.Client, ref hangar.MachineRef) error {
			return p.StopMachine(ctx, ref, stop.in)
		},
	})
}

func newSuspendCommand(c commands) *cobra.Command {
	return c.command(verb{
		name: "suspend", short: "Suspend Machines: save their memory to disk until they are started", done: "suspended",
		reaches: []hangar.MachineState{hangar.MachineSuspended},
		act: func(ctx context.Context, p *client.Client, ref hangar.MachineRef) error {
			return p.SuspendMachine(ctx, ref)
		},
	})
}

func newRestartCommand(c commands) *cobra.Command {
	var (
		stop  stopFlags
		force bool
	)
	return c.command(verb{
		name: "restart", short: "Restart Machines", done: "started",
		reaches: []hangar.MachineState{hangar.MachineStarted, hangar.MachineFailed},
		flags: func(cmd *cobra.Command) {
			stop.add(cmd)
			cmd.Flags().BoolVar(&force, "force", false, "kill the program at once instead of sending a signal first")
		},
		prepare: stop.parse,
		act: func(ctx context.Context, p *client.Client, ref hangar.MachineRef) error {
			return p.RestartMachine(ctx, ref, hangar.MachineRestart{MachineStop: stop.in, ForceStop: force})
		},
	})
}

func newDestroyCommand(c commands) *cobra.Command {
	var force, yes bool
	return c.command(verb{
		name: "destroy", aliases: []string{"rm", "delete"}, short: "Destroy Machines", done: "destroyed",
		reaches: []hangar.MachineState{hangar.MachineDestroyed},
		flags: func(cmd *cobra.Command) {
			cmd.Flags().BoolVarP(&force, "force", "f", false, "destroy even Machines that are not stopped")
			cli.YesFlag(cmd, &yes)
		},
		before: func(c commands, machines []*hangar.Machine) error {
			if yes || len(machines) == 0 {
				return nil
			}
			var ids []string
			for _, m := range machines {
				ids = append(ids, string(m.ID))
			}
			return c.Confirm("Destroy %s of App %s permanently?", strings.Join(ids, ", "), machines[0].App)
		},
		act: func(ctx context.Context, p *client.Client, ref hangar.MachineRef) error {
			err := p.DestroyMachine(ctx, ref, hangar.MachineDestroy{Force: force})
			if hangar.CodeOf(err) == hangar.CodeFailedPrecondition && !force {
				return cli.WithHint(err, fmt.Sprintf("stop it first, or add --force: hangar machine destroy --force %s %s", ref.App, ref.ID))
			}
			return err
		},
	})
}

func newSignalCommand(c commands) *cobra.Command {
	return &cobra.Command{
		Use:               "signal APP [MACHINE] SIGNAL",
		Aliases:           []string{"kill"},
		Short:             "Send a signal to the main process of a Machine",
		Example:           "  hangar machine signal hello SIGHUP\n  hangar machine signal hello 3d8d413b29d089 USR1",
		Args:              cobra.RangeArgs(2, 3),
		ValidArgsFunction: c.CompleteMachine,
		RunE: func(cmd *cobra.Command, args []string) error {
			last := len(args) - 1
			sig, err := hangar.ParseSignal(args[last])
			if err != nil {
				return err
			}
			p, m, err := c.OneMachine(cmd.Context(), args[:last])
			if err != nil {
				return err
			}
			if err := p.SignalMachine(cmd.Context(), m.Ref(), sig); err != nil {
				return err
			}
			return c.Sayf("Sent %[2]s to Machine %[1]s", m.ID, sig)
		},
	}
}

func newWaitCommand(c commands) *cobra.Command {
	var (
		states   []string
		version  string
		patience time.Duration
	)
	cmd := &cobra.Command{
		Use:               "wait APP [MACHINE]",
		Short:             "Wait until a Machine reaches a state",
		Long:              "Wait until a Machine is in one of the states, and print the state. The exit code is 4 on a timeout.",
		Example:           "  hangar machine wait hello --state stopped,failed --timeout 10m",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: c.CompleteMachine,
	}
	cmd.Flags().StringSliceVar(&states, "state", []string{string(hangar.MachineStarted)}, "states to wait for, or settled")
	cmd.Flags().StringVar(&version, "version", "", "wait for this version of the Machine, or a newer one")
	cmd.Flags().DurationVar(&patience, "timeout", cli.DefaultPatience, "how long to wait")
	_ = cmd.RegisterFlagCompletionFunc("state", completeState)
	return cli.Answering(c.Invocation, cmd, func(cmd *cobra.Command, args []string) (reached hangar.MachineReached, err error) {
		wanted, err := parseStates(states)
		if err != nil {
			return reached, err
		}
		p, m, err := c.OneMachine(cmd.Context(), args)
		if err != nil {
			return reached, err
		}
		return await(cmd.Context(), p, m.Ref(), hangar.MachineWait{States: wanted, Instance: hangar.InstanceID(version)}, patience)
	}, func(reached hangar.MachineReached) error { return c.Sayf("%s", reached.State) })
}

// completeState completes the states that `machine wait` takes.
func completeState(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	names := []string{string(hangar.WaitSettled)}
	for _, s := range hangar.MachineStates() {
		names = append(names, string(s))
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
