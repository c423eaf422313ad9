package network

import (
	"fmt"
	"os"
)

// enableForwarding lets the host route. For IPv4 it would be enough to enable it on
// the devices between which packets pass, but those of the host come and go, and for
// IPv6 there is one switch for all.
func enableForwarding() error {
	if err := writeSysctl("net/ipv4/ip_forward", "1"); err != nil {
		return err
	}
	if readSysctl("net/ipv6/conf/all/forwarding") == "1" {
		return nil
	}
	// A host that forwards ignores router advertisements, from which it may have its
	// default route, unless told otherwise.
	entries, err := os.ReadDir("/proc/sys/net/ipv6/conf")
	if err != nil {
		return fmt.Errorf("IPv6 is needed and not enabled in the kernel: %w", err)
	}
	for _, e := range entries {
		name := "net/ipv6/conf/" + e.Name() + "/accept_ra"
		if e.Name() == "all" || readSysctl(name) != "1" {
			continue
		}
		if err := writeSysctl(name, "2"); err != nil {
			return err
		}
	}
	return writeSysctl("net/ipv6/conf/all/forwarding", "1")
}

// setDeviceVariables makes sure that a device of ours has IPv6 on a host that has it disabled by
// default, and that a Machine can teach the host nothing: no routes, and no neighbours, which are
// permanent. ARP is not answered, and so creates none; its counterpart for IPv6, and redirects,
// are dropped by the rules.
func setDeviceVariables(link string) error {
	for _, v := range []struct{ name, value string }{
		{"ipv6/conf/" + link + "/disable_ipv6", "0"},
		{"ipv6/conf/" + link + "/accept_ra", "0"},
		{"ipv4/conf/" + link + "/arp_ignore", "8"}, // answer for no address
	} {
		if err := writeSysctl("net/"+v.name, v.value); err != nil {
			return err
		}
	}
	return nil
}
