package hangar

import (
	"context"
	"io"
	"net"
	"time"
)

// MachineGate is how the edge gets into the Machines of a host. The host counts who is in
// and has the last word: a Machine that it is about to stop, or that is at its limit,
// lets no request in, even if the edge believes otherwise.
type MachineGate interface {
	// EnterMachine counts a request or a connection for the service of a Machine that
	// listens on an internal port, until leave is called, which may be repeated. As long as
	// one is in, the Machine is not stopped for being idle. It does not wait, except for the
	// answer of another host, within a bound. It answers CodeUnavailable with ReasonWrongState
	// when the Machine is not started, is cordoned, is about to be stopped or has no service on
	// the port; CodeExhausted with ReasonAtLimit at the service's hard limit; CodeNotFound with
	// ReasonMachineNotFound; and CodeUnavailable without a reason when another host does not
	// answer.
	EnterMachine(ref MachineRef, port int) (leave func(), err error)
	// DialService connects to a port of a Machine, by IPv4 or IPv6, whichever it listens
	// on. To a Machine of this host the connection is the kernel's own, so that it can be
	// spliced; to one of another host it is an EnteringConn. It does not count, because the
	// caller has entered. It answers CodeUnavailable with ReasonConnectionRefused when nothing
	// listens, and with ReasonWrongState when the Machine does not run; CodeTimeout; CodeNotFound;
	// and CodeUnavailable without a reason when another host does not answer.
	DialService(ctx context.Context, ref MachineRef, port int) (net.Conn, error)
	// DialDatagrams returns a connection to a UDP port of a Machine, by IPv4, at which datagram
	// services listen, or by IPv6 where the Machine has nothing else. Each Write sends one
	// datagram, each Read returns one. It does not wait for the Machine and does not count,
	// because the caller has entered. It answers CodeNotFound, and CodeUnavailable without a
	// reason when another host does not answer.
	DialDatagrams(ctx context.Context, ref MachineRef, port int) (net.Conn, error)
	// WakeMachine starts or resumes a Machine that is at rest, for a request that waits, and
	// returns when it is started and takes connections on the port, or port is 0. However
	// many call, the Machine is started once. It answers CodeFailedPrecondition with
	// ReasonWrongState for a state out of which it cannot be started, and with
	// ReasonStartFailed when it failed to start, or ended again before it took connections, and
	// CodeTimeout when ctx ended, which bounds the wait and not the start. A lease keeps off
	// users, not requests: see Lease.Admits.
	WakeMachine(ctx context.Context, ref MachineRef, port int) error
	// OpenMachineFile opens a regular file of a started Machine by its absolute path. No
	// symbolic link is followed. It answers CodeNotFound for a path that is missing or
	// no regular file.
	OpenMachineFile(ctx context.Context, ref MachineRef, path string) (MachineFile, error)
	// LogEdge appends a line of LogProxy to the log of a Machine. Without ref.ID it is that of
	// one of the App's Machines on this host; if there is none, the line is dropped, for then
	// the App has no log here. It does not wait.
	LogEdge(ref MachineRef, level, message string)
}

// EnteringConn is a connection of DialService to a Machine of another host. Requests can enter the
// Machine over it, one after the other, so that none waits for a round trip before it is sent.
type EnteringConn interface {
	net.Conn
	// EnterMachine is that of MachineGate, but for its answer: what is written next waits at the
	// host until that has let the request in. If the host refuses, nothing of that reaches the
	// Machine, and the connection fails with a *RefusedError. The next entry ends the one before.
	EnterMachine() (leave func(), err error)
}

// RefusedError is the error of an EnteringConn whose host did not let the request in.
type RefusedError struct{ Err error }

// Error implements error.
func (e *RefusedError) Error() string { return "the host did not let the request in: " + e.Err.Error() }

// Unwrap returns the host's reason.
func (e *RefusedError) Unwrap() error { return e.Err }

// MachineGates finds the gates of Machines.
type MachineGates interface {
	// Gate returns the gate of a host, without waiting for it. It answers CodeUnavailable for a
	// host that is unknown, dead, or known to be unreachable.
	Gate(id HostID) (MachineGate, error)
}

// MachineFile is a file of a Machine that is open for reading.
type MachineFile interface {
	io.ReadSeekCloser
	Size() int64 // bytes
	ModTime() time.Time
}

// The bounds of the time that a Machine has to be idle before it is stopped.
const (
	MinAutostopAfter     = time.Second
	MaxAutostopAfter     = 24 * time.Hour
	DefaultAutostopAfter = 5 * time.Minute
)

// MaxBusy is for how long a Machine can say at once that it is busy.
const MaxBusy = 24 * time.Hour

// MachineBusy says until when a Machine is not to be stopped for being idle.
type MachineBusy struct {
	Until time.Time `json:"busy_until,omitzero"` // zero: not busy
}

// MachineBusier is how a program in a Machine keeps it from being stopped for being idle
// while it works without a request of the edge.
type MachineBusier interface {
	// KeepMachineBusy keeps the Machine from being stopped for being idle for a time from
	// now, at most MaxBusy; 0 ends that. It replaces an earlier time. It survives a restart of
	// the daemon and a suspend, ends when the Machine stops, and needs no lease. It answers
	// CodeInvalid, and CodeFailedPrecondition with ReasonWrongState for a Machine that is not
	// started.
	KeepMachineBusy(ctx context.Context, ref MachineRef, ttl time.Duration) (MachineBusy, error)
}

// CheckBusy checks the ttl of KeepMachineBusy.
func CheckBusy(ttl time.Duration) error {
	if ttl < 0 || ttl > MaxBusy {
		return Errorf(CodeInvalid, "", "invalid ttl: %s is not from 0s to %s", ttl, MaxBusy)
	}
	return nil
}
