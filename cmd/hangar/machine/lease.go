package machine

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

const leaseLong = `Lease a Machine, so that for some time only you can change it.

While you hold the lease of a Machine, others cannot update, start, stop, suspend,
restart or destroy it. Your own commands pass the nonce of the lease:

  export HANGAR_LEASE_NONCE=$(hangar machine lease acquire hello --ttl 10m)
  hangar machine update hello --image nginx:1.29
  hangar machine lease release hello

A lease expires after its time. Requests still start a leased Machine, and the edge
still stops it, if its services have autostart and autostop.`

func newLeaseCommand(c commands) *cobra.Command {
	cmd := cli.Group("lease", "Lease Machines, so that others cannot change them", "leases")
	cmd.Long = leaseLong
	cmd.AddCommand(newLeaseAcquireCommand(c), newLeaseViewCommand(c), newLeaseReleaseCommand(c), newLeaseClearCommand(c))
	return cmd
}

func newLeaseAcquireCommand(c commands) *cobra.Command {
	var (
		asJSON bool
		in     hangar.LeaseAcquire
	)
	cmd := &cobra.Command{
		Use: "acquire APP [MACHINE]", Short: "Lease a Machine and print the nonce; with its nonce, extend the lease",
		Args: cobra.RangeArgs(1, 2), ValidArgsFunction: c.CompleteMachine,
		RunE: c.OnMachine(func(ctx context.Context, p *client.Client, m *hangar.Machine) error {
			lease, err := p.AcquireLease(ctx, m.Ref(), in)
			if err != nil {
				return err
			}
			if asJSON {
				return c.PrintJSON(lease)
			}
			fmt.Fprintf(c.Stderr, "Machine %s is yours until %s\n", m.ID, lease.ExpiresAt.Local().Format(time.DateTime))
			return c.Sayf("%s", lease.Nonce)
		}),
	}
	cmd.Flags().DurationVar(&in.TTL, "ttl", 0, "duration of the lease, at most 24h (default 30s)")
	cmd.Flags().StringVar(&in.Description, "description", "", "purpose, which others can read")
	cli.JSONFlag(cmd, &asJSON)
	return cmd
}

func newLeaseViewCommand(c commands) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "view APP [MACHINE]", Aliases: []string{"show"}, Short: "Show the lease of a Machine and its holder",
		Args: cobra.RangeArgs(1, 2), ValidArgsFunction: c.CompleteMachine,
		RunE: c.OnMachine(func(ctx context.Context, p *client.Client, m *hangar.Machine) error {
			lease, err := p.MachineLease(ctx, m.Ref())
			if err != nil {
				return err
			}
			if asJSON {
				return c.PrintJSON(lease)
			}
			return c.PrintFields([]cli.Field{
				{"Machine", string(m.ID)},
				{"Owner", lease.Owner},
				{"Description", lease.Description},
				{"Expires", lease.ExpiresAt.Local().Format(time.DateTime)},
				{"Nonce", lease.Nonce},
				{"Version", string(lease.Version)},
			})
		}),
	}
	cli.JSONFlag(cmd, &asJSON)
	return cmd
}

func newLeaseReleaseCommand(c commands) *cobra.Command {
	return &cobra.Command{
		Use: "release APP [MACHINE]", Short: "End the lease with a nonce",
		Args: cobra.RangeArgs(1, 2), ValidArgsFunction: c.CompleteMachine,
		RunE: func(cmd *cobra.Command, args []string) error {
			if hangar.LeaseNonceFrom(cmd.Context()) == "" {
				return cli.UsageErrorf("the nonce of the lease is missing: use --nonce or HANGAR_LEASE_NONCE")
			}
			p, m, err := c.OneMachine(cmd.Context(), args)
			if err != nil {
				return err
			}
			if err := p.ReleaseLease(cmd.Context(), m.Ref()); err != nil {
				return err
			}
			return c.Sayf("Machine %s is released", m.ID)
		},
	}
}

func newLeaseClearCommand(c commands) *cobra.Command {
	return &cobra.Command{
		Use: "clear APP [MACHINE]", Short: "End the lease of a Machine, even if another user holds it",
		Args: cobra.RangeArgs(1, 2), ValidArgsFunction: c.CompleteMachine,
		RunE: c.OnMachine(func(ctx context.Context, p *client.Client, m *hangar.Machine) error {
			lease, err := p.MachineLease(ctx, m.Ref())
			if err != nil {
				return err
			}
			if err := p.ReleaseLease(hangar.WithLeaseNonce(ctx, lease.Nonce), m.Ref()); err != nil {
				return err
			}
			return c.Sayf("Machine %s is released; %s held it", m.ID, lease.Owner)
		}),
	}
}
