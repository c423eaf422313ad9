// Command hangar is the platform and its command line in one binary: `hangar up`
// runs the daemon, every other command speaks to one over its REST API.
//
// The package joins the commands to one tree. They are in the packages below, by what
// they are about, and strangers to one another; what they share is in package cli.
// What the platform does lives in the planes, which package daemon joins.
//
// It is not a library, and holds no rule of the platform: a check made here is a
// courtesy, the server makes its own.
package main

import (
	"context"
	"os"
)

// The linker sets these; see the Makefile.
var (
	version       = "dev"
	commit        = ""
	engineVersion = ""
)

func main() { os.Exit(run(context.Background(), newInvocation(), os.Args[1:])) }

// newInvocation is that of this process.
func newInvocation() *cli {
	c := newCLI(streams{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}, os.Getenv)
	c.build = build{version: version, commit: commit, engine: engineVersion}
	return c
}

// run executes a command line of the whole program and returns the exit code.
func run(ctx context.Context, c *cli, args []string) int { return c.run(ctx, newRootCommand(c), args) }
