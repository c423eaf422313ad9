package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/internal/cmdline"
)

const sshConsoleLong = `Open a shell inside a started Machine: bash if it has one, else sh, as root, in the
environment of its main process. It goes through the API: no sshd in the Machine, no
key and no WireGuard peer is needed.

Name an App, or a Machine by its id. Of an App with several started Machines the first
is taken; --machine names another, --select asks.

The shell has a terminal if this command has one. Otherwise standard input is what the
shell reads: hangar ssh console APP < script. With --command that is run in place of a
shell, without a terminal unless --pty is given, as it is: no shell expands it.

The exit code is that of the shell or command, and 125 when it could not be run.`

// loginShell finds the shell of a Machine; its argument is the kind of the terminal.
// What runs under it can tell that a person does, as on the public platform.
const loginShell = `export PLATFORM_SSH=1 FLY_SSH=1
[ -z "$1" ] || export TERM="$1"
if command -v bash >/dev/null 2>&1; then exec bash -l; fi
exec sh -l`

func newSSHCommand(c *cli) *cobra.Command {
	cmd := group("ssh", "Open a shell inside a Machine")
	cmd.AddCommand(newSSHConsoleCommand(c))
	return cmd
}

func newSSHConsoleCommand(c *cli) *cobra.Command {
	var (
		which   choice
		command string
		pty     bool
	)
	cmd := &cobra.Command{
		Use:               "console APP|MACHINE",
		Short:             "Open a shell inside a Machine, or run a command",
		Long:              sshConsoleLong,
		Example:           "  hangar ssh console hello\n  hangar ssh console 3d8d413b29d089\n  hangar ssh console hello -C 'cat /etc/hosts'",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.completeApp,
		RunE: func(cmd *cobra.Command, args []string) error {
			req := hangar.ExecRequest{TTY: pty || isTerminal(c.stdin) && isTerminal(c.stdout)}
			if req.Command = []string{"sh", "-c", loginShell, "sh"}; req.TTY {
				req.Command = append(req.Command, cmp.Or(c.getenv("TERM"), "xterm"))
			}
			if cmd.Flags().Changed("command") {
				words, err := cmdline.Split(command)
				if err != nil || len(words) == 0 {
					return usageErrorf("--command %q: it is empty, or a quote is not ended", command)
				}
				req.Command, req.TTY = words, pty
			}
			p, err := c.connect()
			if err != nil {
				return err
			}
			m, err := c.console(cmd.Context(), p, args[0], which)
			if err != nil {
				return notRun{Err: err}
			}
			err = c.execute(cmd.Context(), p, m, req, true)
			if command == "" && hangar.CodeOf(err) == hangar.CodeInvalid {
				err = withHint(err, "the Machine has no shell; name a command that it has with --command")
			}
			return err
		},
	}
	which.add(c, cmd)
	cmd.Flags().StringVarP(&command, "command", "C", "", "run this in place of a shell")
	cmd.Flags().BoolVar(&pty, "pty", false, "give it a terminal in any case")
	return cmd
}

// choice is how a person picks one of the started Machines of an App.
type choice struct {
	machine string
	ask     bool
}

func (w *choice) add(c *cli, cmd *cobra.Command) {
	cmd.Flags().StringVar(&w.machine, "machine", "", "this Machine, by its id or name")
	cmd.Flags().BoolVarP(&w.ask, "select", "s", false, "ask which of the started Machines")
	_ = cmd.RegisterFlagCompletionFunc("machine", func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return c.completeMachine(cmd, args[len(args)-1:], prefix)
	})
}

// console finds the Machine that a person wants to be in: that of an id, or a started
// one of an App.
func (c *cli) console(ctx context.Context, p *client.Client, name string, which choice) (*hangar.Machine, error) {
	if id := hangar.MachineID(name); id.Valid() && which == (choice{}) {
		m, err := findAnywhere(ctx, p, id)
		if hangar.CodeOf(err) != hangar.CodeNotFound {
			return m, err
		}
		// There may be an App of that name.
	}
	machines, err := c.candidates(ctx, p, hangar.AppName(name), which)
	if err != nil {
		return nil, err
	}
	return machines[0], nil
}

