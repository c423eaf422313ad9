// Package cli is what the commands of hangar share: an invocation with its streams and flags, finding the
// platform, building commands from a call and a way to print its answer, finding Machines, and turning
// errors into messages and exit codes.
//
// A command returns an error. Only exit.go prints it, with advice, and chooses the exit code. The packages
// of commands import this package and not one another.
package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/hangar-platform/hangar"
)

// settling is how long a new Machine is watched after its start, because many programs end immediately
// when their config or command is wrong.
const settling = 2 * time.Second

// Invocation is one invocation of the program: the streams, the environment and the global flags.
type Invocation struct {
	Streams
	Target

	Build      Build
	LeaseNonce string        // of the lease with which commands change Machines
	Settling   time.Duration // how long a Machine is watched after its start, for the end of its program
	Args       []string      // the command line without the name of the program

	parsed bool // the command line is valid: later errors are not usage errors
}

// Build describes the binary.
type Build struct {
	Version string
	Commit  string
	Engine  string // version of the sandbox; it decides whether a suspended Machine can be resumed
}

// New returns an invocation with the keyring of the system.
func New(s Streams, getenv func(string) string) *Invocation {
	return &Invocation{Streams: s, Target: Target{Getenv: getenv, Keyring: systemKeyring{getenv}}, Settling: settling}
}

// Run adopts root, executes the command line, reports its error, and returns the exit code.
func (c *Invocation) Run(ctx context.Context, root *cobra.Command, args []string) int {
	c.Args = args
	out := &output{Writer: c.Stdout}
	c.Stdout = out
	c.Adopt(root)
	root.SetArgs(args)
	root.SetIn(c.Stdin)
	root.SetOut(c.Stdout)
	root.SetErr(c.Stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if failed := out.failed.Load(); err == nil && failed != nil {
		c.parsed, err = true, *failed
	}
	return c.report(cmd, err)
}

// Adopt adds the global flags to root, the command tree of this invocation.
func (c *Invocation) Adopt(root *cobra.Command) {
	root.SilenceErrors, root.SilenceUsage = true, true
	root.PersistentPreRun = func(cmd *cobra.Command, _ []string) { c.begin(cmd) }
	c.addFlags(root)
}

// begin is called after the command line is parsed, before the command runs.
func (c *Invocation) begin(cmd *cobra.Command) {
	c.parsed = true
	if nonce := cmp.Or(c.LeaseNonce, c.Getenv("HANGAR_LEASE_NONCE")); nonce != "" {
		cmd.SetContext(hangar.WithLeaseNonce(cmd.Context(), nonce))
	}
}

// addFlags adds the global flags.
func (c *Invocation) addFlags(root *cobra.Command) {
	flags := root.PersistentFlags()
	flags.StringVar(&c.URL, "url", "", "address of the platform's API, e.g. https://api.example.com or unix:///run/hangar.sock")
	flags.StringVar(&c.Token, "token", "", "API token (safer in HANGAR_TOKEN: flags are visible to every user of this computer)")
	flags.StringVar(&c.Context, "context", "", "context to use, see hangar context list; local is the daemon of this server")
	flags.BoolVar(&c.Insecure, "insecure", false, "allow plain HTTP to another computer, which sends tokens in the clear")
	_ = root.RegisterFlagCompletionFunc("context", c.completeContextFlag)
	c.AddDirFlag(root)
}

// Terminal returns the terminal that a stream of an invocation is; false: it is none.
func Terminal(stream any) (*os.File, bool) {
	if out, ok := stream.(*output); ok {
		stream = out.Writer
	}
	f, ok := stream.(*os.File)
	return f, ok && term.IsTerminal(int(f.Fd()))
}

// IsTerminal reports whether a stream of an invocation is a terminal.
func IsTerminal(stream any) bool {
	_, ok := Terminal(stream)
	return ok
}

// ReadFile reads at most a number of bytes of a file, or of standard input if the name is -.
func (c *Invocation) ReadFile(name string, most int64) ([]byte, error) {
	from := c.Stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		from = f
	}
	text, err := io.ReadAll(io.LimitReader(from, most))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return text, nil
}
