// Package network has the commands for access to Apps: addresses, hostnames with certificates, WireGuard
// peers, and local ports that forward to Machines.
package network

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

// commands make the commands of one invocation.
type commands struct{ *cli.Invocation }

// NewIPsCommand returns `hangar ips`.
func NewIPsCommand(inv *cli.Invocation) *cobra.Command {
	c := commands{inv}
	cmd := cli.Group("ips", "See and change the addresses of Apps", "ip")
	cmd.AddCommand(newIPsListCommand(c), newIPsAllocateCommand(c), newIPsReleaseCommand(c))
	return cmd
}

func newIPsListCommand(c commands) *cobra.Command {
	return cli.Listing(c.Invocation, &cobra.Command{
		Use: "list APP", Short: "List the addresses of an App", Args: cobra.ExactArgs(1), ValidArgsFunction: c.CompleteApp,
	}, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, args []string) ([]hangar.Address, error) {
		return p.Addresses(ctx, hangar.AppName(args[0]))
	}), cli.Table[hangar.Address]{
		Head: []string{"ADDRESS", "TYPE", "REGION", "NETWORK", "ALLOCATED"},
		Row: func(now time.Time, a hangar.Address) []string {
			return []string{a.IP.String(), string(a.Kind), cmp.Or(string(a.Region), "all"), a.Network, cli.Ago(now, a.CreatedAt)}
		},
		Names: "addresses", Hint: "No addresses: the App is closed to the public. Open it: hangar ips allocate %s --shared",
	})
}

const ipsAllocateLong = `Give an App an address, and print it. The App is served there at once.

  --shared    the IPv4 address that Apps share: their names distinguish them, so that it
              serves TLS and HTTP alone
  --v4, --v6  one of the App's own, for every kind of service
  --private   one in a private network, by which the Machines and peers of that network reach
              the App through the edge, as APP.flycast`

const ipsAllocateExample = `  hangar ips allocate hello --shared
  hangar ips allocate db --private --network staging`

// allocateFlags choose the kind of address. Exactly one of the first four is given.
type allocateFlags struct {
	shared, v4, v6, private bool
	network                 string
	region                  string
}

// kind returns the chosen kind of address.
func (f *allocateFlags) kind() (hangar.AddressKind, error) {
	var kinds []hangar.AddressKind
	for i, wanted := range []bool{f.shared, f.v4, f.v6, f.private} {
		if wanted {
			kinds = append(kinds, hangar.AddressKinds()[i])
		}
	}
	switch {
	case len(kinds) != 1:
		return "", cli.UsageErrorf("give one of --shared, --v4, --v6 and --private")
	case f.network != "" && !f.private:
		return "", cli.UsageErrorf("--network needs --private")
	default:
		return kinds[0], nil
	}
}

func newIPsAllocateCommand(c commands) *cobra.Command {
	var f allocateFlags
	cmd := &cobra.Command{
		Use:               "allocate APP --shared|--v4|--v6|--private",
		Aliases:           []string{"add"},
		Short:             "Allocate an address for an App",
		Long:              ipsAllocateLong,
		Example:           ipsAllocateExample,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.CompleteApp,
	}
	fs := cmd.Flags()
	fs.BoolVar(&f.shared, "shared", false, "the shared IPv4 address")
	fs.BoolVar(&f.v4, "v4", false, "a dedicated IPv4 address")
	fs.BoolVar(&f.v6, "v6", false, "a dedicated IPv6 address")
	fs.BoolVar(&f.private, "private", false, "an address in a private network")
	fs.StringVar(&f.network, "network", "", "the private network of the organization (default the App's own)")
	fs.StringVar(&f.region, "region", "", "region to serve from (default all)")
	return cli.Answering(c.Invocation, cmd, func(cmd *cobra.Command, args []string) (*hangar.Address, error) {
		kind, err := f.kind()
		if err != nil {
			return nil, err
		}
		p, err := c.Connect()
		if err != nil {
			return nil, err
		}
		return p.AllocateAddress(cmd.Context(), hangar.AppName(args[0]), hangar.AddressCreate{
			Kind: kind, Region: hangar.Region(f.region), Network: f.network,
		})
	}, func(made *hangar.Address) error { return c.Sayf("%s", made.IP) })
}

func newIPsReleaseCommand(c commands) *cobra.Command {
	return &cobra.Command{
		Use: "release APP ADDRESS…", Aliases: []string{"rm", "remove"}, Short: "Take addresses from an App",
		Args: cobra.MinimumNArgs(2), ValidArgsFunction: c.completeAddress,
		RunE: func(cmd *cobra.Command, args []string) error {
			var ips []netip.Addr
			for _, text := range args[1:] {
				ip, err := netip.ParseAddr(text)
				if err != nil {
					return cli.UsageErrorf("%q is not an IP address", text)
				}
				ips = append(ips, ip)
			}
			p, err := c.Connect()
			if err != nil {
				return err
			}
			for _, ip := range ips {
				if err := p.ReleaseAddress(cmd.Context(), hangar.AppName(args[0]), ip); err != nil {
					return err
				}
				fmt.Fprintf(c.Stdout, "Released %s.\n", ip)
			}
			return nil
		},
	}
}

// completeAddress completes APP and then its addresses.
func (c commands) completeAddress(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return c.CompleteApp(cmd, args, prefix)
	}
	return c.Complete(cmd, func(ctx context.Context, p *client.Client) (ips []string, err error) {
		list, err := p.Addresses(ctx, hangar.AppName(args[0]))
		for _, a := range list {
			ips = append(ips, fmt.Sprintf("%s\t%s", a.IP, a.Kind))
		}
		return ips, err
	})
}
