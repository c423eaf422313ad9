// Command hangar is the platform and its command line in one binary: `hangar up`
// runs the daemon, every other command speaks to one over its REST API.
//
// The package joins the commands of the packages below into one tree. Each of these packages has the commands of one
// subject; they do not import one another, and share package cli. The platform itself is in the planes, which package
// daemon joins.
//
// The checks of the command line are a convenience: the server makes its own.
package main

import (
	"context"
	"os"

	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

// The linker sets these; see the Makefile.
var (
	version       = "dev"
	commit        = ""
	engineVersion = ""
)

func main() { os.Exit(run(context.Background(), newInvocation(), os.Args[1:])) }

// newInvocation returns the invocation of this process.
func newInvocation() *cli.Invocation {
	c := cli.New(cli.Streams{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}, os.Getenv)
	c.Build = cli.Build{Version: version, Commit: commit, Engine: engineVersion}
	return c
}

// run executes a command line of the whole program and returns the exit code.
func run(ctx context.Context, c *cli.Invocation, args []string) int {
	return c.Run(ctx, newRootCommand(c), args)
}
