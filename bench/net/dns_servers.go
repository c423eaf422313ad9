package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/bench/publish"
	"github.com/hangar-platform/hangar/edge/catalog"
	"github.com/hangar-platform/hangar/edge/dns"
	"github.com/hangar-platform/hangar/internal/freeport"
)

// The servers that hangar's is compared with.
const (
	peerDnsmasq = "dnsmasq"
	peerUnbound = "unbound"
)

// dnsServerCommand makes this program hangar's name server in a process of its own, so
// that its clients do not share one with it.
const dnsServerCommand = "dns-server"

// startHangarDNS starts it. It ends with its standard input.
func startHangarDNS(ctx context.Context, _ string) (*dnsServer, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), self, dnsServerCommand)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		return nil, err
	}
	addr, err := netip.ParseAddrPort(strings.TrimSpace(line))
	return &dnsServer{name: "hangar", addr: addr, cmd: cmd, stdin: stdin}, err
}

// runDNSServer is hangar's name server with the Machines of the benchmark.
func runDNSServer(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	view := catalog.New(machines{}, nil)
	server := dns.New(dns.Config{
		Listen: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:0")}, Catalog: view, Region: "ams",
		Owner: func(netip.Addr) (hangar.MachineID, hangar.NetworkID, bool) { return "", 1, true },
	})
	if err := server.Open(ctx); err != nil {
		return err
	}
	ended := make(chan error, 2)
	for _, run := range []func(context.Context) error{view.Run, server.Run} {
		go func() { ended <- run(ctx) }()
	}
	fmt.Println(server.Addrs()[0])
	_, _ = io.Copy(io.Discard, os.Stdin) // its parent has ended
	cancel()
	for range cap(ended) {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			return err
		}
	}
	return server.Close()
}

// machines is the feed of the Machines of the benchmark, which do not change.
type machines struct{}

// WatchMachines yields them.
func (machines) WatchMachines(ctx context.Context) iter.Seq2[hangar.MachineRowChange, error] {
	return func(yield func(hangar.MachineRowChange, error) bool) {
		for n := range dnsApps * dnsPerApp {
			row := hangar.MachineRow{Network: 1, Seq: 1, Machine: hangar.Machine{
				ID: hangar.MachineID(machineName(n)), App: hangar.AppName(appName(n)), AppID: hangar.AppID(appName(n)), Region: "ams",
				State: hangar.MachineStarted, PrivateIP: machineAddress(n),
			}}
			if !yield(hangar.MachineRowChange{ID: row.Machine.ID, Row: &row}, nil) {
				return
			}
		}
		if yield(hangar.MachineRowChange{Synced: true}, nil) {
			<-ctx.Done()
			yield(hangar.MachineRowChange{}, ctx.Err())
		}
	}
}

// startDnsmasq starts dnsmasq with the names in a file of hosts.
func startDnsmasq(ctx context.Context, dir string) (*dnsServer, error) {
	hosts, err := hostsOf(dir, "hosts", func(name string, addr netip.Addr) string { return fmt.Sprintln(addr, name) })
	if err != nil {
		return nil, err
	}
	return startPeer(ctx, peerDnsmasq, "--version", func(addr netip.AddrPort) []string {
		return []string{
			"--keep-in-foreground", "--conf-file=/dev/null", "--log-facility=/dev/null", "--pid-file=", "--user=root", "--no-resolv", "--no-hosts",
			"--addn-hosts=" + hosts, "--local=/internal/", "--local-ttl=5", "--listen-address=" + addr.Addr().String(),
			"--bind-interfaces", fmt.Sprintf("--port=%d", addr.Port()),
		}
	})
}

// startUnbound starts unbound with the names as local data, and a thread per core.
func startUnbound(ctx context.Context, dir string) (*dnsServer, error) {
	data, err := hostsOf(dir, "data.conf", func(name string, addr netip.Addr) string {
		return fmt.Sprintf("local-data: \"%s. 5 IN AAAA %s\"\n", name, addr)
	})
	if err != nil {
		return nil, err
	}
	conf := filepath.Join(dir, "unbound.conf")
	return startPeer(ctx, peerUnbound, "-V", func(addr netip.AddrPort) []string {
		text := fmt.Sprintf("server:\n  interface: %s@%d\n  access-control: 127.0.0.0/8 allow\n  num-threads: 2\n  so-reuseport: yes\n"+
			"  username: \"\"\n  chroot: \"\"\n  pidfile: \"\"\n  use-syslog: no\n  logfile: /dev/null\n  local-zone: \"internal.\" static\n  include: %s\n"+
			"remote-control:\n  control-enable: no\n", addr.Addr(), addr.Port(), data)
		if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
			return nil // it will say that it has no configuration
		}
		return []string{"-d", "-c", conf}
	})
}

// startPeer starts a program at an address that is free.
func startPeer(ctx context.Context, name, version string, args func(addr netip.AddrPort) []string) (*dnsServer, error) {
	free, err := freeport.Address(ctx)
	if err != nil {
		return nil, err
	}
	addr, err := netip.ParseAddrPort(free)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), name, args(addr)...)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &dnsServer{name: name, version: publish.Said(ctx, name, version), addr: addr, cmd: cmd}, nil
}
