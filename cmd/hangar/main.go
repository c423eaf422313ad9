// Command hangar is the platform and its command line in one binary: `hangar up`
// runs the daemon, every other command speaks to one over its REST API.
//
// The package holds flags, the environment, where a local daemon is found, and how
// answers look to a person or a script. What the platform does lives in the planes,
// which package daemon joins.
//
// Commands work on the service interfaces of package hangar through package
// client. Each returns an error and leaves printing it, the advice that follows
// and the exit code to one place, exit.go. Only this package reads the
// environment and exits.
//
// It is not a library, and holds no rule of the platform: a check made here is a
// courtesy, the server makes its own.
package main

import (
	"context"
	"os"
	"time"

	"golang.org/x/term"
)

func main() { os.Exit(hangarMain()) }

// hangarMain runs one invocation against the process's own streams.
func hangarMain() int {
	return newCLI().run(context.Background(), os.Args[1:])
}

func newCLI() *cli {
	return &cli{
		streams:  streams{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr},
		target:   target{getenv: os.Getenv, keyring: systemKeyring{os.Getenv}},
		settling: settling,
	}
}

// cli is one invocation.
type cli struct {
	streams
	target

	nonce    string        // of the lease that commands on Machines act under
	settling time.Duration // how long a Machine that has started is watched for the end of its program

	args   []string
	parsed bool // the command line was understood; what fails later is no usage error
}

// run executes one command line and returns the exit code.
func (c *cli) run(ctx context.Context, args []string) int {
	c.args = args
	root := newRootCommand(c)
	root.SetArgs(args)
	root.SetIn(c.stdin)
	root.SetOut(c.stdout)
	root.SetErr(c.stderr)
	cmd, err := root.ExecuteContextC(ctx)
	return c.report(cmd, err)
}

// isTerminal reports whether a stream of this invocation is a terminal.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
