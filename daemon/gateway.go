package daemon

import (
	"log/slog"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/network"
	"github.com/hangar-platform/hangar/host/wireguard"
)

// newGateway returns what lets WireGuard peers into the networks of wires; without any
// it lets nobody in.
func newGateway(cfg Config, id hangar.HostID, wires *network.Network, feed hangar.PeerFeed, log *slog.Logger) (*wireguard.Gateway, error) {
	port, on, err := cfg.wireguardPort()
	if err != nil {
		return nil, err
	}
	o := wireguard.Options{
		Dir: cfg.Dir, Device: network.PeerDevice(instance(cfg.Dir)), Host: id, Port: port, Off: !on || wires == nil,
		Endpoint: cfg.PeerEndpoint, Feed: feed, Log: log,
	}
	if wires != nil {
		o.Members, o.Source = wires, wires.HostAddr6()
	}
	return wireguard.New(o), nil
}
