package remote_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/remote"
	"github.com/hangar-platform/hangar/host/remote/remotetest"
)

// await waits for a condition without an event.
func await(tb testing.TB, true func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(time.Minute); !true(); <-time.After(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			tb.Fatal("it did not happen")
		}
	}
}

var errStub = hangar.Errorf(hangar.CodeConflict, hangar.ReasonNameTaken, "taken")

func TestCallsAndErrors(t *testing.T) {
	var got hangar.MachineSpec
	var subject, nonce string
	s := &stub{id: other, create: func(ctx context.Context, spec hangar.MachineSpec) (*hangar.Machine, error) {
		got, nonce = spec, hangar.LeaseNonceFrom(ctx)
		p, _ := hangar.PrincipalFrom(ctx)
		subject = p.Subject
		if spec.Name == "taken" {
			return nil, errStub
		}
		return &hangar.Machine{ID: spec.ID, Config: spec.Config}, nil
	}}
	w := newWorld(t, s, s)
	ctx := hangar.WithPrincipal(hangar.WithLeaseNonce(t.Context(), "abc"), hangar.Principal{Subject: "token me"})
	c, err := hangar.ParseMachineConfig([]byte(`{"image":"web","extra":1}`))
	if err != nil {
		t.Fatal(err)
	}
	made, err := w.agent().CreateMachine(ctx, hangar.MachineSpec{ID: "1", Config: c, Secrets: hangar.SecretValues{
		Version: 1, Values: map[string]hangar.Sensitive{"KEY": hangar.NewSensitive("hush")},
	}})
	if err != nil || made.ID != "1" || got.Secrets.Values["KEY"].Reveal() != "hush" || subject != "token me" || nonce != "abc" {
		t.Errorf("got %+v %v for %s with %q", made, err, subject, nonce)
	}
	if doc, err := made.Config.MarshalJSON(); err != nil || !bytes.Contains(doc, []byte(`"extra":1`)) {
		t.Errorf("got the config %s %v", doc, err)
	}
	_, err = w.agent().CreateMachine(ctx, hangar.MachineSpec{Name: "taken"})
	if hangar.CodeOf(err) != errStub.Code || hangar.ReasonOf(err) != errStub.Reason || hangar.MessageOf(err) != errStub.Message {
		t.Errorf("got %v", err)
	}
}

func TestCancelTravels(t *testing.T) {
	waits, ended := make(chan struct{}), make(chan error, 1)
	s := &stub{id: other, wait: func(ctx context.Context) error {
		if _, ok := ctx.Deadline(); !ok {
			t.Error("the deadline does not travel")
		}
		close(waits)
		<-ctx.Done()
		ended <- ctx.Err()
		return ctx.Err()
	}}
	w := newWorld(t, s, s)
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	go func() {
		<-waits
		cancel()
	}()
	_, err := w.agent().WaitMachine(ctx, hangar.MachineRef{}, hangar.MachineWait{})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the host sees %v", err)
	}
}

func TestDeadlineTravels(t *testing.T) {
	s := &stub{id: other, wait: func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}}
	w := newWorld(t, s, s)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := w.agent().WaitMachine(ctx, hangar.MachineRef{}, hangar.MachineWait{}); hangar.CodeOf(err) != hangar.CodeTimeout {
		t.Errorf("got %v", err)
	}
}

// TestChangesFinish: a change continues when the connection breaks, and is not made twice.
func TestChangesFinish(t *testing.T) {
	begun, ended := make(chan struct{}), make(chan error, 2)
	goOn := make(chan struct{})
	s := &stub{id: other, wait: func(ctx context.Context) error {
		close(begun) // a second time, it panics
		<-goOn
		ended <- ctx.Err()
		return nil
	}}
	w := newWorld(t, s, s)
	go func() {
		<-begun
		w.line.cut()
	}()
	err := w.agent().SuspendMachine(t.Context(), hangar.MachineRef{})
	if hangar.CodeOf(err) != hangar.CodeUnavailable || hangar.ReasonOf(err) != "" {
		t.Errorf("got %v", err)
	}
	close(goOn)
	if err := <-ended; err != nil {
		t.Errorf("the change saw %v", err)
	}
}

// TestSilentHost: a host that no longer answers is found out without a deadline of the caller, and
// found again.
func TestSilentHost(t *testing.T) {
	s := &stub{id: other, room: func() (hangar.HostRoom, error) { return hangar.HostRoom{Memory: 7}, nil }}
	w := newHastyWorld(t, s, s)
	a := w.agent()
	w.await(func() bool { _, err := a.Room(t.Context()); return err == nil })
	w.line.hush()
	for range 3 { // over the connection there is, by a new one, and while it is known
		if _, err := a.Room(t.Context()); hangar.CodeOf(err) != hangar.CodeUnavailable {
			t.Errorf("got %v", err)
		}
	}
	w.line.speak()
	w.await(func() bool {
		room, err := a.Room(t.Context())
		return err == nil && room.Memory == 7
	})
}

