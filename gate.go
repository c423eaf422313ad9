package hangar

import (
	"context"
	"io"
	"net"
	"time"
)

// MachineGate lets the edge into the Machines of a host. The host counts the entries and decides: a
// Machine that is at its limit or about to be stopped lets no request in, even if the edge believes
// otherwise.
type MachineGate interface {
	// EnterMachine counts a request or a connection for the service at an internal port of a Machine
	// until leave is called; leave may be repeated. While one is counted, the Machine is not stopped
	// for being idle. EnterMachine waits only for the answer of another host, within a bound. It
	// answers CodeUnavailable with ReasonWrongState when the Machine is not started, is cordoned, is
	// about to be stopped or has no service on the port; CodeExhausted with ReasonAtLimit at the
	// service's hard limit; CodeNotFound with ReasonMachineNotFound; and CodeUnavailable without a
	// reason when another host does not answer.
	EnterMachine(ref MachineRef, port int) (leave func(), err error)
	// DialService connects to a port of a Machine, by IPv4 or IPv6, whichever it listens
	// on. To a Machine of this host the connection is the kernel's own, so that it can be
	// spliced; to one of another host it is an EnteringConn. It does not count, because the
	// caller has entered. It answers CodeUnavailable with ReasonConnectionRefused when nothing
	// listens, and with ReasonWrongState when the Machine does not run; CodeTimeout; CodeNotFound;
	// and CodeUnavailable without a reason when another host does not answer.
	DialService(ctx context.Context, ref MachineRef, port int) (net.Conn, error)
	// DialDatagrams returns a connection to a UDP port of a Machine: by IPv4, where datagram services
	// listen, or by IPv6 if the Machine has no IPv4. Each Write sends one datagram, each Read returns
	// one. It does not wait for the Machine and does not count, because the caller has entered. It
	// answers CodeNotFound, and CodeUnavailable without a reason when another host does not answer.
	DialDatagrams(ctx context.Context, ref MachineRef, port int) (net.Conn, error)
	// WakeMachine starts or resumes a Machine at rest for a request that waits. It returns when the
	// Machine is started and accepts connections on the port; port 0 means that no port matters.
	// Concurrent calls start the Machine once. It answers CodeFailedPrecondition with ReasonWrongState
	// for a state from which the Machine cannot start, and with ReasonStartFailed when the Machine
	// failed to start, or ended before it accepted connections. It answers CodeTimeout when ctx ended,
	// which bounds the wait and not the start. A lease does not stop requests: see Lease.Admits.
	WakeMachine(ctx context.Context, ref MachineRef, port int) error
	// OpenMachineFile opens a regular file of a started Machine by its absolute path. No symbolic link
	// is followed. It answers CodeNotFound for a path that is missing or no regular file, and
	// CodeExhausted with ReasonAtLimit while too many files of the Machine are open.
	OpenMachineFile(ctx context.Context, ref MachineRef, path string) (MachineFile, error)
	// LogEdge appends a line of LogProxy to the log of a Machine. Without ref.ID it uses the log of any
	// Machine of the App on this host, and drops the line if there is none. It does not wait.
	LogEdge(ref MachineRef, level, message string)
}

// EnteringConn is a connection of DialService to a Machine of another host. Requests enter the Machine
// over it one after another, and none costs an extra round trip.
type EnteringConn interface {
	net.Conn
	// EnterMachine is like that of MachineGate, but does not wait for the answer. The host holds back
	// what is written next until it has let the request in. If it refuses, it drops what was written,
	// and the connection fails with a *RefusedError. The next entry ends the one before.
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

// MaxBusy is the longest time for which a Machine can declare itself busy at once.
const MaxBusy = 24 * time.Hour

// MachineBusy says until when a Machine is not to be stopped for being idle.
type MachineBusy struct {
	Until time.Time `json:"busy_until,omitzero"` // zero: not busy
}

// MachineBusier lets a program in a Machine work without requests from the edge, and without being
// stopped for being idle.
type MachineBusier interface {
	// KeepMachineBusy keeps the Machine from being stopped for being idle, for ttl from now, at most
	// MaxBusy. A ttl of 0 ends that. A call replaces the time of an earlier one. The time survives a
	// restart of the daemon and a suspend, and ends when the Machine stops. No lease is needed. It
	// answers CodeInvalid, and CodeFailedPrecondition with ReasonWrongState for a Machine that is not
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
