package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
)

const leaseLong = `Keep a Machine to yourself for a while.

While you hold the lease of a Machine, nobody else can update, start, stop, suspend,
restart or destroy it. Your own commands show the nonce of the lease:

  export HANGAR_LEASE_NONCE=$(hangar machine lease acquire hello --ttl 10m)
  hangar machine update hello --image nginx:1.29
  hangar machine lease release hello

A lease ends when its time is over. Requests from outside still start and stop a
leased Machine, where its services say so.`

func newMachineLeaseCommand(c *cli) *cobra.Command {
	cmd := group("lease", "Keep a Machine to yourself for a while", "leases")
	cmd.Long = leaseLong
	cmd.AddCommand(newLeaseAcquireCommand(c), newLeaseViewCommand(c), newLeaseReleaseCommand(c), newLeaseClearCommand(c))
	return cmd
}

func newLeaseAcquireCommand(c *cli) *cobra.Command {
	var (
		asJSON bool
		in     hangar.LeaseAcquire
	)
	cmd := &cobra.Command{
		Use: "acquire APP [MACHINE]", Short: "Lease a Machine and print the nonce; with its nonce, for longer",
		Args: cobra.RangeArgs(1, 2), ValidArgsFunction: c.completeMachine,
		RunE: c.onMachine(func(ctx context.Context, p *client.Client, m *hangar.Machine) error {
			lease, err := p.AcquireLease(ctx, m.Ref(), in)
			if err != nil {
				return err
			}
			if asJSON {
				return c.printJSON(lease)
			}
			fmt.Fprintf(c.stderr, "Machine %s is yours until %s\n", m.ID, lease.ExpiresAt.Local().Format(time.DateTime))
			return c.sayf("%s", lease.Nonce)
		}),
	}
	cmd.Flags().DurationVar(&in.TTL, "ttl", 0, "for how long, at most 24h (default 30s)")
	cmd.Flags().StringVar(&in.Description, "description", "", "what for, for others to read")
	jsonFlag(cmd, &asJSON)
	return cmd
}

func newLeaseViewCommand(c *cli) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "view APP [MACHINE]", Aliases: []string{"show"}, Short: "Show who holds the lease of a Machine",
		Args: cobra.RangeArgs(1, 2), ValidArgsFunction: c.completeMachine,
		RunE: c.onMachine(func(ctx context.Context, p *client.Client, m *hangar.Machine) error {
			lease, err := p.MachineLease(ctx, m.Ref())
			if err != nil {
				return err
			}
			if asJSON {
				return c.printJSON(lease)
			}
			return c.printFields([]field{
				{"Machine", string(m.ID)},
				{"Owner", lease.Owner},
				{"Description", lease.Description},
				{"Expires", lease.ExpiresAt.Local().Format(time.DateTime)},
				{"Nonce", lease.Nonce},
				{"Version", string(lease.Version)},
			})
		}),
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func newLeaseReleaseCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "release APP [MACHINE]", Short: "End the lease whose nonce is shown",
		Args: cobra.RangeArgs(1, 2), ValidArgsFunction: c.completeMachine,
		RunE: func(cmd *cobra.Command, args []string) error {
			if hangar.LeaseNonceFrom(cmd.Context()) == "" {
				return usageErrorf("say which lease, with --nonce or HANGAR_LEASE_NONCE")
			}
			p, m, err := c.oneMachine(cmd.Context(), args)
			if err != nil {
				return err
			}
			if err := p.ReleaseLease(cmd.Context(), m.Ref()); err != nil {
				return err
			}
			return c.sayf("Machine %s is released", m.ID)
		},
	}
}

func newLeaseClearCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "clear APP [MACHINE]", Short: "End the lease of a Machine, whoever holds it",
		Args: cobra.RangeArgs(1, 2), ValidArgsFunction: c.completeMachine,
		RunE: c.onMachine(func(ctx context.Context, p *client.Client, m *hangar.Machine) error {
			lease, err := p.MachineLease(ctx, m.Ref())
			if err != nil {
				return err
			}
			if err := p.ReleaseLease(hangar.WithLeaseNonce(ctx, lease.Nonce), m.Ref()); err != nil {
				return err
			}
			return c.sayf("Machine %s is released; %s held it", m.ID, lease.Owner)
		}),
	}
}
