package machine

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

func newCordonCommand(c commands) *cobra.Command {
	return c.command(verb{
		name: "cordon", short: "Send no more requests to Machines, which keep running", done: "cordoned",
		act: func(ctx context.Context, p *client.Client, ref hangar.MachineRef) error {
			return p.CordonMachine(ctx, ref)
		},
	})
}

func newUncordonCommand(c commands) *cobra.Command {
	return c.command(verb{
		name: "uncordon", short: "Send requests to Machines again", done: "uncordoned",
		act: func(ctx context.Context, p *client.Client, ref hangar.MachineRef) error {
			return p.UncordonMachine(ctx, ref)
		},
	})
}

const metadataLong = `Read and write the metadata of a Machine: pairs by which it can be found, as with
` + "`hangar machine list --metadata role=web`" + `.

A write takes effect at once. It neither creates a new version nor restarts the Machine.`

func newMetadataCommand(c commands) *cobra.Command {
	cmd := cli.Group("metadata", "Read and write the metadata of a Machine", "meta")
	cmd.Long = metadataLong
	cmd.AddCommand(newMetadataListCommand(c), newMetadataGetCommand(c), newMetadataSetCommand(c), newMetadataRemoveCommand(c))
	return cmd
}

func newMetadataListCommand(c commands) *cobra.Command {
	var f cli.ListFlags
	cmd := &cobra.Command{
		Use: "list APP [MACHINE]", Aliases: []string{"ls"}, Short: "List the metadata of a Machine",
		Args: cobra.RangeArgs(1, 2), ValidArgsFunction: c.CompleteMachine,
		RunE: c.OnMachine(func(ctx context.Context, p *client.Client, m *hangar.Machine) error {
			pairs, err := p.MachineMetadata(ctx, m.Ref())
			if err != nil {
				return err
			}
			rows := [][]string{{"KEY", "VALUE"}}
			for _, k := range slices.Sorted(maps.Keys(pairs)) {
				rows = append(rows, []string{k, pairs[k]})
			}
			return c.PrintList(f, pairs, rows, fmt.Sprintf("No metadata. Set some: hangar machine metadata set %s %s KEY=VALUE", m.App, m.ID))
		}),
	}
	cli.JSONFlag(cmd, &f.AsJSON)
	return cmd
}

func newMetadataGetCommand(c commands) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:               "get APP [MACHINE] KEY",
		Short:             "Print the value of a key",
		Args:              cobra.RangeArgs(2, 3),
		ValidArgsFunction: c.completeMetadataKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			last := len(args) - 1
			p, m, err := c.OneMachine(cmd.Context(), args[:last])
			if err != nil {
				return err
			}
			pairs, err := p.MachineMetadata(cmd.Context(), m.Ref())
			if err != nil {
				return err
			}
			value, found := pairs[args[last]]
			if !found {
				return cli.WithHint(hangar.Errorf(hangar.CodeNotFound, "", "Machine %s has no metadata %q", m.ID, args[last]),
					fmt.Sprintf("see `hangar machine metadata list %s %s`", m.App, m.ID))
			}
			if asJSON {
				return c.PrintJSON(map[string]string{"value": value})
			}
			return c.Sayf("%s", value)
		},
	}
	cli.JSONFlag(cmd, &asJSON)
	return cmd
}

func newMetadataSetCommand(c commands) *cobra.Command {
	return &cobra.Command{
		Use:               "set APP [MACHINE] KEY=VALUE...",
		Short:             "Set keys, all of them or none",
		Example:           "  hangar machine metadata set hello role=web tier=1",
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: c.CompleteMachine,
		RunE: func(cmd *cobra.Command, args []string) error {
			machine := args[:1]
			if !strings.Contains(args[1], "=") {
				machine = args[:2]
			}
			pairs := args[len(machine):]
			set, err := cli.ParsePairs("pair", pairs)
			if err != nil {
				return err
			}
			if len(set) == 0 {
				return cli.UsageErrorf("KEY=VALUE is missing")
			}
			p, m, err := c.OneMachine(cmd.Context(), machine)
			if err != nil {
				return err
			}
			if err := setMetadata(cmd.Context(), p, m.Ref(), set); err != nil {
				return err
			}
			return c.Sayf("Machine %s has %s", m.ID, strings.Join(pairs, ", "))
		},
	}
}

// setMetadata sets one pair, whose value may be empty, or several pairs at once. For several, the API would
// remove a key with an empty value.
func setMetadata(ctx context.Context, p *client.Client, ref hangar.MachineRef, set map[string]string) error {
	for k, v := range set {
		switch {
		case len(set) == 1:
			return p.SetMachineMetadata(ctx, ref, hangar.MetadataPair{Key: k, Value: v})
		case v == "":
			return cli.UsageErrorf("invalid pair %q: set an empty value with a command of its own", k+"=")
		}
	}
	return p.MergeMachineMetadata(ctx, ref, hangar.MetadataWrite{Pairs: set})
}

func newMetadataRemoveCommand(c commands) *cobra.Command {
	return &cobra.Command{
		Use:               "remove APP [MACHINE] KEY",
		Aliases:           []string{"rm", "unset"},
		Short:             "Remove a key",
		Args:              cobra.RangeArgs(2, 3),
		ValidArgsFunction: c.completeMetadataKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			last := len(args) - 1
			p, m, err := c.OneMachine(cmd.Context(), args[:last])
			if err != nil {
				return err
			}
			if err := p.RemoveMachineMetadata(cmd.Context(), m.Ref(), args[last]); err != nil {
				return err
			}
			return c.Sayf("Machine %s no longer has %s", m.ID, args[last])
		},
	}
}

// completeMetadataKey completes APP, then MACHINE, and then the keys of its metadata.
func (c commands) completeMetadataKey(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) < 2 {
		return c.CompleteMachine(cmd, args, prefix)
	}
	return c.Complete(cmd, func(ctx context.Context, p *client.Client) ([]string, error) {
		m, err := cli.FindMachine(ctx, p, hangar.AppName(args[0]), args[1])
		if err != nil {
			return nil, err
		}
		var keys []string
		for k, v := range m.Config.Metadata {
			keys = append(keys, fmt.Sprintf("%s\t%s", k, cli.Short(v, 40)))
		}
		slices.Sort(keys)
		return keys, nil
	})
}
