package main

import (
	"cmp"
	"context"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/hangar-platform/hangar"
)

// settling is how long a new Machine is watched once it has started: many a program ends right
// away, because its config or its command is wrong.
const settling = 2 * time.Second

// cli is one invocation of the program: the streams, the environment and the flags of
// all commands.
type cli struct {
	streams
	target

	build      build
	leaseNonce string        // of the lease that commands on Machines act under
	settling   time.Duration // how long a Machine that has started is watched for the end of its program
	args       []string      // the command line without the name of the program

	parsed bool // the command line was understood; what fails later is no usage error
}

// build is what the binary was built of.
type build struct {
	version string
	commit  string
	engine  string // version of the sandbox; it decides whether a suspended Machine can be resumed
}

// newCLI makes an invocation that has the keyring of the system.
func newCLI(s streams, getenv func(string) string) *cli {
	return &cli{streams: s, target: target{getenv: getenv, keyring: systemKeyring{getenv}}, settling: settling}
}

// run gives root the flags of all commands, executes a command line below it, reports
// what fails and returns the exit code.
func (c *cli) run(ctx context.Context, root *cobra.Command, args []string) int {
	c.args = args
	root.SilenceErrors, root.SilenceUsage = true, true
	root.PersistentPreRun = func(cmd *cobra.Command, _ []string) { c.begin(cmd) }
	c.addFlags(root)
	root.SetArgs(args)
	root.SetIn(c.stdin)
	root.SetOut(c.stdout)
	root.SetErr(c.stderr)
	cmd, err := root.ExecuteContextC(ctx)
	return c.report(cmd, err)
}

// begin is called when the command line was understood, before the command is run.
func (c *cli) begin(cmd *cobra.Command) {
	c.parsed = true
	if nonce := cmp.Or(c.leaseNonce, c.getenv("HANGAR_LEASE_NONCE")); nonce != "" {
		cmd.SetContext(hangar.WithLeaseNonce(cmd.Context(), nonce))
	}
}

// addFlags adds the flags of all commands.
func (c *cli) addFlags(root *cobra.Command) {
	flags := root.PersistentFlags()
	flags.StringVar(&c.url, "url", "", "address of the platform's API, e.g. https://api.example.com or unix:///run/hangar.sock")
	flags.StringVar(&c.token, "token", "", "API token (safer in HANGAR_TOKEN: flags are visible to every user of this computer)")
	flags.StringVar(&c.context, "context", "", "context to use, see hangar context list; local is the daemon of this server")
	flags.BoolVar(&c.insecure, "insecure", false, "allow plain HTTP to another computer, which sends tokens in the clear")
	_ = root.RegisterFlagCompletionFunc("context", c.completeContextFlag)
	c.addDirFlag(root)
}

// isTerminal reports whether a stream of an invocation is a terminal.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
