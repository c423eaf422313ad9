package contract_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/test/platform"
)

// failing answers every listing with an error.
type failing struct {
	hangar.AppService
	err error
}

func (f *failing) Apps(context.Context, hangar.AppFilter) ([]*hangar.App, error) { return nil, f.err }

// admins takes every token for that of an administrator.
type admins struct{}

func (admins) Authenticate(context.Context, string) (hangar.Principal, error) {
	return hangar.Principal{Subject: "admin", Admin: true}, nil
}

func (admins) Life(hangar.TokenID) context.Context { return context.Background() }

func TestErrorsCrossTheWire(t *testing.T) {
	f := &failing{}
	server := httptest.NewServer(api.New(api.Config{
		Apps: f, Auth: admins{}, Log: slog.New(slog.DiscardHandler),
	}))
	defer server.Close()
	c := client.New(server.URL, "any")
	defer c.Close()
	for _, code := range hangar.Codes() {
		for _, reason := range []string{"", hangar.ReasonNameTaken, hangar.ReasonWrongState, "a_new_one"} {
			want := &hangar.Error{Code: code, Reason: reason, Message: "text for the user", Err: errors.New("a secret cause")}
			f.err = want
			_, err := c.Apps(t.Context(), hangar.AppFilter{})
			var got *hangar.Error
			if !errors.As(err, &got) {
				t.Errorf("%s: got %v", code, err)
				continue
			}
			if got.Code != want.Code || got.Reason != want.Reason || got.Message != want.Message {
				t.Errorf("got %+v, want %+v", got, want)
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("the cause crossed the wire: %v", err)
			}
		}
	}
}

