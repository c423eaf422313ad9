package network

import (
	"context"
	"net"
	"strconv"
	"time"

	"github.com/hangar-platform/hangar"
)

// DialService connects to a TCP port at which a Machine offers a service. It does not use
// keep-alives: a suspended Machine does not answer them, which is no reason to end the connection.
// Programs that serve the edge listen on IPv4, or on both families. DialService remembers the family
// that has answered at a port, so that it does not try IPv4 first each time for a program that
// listens on IPv6 only.
func (n *Network) DialService(ctx context.Context, id hangar.MachineID, port int) (net.Conn, error) {
	at, six, err := n.attachments.service(id, port)
	if err != nil {
		return nil, err
	}
	conn, err := dialFamily(ctx, at, six, port, true)
	if err == nil || ctx.Err() != nil {
		return conn, err
	}
	other, otherErr := dialFamily(ctx, at, !six, port, false)
	if otherErr != nil {
		return nil, err
	}
	n.attachments.answered(id, at, port, !six)
	return other, nil
}

// DialDatagrams returns a connected UDP socket to a port at which a Machine offers a service. It uses
// IPv4, because services over UDP bind to the IPv4 address.
func (n *Network) DialDatagrams(ctx context.Context, id hangar.MachineID, port int) (net.Conn, error) {
	at, _, err := n.attachments.service(id, port)
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

// dialFamily dials one of the two addresses. The first of two attempts has half of the time, in case
// packets vanish without an answer.
func dialFamily(ctx context.Context, at endpoint, six bool, port int, first bool) (net.Conn, error) {
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
