package contract

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
)

// endsWithin is how soon what lasts has ended after its token was revoked, with room for a
// server that stands still for a while. The next sign of life may be due later.
const endsWithin = 12 * time.Second

// TokenEnds revokes a token while all that may last hangs on it.
func TokenEnds(t *testing.T, address string, h Harness) {
	t.Helper()
	ctx := h.Context(t)
	const app = "token-ends"
	if _, err := h.Apps.CreateApp(ctx, hangar.AppCreate{Name: app, Org: hangar.OrgPersonal}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Apps.DestroyApp(h.Context(t), app, true) })
	config := hangar.MachineConfig{Image: h.Image}
	if h.EchoPort != 0 {
		config.Init.Exec = h.Echo
	}
	m, err := h.Machines.CreateMachine(ctx, app, hangar.MachineCreate{Config: config})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Machines.WaitMachine(ctx, m.Ref(), hangar.MachineWait{}); err != nil {
		t.Fatal(err)
	}
	made, err := h.Tokens.CreateToken(ctx, hangar.TokenCreate{Kind: hangar.TokenDeploy, Apps: []hangar.AppName{app}})
	if err != nil {
		t.Fatal(err)
	}
	other, err := h.Tokens.CreateToken(ctx, hangar.TokenCreate{Kind: hangar.TokenReadOnly})
	if err != nil {
		t.Fatal(err)
	}
	holder := client.New(address, other.Text+","+made.Text)
	t.Cleanup(holder.Close)
	// For what shows no sign of having begun, and is refused if it has not.
	single := client.New(address, made.Text)
	t.Cleanup(single.Close)

	type end struct {
		what string
		err  error
	}
	began, ended := make(chan string, 4), make(chan end, 6)
	lasting := 5
	if h.EchoPort != 0 {
		lasting++
		conn, err := dialEcho(ctx, h, holder, m.Ref())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		go func() {
			_, err := conn.Read(make([]byte, 1))
			ended <- end{"connection", err}
		}()
	}
	go func() {
		var err error
		for _, err = range holder.FollowLogs(ctx, app, hangar.LogQuery{}) {
			began <- "logs"
		}
		ended <- end{"logs", err}
	}()
	go func() {
		var err error
		for _, err = range holder.WatchMachine(ctx, m.Ref()) {
			began <- "watch"
		}
		ended <- end{"watch", err}
	}()
	stdin, typed := io.Pipe()
	shown, stdout := io.Pipe()
	go func() {
		_, err := holder.ExecMachine(ctx, m.Ref(), hangar.ExecRequest{Command: []string{"cat"}}, hangar.ExecStreams{Stdin: stdin, Stdout: stdout})
		ended <- end{"exec", err}
	}()
	go func() {
		if _, err := typed.Write([]byte("hello\n")); err != nil {
			t.Error(err)
		}
		_, _ = io.ReadFull(shown, make([]byte, len("hello\n")))
		began <- "exec"
	}()
	go func() {
		_, err := single.ExecMachine(ctx, m.Ref(), hangar.ExecRequest{Command: h.Sleep}, hangar.ExecStreams{})
		ended <- end{"exec without streams", err}
	}()
	go func() {
		_, err := single.WaitMachine(ctx, m.Ref(), hangar.MachineWait{States: []hangar.MachineState{hangar.MachineStopped}})
		ended <- end{"wait", err}
	}()
	for seen := map[string]bool{}; len(seen) < 3; {
		select {
		case what := <-began:
			seen[what] = true
		case e := <-ended:
			t.Fatalf("%s has ended early: %v", e.what, e.err)
		case <-ctx.Done():
			t.Fatalf("only %v have begun", seen)
		}
	}
	go func() { // drain the rest
		for range began {
		}
	}()
	if err := h.Tokens.RevokeToken(ctx, string(made.ID)); err != nil {
		t.Fatal(err)
	}
	revoked := time.Now()
	for range lasting {
		e := <-ended
		if took := time.Since(revoked); hangar.CodeOf(e.err) != hangar.CodeUnauthenticated || took > endsWithin {
			t.Errorf("%s has ended after %s with %v, want unauthenticated at once", e.what, took, e.err)
		} else {
			t.Logf("%s has ended after %s: %v", e.what, took, e.err)
		}
	}
	close(began)
	_ = typed.Close()
	_ = shown.Close()
}

// dialEcho connects to a program that may be about to listen.
func dialEcho(ctx context.Context, h Harness, c *client.Client, ref hangar.MachineRef) (net.Conn, error) {
	for {
		conn, err := c.DialMachine(ctx, ref, h.EchoPort)
		if hangar.ReasonOf(err) != hangar.ReasonConnectionRefused || ctx.Err() != nil {
			return conn, err
		}
	}
}