// started makes the App web with a Machine that has a service.
func started(t *testing.T, c *client.Client) *hangar.Machine {
	t.Helper()
	if _, err := c.CreateApp(t.Context(), hangar.AppCreate{Name: "web", Org: hangar.OrgPersonal}); err != nil {
		t.Fatal(err)
	}
	m, err := c.CreateMachine(t.Context(), "web", hangar.MachineCreate{Config: hangar.MachineConfig{
		Image: "nginx", Init: hangar.Init{Exec: []string{"sh", "-c", "echo hello; serve"}},
		Services: []hangar.Service{{InternalPort: platform.HTTPPort, Protocol: "tcp", Ports: []hangar.ServicePort{{Port: 80, Handlers: []string{"http"}}}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.WaitMachine(t.Context(), m.Ref(), hangar.MachineWait{}); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestTerminal checks what the suites cannot ask of every implementation: sizes
// and stderr.
func TestTerminal(t *testing.T) {
	ctx := t.Context()
	c := serve(t).Client()
	m := started(t, c)
	var stdout, stderr bytes.Buffer
	streams := hangar.ExecStreams{Stdout: &stdout, Stderr: &stderr}
	req := hangar.ExecRequest{Command: []string{"size"}, TTY: true, Size: hangar.TerminalSize{Rows: 40, Cols: 120}}
	if _, err := c.ExecMachine(ctx, m.Ref(), req, streams); err != nil {
		t.Fatal(err)
	}
	if got := stdout.String(); got != "40x120\n" {
		t.Errorf("the command sees a terminal of %q", got)
	}
	sizes := make(chan hangar.TerminalSize, 1)
	sizes <- hangar.TerminalSize{Rows: 1, Cols: 65535}
	stdout.Reset()
	streams.Resize = sizes
	req.Command = []string{"sizes", "1"}
	if _, err := c.ExecMachine(ctx, m.Ref(), req, streams); err != nil {
		t.Fatal(err)
	}
	if got := stdout.String(); got != "1x65535\n" {
		t.Errorf("the command sees a terminal of %q after it changed", got)
	}
	if _, err := c.ExecMachine(ctx, m.Ref(), hangar.ExecRequest{Command: []string{"stderr", "careful"}}, streams); err != nil {
		t.Fatal(err)
	}
	if got := stderr.String(); got != "careful\n" {
		t.Errorf("stderr is %q", got)
	}
	_, err := c.ExecMachine(ctx, m.Ref(), hangar.ExecRequest{Command: []string{"nothing"}}, hangar.ExecStreams{})
	if hangar.CodeOf(err) != hangar.CodeInvalid || !strings.Contains(err.Error(), `"nothing"`) {
		t.Errorf("a command that is not there: %v", err)
	}
}

func TestLogs(t *testing.T) {
	p := serve(t)
	c := p.Client()
	ctx := t.Context()
	m := started(t, c)
	fromApp := func(e hangar.LogEntry) bool {
		return e.Provider == hangar.LogApp && e.Instance == m.ID && e.Message == "hello"
	}
	var page hangar.LogPage
	for !slices.ContainsFunc(page.Entries, fromApp) { // a line is written a moment after the program says it
		var err error
		if page, err = c.Logs(ctx, "web", hangar.LogQuery{Instance: m.ID}); err != nil {
			t.Fatalf("first page is %+v, %v", page, err)
		}
	}
	page, err := c.Logs(ctx, "web", hangar.LogQuery{Token: page.Next})
	if err != nil || len(page.Entries) != 0 {
		t.Fatalf("page after the last is %+v, %v", page, err)
	}
	say := func(text string) {
		t.Helper()
		if r, err := c.ExecMachine(ctx, m.Ref(), hangar.ExecRequest{Command: []string{"say", text}}, hangar.ExecStreams{}); err != nil || r.ExitCode != 0 {
			t.Fatalf("say: %+v, %v", r, err)
		}
	}
	say("a line")
	var got []string
	for e, err := range c.FollowLogs(ctx, "web", hangar.LogQuery{Token: page.Next}) {
		if err != nil {
			t.Fatal(err)
		}
		if got = append(got, e.Message); len(got) == 2 {
			break
		}
		say("a line <&> while following")
	}
	if want := []string{"a line", "a line <&> while following"}; !slices.Equal(got, want) {
		t.Errorf("followed %q, want %q", got, want)
	}
	testEdgeLog(t, p, c, m)
	images, err := c.Images(ctx)
	if err != nil || len(images) != 1 || !images[0].InUse {
		t.Fatalf("images are %+v, %v", images, err)
	}
	if err := c.RemoveImage(ctx, images[0].Ref.Digest); hangar.CodeOf(err) != hangar.CodeFailedPrecondition {
		t.Errorf("removing an image in use: %v", err)
	}
	for _, err := range c.FollowLogs(ctx, "nothing", hangar.LogQuery{}) {
		if hangar.CodeOf(err) != hangar.CodeNotFound {
			t.Errorf("following the logs of no app: %v", err)
		}
	}
}

// testEdgeLog follows requests of a Machine, beside another one of the same App.
func testEdgeLog(t *testing.T, p *platform.Platform, c *client.Client, m *hangar.Machine) {
	t.Helper()
	other, err := c.CreateMachine(t.Context(), "web", hangar.MachineCreate{Config: m.Config})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.WaitMachine(t.Context(), other.Ref(), hangar.MachineWait{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.AllocateAddress(t.Context(), "web", hangar.AddressCreate{Kind: hangar.AddressSharedV4}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel()
	asking.Go(func() {
		defer cancel()
		for n := 0; ctx.Err() == nil; n++ { // those before the log is followed are not in it
			id := []hangar.MachineID{other.ID, m.ID}[n%2]
			if status, err := p.Request(ctx, "web", "/status/201?n=1", "Fly-Force-Instance-Id", string(id)); ctx.Err() == nil && (err != nil || status != 201) {
				t.Errorf("a request is answered %d, %v", status, err)
				return
			}
		}
	})
	var seen []hangar.LogEntry
	for e, err := range c.FollowLogs(ctx, "web", hangar.LogQuery{Edge: true, Instance: m.ID}) {
		if err != nil {
			t.Fatal(err)
		}
		if seen = append(seen, e); len(seen) == 2 {
			break
		}
	}
	for _, e := range seen {
		if e.Instance != m.ID || e.Provider != hangar.LogProxy || e.Edge == nil {
			t.Fatalf("the edge is followed to %+v", e)
		}
		got, want := *e.Edge, hangar.EdgeRequest{
			Client: netip.MustParseAddr("127.0.0.1"), Method: "GET", Host: "web.hangar.localhost", Path: "/status/201?n=1", Proto: "HTTP/1.1", Status: 201, Bytes: 6,
			UserAgent: "Go-http-client/1.1",
		}
		if got.Millis <= 0 || got.RequestID == "" {
			t.Errorf("the edge says %+v", got)
		}
		if want.Millis, want.RequestID = got.Millis, got.RequestID; got != want {
			t.Errorf("the edge says %+v, want %+v", got, want)
		}
	}
	if _, err := c.Logs(t.Context(), "web", hangar.LogQuery{Edge: true}); hangar.CodeOf(err) != hangar.CodeInvalid {
		t.Errorf("a page of what the edge did: %v", err)
	}
}