// candidates are the started Machines of an App that a person may mean, at least one.
func (c *cli) candidates(ctx context.Context, p *client.Client, app hangar.AppName, which choice) ([]*hangar.Machine, error) {
	if which.machine != "" && which.ask {
		return nil, usageErrorf("name a Machine or say --select, not both")
	}
	if which.machine != "" {
		m, err := find(ctx, p, app, which.machine)
		if err != nil {
			return nil, err
		}
		if m.State != hangar.MachineStarted {
			return nil, notStarted(m)
		}
		return []*hangar.Machine{m}, nil
	}
	all, err := p.Machines(ctx, app, hangar.MachineFilter{})
	if err != nil {
		return nil, err
	}
	started := slices.Clone(all)
	started = slices.DeleteFunc(started, func(m *hangar.Machine) bool { return m.State != hangar.MachineStarted })
	switch {
	case len(all) == 0:
		return nil, withHint(hangar.Errorf(hangar.CodeNotFound, hangar.ReasonMachineNotFound, "App %s has no Machine", app),
			fmt.Sprintf("run one: hangar machine run %s IMAGE", app))
	case len(all) == 1 && len(started) == 0:
		return nil, notStarted(all[0])
	case len(started) == 0:
		return nil, withHint(hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonWrongState, "none of the %d Machines of App %s is started", len(all), app),
			fmt.Sprintf("start them: hangar machine start %s --all", app))
	case which.ask:
		m, err := c.selectOne(started)
		return []*hangar.Machine{m}, err
	}
	return started, nil
}

func notStarted(m *hangar.Machine) error {
	return withHint(hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonWrongState, "Machine %s is %s, not started", m.ID, m.State),
		fmt.Sprintf("start it: hangar machine start %s %s", m.App, m.ID))
}

// selectOne asks which of several Machines is meant.
func (s *streams) selectOne(machines []*hangar.Machine) (*hangar.Machine, error) {
	if !isTerminal(s.stdin) || !isTerminal(s.stderr) {
		return nil, usageErrorf("--select asks, and there is nobody here to answer: name one with --machine")
	}
	for i, m := range machines {
		fmt.Fprintf(s.stderr, "%3d  %s  %s  %s\n", i+1, m.ID, m.Name, m.Region)
	}
	fmt.Fprintf(s.stderr, "Which one? [1-%d] ", len(machines))
	line, err := bufio.NewReader(s.stdin).ReadString('\n')
	if err != nil && line == "" {
		return nil, exitStatus(exitFailed)
	}
	n, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || n < 1 || n > len(machines) {
		return nil, usageErrorf("%q is not a number from 1 to %d", strings.TrimSpace(line), len(machines))
	}
	return machines[n-1], nil
}

// findAnywhere finds a Machine of which only the id is known, in all organizations of
// the caller.
func findAnywhere(ctx context.Context, p *client.Client, id hangar.MachineID) (*hangar.Machine, error) {
	orgs, err := p.Orgs(ctx)
	if err != nil {
		return nil, err
	}
	for _, org := range orgs {
		for q := (hangar.MachinePageQuery{}); ; {
			page, err := p.OrgMachines(ctx, org.Slug, q)
			if err != nil {
				return nil, err
			}
			for _, m := range page.Machines {
				if m.ID == id {
					return p.Machine(ctx, m.Ref())
				}
			}
			if page.Next == "" {
				break
			}
			q.Cursor = page.Next
		}
	}
	return nil, hangar.Errorf(hangar.CodeNotFound, hangar.ReasonMachineNotFound, "machine not found: %s", id)
}
