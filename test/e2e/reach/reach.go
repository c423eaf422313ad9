// Package reach tries to reach others in every way that a network may allow, and answers such
// attempts.
//
// The program probe does that in Machines, for callers over HTTP; tests do it themselves on the
// host and in namespaces of their own. An answer names its sender and whom it heard, so that
// reaching the wrong one is told from reaching none. An attempt repeats what may be lost on the way
// until its patience ends; nothing else is waited for.
package reach

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// Port is where Server serves, over TCP and UDP.
const Port = 9000

// Attempt is one try.
type Attempt struct {
	Proto string         `json:"proto"` // "tcp", "udp", "icmp" or "forged"
	To    netip.AddrPort `json:"to"`    // the port means nothing to icmp
	// From is the address that a forged datagram claims to come from.
	From netip.Addr `json:"from,omitzero"`
	// Text is what is sent by UDP.
	Text []byte `json:"text,omitempty"`
	// Patience is how long an answer is waited for.
	Patience time.Duration `json:"patience"`
}

// Outcome is how a try ended.
type Outcome struct {
	Reached bool   `json:"reached"`
	Answer  string `json:"answer,omitempty"` // who answered, and whom they heard
	Err     string `json:"error,omitempty"`
}

// Try makes an attempt. A forged datagram is sent, and only its receiver knows the outcome.
func Try(ctx context.Context, a Attempt) Outcome {
	ctx, cancel := context.WithTimeout(ctx, a.Patience)
	defer cancel()
	var answer string
	var err error
	switch a.Proto {
	case "tcp":
		answer, err = tryTCP(ctx, a)
	case "udp":
		answer, err = tryUDP(ctx, a)
	case "icmp":
		err = tryICMP(ctx, a)
	case "forged":
		return outcome(false, "", sendForged(ctx, a))
	default:
		err = fmt.Errorf("unknown protocol %q", a.Proto)
	}
	return outcome(err == nil, answer, err)
}

func outcome(reached bool, answer string, err error) Outcome {
	o := Outcome{Reached: reached, Answer: answer}
	if err != nil {
		o.Err = err.Error()
	}
	return o
}

// tryTCP has reached a server once it is connected.
func tryTCP(ctx context.Context, a Attempt) (string, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", a.To.String())
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	answer, _ := io.ReadAll(io.LimitReader(conn, 200)) // a silent server was reached nevertheless
	return string(answer), nil
}

// resend is how often is sent again what may have been lost.
const resend = 100 * time.Millisecond

func tryUDP(ctx context.Context, a Attempt) (string, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "udp", a.To.String())
	if err != nil {
		return "", err
	}
	defer conn.Close()
	answer := make([]byte, 1500)
	for ctx.Err() == nil {
		if _, err := conn.Write(a.Text); err != nil && !errors.Is(err, syscall.ECONNREFUSED) {
			return "", err // a refusal is of the datagram before
		}
		_ = conn.SetReadDeadline(time.Now().Add(resend))
		n, err := conn.Read(answer)
		switch {
		case err == nil:
			return string(answer[:n]), nil
		case errors.Is(err, syscall.ECONNREFUSED):
			<-time.After(resend / 4)
		}
	}
	return "", ctx.Err()
}

// Server answers over TCP and UDP who it is and whom it heard.
type Server struct {
	name string
	tcp  net.Listener
	udp  net.PacketConn
	done sync.WaitGroup

	mu    sync.Mutex
	heard []string // what came by UDP, and from where
}

// Serve listens on a port of addr, where there may be both IPv6 and IPv4.
func Serve(name string, at netip.AddrPort) (*Server, error) {
	tcp, err := net.Listen("tcp", listenOn(at))
	if err != nil {
		return nil, err
	}
	udp, err := net.ListenPacket("udp", listenOn(at))
	if err != nil {
		return nil, errors.Join(err, tcp.Close())
	}
	s := &Server{name: name, tcp: tcp, udp: udp}
	s.done.Go(s.serveTCP)
	s.done.Go(s.serveUDP)
	return s, nil
}

// listenOn leaves out an address that stands for all.
func listenOn(at netip.AddrPort) string {
	if at.Addr().IsUnspecified() {
		return fmt.Sprintf(":%d", at.Port())
	}
	return at.String()
}

// Close ends the server.
func (s *Server) Close() error {
	err := errors.Join(s.tcp.Close(), s.udp.Close())
	s.done.Wait()
	return err
}

func (s *Server) serveTCP() {
	for {
		conn, err := s.tcp.Accept()
		if err != nil {
			return
		}
		_, _ = io.WriteString(conn, s.answer(conn.RemoteAddr()))
		_ = conn.Close()
	}
}

func (s *Server) serveUDP() {
	b := make([]byte, 1500)
	for {
		n, from, err := s.udp.ReadFrom(b)
		if err != nil {
			return
		}
		s.mu.Lock()
		s.heard = append(s.heard, fmt.Sprintf("%s from %s", b[:n], addrOf(from)))
		s.mu.Unlock()
		_, _ = s.udp.WriteTo([]byte(s.answer(from)), from)
	}
}

func (s *Server) answer(to net.Addr) string { return s.name + " heard " + addrOf(to) }

// addrOf is an address without port and zone.
func addrOf(a net.Addr) string {
	at, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return a.String()
	}
	return at.Addr().Unmap().WithZone("").String()
}

// Heard returns what has come by UDP so far, each as "TEXT from ADDRESS".
func (s *Server) Heard() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.heard...)
}
