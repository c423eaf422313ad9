package sshd

import (
	"context"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/cmdline"
)

// Exit codes of a command that never ran, as those of shells and of ssh(1).
const (
	exitNotFound = 127
	exitFailed   = 255
)

// The bounds of a client's environment.
const (
	maxVariables = 64
	maxVariable  = 16 << 10 // bytes of a value
)

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,63}$`)

// session is a channel in which one command runs (RFC 4254, section 6).
type session struct {
	client  *client
	channel ssh.Channel

	env    []string
	tty    bool
	size   hangar.TerminalSize
	resize chan hangar.TerminalSize // holds the newest size
	begun  bool
	over   chan struct{} // closed when the command has ended, if there is one
}

func (c *client) session(ctx context.Context, offered ssh.NewChannel) {
	channel, requests, err := offered.Accept()
	if err != nil {
		return
	}
	ctx, end := context.WithCancel(ctx)
	s := &session{client: c, channel: channel, resize: make(chan hangar.TerminalSize, 1), over: make(chan struct{})}
	for request := range requests { // until the channel is closed
		ok := s.request(ctx, request)
		if request.WantReply {
			_ = request.Reply(ok, nil)
		}
	}
	end()
	_ = channel.Close() // nothing of the command is read any more
	if s.begun {
		<-s.over
	}
}

// The payloads of requests.
type (
	envRequest struct{ Name, Value string }
	ptyRequest struct {
		Term                      string
		Cols, Rows, Width, Height uint32
		Modes                     string
	}
	windowRequest struct{ Cols, Rows, Width, Height uint32 }
	textRequest   struct{ Text string }
)

// request does what a request of the session asks for.
func (s *session) request(ctx context.Context, r *ssh.Request) bool {
	switch r.Type {
	case "env":
		var in envRequest
		return ssh.Unmarshal(r.Payload, &in) == nil && s.set(in.Name, in.Value)
	case "pty-req":
		var in ptyRequest
		if ssh.Unmarshal(r.Payload, &in) != nil || s.begun || !s.client.permitted(permitTerminal) || len(in.Term) > maxVariable || strings.ContainsRune(in.Term, 0) {
			return false
		}
		s.tty, s.size = true, sizeOf(in.Rows, in.Cols)
		s.env = append(s.env, "TERM="+in.Term)
		return true
	case "window-change":
		var in windowRequest
		if ssh.Unmarshal(r.Payload, &in) != nil || !s.tty {
			return false
		}
		s.resized(sizeOf(in.Rows, in.Cols))
		return true
	case "shell":
		return s.start(ctx, s.client.shell("-l"))
	case "exec":
		var in textRequest
		if ssh.Unmarshal(r.Payload, &in) != nil || strings.ContainsRune(in.Text, 0) {
			return false
		}
		attempts := [][]string{s.client.shell("-c", in.Text)}
		if words, err := cmdline.Split(in.Text); err == nil && len(words) > 0 {
			attempts = append(attempts, words) // of an image without a shell
		}
		return s.start(ctx, attempts...)
	case "subsystem":
		var in textRequest
		if ssh.Unmarshal(r.Payload, &in) != nil || in.Text != "sftp" {
			return false
		}
		s.tty = false
		return s.start(ctx, []string{hangar.SSHProgram, "sftp"})
	default:
		return false
	}
}

func (c *client) permitted(what string) bool {
	_, ok := c.permits[what]
	return ok
}

// shell is the user's shell, in the home directory if there is one.
func (c *client) shell(args ...string) []string {
	const begin = `cd -- "$HOME" 2>/dev/null || cd /; exec "$0" "$@"`
	return append([]string{"/bin/sh", "-c", begin, c.user.Shell}, args...)
}

// set adds a variable to the environment of the command, within bounds.
func (s *session) set(name, value string) bool {
	if s.begun || len(s.env) >= maxVariables || !variableName.MatchString(name) || len(value) > maxVariable || strings.ContainsRune(value, 0) {
		return false
	}
	s.env = append(s.env, name+"="+value)
	return true
}

func sizeOf(rows, cols uint32) hangar.TerminalSize {
	const most = 1<<16 - 1
	return hangar.TerminalSize{Rows: uint16(min(rows, most)), Cols: uint16(min(cols, most))}
}

// resized sends the command a new size; an older one that it has not taken yet is dropped.
func (s *session) resized(size hangar.TerminalSize) {
	select {
	case <-s.resize:
	default:
	}
	s.resize <- size // this goroutine alone sends
}

// start begins the first of the commands that the Machine has.
func (s *session) start(ctx context.Context, attempts ...[]string) bool {
	if s.begun {
		return false
	}
	s.begun = true
	go func() {
		defer close(s.over)
		s.run(ctx, attempts)
	}()
	return true
}

// run runs a command and reports its exit to the client.
func (s *session) run(ctx context.Context, attempts [][]string) {
	streams := hangar.ExecStreams{Stdin: s.channel, Stdout: s.channel, Stderr: s.channel.Stderr(), Resize: s.resize}
	if s.tty {
		streams.Stderr = nil
	}
	var result hangar.ExecResult
	var err error
	for _, command := range attempts {
		result, err = s.client.exec(ctx, hangar.ExecRequest{Command: command, TTY: s.tty, Size: s.size}, s.env, streams)
		if hangar.CodeOf(err) != hangar.CodeInvalid { // which is that the Machine does not have it
			break
		}
	}
	s.ended(ctx, result, err, attempts[0][0])
	_ = s.channel.Close()
}

// ended reports how a command ended (RFC 4254, section 6.10).
func (s *session) ended(ctx context.Context, result hangar.ExecResult, err error, program string) {
	switch {
	case ctx.Err() != nil:
		return // the client has gone
	case hangar.CodeOf(err) == hangar.CodeInvalid && program == hangar.SSHProgram:
		s.say("this Machine was started before its host could serve files by SSH; restart it")
		result.ExitCode = exitNotFound
	case hangar.CodeOf(err) == hangar.CodeInvalid:
		s.say("the image of this Machine has no shell; name a program of it and its arguments")
		result.ExitCode = exitNotFound
	case hangar.CodeOf(err) == hangar.CodeFailedPrecondition:
		s.say("the Machine has stopped")
		result.ExitCode = exitFailed
	case err != nil:
		s.client.log.ErrorContext(ctx, "command of an SSH session", "error", err)
		s.say("the command could not be run")
		result.ExitCode = exitFailed
	case result.ExitSignal != 0:
		name := strings.TrimPrefix(unix.SignalName(unix.Signal(result.ExitSignal)), "SIG")
		payload := ssh.Marshal(struct {
			Signal          string
			Core            bool
			Error, Language string
		}{name, false, "", ""})
		_, _ = s.channel.SendRequest("exit-signal", false, payload)
		return
	}
	_, _ = s.channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{uint32(result.ExitCode)}))
}

// say writes a line for the client's user.
func (s *session) say(text string) {
	to := io.Writer(s.channel.Stderr())
	if s.tty {
		to = s.channel
	}
	_, _ = fmt.Fprintf(to, "hangar: %s\r\n", text)
}

// exec runs a command as the user, with the variables that a session has.
func (c *client) exec(ctx context.Context, request hangar.ExecRequest, env []string, streams hangar.ExecStreams) (hangar.ExecResult, error) {
	all := append(append([]string{}, env...),
		"HOME="+c.user.Home, "USER="+c.user.Name, "LOGNAME="+c.user.Name, "SHELL="+c.user.Shell, "FLY_SSH=1", "PLATFORM_SSH=1")
	if host, port, err := net.SplitHostPort(c.from.RemoteAddr().String()); err == nil {
		all = append(all, fmt.Sprintf("SSH_CLIENT=%s %s %d", host, port, hangar.MachineSSHPort))
	}
	return c.server.o.Machines.ExecSSH(ctx, c.machine, hangar.SSHExec{ExecRequest: request, User: c.user, Env: all}, streams)
}
