// Package freeport finds ports for servers that tests and benchmarks start, and that cannot
// choose one themselves.
//
// The kernel may give a port that it has chosen, and that was closed again for the server, to another
// connection or socket meanwhile. The ports of this package are outside the range that the kernel
// chooses from, and no other process that uses this package gets them.
package freeport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
)

// The kernel chooses from 32768 on, unless net.ipv4.ip_local_port_range says otherwise.
const (
	first = 20000
	end   = 32768
)

const (
	// attempts is how many ports are tried.
	attempts = 2000
	// spread is how far apart processes begin.
	spread = 61
)

var (
	mu     sync.Mutex
	claims []net.PacketConn // guarded by mu: kept open until the process ends
)

// Port returns a port on which nothing listens, over TCP or UDP, at any address of the network
// namespace. The port belongs to this process until the process ends.
func Port(ctx context.Context) (int, error) {
	var config net.ListenConfig
	for n := range attempts {
		port := first + (os.Getpid()*spread+n)%(end-first)
		claim, err := config.ListenPacket(ctx, "unixgram", fmt.Sprintf("@hangar-freeport-%d", port)) // an abstract name, which ends with its socket
		if err != nil {
			continue
		}
		if !unused(ctx, &config, ":"+strconv.Itoa(port)) {
			_ = claim.Close()
			continue
		}
		mu.Lock()
		defer mu.Unlock()
		claims = append(claims, claim)
		return port, nil
	}
	return 0, errors.New("no port is free")
}

// Address is Port at 127.0.0.1, as host:port.
func Address(ctx context.Context) (string, error) {
	port, err := Port(ctx)
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), err
}

func unused(ctx context.Context, config *net.ListenConfig, address string) bool {
	stream, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return false
	}
	defer stream.Close()
	packets, err := config.ListenPacket(ctx, "udp", address)
	if err != nil {
		return false
	}
	return packets.Close() == nil
}
