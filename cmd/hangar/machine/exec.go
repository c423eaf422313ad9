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

The exit code is that of the command, 128+N if signal N ended it, and 125 if it could
not be run. Flags come before APP; everything after MACHINE belongs to the command.
For an App with a single Machine, APP -- COMMAND is enough.`

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
				return cli.UsageErrorf("the command to run is missing")
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

// execute runs a command in a Machine, with the streams of this process. It returns the exit code of the
// command as an error.
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

// execArgs splits APP [MACHINE] [--] COMMAND…. The Machine may be missing only before a --.
func execArgs(args []string) (names, command []string) {
	for i := 1; i <= 2 && i < len(args); i++ {
		if args[i] == "--" {
			return args[:i], args[i+1:]
		}
	}
	return args[:2], args[2:]
}

// terminal connects this terminal to the command: in raw mode, and with its size. The returned function
// restores the terminal.
func (c commands) terminal(ctx context.Context, req *hangar.ExecRequest, streams *hangar.ExecStreams) (restore func(), err error) {
	if out, ok := cli.Terminal(c.Stdout); ok {
		req.Size = sizeOf(out)
		ctx, cancel := context.WithCancel(ctx)
		streams.Resize = watchSize(ctx, out)
		restore = cancel
	}
	in, ok := cli.Terminal(c.Stdin)
	if !ok || streams.Stdin == nil {
		if restore == nil {
			restore = func() {}
		}
		return restore, nil
	}
	leave := cli.RestoreOnSignal(in)
	before, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		leave()
		return nil, err
	}
	stop := restore
	return func() {
		defer leave()
		if stop != nil {
			stop()
		}
		_ = term.Restore(int(in.Fd()), before) // there is no way to handle an error
	}, nil
}

// watchSize sends the size of a terminal whenever it changes, until ctx ends. A slow reader receives only
// the newest size.
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
