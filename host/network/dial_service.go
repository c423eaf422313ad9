package network

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/hangar-platform/hangar"
)

// DialService connects to a TCP port at which a Machine offers a service. It is not probed
// by keep-alives: nobody answers while the Machine is suspended, and that is no reason to
// end it. Programs that serve the edge listen on IPv4, or on both; which one has answered
// at a port is remembered, so that what listens on IPv6 alone is not asked for in vain each
// time.
func (n *Network) DialService(ctx context.Context, id hangar.MachineID, port int) (net.Conn, error) {
	at, six, err := n.service(id, port)
	if err != nil {
		return nil, err
	}
	conn, err := n.dialFamily(ctx, at, six, port, true)
	if err == nil || ctx.Err() != nil {
		return conn, err
	}
	other, otherErr := n.dialFamily(ctx, at, !six, port, false)
	if otherErr != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if now, ok := n.attached[id]; ok && now == at {
		n.remember(id, port, !six)
	}
	return other, nil
}

// DialDatagrams returns a connected UDP socket to a port at which a Machine offers a
// service: by IPv4, as services over UDP bind to the address of that.
func (n *Network) DialDatagrams(ctx context.Context, id hangar.MachineID, port int) (net.Conn, error) {
	at, _, err := n.service(id, port)
	if err != nil {
		return nil, err
	}
	ip, protocol := at.ipv4, "udp4"
	if !ip.IsValid() {
		ip, protocol = at.ipv6, "udp6"
	}
	var d net.Dialer
	return d.DialContext(ctx, protocol, net.JoinHostPort(ip.String(), strconv.Itoa(port)))
}

// service returns where a Machine is, and whether IPv6 has answered at the port.
func (n *Network) service(id hangar.MachineID, port int) (endpoint, bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	at, ok := n.attached[id]
	if !ok {
		return endpoint{}, false, fmt.Errorf("machine %s is not on the network", id)
	}
	return at, n.sixes[id][port], nil
}

// remember notes which family has answered at a port. n.mu is held.
func (n *Network) remember(id hangar.MachineID, port int, six bool) {
	if !six {
		delete(n.sixes[id], port)
		return
	}
	if n.sixes[id] == nil {
		n.sixes[id] = make(map[int]bool)
	}
	n.sixes[id][port] = true
}

// dialFamily dials one of the two addresses. The first of two attempts has half of the
// time, should packets vanish without an answer.
func (n *Network) dialFamily(ctx context.Context, at endpoint, six bool, port int, first bool) (net.Conn, error) {
	if deadline, ok := ctx.Deadline(); ok && first {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/2)
		defer cancel()
	}
	ip, protocol := at.ipv4, "tcp4"
	if six {
		ip, protocol = at.ipv6, "tcp6"
	}
	d := net.Dialer{KeepAlive: -1}
	return d.DialContext(ctx, protocol, net.JoinHostPort(ip.String(), strconv.Itoa(port)))
}
