package hostcheck

import (
	"fmt"
	"os"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// checkNftables creates, in a namespace of its own, the kinds of devices, chains and rules that the network of
// Machines needs.
func checkNftables(string) Check {
	err := apart(unix.CLONE_NEWNET, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "doctor0"
		veth := netlink.NewVeth(attrs)
		veth.PeerName = "doctor1"
		if err := netlink.LinkAdd(veth); err != nil {
			return fmt.Errorf("create a veth device: %w", err)
		}
		c, err := nftables.New()
		if err != nil {
			return err
		}
		drop := nftables.ChainPolicyDrop
		table := c.AddTable(&nftables.Table{Name: "hangar_doctor", Family: nftables.TableFamilyINet})
		filter := c.AddChain(&nftables.Chain{
			Name: "filter", Table: table, Type: nftables.ChainTypeFilter,
			Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw,
		})
		c.AddRule(&nftables.Rule{Table: table, Chain: filter, Exprs: []expr.Any{
			&expr.Fib{Register: 1, ResultOIF: true, FlagSADDR: true, FlagIIF: true},
		}})
		c.AddRule(&nftables.Rule{Table: table, Chain: filter, Exprs: []expr.Any{
			&expr.Socket{Key: expr.SocketKeyWildcard, Register: 1},
		}})
		nat := c.AddChain(&nftables.Chain{
			Name: "nat", Table: table, Type: nftables.ChainTypeNAT,
			Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
		})
		c.AddRule(&nftables.Rule{Table: table, Chain: nat, Exprs: []expr.Any{&expr.Masq{}}})
		device := c.AddTable(&nftables.Table{Name: "hangar_doctor", Family: nftables.TableFamilyNetdev})
		c.AddChain(&nftables.Chain{
			Name: "ingress", Table: device, Type: nftables.ChainTypeFilter, Device: attrs.Name,
			Hooknum: nftables.ChainHookIngress, Priority: nftables.ChainPriorityFilter, Policy: &drop,
		})
		if err := c.Flush(); err != nil {
			return fmt.Errorf("create nftables rules: %w", err)
		}
		return nil
	})
	if err != nil {
		return fail("use a kernel with veth, nf_tables, nft_fib_inet, nft_socket, nft_masq and nft_nat; as root, modprobe them",
			"the network of Machines cannot be created: %v", err)
	}
	return ok("veth devices and nftables with fib, socket, masquerade and netdev, for the network of Machines")
}

const ipv6Fix = "remove ipv6.disable=1 from the kernel command line and set sysctl net.ipv6.conf.default.disable_ipv6=0"

// checkIPv6 adds an IPv6 address to a device in a namespace of its own.
func checkIPv6(string) Check {
	err := apart(unix.CLONE_NEWNET, func() error {
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/lo/disable_ipv6", []byte("0"), 0); err != nil {
			return err
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		addr, err := netlink.ParseAddr("fdaa::1/128")
		if err != nil {
			return err
		}
		return netlink.AddrAdd(lo, addr)
	})
	if err != nil {
		return fail(ipv6Fix, "IPv6 does not work: %v; private networks are IPv6", err)
	}
	return ok("IPv6, for private networks")
}

// checkTun creates a TUN device in a namespace of its own.
func checkTun(string) Check {
	err := apart(unix.CLONE_NEWNET, func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		request, err := unix.NewIfreq("doctor0")
		if err != nil {
			return err
		}
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		return unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	})
	if err != nil {
		return warn("as root, modprobe tun", "/dev/net/tun: %v; WireGuard peers need it", err)
	}
	return ok("usable, for WireGuard peers")
}

// checkFirewall looks for chains that drop forwarded packets. The rules of the platform cannot overrule another table.
func checkFirewall(string) Check {
	c, err := nftables.New()
	if err != nil {
		return warn("run as root", "the host's firewall cannot be read: %v", err)
	}
	chains, err := c.ListChains()
	if err != nil {
		return warn("run as root", "the host's firewall cannot be read: %v", err)
	}
	var dropping []string
	for _, chain := range chains {
		if drops(chain) {
			dropping = append(dropping, fmt.Sprintf("%s %s", chain.Table.Name, chain.Name))
		}
	}
	if len(dropping) > 0 {
		return warn("accept forwarding from and to devices whose names begin with h and the instance id, e.g. iptables -I FORWARD -i 'h+' -j ACCEPT; iptables -I FORWARD -o 'h+' -j ACCEPT",
			"the host's firewall drops forwarded packets by default (%s), so Machines may not reach the internet or each other", strings.Join(dropping, ", "))
	}
	return ok("no firewall on this host drops packets of Machines")
}

func drops(c *nftables.Chain) bool {
	return c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop &&
		c.Hooknum != nil && *c.Hooknum == *nftables.ChainHookForward &&
		c.Table.Family != nftables.TableFamilyNetdev && c.Table.Family != nftables.TableFamilyARP &&
		c.Table.Family != nftables.TableFamilyBridge
}
