package machine

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

const execLong = `Run a command inside a started Machine, beside its main process.

The exit code is the command's own, 128+N when signal N ended it, and 125 when it
could not be run at all. Flags come before APP; everything after MACHINE belongs to
the command. An App with a single Machine may be written as: APP -- COMMAND.`

func newExecCommand(c commands) *cobra.Command {
	var (
		interactive, tty bool
		timeout          time.Duration
	)
	cmd := &cobra.Command{
		Use:               "exec [-it] APP MACHINE [--] COMMAND…",
		Short:             "Run a command inside a Machine",
		Long:              execLong,
		Example:           "  hangar machine exec hello 3d8d413b29d089 ls -l /\n  hangar machine exec -it hello -- sh",
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: c.CompleteMachine,
		RunE: func(cmd *cobra.Command, args []string) error {
			names, command := execArgs(args)
			if len(command) == 0 {
				return cli.UsageErrorf("say which command to run")
			}
			p, m, err := c.OneMachine(cmd.Context(), names)
			if err != nil {
				return cli.NotRunError{Err: err}
			}
			return c.execute(cmd.Context(), p, m, hangar.ExecRequest{Command: command, TTY: tty, Timeout: timeout}, interactive)
		},
	}
	cmd.Flags().SetInterspersed(false)
	cmd.Flags().BoolVarP(&interactive, "interactive", "i", false, "pass standard input to the command")
	cmd.Flags().BoolVarP(&tty, "tty", "t", false, "give the command a terminal")
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "kill the command after this time (default never)")
	return cmd
}

// execute runs a command in a Machine on the streams of this one, and ends with its
// exit code.
func (c commands) execute(ctx context.Context, p *client.Client, m *hangar.Machine, req hangar.ExecRequest, interactive bool) error {
	streams := hangar.ExecStreams{Stdout: c.Stdout, Stderr: c.Stderr}
	if interactive {
		streams.Stdin = c.Stdin
	}
	if req.TTY {
		restore, err := c.terminal(ctx, &req, &streams)
		if err != nil {
			return err
		}
		defer restore()
	}
	result, err := p.ExecMachine(ctx, m.Ref(), req, streams)
	switch {
	case hangar.CodeOf(err) == hangar.CodeTimeout:
		return err
	case err != nil:
		return cli.NotRunError{Err: err}
	case result.ExitCode != 0:
		return cli.ExitStatus(result.ExitCode)
	}
	return nil
}

// execArgs divides APP [MACHINE] [--] COMMAND…; the machine may be left out only
// before a --.
func execArgs(args []string) (names, command []string) {
	for i := 1; i <= 2 && i < len(args); i++ {
		if args[i] == "--" {
			return args[:i], args[i+1:]
		}
	}
	return args[:2], args[2:]
}

// terminal makes this terminal the command's: keys go over as they are typed,
// and the size follows. The function it returns gives the terminal back.
func (c commands) terminal(ctx context.Context, req *hangar.ExecRequest, streams *hangar.ExecStreams) (restore func(), err error) {
	if out, ok := c.Stdout.(*os.File); ok && cli.IsTerminal(out) {
		req.Size = sizeOf(out)
		ctx, cancel := context.WithCancel(ctx)
		streams.Resize = watchSize(ctx, out)
		restore = cancel
	}
	in, ok := c.Stdin.(*os.File)
	if !ok || streams.Stdin == nil || !cli.IsTerminal(in) {
		if restore == nil {
			restore = func() {}
		}
		return restore, nil
	}
	before, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return nil, err
	}
	stop := restore
	return func() {
		if stop != nil {
			stop()
		}
		_ = term.Restore(int(in.Fd()), before) // nothing better is left to do
	}, nil
}

// watchSize sends the size of a terminal whenever it changes, until ctx ends. Only
// the newest size matters, so that a slow reader loses nothing.
func watchSize(ctx context.Context, out *os.File) <-chan hangar.TerminalSize {
	sizes := make(chan hangar.TerminalSize, 1)
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGWINCH)
	go func() {
		defer signal.Stop(changed)
		for {
			select {
			case <-ctx.Done():
				return
			case <-changed:
			}
			select {
			case <-sizes:
			default:
			}
			sizes <- sizeOf(out)
		}
	}()
	return sizes
}

func sizeOf(out *os.File) hangar.TerminalSize {
	cols, rows, err := term.GetSize(int(out.Fd()))
	if err != nil {
		return hangar.TerminalSize{}
	}
	return hangar.TerminalSize{Rows: uint16(rows), Cols: uint16(cols)}
}
