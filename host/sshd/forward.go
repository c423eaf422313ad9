package sshd

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"

	"github.com/hangar-platform/hangar"
)

// forwardTCP connects to a TCP port for the client (RFC 4254, section 7.2), as the Machine sees it.
func (c *client) forwardTCP(ctx context.Context, offered ssh.NewChannel) {
	var in struct {
		Host       string
		Port       uint32
		Originator string
		FromPort   uint32
	}
	if ssh.Unmarshal(offered.ExtraData(), &in) != nil || in.Port == 0 || in.Port > hangar.MaxPort {
		_ = offered.Reject(ssh.ConnectionFailed, "an address that is none")
		return
	}
	c.forward(ctx, offered, "tcp", net.JoinHostPort(in.Host, strconv.Itoa(int(in.Port))))
}

// forwardUnix connects to a socket of the Machine (OpenSSH, PROTOCOL, section 2.4).
func (c *client) forwardUnix(ctx context.Context, offered ssh.NewChannel) {
	var in struct {
		Path     string
		Reserved string
		Unused   uint32
	}
	if ssh.Unmarshal(offered.ExtraData(), &in) != nil {
		_ = offered.Reject(ssh.ConnectionFailed, "a path that is none")
		return
	}
	c.forward(ctx, offered, "unix", in.Path)
}

// forward joins a channel to a connection that a process in the Machine makes.
func (c *client) forward(ctx context.Context, offered ssh.NewChannel, network, address string) {
	if !c.permitted(permitForwarding) {
		_ = offered.Reject(ssh.Prohibited, "the certificate does not permit forwarding")
		return
	}
	if strings.ContainsRune(address, 0) {
		_ = offered.Reject(ssh.ConnectionFailed, "an address that is none")
		return
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	in, toProgram := io.Pipe()
	out := &answer{answered: make(chan struct{}), joined: make(chan struct{})}
	ended := make(chan error, 1)
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() {
		_, err := c.exec(ctx, hangar.ExecRequest{Command: []string{hangar.SSHProgram, "connect", network, address}}, nil,
			hangar.ExecStreams{Stdin: in, Stdout: out})
		_ = in.Close()
		ended <- err
	})
	defer func() { _ = toProgram.Close() }()
	select {
	case <-out.answered:
	case err := <-ended:
		if why, failed := out.failure(err); failed {
			_ = offered.Reject(ssh.ConnectionFailed, why)
			return
		}
		ended <- err // it was connected, to what has said nothing
	}
	channel, requests, err := offered.Accept()
	if err != nil {
		out.join(nil)
		return
	}
	out.join(channel)
	running.Go(func() {
		ssh.DiscardRequests(requests) // until the channel is closed
		end()
	})
	running.Go(func() {
		_, _ = io.Copy(toProgram, channel)
		_ = toProgram.Close()
	})
	<-ended //nolint:errcheck // how a program ended that was connected
	_ = channel.Close()
}

// maxFailure bounds the error text of a process that could not connect, in bytes.
const maxFailure = 200

// answer is the process's output: a zero byte and then the data of the connection, or the reason
// for its failure.
type answer struct {
	answered chan struct{} // closed with the zero byte
	joined   chan struct{} // closed by join
	channel  ssh.Channel   // set before joined is closed

	mu       sync.Mutex
	reported bool   // guarded by mu
	why      []byte // guarded by mu
}

// Write implements io.Writer, for one goroutine.
func (a *answer) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n := len(p)
	a.mu.Lock()
	first := !a.reported && len(a.why) == 0
	switch {
	case first && p[0] == 0:
		a.reported, p = true, p[1:]
		close(a.answered)
	case !a.reported:
		a.why = append(a.why, p[:min(len(p), maxFailure-len(a.why))]...)
		a.mu.Unlock()
		return n, nil
	}
	a.mu.Unlock()
	if len(p) == 0 {
		return n, nil
	}
	<-a.joined
	if a.channel == nil {
		return 0, io.ErrClosedPipe
	}
	if _, err := a.channel.Write(p); err != nil {
		return 0, err
	}
	return n, nil
}

func (a *answer) join(channel ssh.Channel) {
	a.channel = channel
	close(a.joined)
}

// failure says why there was no connection, in the words of the process if it had any. It reports false
// when there was one.
func (a *answer) failure(err error) (why string, failed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.words(err), !a.reported
}

func (a *answer) words(err error) string {
	switch {
	case len(a.why) > 0:
		return strings.ToValidUTF8(string(a.why), "")
	case hangar.CodeOf(err) == hangar.CodeInvalid:
		return "this Machine was started before its host could forward connections; restart it"
	case errors.Is(err, context.Canceled):
		return "the connection ends"
	default:
		return "the Machine does not connect"
	}
}
