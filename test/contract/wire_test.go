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
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/test/contract/fake"
)

// failing answers every listing with an error.
type failing struct {
	hangar.AppService
	err error
}

func (f *failing) Apps(context.Context, hangar.AppFilter) ([]*hangar.App, error) { return nil, f.err }

func TestErrorsCrossTheWire(t *testing.T) {
	f := &failing{}
	server := httptest.NewServer(api.New(api.Config{
		Apps: f, Auth: fake.Tokens{token: {Admin: true}}, Log: slog.New(slog.DiscardHandler),
	}))
	defer server.Close()
	c := client.New(server.URL, token)
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

// TestTerminal checks what the suites cannot ask of every implementation: sizes
// and stderr.
func TestTerminal(t *testing.T) {
	h := serve(t, nil, "")
	ctx := t.Context()
	if _, err := h.Apps.CreateApp(ctx, hangar.AppCreate{Name: "web", Org: hangar.OrgPersonal}); err != nil {
		t.Fatal(err)
	}
	m, err := h.Machines.CreateMachine(ctx, "web", hangar.MachineCreate{Config: hangar.MachineConfig{Image: "nginx"}})
	if err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	streams := hangar.ExecStreams{Stdout: &stdout, Stderr: &stderr}
	req := hangar.ExecRequest{Command: []string{"size"}, TTY: true, Size: hangar.TerminalSize{Rows: 40, Cols: 120}}
	if _, err := h.Machines.ExecMachine(ctx, m.Ref(), req, streams); err != nil {
		t.Fatal(err)
	}
	if got := stdout.String(); got != "40 120\n" {
		t.Errorf("the command sees a terminal of %q", got)
	}
	sizes := make(chan hangar.TerminalSize, 1)
	sizes <- hangar.TerminalSize{Rows: 1, Cols: 65535}
	stdout.Reset()
	streams.Resize = sizes
	req.Command = []string{"sizes", "1"}
	if _, err := h.Machines.ExecMachine(ctx, m.Ref(), req, streams); err != nil {
		t.Fatal(err)
	}
	if got := stdout.String(); got != "1 65535\n" {
		t.Errorf("the command sees a terminal of %q after it changed", got)
	}
	if _, err := h.Machines.ExecMachine(ctx, m.Ref(), hangar.ExecRequest{Command: []string{"warn", "careful"}}, streams); err != nil {
		t.Fatal(err)
	}
	if got := stderr.String(); got != "careful\n" {
		t.Errorf("stderr is %q", got)
	}
	_, err = h.Machines.ExecMachine(ctx, m.Ref(), hangar.ExecRequest{Command: []string{"nothing"}}, hangar.ExecStreams{})
	if err != nil {
		t.Errorf("a command that is not there is an error: %v", err)
	}
}

func TestLogs(t *testing.T) {
	s := fake.New("loc")
	server := httptest.NewServer(api.New(api.Config{
		Apps: s, Machines: s, Logs: s, Images: s, Platform: s, Auth: fake.Tokens{token: {Admin: true}}, Region: "loc",
		Log: slog.New(slog.DiscardHandler),
	}))
	defer server.Close()
	c := client.New(server.URL, token)
	defer c.Close()
	ctx := t.Context()
	if _, err := c.CreateApp(ctx, hangar.AppCreate{Name: "web", Org: hangar.OrgPersonal}); err != nil {
		t.Fatal(err)
	}
	m, err := c.CreateMachine(ctx, "web", hangar.MachineCreate{Config: hangar.MachineConfig{Image: "nginx"}})
	if err != nil {
		t.Fatal(err)
	}
	page, err := c.Logs(ctx, "web", hangar.LogQuery{Instance: m.ID})
	if err != nil || len(page.Entries) != 2 || page.Entries[1].Provider != hangar.LogApp || page.Entries[1].Instance != m.ID {
		t.Fatalf("first page is %+v, %v", page, err)
	}
	page, err = c.Logs(ctx, "web", hangar.LogQuery{Token: page.Next})
	if err != nil || len(page.Entries) != 0 {
		t.Fatalf("page after the last is %+v, %v", page, err)
	}
	s.Log(m.ID, "a line")
	var got []string
	for e, err := range c.FollowLogs(ctx, "web", hangar.LogQuery{Token: page.Next}) {
		if err != nil {
			t.Fatal(err)
		}
		if got = append(got, e.Message); len(got) == 2 {
			break
		}
		s.Log(m.ID, "a line <&> while following")
	}
	if want := []string{"a line", "a line <&> while following"}; !slices.Equal(got, want) {
		t.Errorf("followed %q, want %q", got, want)
	}
	var seen []hangar.LogEntry
	asked := make(chan error, 1)
	request := hangar.EdgeRequest{
		Client: netip.MustParseAddr("2001:db8::7"), Method: "GET", Host: "web.example", Path: "/", Proto: "HTTP/2.0", Status: 200, Bytes: 5, Millis: 1.5,
	}
	go func() {
		for _, id := range []hangar.MachineID{"11111111111111", m.ID} {
			if err := s.Request(ctx, "web", id, request); err != nil {
				asked <- err
				return
			}
		}
		asked <- nil
	}()
	for e, err := range c.FollowLogs(ctx, "web", hangar.LogQuery{Edge: true, Instance: m.ID}) {
		if err != nil {
			t.Fatal(err)
		}
		seen = append(seen, e)
		break
	}
	if err := <-asked; err != nil {
		t.Fatal(err)
	}
	if len(seen) != 1 || seen[0].Instance != m.ID || seen[0].Edge == nil || *seen[0].Edge != request || seen[0].Provider != hangar.LogProxy {
		t.Errorf("the edge is followed to %+v", seen)
	}
	if _, err := c.Logs(ctx, "web", hangar.LogQuery{Edge: true}); hangar.CodeOf(err) != hangar.CodeInvalid {
		t.Errorf("a page of what the edge did: %v", err)
	}
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
