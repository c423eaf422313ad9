package machine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/cmd/hangar/machine/files"
	"github.com/hangar-platform/hangar/internal/cmdline"
)

// errBye ends a file shell.
var errBye = errors.New("the shell has ended")

// fileShell is an interactive session with the files of a Machine.
type fileShell struct {
	c   commands
	s   *files.Session
	dir string // in the Machine; absolute
}

// at returns the absolute path of name in the Machine.
func (x *fileShell) at(name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join(x.dir, name)
}

// word is a command of the shell.
type word struct {
	args, what string
	least      int // arguments
	most       int
	run        func(ctx context.Context, x *fileShell, f copying, args []string) error
}

// onPath returns the run function of a command with one path.
func onPath(do func(s *files.Session, name string) error) func(context.Context, *fileShell, copying, []string) error {
	return func(_ context.Context, x *fileShell, _ copying, args []string) error {
		if err := do(x.s, x.at(args[0])); err != nil {
			return x.s.Why(args[0], err)
		}
		return nil
	}
}

// words returns the commands of the shell by name.
func words() map[string]word {
	return map[string]word{
		"help": {"", "print this", 0, 0, func(_ context.Context, x *fileShell, _ copying, _ []string) error {
			all := words()
			fields := make([]cli.Field, 0, len(all))
			for _, name := range slices.Sorted(maps.Keys(all)) {
				fields = append(fields, cli.Field{strings.TrimSpace(name + " " + all[name].args), all[name].what})
			}
			return x.c.PrintFields(fields)
		}},
		"ls": {"[PATH]", "list a directory", 0, 1, func(ctx context.Context, x *fileShell, _ copying, args []string) error {
			return x.c.list(ctx, x.s, x.at(pathOr(args, ".")), false)
		}},
		"find": {"[PATH]", "print all paths below a path", 0, 1, func(ctx context.Context, x *fileShell, _ copying, args []string) error {
			return x.c.find(ctx, x.s, x.at(pathOr(args, ".")))
		}},
		"cd": {"[PATH]", "change to a directory", 0, 1, func(_ context.Context, x *fileShell, _ copying, args []string) error {
			to := x.at(pathOr(args, "/"))
			info, err := x.s.Stat(to)
			switch {
			case err != nil:
				return x.s.Why(to, err)
			case !info.IsDir():
				return fmt.Errorf("%s is not a directory", files.Printable(to))
			}
			x.dir = to
			return nil
		}},
		"pwd": {"", "print the directory", 0, 0, func(_ context.Context, x *fileShell, _ copying, _ []string) error {
			return x.c.Sayf("%s", files.Printable(x.dir))
		}},
		"get": {"[-R] [-f] REMOTE [LOCAL]", "copy to this computer", 1, 2, func(ctx context.Context, x *fileShell, f copying, args []string) error {
			return x.c.get(ctx, x.s, f, x.at(args[0]), pathOr(args[1:], "."))
		}},
		"put": {"[-R] [-f] LOCAL [REMOTE]", "copy to the Machine", 1, 2, func(ctx context.Context, x *fileShell, f copying, args []string) error {
			return x.c.put(ctx, x.s, f, 0, args[0], x.at(pathOr(args[1:], ".")))
		}},
		"mkdir": {"PATH", "make a directory", 1, 1, onPath((*files.Session).Mkdir)},
		"rm":    {"PATH", "remove a file or an empty directory", 1, 1, onPath((*files.Session).Remove)},
		"mv": {"PATH PATH", "rename a file", 2, 2, func(_ context.Context, x *fileShell, _ copying, args []string) error {
			if err := x.s.PosixRename(x.at(args[0]), x.at(args[1])); err != nil {
				return x.s.Why(args[0], err)
			}
			return nil
		}},
		"chmod": {"MODE PATH", "change the permissions of a file", 2, 2, func(_ context.Context, x *fileShell, _ copying, args []string) error {
			mode, err := parseMode(args[0])
			if err != nil {
				return err
			}
			if err := x.s.Chmod(x.at(args[1]), mode); err != nil {
				return x.s.Why(args[1], err)
			}
			return nil
		}},
		"exit": {"", "end", 0, 0, func(context.Context, *fileShell, copying, []string) error { return errBye }},
	}
}

