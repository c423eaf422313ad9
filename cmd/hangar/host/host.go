// Package host has the commands about the servers of a platform.
package host

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

// commands make the commands of one invocation.
type commands struct{ *cli.Invocation }

const about = `Manage the servers of the platform.

The first server is started with --cluster, and creates a token for each other one:

  hangar up --cluster :4281                                        on the first server
  hangar host token create                                         on the first server
  hangar up --join https://10.0.0.1:4281 --token hgj_...           on another, empty server

The first three servers store the cluster state together: one of them may be lost.`

// NewCommand makes `hangar host`.
func NewCommand(inv *cli.Invocation) *cobra.Command {
	c := commands{inv}
	cmd := cli.Group("host", "List, add and remove servers of the platform", "hosts")
	cmd.Long = about
	cmd.AddCommand(newListCommand(c), newTopCommand(c), newShowCommand(c), newCordonCommand(c), newUncordonCommand(c), newLabelCommand(c), newRemoveCommand(c), newTokenCommand(c))
	return cmd
}

func newListCommand(c commands) *cobra.Command {
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List the servers of the platform", Args: cobra.NoArgs}
	return cli.Answering(c.Invocation, cmd, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, _ []string) ([]hangar.Host, error) {
		return p.Hosts(ctx)
	}), func(hosts []hangar.Host) error {
		rows := [][]string{{"ID", "NAME", "STATE", "REGION", "ZONE", "CPUS", "MEMORY", "ADDRESS"}}
		for _, h := range hosts {
			rows = append(rows, []string{
				string(h.ID), h.Name, stateText(h), string(h.Region), h.Zone, strconv.Itoa(h.CPUs), units.BytesSize(float64(h.Memory)), h.Address,
			})
		}
		return c.PrintTable(rows)
	})
}

func newTopCommand(c commands) *cobra.Command {
	cmd := &cobra.Command{
		Use: "top", Short: "Show how much of each server is used, the fullest first", Args: cobra.NoArgs,
		Long: "Show how much of each server is used, the fullest first. Memory is the sum that Machines may use, and volumes what\n" +
			"they may use of the disk. Values of a server that does not answer are question marks.",
	}
	return cli.Answering(c.Invocation, cmd, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, _ []string) ([]hangar.HostUsage, error) {
		hosts, err := p.HostUsage(ctx)
		slices.SortStableFunc(hosts, func(a, b hangar.HostUsage) int { return cmp.Compare(share(b), share(a)) })
		return hosts, err
	}), func(hosts []hangar.HostUsage) error {
		rows := [][]string{{"ID", "NAME", "STATE", "MACHINES", "MEMORY", "OF", "USED", "VOLUMES", "PROMISED", "FREE"}}
		for _, h := range hosts {
			row := []string{string(h.ID), h.Name, stateText(h.Host), strconv.Itoa(h.Machines), "?", units.BytesSize(float64(h.Memory)), "?", strconv.Itoa(h.Volumes), "?", "?"}
			if h.Reached {
				row[4], row[6] = units.BytesSize(float64(h.MemoryPromised)), fmt.Sprintf("%.0f%%", 100*share(h))
				row[8], row[9] = units.BytesSize(float64(h.VolumesPromised)), units.BytesSize(float64(h.VolumesFree))
			}
			rows = append(rows, row)
		}
		return c.PrintTable(rows)
	})
}

// share returns which part of a server's memory is promised to Machines.
func share(h hangar.HostUsage) float64 { return float64(h.MemoryPromised) / float64(max(1, h.Memory)) }

func stateText(h hangar.Host) string {
	if h.Cordoned {
		return string(h.State) + ", cordoned"
	}
	return string(h.State)
}

func newShowCommand(c commands) *cobra.Command {
	cmd := &cobra.Command{Use: "show HOST", Short: "Show a server", Args: cobra.ExactArgs(1)}
	return cli.Answering(c.Invocation, cmd, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, args []string) (hangar.Host, error) {
		return p.Host(ctx, hangar.HostID(args[0]))
	}), c.print)
}

func (c commands) print(h hangar.Host) error {
	rows := [][]string{
		{"ID", string(h.ID)},
		{"Name", h.Name},
		{"State", stateText(h)},
		{"Region", string(h.Region)},
		{"Zone", h.Zone},
		{"CPUs", strconv.Itoa(h.CPUs)},
		{"Memory", units.BytesSize(float64(h.Memory))},
		{"Address", h.Address},
	}
	if h.MeshKey != "" {
		rows = append(rows, []string{"Private network", h.MeshAddress}, []string{"Heard of", heardText(h)})
	}
	for _, name := range slices.Sorted(maps.Keys(h.Labels)) {
		rows = append(rows, []string{"Label", name + "=" + h.Labels[name]})
	}
	return c.PrintTable(rows)
}

// heardText formats when the answering server last heard of another one in the private network.
func heardText(h hangar.Host) string {
	if h.MeshHandshake.IsZero() {
		return "not yet: see `hangar doctor`"
	}
	return h.MeshHandshake.Local().Format(time.DateTime)
}

// update completes a command that changes a server.
func (c commands) update(cmd *cobra.Command, change func(args []string) (hangar.HostUpdate, error)) *cobra.Command {
	return cli.Answering(c.Invocation, cmd, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, args []string) (hangar.Host, error) {
		in, err := change(args)
		if err != nil {
			return hangar.Host{}, err
		}
		return p.UpdateHost(ctx, hangar.HostID(args[0]), in)
	}), c.print)
}

