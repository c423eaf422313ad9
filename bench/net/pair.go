package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/network"
)

// pair is two Machines of network 1 without programs: the kernel answers in their place.
type pair struct {
	client  string // its namespace
	devices [2]string
	addrs   [2]netip.Addr
	server  *net.UDPConn
	done    chan struct{} // closed when the server has ended
}

// attachPair attaches them, and lets the second one answer datagrams.
func attachPair(ctx context.Context, wires *network.Network) (*pair, error) {
	p := &pair{done: make(chan struct{})}
	for i := range 2 {
		id := hangar.MachineID(fmt.Sprintf("%014x", i))
		p.addrs[i] = network.Address(1, rulesHost, uint64(i))
		at, err := wires.Attach(ctx, network.Endpoint{ID: id, IPv6: p.addrs[i], Number: uint64(i)})
		if err != nil {
			return nil, err
		}
		links, err := netlink.LinkList()
		if err != nil {
			return nil, err
		}
		for _, l := range links {
			if strings.HasPrefix(l.Attrs().Alias, "machine "+string(id)) {
				p.devices[i] = l.Attrs().Name
			}
		}
		if i == 0 {
			p.client = at.NetNS
		}
		err = inside(at.NetNS, func() error {
			c, err := nftables.New()
			if err != nil {
				return err
			}
			// Remove the rules that keep the kernel from answering where a sandbox does.
			c.DelTable(&nftables.Table{Name: "hangar", Family: nftables.TableFamilyNetdev})
			if err := c.Flush(); err != nil || i == 0 {
				return err
			}
			p.server, err = net.ListenUDP("udp6", net.UDPAddrFromAddrPort(netip.AddrPortFrom(p.addrs[1], 9)))
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	go func() {
		defer close(p.done)
		b := make([]byte, 64)
		for {
			n, from, err := p.server.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			_, _ = p.server.WriteToUDPAddrPort(b[:n], from)
		}
	}()
	return p, nil
}

func (p *pair) close() error {
	err := p.server.Close()
	<-p.done
	return err
}

// firstPacket is the median time of an exchange from a port that was not used before.
func (p *pair) firstPacket(rounds int) (took time.Duration, err error) {
	err = inside(p.client, func() error {
		to := net.UDPAddrFromAddrPort(netip.AddrPortFrom(p.addrs[1], 9))
		n := min(400*rounds, 2000) // each is an open file
		fresh := make([]*net.UDPConn, 0, n)
		defer func() {
			for _, c := range fresh {
				_ = c.Close()
			}
		}()
		for range n {
			c, err := net.DialUDP("udp6", nil, to)
			if err != nil {
				return err
			}
			fresh = append(fresh, c)
		}
		b := make([]byte, 64)
		took, err = median(n, nil, func(i int) error {
			if err := fresh[i].SetDeadline(time.Now().Add(time.Second)); err != nil {
				return err
			}
			if _, err := fresh[i].Write(b[:8]); err != nil {
				return err
			}
			_, err := fresh[i].Read(b)
			return err
		})
		return err
	})
	return took, err
}

// inside runs f in a network namespace. The thread is not used for anything else after.
func inside(path string, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		ns, err := netns.GetFromPath(path)
		if err != nil {
			done <- err
			return
		}
		if err := netns.Set(ns); err != nil {
			done <- errors.Join(err, ns.Close())
			return
		}
		done <- errors.Join(f(), ns.Close())
	}()
	return <-done
}