// do runs the command in a line.
func (x *fileShell) do(ctx context.Context, line string) error {
	args, err := cmdline.Split(line)
	if err != nil {
		return cli.UsageErrorf("%w", err)
	}
	if len(args) == 0 {
		return nil
	}
	w, known := words()[args[0]]
	if !known {
		return cli.UsageErrorf("%.40q is not a command; help lists the commands", args[0])
	}
	name, args := args[0], args[1:]
	var f copying
	if strings.Contains(w.args, "[-R]") {
		for ; len(args) > 0 && (args[0] == "-R" || args[0] == "-f"); args = args[1:] {
			f.recursive, f.force = f.recursive || args[0] == "-R", f.force || args[0] == "-f"
		}
	}
	if len(args) < w.least || len(args) > w.most {
		return cli.UsageErrorf("usage: %s", strings.TrimSpace(name+" "+w.args))
	}
	return w.run(ctx, x, f, args)
}

// converse reads lines from the terminal and runs them until the user ends the shell. Ctrl-C ends a command, not the shell.
func (x *fileShell) converse(ctx context.Context, in, out *os.File) error {
	screen := struct {
		io.Reader
		io.Writer
	}{in, out}
	t := term.NewTerminal(screen, "")
	for {
		t.SetPrompt(files.Printable(x.dir) + "> ")
		leave := cli.RestoreOnSignal(in)
		before, err := term.MakeRaw(int(in.Fd()))
		if err != nil {
			leave()
			return err
		}
		line, err := t.ReadLine()
		wrong := term.Restore(int(in.Fd()), before)
		leave()
		if wrong != nil {
			return wrong
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		interruptible, restore := signal.NotifyContext(ctx, syscall.SIGINT)
		err = x.do(interruptible, line)
		restore()
		switch {
		case errors.Is(err, errBye):
			return nil
		case err != nil:
			fmt.Fprintf(x.c.Stderr, "Error: %s\n", cli.Message(err))
		}
	}
}

// runScript runs the lines of a script until one fails.
func (x *fileShell) runScript(ctx context.Context, in io.Reader) error {
	lines := bufio.NewScanner(in)
	for n := 1; lines.Scan(); n++ {
		err := x.do(ctx, lines.Text())
		if errors.Is(err, errBye) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
	}
	return lines.Err()
}

func newSFTPShellCommand(c commands) *cobra.Command {
	var which cli.MachineChoice
	cmd := &cobra.Command{
		Use: "shell APP|MACHINE", Short: "Browse and copy the files of a Machine", Args: cobra.ExactArgs(1), ValidArgsFunction: c.CompleteApp,
		Long: "Browse and copy the files of a Machine with ls, cd, get, put and a few more commands, which help lists. Without\n" +
			"a terminal, the shell reads a script from standard input and ends at the first line that fails.",
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			s, err := c.openFiles(ctx, args[0], which)
			if err != nil {
				return err
			}
			x := &fileShell{c: c, s: s}
			x.dir, err = s.RealPath(".")
			in, asks := cli.Terminal(c.Stdin)
			out, shows := cli.Terminal(c.Stdout)
			switch {
			case err != nil:
				err = s.Why(".", err)
			case asks && shows:
				err = x.converse(ctx, in, out)
			default:
				err = x.runScript(ctx, c.Stdin)
			}
			if err != nil {
				_ = s.Close() // the first error is reported
				return err
			}
			return s.Close()
		},
	}
	which.Add(c.Invocation, cmd)
	return cmd
}