func TestOnlyHostsMayCall(t *testing.T) {
	s := &stub{id: other, room: func() (hangar.HostRoom, error) { return hangar.HostRoom{}, nil }}
	w := newWorld(t, s, s)
	stranger := remotetest.NewAuthority(t)
	refusing := w.serve(remote.NewHandler(remote.HandlerConfig{
		Agent: s, Gate: s, Log: slog.New(slog.DiscardHandler), Admits: func(hangar.HostID) bool { return false },
	}))
	for name, c := range map[string]struct {
		own     tls.Certificate
		address string
		status  int // 0: there is no connection
	}{
		"host":            {w.authority.Certificate(remotetest.URI(self)), w.line.address, http.StatusOK},
		"removed host":    {w.authority.Certificate(remotetest.URI(self)), refusing, http.StatusForbidden},
		"without a URI":   {w.authority.Certificate(), w.line.address, http.StatusForbidden},
		"other URI":       {w.authority.Certificate("hangar://user/0000aaaa"), w.line.address, http.StatusForbidden},
		"two URIs":        {w.authority.Certificate(remotetest.URI(self), remotetest.URI(other)), w.line.address, http.StatusForbidden},
		"longer URI":      {w.authority.Certificate(remotetest.URI(self) + "/more"), w.line.address, http.StatusForbidden},
		"empty URI":       {w.authority.Certificate(remotetest.URI("")), w.line.address, http.StatusForbidden},
		"other authority": {stranger.Certificate(remotetest.URI(self)), w.line.address, 0},
	} {
		t.Run(name, func(t *testing.T) {
			transport := remotetest.Patient(remote.Transport(w.authority.Client(c.own, other)))
			defer transport.CloseIdleConnections()
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+c.address+remote.Path+"Room", strings.NewReader("c\x00\x00\x00\x0b{\"args\":[]}"))
			if err != nil {
				t.Fatal(err)
			}
			res, err := transport.RoundTrip(req)
			if err != nil {
				if c.status != 0 {
					t.Error(err)
				}
				return
			}
			defer res.Body.Close()
			if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode != c.status {
				t.Errorf("got %s %v, want %d", res.Status, err, c.status)
			}
		})
	}
}

// TestWrongHost: the certificate has to be that of the host which is asked for.
func TestWrongHost(t *testing.T) {
	s := &stub{id: other}
	w := newWorld(t, s, s)
	w.feed.put(hangar.Host{ID: "0000cccc", Address: w.line.address})
	w.await(func() bool { return len(w.Known()) == 3 })
	a, err := w.Agent("0000cccc")
	if err == nil {
		_, err = a.Room(t.Context())
	}
	if hangar.CodeOf(err) != hangar.CodeUnavailable {
		t.Errorf("got %v", err)
	}
}

// TestOtherVersion: a host that does not know a method, or knows it with other arguments.
func TestOtherVersion(t *testing.T) {
	s := &stub{id: other}
	w := newWorld(t, s, s)
	next := remote.NewHandler(remote.HandlerConfig{Agent: s, Gate: s, Log: slog.New(slog.DiscardHandler)})
	address := w.serve(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/Bid") {
			r.URL.Path = remote.Path + "Machines" // as if it took more
		} else {
			r.URL.Path += "OfOld"
		}
		next.ServeHTTP(rw, r)
	}))
	w.feed.put(hangar.Host{ID: other, Address: address})
	w.await(func() bool { return w.agent().Host().Address == address })
	_, unknown := w.agent().Room(t.Context())
	_, changed := w.agent().Bid(t.Context(), hangar.MachineAsk{})
	for _, err := range []error{unknown, changed} {
		if hangar.CodeOf(err) != hangar.CodeUnimplemented || !strings.Contains(err.Error(), "another version") {
			t.Errorf("got %v", err)
		}
	}
}

