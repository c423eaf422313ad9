package hangar

import (
	"context"
	"net"
)

// MachineDialer connects to the ports of Machines without being in their private
// network.
type MachineDialer interface {
	// DialMachine connects to a TCP port of a started Machine, at its private address first. ctx bounds
	// only the dialing. The connection has a CloseWrite, like *net.TCPConn, and survives a suspend and
	// its resume. It fails when the Machine stops, when the daemon ends and when the caller's
	// credential ends.
	//
	// It needs ActionControl, because a port that no service exposes may let its clients do anything.
	//
	// It answers CodeInvalid for an invalid port, CodeFailedPrecondition with ReasonWrongState for a
	// Machine that is not started, CodeUnavailable with ReasonConnectionRefused when nothing listens on
	// the port, and CodeTimeout.
	DialMachine(ctx context.Context, ref MachineRef, port int) (net.Conn, error)
}

// MaxPort is the highest port of TCP and UDP.
const MaxPort = 1<<16 - 1

// CheckPort answers CodeInvalid for a port that is out of range.
func CheckPort(port int) error {
	if port < 1 || port > MaxPort {
		return Errorf(CodeInvalid, "", "invalid port: %d is not from 1 to %d", port, MaxPort)
	}
	return nil
}
