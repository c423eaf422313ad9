package network

import (
	"fmt"
	"os"
)

// enableForwarding lets the host route. IPv4 forwarding could be enabled per device, but the host's
// own devices come and go. IPv6 has one switch for all devices.
func enableForwarding() error {
	if err := writeSysctl("net/ipv4/ip_forward", "1"); err != nil {
		return err
	}
	if readSysctl("net/ipv6/conf/all/forwarding") == "1" {
		return nil
	}
	// A host that forwards ignores router advertisements, which may have given it its default route,
	// unless accept_ra is 2.
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

// setDeviceVariables enables IPv6 on a device of ours even when the host disables it by default. It
// also keeps a Machine from changing the host's routes and neighbours: the host answers no ARP, and
// the rules drop IPv6 neighbour discovery and redirects.
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
