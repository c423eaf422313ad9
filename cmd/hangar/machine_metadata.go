package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
)

func newMachineCordonCommand(c *cli) *cobra.Command {
	return c.command(verb{
		name: "cordon", short: "Keep requests away from Machines, which run on", done: "cordoned",
		act: func(ctx context.Context, p *client.Client, ref hangar.MachineRef) error {
			return p.CordonMachine(ctx, ref)
		},
	})
}

func newMachineUncordonCommand(c *cli) *cobra.Command {
	return c.command(verb{
		name: "uncordon", short: "Let requests reach Machines again", done: "uncordoned",
		act: func(ctx context.Context, p *client.Client, ref hangar.MachineRef) error {
			return p.UncordonMachine(ctx, ref)
		},
	})
}

const metadataLong = `Read and write the metadata of a Machine: pairs by which it is found, as in
` + "`hangar machine list --metadata role=web`" + `.

A write takes effect at once. It starts no new version and does not disturb the Machine.`

func newMachineMetadataCommand(c *cli) *cobra.Command {
	cmd := group("metadata", "Read and write the metadata of a Machine", "meta")
	cmd.Long = metadataLong
	cmd.AddCommand(newMetadataListCommand(c), newMetadataGetCommand(c), newMetadataSetCommand(c), newMetadataRemoveCommand(c))
	return cmd
}

func newMetadataListCommand(c *cli) *cobra.Command {
	var f listFlags
	cmd := &cobra.Command{
		Use: "list APP [MACHINE]", Aliases: []string{"ls"}, Short: "List the pairs",
		Args: cobra.RangeArgs(1, 2), ValidArgsFunction: c.completeMachine,
		RunE: c.onMachine(func(ctx context.Context, p *client.Client, m *hangar.Machine) error {
			pairs, err := p.MachineMetadata(ctx, m.Ref())
			if err != nil {
				return err
			}
			rows := [][]string{{"KEY", "VALUE"}}
			for _, k := range slices.Sorted(maps.Keys(pairs)) {
				rows = append(rows, []string{k, pairs[k]})
			}
			return c.printList(f, pairs, rows, fmt.Sprintf("No metadata. Set some: hangar machine metadata set %s %s KEY=VALUE", m.App, m.ID))
		}),
	}
	jsonFlag(cmd, &f.asJSON)
	return cmd
}

func newMetadataGetCommand(c *cli) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:               "get APP [MACHINE] KEY",
		Short:             "Print the value of a key",
		Args:              cobra.RangeArgs(2, 3),
		ValidArgsFunction: c.completeMetadataKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			last := len(args) - 1
			p, m, err := c.oneMachine(cmd.Context(), args[:last])
			if err != nil {
				return err
			}
			pairs, err := p.MachineMetadata(cmd.Context(), m.Ref())
			if err != nil {
				return err
			}
			value, found := pairs[args[last]]
			if !found {
				return withHint(hangar.Errorf(hangar.CodeNotFound, "", "Machine %s has no metadata %q", m.ID, args[last]),
					fmt.Sprintf("see `hangar machine metadata list %s %s`", m.App, m.ID))
			}
			if asJSON {
				return c.printJSON(map[string]string{"value": value})
			}
			return c.sayf("%s", value)
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func newMetadataSetCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:               "set APP [MACHINE] KEY=VALUE...",
		Short:             "Set keys, all of them or none",
		Example:           "  hangar machine metadata set hello role=web tier=1",
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: c.completeMachine,
		RunE: func(cmd *cobra.Command, args []string) error {
			machine := args[:1]
			if !strings.Contains(args[1], "=") {
				machine = args[:2]
			}
			pairs := args[len(machine):]
			set, err := parsePairs("pair", pairs)
			if err != nil {
				return err
			}
			if len(set) == 0 {
				return usageErrorf("say what to set: KEY=VALUE")
			}
			p, m, err := c.oneMachine(cmd.Context(), machine)
			if err != nil {
				return err
			}
			if err := setMetadata(cmd.Context(), p, m.Ref(), set); err != nil {
				return err
			}
			return c.sayf("Machine %s has %s", m.ID, strings.Join(pairs, ", "))
		},
	}
}

// setMetadata sets one pair, whose value may be empty, or several at once, among
// which an empty value would mean to remove its key.
func setMetadata(ctx context.Context, p *client.Client, ref hangar.MachineRef, set map[string]string) error {
	for k, v := range set {
		switch {
		case len(set) == 1:
			return p.SetMachineMetadata(ctx, ref, hangar.MetadataPair{Key: k, Value: v})
		case v == "":
			return usageErrorf("invalid pair %q: an empty value is set alone", k+"=")
		}
	}
	return p.MergeMachineMetadata(ctx, ref, hangar.MetadataWrite{Pairs: set})
}

func newMetadataRemoveCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:               "remove APP [MACHINE] KEY",
		Aliases:           []string{"rm", "unset"},
		Short:             "Remove a key",
		Args:              cobra.RangeArgs(2, 3),
		ValidArgsFunction: c.completeMetadataKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			last := len(args) - 1
			p, m, err := c.oneMachine(cmd.Context(), args[:last])
			if err != nil {
				return err
			}
			if err := p.RemoveMachineMetadata(cmd.Context(), m.Ref(), args[last]); err != nil {
				return err
			}
			return c.sayf("Machine %s is without %s", m.ID, args[last])
		},
	}
}
