package machine

import (
	"cmp"
	"context"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/internal/cmdline"
)

const sshConsoleLong = `Open a shell inside a started Machine: bash if it has one, else sh, as root, in the
environment of its main process. It goes through the API and needs no sshd in the
Machine, no key and no WireGuard peer.

Name an App, or a Machine by its id. If the App has several started Machines, the first
is used; --machine names another, --select asks. If none is started, the command wakes
one that is suspended or that a request would start.

The shell has a terminal if this command has one. Otherwise the shell reads standard
input: hangar ssh console APP < script. --command runs a command instead of a shell,
without a terminal unless --pty is given; no shell expands it.

The exit code is the one of the shell or command, or 125 when it could not be run.`

// loginShell finds the shell of a Machine; its argument is the terminal type. The variables tell programs that the
// session is interactive, as on the public platform.
const loginShell = `export PLATFORM_SSH=1 FLY_SSH=1
[ -z "$1" ] || export TERM="$1"
if command -v bash >/dev/null 2>&1; then exec bash -l; fi
exec sh -l`

// NewSSHCommand makes `hangar ssh`.
func NewSSHCommand(inv *cli.Invocation) *cobra.Command {
	c := commands{inv}
	cmd := cli.Group("ssh", "Open a shell inside a Machine, and copy files")
	cmd.AddCommand(newSSHConsoleCommand(c), newSFTPCommand(c))
	return cmd
}

func newSSHConsoleCommand(c commands) *cobra.Command {
	var (
		which   cli.MachineChoice
		command string
		pty     bool
	)
	cmd := &cobra.Command{
		Use:               "console APP|MACHINE",
		Short:             "Open a shell inside a Machine, or run a command",
		Long:              sshConsoleLong,
		Example:           "  hangar ssh console hello\n  hangar ssh console 3d8d413b29d089\n  hangar ssh console hello -C 'cat /etc/hosts'",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.CompleteApp,
		RunE: func(cmd *cobra.Command, args []string) error {
			req := hangar.ExecRequest{TTY: pty || cli.IsTerminal(c.Stdin) && cli.IsTerminal(c.Stdout)}
			if req.Command = []string{"sh", "-c", loginShell, "sh"}; req.TTY {
				req.Command = append(req.Command, cmp.Or(c.Getenv("TERM"), "xterm"))
			}
			if cmd.Flags().Changed("command") {
				words, err := cmdline.Split(command)
				if err != nil || len(words) == 0 {
					return cli.UsageErrorf("--command %q: it is empty, or a quote is not closed", command)
				}
				req.Command, req.TTY = words, pty
			}
			p, err := c.Connect()
			if err != nil {
				return err
			}
			m, err := c.console(cmd.Context(), p, args[0], which)
			if err != nil {
				return cli.NotRunError{Err: err}
			}
			err = c.execute(cmd.Context(), p, m, req, true)
			if command == "" && hangar.CodeOf(err) == hangar.CodeInvalid {
				err = cli.WithHint(err, "the Machine has no shell; run one of its programs with --command")
			}
			return err
		},
	}
	which.Add(c.Invocation, cmd)
	cmd.Flags().StringVarP(&command, "command", "C", "", "run this instead of a shell")
	cmd.Flags().BoolVar(&pty, "pty", false, "allocate a terminal even for --command")
	return cmd
}

// console finds the Machine with an id, or a started Machine of an App.
func (c commands) console(ctx context.Context, p *client.Client, name string, which cli.MachineChoice) (*hangar.Machine, error) {
	if id := hangar.MachineID(name); id.Valid() && which == (cli.MachineChoice{}) {
		m, err := findAnywhere(ctx, p, id)
		if hangar.CodeOf(err) != hangar.CodeNotFound {
			return m, err
		}
		// There may be an App with that name.
	}
	machines, err := c.StartedMachines(ctx, p, hangar.AppName(name), which)
	if err != nil {
		return nil, err
	}
	return machines[0], nil
}

// findAnywhere looks for a Machine id in all organizations of the caller.
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
