package fake

import (
	"context"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
)

// EchoPort is where every started Machine sends back what it receives. Nothing
// listens on any other port.
const EchoPort = 7

// DialMachine implements hangar.MachineDialer.
func (s *Service) DialMachine(ctx context.Context, ref hangar.MachineRef, port int) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.findFor(ctx, hangar.ActionControl, ref)
	if err == nil {
		err = hangar.CheckPort(port)
	}
	if err == nil {
		_, _, err = m.ask(hangar.VerbExec)
	}
	if err == nil && port != EchoPort {
		err = hangar.Errorf(hangar.CodeUnavailable, hangar.ReasonConnectionRefused, "connection refused: nothing listens on port %d of machine %s", port, ref.ID)
	}
	if err != nil {
		return nil, err
	}
	e := &echo{}
	e.r, e.w = io.Pipe()
	if m.connections == nil {
		m.connections = map[*echo]struct{}{}
	}
	m.connections[e] = struct{}{}
	e.closed = func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(m.connections, e)
	}
	return e, nil
}

// disconnect ends the connections to a Machine that is neither started nor suspended.
// The caller holds mu.
func (m *machine) disconnect() {
	switch m.State {
	case hangar.MachineStarted, hangar.MachineSuspending, hangar.MachineSuspended, hangar.MachineStarting:
		return
	default:
	}
	for e := range m.connections {
		_ = e.w.CloseWithError(hangar.Errorf(hangar.CodeUnavailable, hangar.ReasonWrongState, "the machine is %s", m.State)) // never fails
	}
	m.connections = nil
}

// echo is a connection to a program that sends back what it receives: what is written
// to it is what is read.
type echo struct {
	r      *io.PipeReader
	w      *io.PipeWriter
	once   sync.Once
	closed func()
}

func (e *echo) Read(p []byte) (int, error)  { return e.r.Read(p) }
func (e *echo) Write(p []byte) (int, error) { return e.w.Write(p) }

// CloseWrite ends what is sent, and so what is received.
func (e *echo) CloseWrite() error { return e.w.Close() }

// Close implements net.Conn.
func (e *echo) Close() error {
	e.once.Do(e.closed)
	_ = e.r.CloseWithError(net.ErrClosed)
	return e.w.CloseWithError(net.ErrClosed)
}

func (e *echo) LocalAddr() net.Addr                { return echoAddr{} }
func (e *echo) RemoteAddr() net.Addr               { return echoAddr{} }
func (e *echo) SetDeadline(time.Time) error        { return errNoDeadline }
func (e *echo) SetReadDeadline(t time.Time) error  { return e.SetDeadline(t) }
func (e *echo) SetWriteDeadline(t time.Time) error { return e.SetDeadline(t) }

var errNoDeadline = hangar.Errorf(hangar.CodeUnimplemented, "", "connections of this platform have no deadlines")

type echoAddr struct{}

func (echoAddr) Network() string { return "echo" }
func (echoAddr) String() string  { return "echo" }
