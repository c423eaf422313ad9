package machines

import (
	"context"
	"net"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/network"
)

// NoNetwork is for drivers whose Machines have no network, such as the fake one:
// every Machine is attached to nothing.
type NoNetwork struct{}

// Attach makes nothing and returns no namespace.
func (NoNetwork) Attach(context.Context, network.Endpoint) (network.Attachment, error) {
	return network.Attachment{}, nil
}

// Detach has nothing to remove.
func (NoNetwork) Detach(hangar.MachineID) error { return nil }

// List is empty.
func (NoNetwork) List(context.Context) ([]hangar.MachineID, error) { return nil, nil }

// Dial reaches nothing.
func (NoNetwork) Dial(context.Context, hangar.MachineID, int) (net.Conn, error) {
	return nil, errNoNetwork()
}

// DialService reaches nothing.
func (NoNetwork) DialService(context.Context, hangar.MachineID, int) (net.Conn, error) {
	return nil, errNoNetwork()
}

// DialDatagrams reaches nothing.
func (NoNetwork) DialDatagrams(context.Context, hangar.MachineID, int) (net.Conn, error) {
	return nil, errNoNetwork()
}

func errNoNetwork() error {
	return hangar.Errorf(hangar.CodeUnimplemented, hangar.ReasonUnsupported, "machines of this driver have no network")
}