func newCordonCommand(c commands) *cobra.Command {
	cmd := &cobra.Command{Use: "cordon HOST", Short: "Place no new Machines on a server", Args: cobra.ExactArgs(1)}
	return c.update(cmd, func([]string) (hangar.HostUpdate, error) { return hangar.HostUpdate{Cordoned: new(true)}, nil })
}

func newUncordonCommand(c commands) *cobra.Command {
	cmd := &cobra.Command{Use: "uncordon HOST", Short: "Place new Machines on a server again", Args: cobra.ExactArgs(1)}
	return c.update(cmd, func([]string) (hangar.HostUpdate, error) { return hangar.HostUpdate{Cordoned: new(false)}, nil })
}

func newLabelCommand(c commands) *cobra.Command {
	cmd := &cobra.Command{
		Use: "label HOST [NAME=VALUE]...", Short: "Replace the labels of a server", Args: cobra.MinimumNArgs(1),
		Example: "  hangar host label 4f1c09ae disk=nvme rack=3",
	}
	return c.update(cmd, func(args []string) (hangar.HostUpdate, error) {
		labels, err := cli.ParsePairs("label", args[1:])
		if labels == nil {
			labels = map[string]string{}
		}
		return hangar.HostUpdate{Labels: &labels}, err
	})
}

const removeLong = `Remove a server that is lost, or whose daemon was stopped. If it had a member of the
cluster state, another server takes its place.

A server with Machines or volumes is removed only with --force: they are lost to the platform.
Before the server can join again, run hangar down there.`

func newRemoveCommand(c commands) *cobra.Command {
	var yes, force bool
	cmd := &cobra.Command{Use: "remove HOST", Aliases: []string{"rm"}, Short: "Remove a server that is lost", Long: removeLong, Args: cobra.ExactArgs(1)}
	cli.YesFlag(cmd, &yes)
	cmd.Flags().BoolVar(&force, "force", false, "remove a server with Machines or volumes, which are lost")
	cmd.RunE = c.Connected(func(ctx context.Context, p *client.Client, args []string) error {
		if err := c.ConfirmUnless(yes, "Remove host %s?", args[0]); err != nil {
			return err
		}
		if err := p.RemoveHost(ctx, hangar.HostID(args[0]), hangar.HostRemoval{Force: force}); err != nil {
			return err
		}
		return c.Sayf("Host %s is removed.", args[0])
	})
	return cmd
}

func newTokenCommand(c commands) *cobra.Command {
	cmd := cli.Group("token", "Manage the tokens with which servers join")
	cmd.AddCommand(newTokenCreateCommand(c), newTokenListCommand(c), newTokenRevokeCommand(c))
	return cmd
}

func newTokenCreateCommand(c commands) *cobra.Command {
	var in hangar.JoinTokenCreate
	var ttl time.Duration
	cmd := &cobra.Command{
		Use: "create", Short: "Create a token; it is the last word printed", Args: cobra.NoArgs,
		Long: `Create a token with which one server joins, or with --reusable any number. It is shown once.
It has the fingerprint of this platform's authority, so that a server sends it to no other platform.`,
	}
	cmd.Flags().DurationVar(&ttl, "ttl", hangar.DefaultJoinTTL, "how long it is valid")
	cmd.Flags().BoolVar(&in.Reusable, "reusable", false, "let any number of servers join")
	cmd.Flags().StringVar(&in.Note, "note", "", "purpose of the token")
	return cli.Answering(c.Invocation, cmd, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, _ []string) (hangar.NewJoinToken, error) {
		in.TTL = hangar.Duration(ttl)
		return p.CreateJoinToken(ctx, in)
	}), func(made hangar.NewJoinToken) error {
		fmt.Fprintf(c.Stderr, "Until %s, a server can join with: hangar up --join %s --token TOKEN. The token is not shown again:\n",
			made.ExpiresAt.Local().Format(time.DateTime), made.URL)
		return c.Sayf("%s", made.Token)
	})
}

func newTokenListCommand(c commands) *cobra.Command {
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List tokens that have not expired", Args: cobra.NoArgs}
	return cli.Answering(c.Invocation, cmd, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, _ []string) ([]hangar.JoinToken, error) {
		return p.JoinTokens(ctx)
	}), func(tokens []hangar.JoinToken) error {
		if len(tokens) == 0 {
			fmt.Fprintln(c.Stderr, "No tokens.")
			return nil
		}
		rows := [][]string{{"ID", "FOR", "USED BY", "EXPIRES", "NOTE"}}
		for _, t := range tokens {
			count := "one server"
			if t.Reusable {
				count = "any number"
			}
			rows = append(rows, []string{string(t.ID), count, string(t.UsedBy), t.ExpiresAt.Local().Format(time.DateTime), strings.TrimSpace(t.Note)})
		}
		return c.PrintTable(rows)
	})
}

func newTokenRevokeCommand(c commands) *cobra.Command {
	cmd := &cobra.Command{Use: "revoke ID", Aliases: []string{"rm"}, Short: "Revoke a token", Args: cobra.ExactArgs(1)}
	cmd.RunE = c.Connected(func(ctx context.Context, p *client.Client, args []string) error {
		if err := p.RevokeJoinToken(ctx, hangar.JoinTokenID(args[0])); err != nil {
			return err
		}
		return c.Sayf("Token %s is revoked.", args[0])
	})
	return cmd
}
