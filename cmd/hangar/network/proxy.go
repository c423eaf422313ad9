package network

import (
	"context"
	"fmt"
	"net"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/internal/pause"
	"github.com/hangar-platform/hangar/internal/splice"
)

const proxyLong = `Listen on a port of this computer and pass every connection on to a port of an App's
Machines, until interrupted. It goes through the API and needs neither a public service nor a
WireGuard peer. The program in the Machine may listen on the private network only.

If LOCAL is 0, a free port is chosen and printed. REMOTE defaults to LOCAL.
Connections are distributed round-robin over the started Machines, including later
ones; --machine or --select chooses a single one. If none is started, the command wakes
one that is suspended or that a request would start.

The token must allow the action control, because a port that is not public may let its
clients do anything.`

// machinesFresh is how long a list of Machines is used for new connections.
const machinesFresh = time.Second

// NewProxyCommand returns `hangar proxy`.
func NewProxyCommand(inv *cli.Invocation) *cobra.Command {
	c := commands{inv}
	var (
		which cli.MachineChoice
		bind  string
		quiet bool
	)
	cmd := &cobra.Command{
		Use:     "proxy LOCAL[:REMOTE] APP",
		Short:   "Forward a local port to the Machines of an App",
		Long:    proxyLong,
		Example: "  hangar proxy 5432 db\n  hangar proxy 15432:5432 db --machine 3d8d413b29d089\n  hangar proxy 0:6379 cache",
		Args:    cobra.ExactArgs(2),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			if len(args) != 1 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return c.CompleteApp(cmd, nil, prefix)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			local, remote, err := parsePorts(args[0])
			if err != nil {
				return err
			}
			p, err := c.Connect()
			if err != nil {
				return err
			}
			x := &proxy{c: c, p: p, app: hangar.AppName(args[1]), port: remote, which: which}
			if _, err := x.machines(cmd.Context()); err != nil {
				return err
			}
			if which.Ask { // once
				x.which = cli.MachineChoice{Machine: string(x.list[0].ID)}
			}
			l, err := (&net.ListenConfig{}).Listen(cmd.Context(), "tcp", net.JoinHostPort(bind, strconv.Itoa(local)))
			if err != nil {
				return cli.WithHint(fmt.Errorf("cannot listen: %w", err), "choose another port, or 0 for a free one")
			}
			if quiet {
				fmt.Fprintln(c.Stdout, l.Addr())
			} else {
				fmt.Fprintf(c.Stdout, "Listening on %s for port %d of App %s; press Ctrl-C to end\n", l.Addr(), remote, x.app)
			}
			ctx, restore := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer restore()
			return x.serve(ctx, l)
		},
	}
	which.Add(c.Invocation, cmd)
	cmd.Flags().StringVarP(&bind, "bind", "b", "127.0.0.1", "address to listen on; other computers can connect unless it is a loopback address")
	cli.QuietFlag(cmd, &quiet, "the address")
	return cmd
}

// parsePorts reads LOCAL[:REMOTE].
func parsePorts(text string) (local, remote int, err error) {
	first, second, both := strings.Cut(text, ":")
	if local, err = proxyPort("LOCAL", first, 0); err != nil {
		return 0, 0, err
	}
	if !both {
		second = first
	}
	remote, err = proxyPort("REMOTE", second, 1)
	if err != nil && !both {
		err = cli.UsageErrorf("REMOTE is missing: with LOCAL 0, give the port of the Machine too, as in 0:5432")
	}
	return local, remote, err
}

func proxyPort(name, text string, lowest int) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < lowest || n > hangar.MaxPort {
		return 0, cli.UsageErrorf("%s: %q is not a port from %d to %d", name, text, lowest, hangar.MaxPort)
	}
	return n, nil
}

// proxy passes connections on to the Machines of an App.
type proxy struct {
	c     commands
	p     *client.Client
	app   hangar.AppName
	port  int
	which cli.MachineChoice

	mu    sync.Mutex // guards the fields below
	list  []*hangar.Machine
	asked time.Time // when list was fetched
	turn  int
	said  string // the last error printed
}

// acceptPause is the time between attempts to accept a connection while descriptors or memory are missing.
const acceptPause = 100 * time.Millisecond

// serve accepts connections until ctx ends or it cannot, and then closes the open ones.
func (x *proxy) serve(ctx context.Context, l net.Listener) error {
	outer := ctx
	ctx, end := context.WithCancel(ctx)
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	var connections sync.WaitGroup
	defer connections.Wait()
	defer end()
	for {
		conn, err := l.Accept()
		switch {
		case outer.Err() != nil:
			return nil
		case pause.Helps(err):
			x.complain(err)
			_ = pause.For(ctx, acceptPause)
			continue
		case err != nil:
			return err
		}
		connections.Go(func() { x.pass(ctx, conn) })
	}
}

// pass joins a connection to one of the Machines.
func (x *proxy) pass(ctx context.Context, conn net.Conn) {
	remote, err := x.dial(ctx)
	if err != nil {
		splice.Abort(conn, err)
		if ctx.Err() == nil {
			x.complain(err)
		}
		return
	}
	if splice.Join(ctx, conn, remote) == nil {
		// Both sides have all data, and errors of copying are reported already.
		_, _ = conn.Close(), remote.Close()
	}
}

// dial connects to the next Machine in turn, or the first one after it that is reachable. If all Machines have stopped
// since they were listed, it lists them again.
func (x *proxy) dial(ctx context.Context) (net.Conn, error) {
	for again := true; ; again = false {
		machines, err := x.machines(ctx)
		if err != nil {
			return nil, err
		}
		for _, m := range machines {
			var conn net.Conn
			if conn, err = x.p.DialMachine(ctx, m.Ref(), x.port); err == nil {
				x.complain(nil)
				return conn, nil
			}
			err = cli.AboutMachine(m.ID, err)
			if code := hangar.CodeOf(err); code == hangar.CodeForbidden || code == hangar.CodeUnauthenticated || ctx.Err() != nil {
				return nil, err
			}
		}
		if reason := hangar.ReasonOf(err); !again || reason != hangar.ReasonWrongState && reason != hangar.ReasonMachineNotFound {
			return nil, err
		}
		x.forget()
	}
}

// forget makes the next connection list the Machines again.
func (x *proxy) forget() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.asked = time.Time{}
}

// machines returns the Machines in the order in which a connection tries them.
func (x *proxy) machines(ctx context.Context) ([]*hangar.Machine, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if time.Since(x.asked) > machinesFresh {
		list, err := x.c.StartedMachines(ctx, x.p, x.app, x.which)
		if err != nil {
			return nil, err
		}
		x.list, x.asked = list, time.Now()
	}
	n := x.turn % len(x.list)
	x.turn++
	return append(append([]*hangar.Machine{}, x.list[n:]...), x.list[:n]...), nil
}

// complain prints why a connection failed, unless the same error was printed last. A nil error resets that.
func (x *proxy) complain(err error) {
	text := ""
	if err != nil {
		text = cli.Message(err)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if text != "" && text != x.said {
		fmt.Fprintf(x.c.Stderr, "Error: %s\n", text)
		if hint := cli.HintFor(err); hint != "" {
			fmt.Fprintf(x.c.Stderr, "Next: %s\n", hint)
		}
	}
	x.said = text
}
