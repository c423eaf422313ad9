package network

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/hangar-platform/hangar"
)

// DialFamily connects to a TCP port of a Machine at one of its addresses: "tcp4" or "tcp6".
func (n *Network) DialFamily(ctx context.Context, id hangar.MachineID, family string, port int) (net.Conn, error) {
	at, ok := n.attachments.find(id)
	if !ok {
		return nil, fmt.Errorf("machine %s is not on the network", id)
	}
	ip := at.ipv6
	if family == "tcp4" {
		ip = at.ipv4
	}
	if !ip.IsValid() {
		return nil, fmt.Errorf("machine %s has no address for %s", id, family)
	}
	var d net.Dialer
	return d.DialContext(ctx, family, net.JoinHostPort(ip.String(), strconv.Itoa(port)))
}

// Dial connects to a TCP port of a Machine. Programs in the Machine see the host as the caller. A
// program may listen on the private address, on the IPv4 one or on both, so Dial tries the private
// one first and then the other.
func (n *Network) Dial(ctx context.Context, id hangar.MachineID, port int) (net.Conn, error) {
	at, ok := n.attachments.find(id)
	if !ok {
		return nil, fmt.Errorf("machine %s is not on the network", id)
	}
	// Each attempt has half of the time, in case packets vanish without an answer.
	first := ctx
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		first, cancel = context.WithTimeout(ctx, time.Until(deadline)/2)
		defer cancel()
	}
	var d net.Dialer
	to := strconv.Itoa(port)
	conn, err := d.DialContext(first, "tcp6", net.JoinHostPort(at.ipv6.String(), to))
	if err == nil || ctx.Err() != nil {
		return conn, err
	}
	return d.DialContext(ctx, "tcp4", net.JoinHostPort(at.ipv4.String(), to))
}
