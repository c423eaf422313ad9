package main

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
)

func newIPsCommand(c *cli) *cobra.Command {
	cmd := group("ips", "See and change the addresses of Apps", "ip")
	cmd.AddCommand(newIPsListCommand(c), newIPsAllocateCommand(c), newIPsReleaseCommand(c))
	return cmd
}

func newIPsListCommand(c *cli) *cobra.Command {
	return listing(c, &cobra.Command{
		Use: "list APP", Short: "List the addresses of an App", Args: cobra.ExactArgs(1), ValidArgsFunction: c.completeApp,
	}, asked(c, func(ctx context.Context, p *client.Client, args []string) ([]hangar.Address, error) {
		return p.Addresses(ctx, hangar.AppName(args[0]))
	}), table[hangar.Address]{
		head: []string{"ADDRESS", "TYPE", "REGION", "NETWORK", "ALLOCATED"},
		row: func(now time.Time, a hangar.Address) []string {
			return []string{a.IP.String(), string(a.Kind), cmp.Or(string(a.Region), "all"), a.Network, ago(now, a.CreatedAt)}
		},
		names: "addresses", hint: "No addresses: the App is closed to the public. Open it: hangar ips allocate %s --shared",
	})
}

const ipsAllocateLong = `Give an App an address, and print it. The App is served there at once.

  --shared    the IPv4 address that Apps share: they are told apart by their names, so that it
              serves TLS and HTTP alone
  --v4, --v6  one of the App's own, for every kind of service
  --private   one in a private network, by which the Machines and peers of that network reach
              the App through the edge, as APP.flycast`

const ipsAllocateExample = `  hangar ips allocate hello --shared
  hangar ips allocate db --private --network staging`

// allocateFlags say which kind of address is wanted: one of the first four.
type allocateFlags struct {
	shared, v4, v6, private bool
	network                 string
	region                  string
}

// kind is the one that is wanted.
func (f *allocateFlags) kind() (hangar.AddressKind, error) {
	var kinds []hangar.AddressKind
	for i, wanted := range []bool{f.shared, f.v4, f.v6, f.private} {
		if wanted {
			kinds = append(kinds, hangar.AddressKinds()[i])
		}
	}
	switch {
	case len(kinds) != 1:
		return "", usageErrorf("say which kind of address: one of --shared, --v4, --v6 and --private")
	case f.network != "" && !f.private:
		return "", usageErrorf("--network says where a private address is: give --private too")
	default:
		return kinds[0], nil
	}
}

func newIPsAllocateCommand(c *cli) *cobra.Command {
	var f allocateFlags
	cmd := &cobra.Command{
		Use:               "allocate APP --shared|--v4|--v6|--private",
		Aliases:           []string{"add"},
		Short:             "Give an App an address",
		Long:              ipsAllocateLong,
		Example:           ipsAllocateExample,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.completeApp,
	}
	fs := cmd.Flags()
	fs.BoolVar(&f.shared, "shared", false, "the IPv4 address that Apps share")
	fs.BoolVar(&f.v4, "v4", false, "an IPv4 address of its own")
	fs.BoolVar(&f.v6, "v6", false, "an IPv6 address of its own")
	fs.BoolVar(&f.private, "private", false, "an address in a private network")
	fs.StringVar(&f.network, "network", "", "the private network of the organization (default the App's own)")
	fs.StringVar(&f.region, "region", "", "region to serve from (default all)")
	return answering(c, cmd, func(cmd *cobra.Command, args []string) (*hangar.Address, error) {
		kind, err := f.kind()
		if err != nil {
			return nil, err
		}
		p, err := c.connect()
		if err != nil {
			return nil, err
		}
		return p.AllocateAddress(cmd.Context(), hangar.AppName(args[0]), hangar.AddressCreate{
			Kind: kind, Region: hangar.Region(f.region), Network: f.network,
		})
	}, func(made *hangar.Address) error { return c.sayf("%s", made.IP) })
}

func newIPsReleaseCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "release APP ADDRESS…", Aliases: []string{"rm", "remove"}, Short: "Take addresses from an App",
		Args: cobra.MinimumNArgs(2), ValidArgsFunction: c.completeAddress,
		RunE: func(cmd *cobra.Command, args []string) error {
			var ips []netip.Addr
			for _, text := range args[1:] {
				ip, err := netip.ParseAddr(text)
				if err != nil {
					return usageErrorf("%q is not an IP address", text)
				}
				ips = append(ips, ip)
			}
			p, err := c.connect()
			if err != nil {
				return err
			}
			for _, ip := range ips {
				if err := p.ReleaseAddress(cmd.Context(), hangar.AppName(args[0]), ip); err != nil {
					return err
				}
				fmt.Fprintf(c.stdout, "%s is released.\n", ip)
			}
			return nil
		},
	}
}

// completeAddress completes APP and then its addresses.
func (c *cli) completeAddress(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return c.completeApp(cmd, args, prefix)
	}
	return c.complete(cmd, func(ctx context.Context, p *client.Client) (ips []string, err error) {
		list, err := p.Addresses(ctx, hangar.AppName(args[0]))
		for _, a := range list {
			ips = append(ips, fmt.Sprintf("%s\t%s", a.IP, a.Kind))
		}
		return ips, err
	})
}

// openApp gives an App the shared address if it has none and its new Machine a port that can
// be served there, so that the first Machine can be called without another command. It
// returns where the App is served by HTTP, or "", and says what it did. What it cannot do
// is told, and no reason to fail.
func (c *cli) openApp(ctx context.Context, p *client.Client, app hangar.AppName, config *hangar.MachineConfig) string {
	shareable, others := publicPortsOf(config)
	if !shareable && !others {
		return ""
	}
	list, err := p.Addresses(ctx, app)
	if err != nil {
		fmt.Fprintf(c.stderr, "The addresses of the App cannot be seen: %s\n", err)
		return ""
	}
	public := slices.ContainsFunc(list, func(a hangar.Address) bool { return a.Kind != hangar.AddressPrivateV6 })
	if len(list) == 0 && shareable {
		made, err := p.AllocateAddress(ctx, app, hangar.AddressCreate{Kind: hangar.AddressSharedV4})
		if err != nil {
			fmt.Fprintf(c.stderr, "App %s has no address, and gets none: %s\n", app, err)
			return ""
		}
		fmt.Fprintf(c.stderr, "App %s had no address and is now served at %s, which Apps share.\n", app, made.IP)
		public = true
	}
	if own := func(a hangar.Address) bool { return a.Kind != hangar.AddressSharedV4 }; others && !slices.ContainsFunc(list, own) {
		fmt.Fprintf(c.stderr, "Ports without TLS and HTTP need an address of the App's own: hangar ips allocate %s --v4\n", app)
	}
	if !public || !servesHTTP(config) {
		return ""
	}
	known, err := p.App(ctx, app)
	if err != nil {
		return ""
	}
	return known.URL
}

// publicPortsOf reports whether a Machine has ports that Apps can share an address for, and
// others.
func publicPortsOf(config *hangar.MachineConfig) (shareable, others bool) {
	for i := range config.Services {
		for k := range config.Services[i].Ports {
			if config.Services[i].Handling(&config.Services[i].Ports[k]).Shareable() {
				shareable = true
			} else {
				others = true
			}
		}
	}
	return shareable, others
}

// servesHTTP reports whether the Machine is served at the port of HTTP.
func servesHTTP(config *hangar.MachineConfig) bool {
	for _, s := range config.Services {
		for i := range s.Ports {
			if s.Ports[i].Covers(portHTTP) && s.Handling(&s.Ports[i]).HTTP {
				return true
			}
		}
	}
	return false
}