func TestStreams(t *testing.T) {
	broken := make(chan struct{})
	s := &stub{id: other, follow: func(ctx context.Context) iter.Seq2[hangar.LogEntry, error] {
		return func(yield func(hangar.LogEntry, error) bool) {
			defer close(broken)
			for i := range 3 {
				if !yield(hangar.LogEntry{Message: strings.Repeat("x", i)}, nil) {
					return
				}
			}
			<-ctx.Done()
		}
	}}
	w := newWorld(t, s, s)
	n := 0
	for entry, err := range w.agent().FollowLogs(t.Context(), "app", hangar.LogQuery{}) {
		if err != nil || len(entry.Message) != n {
			t.Fatalf("got %+v %v", entry, err)
		}
		if n++; n == 3 {
			break
		}
	}
	<-broken // the host learns that no one follows
	s.follow = func(context.Context) iter.Seq2[hangar.LogEntry, error] {
		return func(yield func(hangar.LogEntry, error) bool) { yield(hangar.LogEntry{}, errStub) }
	}
	for _, err := range w.agent().FollowLogs(t.Context(), "app", hangar.LogQuery{}) {
		if hangar.ReasonOf(err) != errStub.Reason {
			t.Errorf("got %v", err)
		}
	}
	s.follow = func(context.Context) iter.Seq2[hangar.LogEntry, error] {
		return func(yield func(hangar.LogEntry, error) bool) { yield(hangar.LogEntry{Message: "last"}, nil) }
	}
	n = 0
	for _, err := range w.agent().FollowLogs(t.Context(), "app", hangar.LogQuery{}) {
		if err != nil {
			t.Error(err)
		}
		n++
	}
	if n != 1 {
		t.Errorf("got %d values", n)
	}
}

// TestCutStream: a stream that was cut off has no clean end.
func TestCutStream(t *testing.T) {
	s := &stub{id: other, follow: func(ctx context.Context) iter.Seq2[hangar.LogEntry, error] {
		return func(yield func(hangar.LogEntry, error) bool) {
			yield(hangar.LogEntry{Message: "first"}, nil)
			<-ctx.Done()
		}
	}}
	w := newWorld(t, s, s)
	var last error
	for _, err := range w.agent().FollowLogs(t.Context(), "app", hangar.LogQuery{}) {
		last = err
		w.line.cut()
	}
	if hangar.CodeOf(last) != hangar.CodeUnavailable {
		t.Errorf("got %v", last)
	}
}

// deadline is a context whose deadline passes when the test says so.
type deadline struct {
	context.Context
	passed chan struct{}
}

func (deadline) Deadline() (time.Time, bool) { return time.Now().Add(time.Hour), true }

func (d deadline) Done() <-chan struct{} { return d.passed }

func (d deadline) Err() error {
	select {
	case <-d.passed:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

func TestExec(t *testing.T) {
	size := make(chan hangar.TerminalSize, 1)
	s := &stub{id: other, exec: func(ctx context.Context, req hangar.ExecRequest, streams hangar.ExecStreams) (hangar.ExecResult, error) {
		switch req.Command[0] {
		case "cat":
			_, err := io.Copy(streams.Stdout, streams.Stdin)
			size <- <-streams.Resize
			_, _ = streams.Stderr.Write([]byte("done"))
			return hangar.ExecResult{ExitCode: 3}, err
		case "deaf": // ends without reading
			return hangar.ExecResult{ExitCode: 4}, nil
		case "sleep":
			size <- hangar.TerminalSize{} // it runs
			<-ctx.Done()
			size <- hangar.TerminalSize{}
			return hangar.ExecResult{}, ctx.Err()
		default:
			return hangar.ExecResult{}, errStub
		}
	}}
	w := newWorld(t, s, s)
	in := bytes.Repeat([]byte("0123456789"), 50_000)
	sizes := make(chan hangar.TerminalSize, 1)
	sizes <- hangar.TerminalSize{Rows: 7, Cols: 9}
	var out, errs bytes.Buffer
	result, err := w.agent().ExecMachine(t.Context(), hangar.MachineRef{}, hangar.ExecRequest{Command: []string{"cat"}},
		hangar.ExecStreams{Stdin: bytes.NewReader(in), Stdout: &out, Stderr: &errs, Resize: sizes})
	if err != nil || result.ExitCode != 3 || !bytes.Equal(out.Bytes(), in) || errs.String() != "done" || <-size != (hangar.TerminalSize{Rows: 7, Cols: 9}) {
		t.Errorf("got %+v %v with %d bytes and %q", result, err, out.Len(), &errs)
	}
	result, err = w.agent().ExecMachine(t.Context(), hangar.MachineRef{}, hangar.ExecRequest{Command: []string{"deaf"}}, hangar.ExecStreams{Stdin: bytes.NewReader(in)})
	if err != nil || result.ExitCode != 4 {
		t.Errorf("got %+v %v", result, err)
	}
	if _, err := w.agent().ExecMachine(t.Context(), hangar.MachineRef{}, hangar.ExecRequest{Command: []string{"x"}}, hangar.ExecStreams{}); hangar.ReasonOf(err) != errStub.Reason {
		t.Errorf("got %v", err)
	}
	ctx := deadline{t.Context(), make(chan struct{})}
	go func() {
		<-size
		close(ctx.passed)
	}()
	if _, err := w.agent().ExecMachine(ctx, hangar.MachineRef{}, hangar.ExecRequest{Command: []string{"sleep"}}, hangar.ExecStreams{}); hangar.CodeOf(err) != hangar.CodeTimeout {
		t.Errorf("got %v", err)
	}
	<-size // the command was killed
}
