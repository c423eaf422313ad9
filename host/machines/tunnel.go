package machines

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
)

// dialTimeout bounds how long a program in a Machine may take to accept a connection.
const dialTimeout = 10 * time.Second

// tunnel is a connection from outside to a program in a Machine.
type tunnel struct {
	net.Conn
	tcp    *net.TCPConn // the same, for CloseWrite
	once   sync.Once
	closed chan struct{}
	cause  atomic.Pointer[hangar.Error] // why the platform has ended it; nil: it has not
}

// DialMachine implements hangar.MachineDialer.
func (s *Store) DialMachine(ctx context.Context, ref hangar.MachineRef, port int) (net.Conn, error) {
	if err := hangar.CheckPort(port); err != nil {
		return nil, err
	}
	m, err := s.machine(ref)
	if err != nil {
		return nil, err
	}
	losses := m.rec.Load().Losses // read first: losses from here on may include this connection
	if _, err := s.running(ref); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := s.o.Network.Dial(ctx, ref.ID, port)
	if err != nil {
		return nil, undialled(ref, port, dialTimeout, err)
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return nil, errors.Join(errors.New("the network does not speak TCP"), conn.Close())
	}
	// A suspended Machine does not answer, but keeps the tunnel.
	if err := tcp.SetKeepAlive(false); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	t := &tunnel{Conn: conn, tcp: tcp, closed: make(chan struct{})}
	if !s.work.Go(func() { m.bound(t, losses) }) {
		err := hangar.Errorf(hangar.CodeUnavailable, "", "the server is shutting down")
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// undialled returns the error for a failed connection.
func undialled(ref hangar.MachineRef, port int, limit time.Duration, err error) error {
	var known *hangar.Error
	switch {
	case errors.As(err, &known):
		return err
	case errors.Is(err, syscall.ECONNREFUSED):
		return &hangar.Error{
			Code: hangar.CodeUnavailable, Reason: hangar.ReasonConnectionRefused, Err: err,
			Message: fmt.Sprintf("connection refused: nothing listens on port %d of machine %s", port, ref.ID),
		}
	case errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded):
		return &hangar.Error{
			Code: hangar.CodeTimeout, Err: err,
			Message: fmt.Sprintf("machine %s did not answer on port %d within %s", ref.ID, port, limit),
		}
	default:
		return err
	}
}

// bound ends a tunnel when the Machine loses its connections, or when the Store is closed. losses
// is the number of losses before the tunnel was opened. A suspended Machine keeps its connections
// in its memory.
func (m *machine) bound(t *tunnel, losses uint64) {
	for {
		changed, _ := m.watchers.wait()
		if m.rec.Load().Losses != losses {
			t.end(cutOff(m.rec.Load()))
			return
		}
		select {
		case <-changed:
		case <-t.closed:
			return
		case <-m.store.work.Context.Done():
			t.end(hangar.Errorf(hangar.CodeUnavailable, "", "the server is shutting down"))
			return
		}
	}
}

// cutOff returns the reason why a Machine has lost its connections, from its state.
func cutOff(rec *journal.Record) *hangar.Error {
	if keepsConnections(rec) {
		return hangar.Errorf(hangar.CodeUnavailable, hangar.ReasonWrongState, "the machine has started afresh")
	}
	return hangar.Errorf(hangar.CodeUnavailable, hangar.ReasonWrongState, "the machine is %s", rec.Machine.State)
}

// keepsConnections reports whether connections to the Machine still exist, or will exist after a
// resume. A Machine that was asked to stop may serve until it ends.
func keepsConnections(rec *journal.Record) bool {
	return len(rec.Handle) > 0 && !rec.Ended || rec.Snapshot || rec.Resuming
}

// end closes the tunnel for a reason that both its users receive.
func (t *tunnel) end(cause *hangar.Error) {
	t.cause.CompareAndSwap(nil, cause)
	_ = t.tcp.SetLinger(0) // bytes in flight have no reader
	_ = t.Close()
}

// because returns the reason why the platform ended the tunnel, or else the error.
func (t *tunnel) because(err error) error {
	if err == nil {
		return nil
	}
	if cause := t.cause.Load(); cause != nil {
		return cause
	}
	return err
}

// Read implements net.Conn.
func (t *tunnel) Read(p []byte) (int, error) {
	n, err := t.Conn.Read(p)
	return n, t.because(err)
}

// Write implements net.Conn.
func (t *tunnel) Write(p []byte) (int, error) {
	n, err := t.Conn.Write(p)
	return n, t.because(err)
}

// CloseWrite ends what is sent to the program.
func (t *tunnel) CloseWrite() error { return t.because(t.tcp.CloseWrite()) }

// Abort closes the connection as a reset.
func (t *tunnel) Abort(error) {
	_ = t.tcp.SetLinger(0) // it is closed either way
	_ = t.Close()
}

// Close implements net.Conn. It may be repeated.
func (t *tunnel) Close() error {
	var err error
	t.once.Do(func() {
		close(t.closed)
		err = t.Conn.Close()
	})
	return err
}
