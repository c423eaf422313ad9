package remote_test

import (
	"context"
	"io"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/remote"
	"github.com/hangar-platform/hangar/host/remote/remotetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	self  hangar.HostID = "0000aaaa"
	other hangar.HostID = "0000bbbb"
)

// stub is a host whose methods a test sets. One that is not set panics.
type stub struct {
	hangar.Agent
	hangar.MachineGate

	id     hangar.HostID
	create func(context.Context, hangar.MachineSpec) (*hangar.Machine, error)
	wait   func(context.Context) error
	room   func() (hangar.HostRoom, error)
	exec   func(context.Context, hangar.ExecRequest, hangar.ExecStreams) (hangar.ExecResult, error)
	dial   func(ctx context.Context, port int) (net.Conn, error)
	follow func(context.Context) iter.Seq2[hangar.LogEntry, error]
	enter  func(hangar.MachineRef, int) (func(), error)
	file   func(path string) (hangar.MachineFile, error)
	log    func(message string)
}

func (s *stub) Host() hangar.Host { return hangar.Host{ID: s.id, Region: "loc"} }

func (s *stub) CreateMachine(ctx context.Context, spec hangar.MachineSpec) (*hangar.Machine, error) {
	return s.create(ctx, spec)
}

func (s *stub) WaitMachine(ctx context.Context, _ hangar.MachineRef, _ hangar.MachineWait) (hangar.MachineReached, error) {
	return hangar.MachineReached{}, s.wait(ctx)
}

func (s *stub) SuspendMachine(ctx context.Context, _ hangar.MachineRef) error { return s.wait(ctx) }

func (s *stub) Room(context.Context) (hangar.HostRoom, error) { return s.room() }

func (s *stub) ExecMachine(ctx context.Context, _ hangar.MachineRef, req hangar.ExecRequest, streams hangar.ExecStreams) (hangar.ExecResult, error) {
	return s.exec(ctx, req, streams)
}

func (s *stub) DialMachine(ctx context.Context, _ hangar.MachineRef, port int) (net.Conn, error) {
	return s.dial(ctx, port)
}

func (s *stub) DialService(ctx context.Context, _ hangar.MachineRef, port int) (net.Conn, error) {
	return s.dial(ctx, port)
}

func (s *stub) DialDatagrams(ctx context.Context, _ hangar.MachineRef, port int) (net.Conn, error) {
	return s.dial(ctx, port)
}

func (s *stub) FollowLogs(ctx context.Context, _ hangar.AppID, _ hangar.LogQuery) iter.Seq2[hangar.LogEntry, error] {
	return s.follow(ctx)
}

func (s *stub) EnterMachine(ref hangar.MachineRef, port int) (func(), error) {
	return s.enter(ref, port)
}

func (s *stub) OpenMachineFile(_ context.Context, _ hangar.MachineRef, path string) (hangar.MachineFile, error) {
	return s.file(path)
}

func (s *stub) LogEdge(_ hangar.MachineRef, _, message string) { s.log(message) }

// world is a host that others call, and a directory of another that calls it.
type world struct {
	tb        testing.TB
	patient   bool          // its transport
	enter     time.Duration // as in remote.DirectoryConfig; 0: the default
	authority *remotetest.Authority
	feed      *feed
	*remote.Directory
	line *line // between the two
	end  func()
}

// newWorld serves a host until the test ends.
func newWorld(tb testing.TB, agent hangar.Agent, gate hangar.MachineGate) *world {
	tb.Helper()
	return newWorldOf(tb, agent, gate, true, remotetest.Patience)
}

// newWorldOfVisits waits as long as servers do for the answer to a request that enters, and is patient otherwise.
func newWorldOfVisits(tb testing.TB, agent hangar.Agent, gate hangar.MachineGate) *world {
	tb.Helper()
	return newWorldOf(tb, agent, gate, true, 0)
}

// newHastyWorld finds out that a host is silent as soon as servers do, which a busy one may seem to be, too.
func newHastyWorld(tb testing.TB, agent hangar.Agent, gate hangar.MachineGate) *world {
	tb.Helper()
	return newWorldOf(tb, agent, gate, false, 0)
}

func newWorldOf(tb testing.TB, agent hangar.Agent, gate hangar.MachineGate, patient bool, enter time.Duration) *world {
	tb.Helper()
	w := &world{tb: tb, patient: patient, enter: enter, authority: remotetest.NewAuthority(tb), feed: newFeed()}
	address := w.serve(remote.NewHandler(remote.HandlerConfig{Agent: agent, Gate: gate, Log: slog.New(slog.DiscardHandler)}))
	w.line = newLine(tb, address)
	w.connect()
	w.feed.put(hangar.Host{ID: other, Region: "loc", Address: w.line.address, State: hangar.HostAlive})
	w.feed.sync()
	w.await(func() bool { return len(w.Known()) == 2 })
	return w
}

// serve serves a handler as the other host.
func (w *world) serve(h http.Handler) (address string) {
	w.tb.Helper()
	l, err := (&net.ListenConfig{}).Listen(w.tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		w.tb.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(remote.Path, h)
	server := &http.Server{
		Handler: mux, TLSConfig: w.authority.Server(w.authority.Certificate(remotetest.URI(other))), HTTP2: remote.Server(),
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0),
	}
	var served sync.WaitGroup
	served.Go(func() { _ = server.ServeTLS(l, "", "") })
	w.tb.Cleanup(func() {
		_ = server.Close()
		served.Wait()
	})
	return l.Addr().String()
}

// connect makes the directory.
func (w *world) connect() {
	own := w.authority.Certificate(remotetest.URI(self))
	c := remote.DirectoryConfig{
		Agent: &stub{id: self}, Gate: &stub{id: self}, Feed: w.feed, Log: slog.New(slog.DiscardHandler), EnterTimeout: w.enter,
		Transport: func(h hangar.Host) http.RoundTripper {
			t := remote.Transport(w.authority.Client(own, h.ID))
			if w.patient {
				return remotetest.Patient(t)
			}
			return t
		},
	}
	w.Directory = remote.NewDirectory(c)
	ctx, stop := context.WithCancel(context.WithoutCancel(w.tb.Context()))
	var running sync.WaitGroup
	running.Go(func() { _ = w.Run(ctx) })
	w.end = sync.OnceFunc(func() {
		stop()
		running.Wait()
	})
	w.tb.Cleanup(w.end)
}

func (w *world) agent() hangar.Agent {
	w.tb.Helper()
	a, err := w.Agent(other)
	if err != nil {
		w.tb.Fatal(err)
	}
	return a
}

func (w *world) gate() hangar.MachineGate {
	w.tb.Helper()
	g, err := w.Gate(other)
	if err != nil {
		w.tb.Fatal(err)
	}
	return g
}

// await waits for a condition without an event.
func (w *world) await(true func() bool) {
	w.tb.Helper()
	await(w.tb, true)
}

// feed is a hangar.HostFeed of a test.
type feed struct {
	mu      sync.Mutex
	changes []hangar.HostChange
	more    chan struct{} // closed and replaced with each change
	broken  bool
}

func newFeed() *feed { return &feed{more: make(chan struct{})} }

func (f *feed) add(c hangar.HostChange) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changes = append(f.changes, c)
	close(f.more)
	f.more = make(chan struct{})
}

func (f *feed) put(h hangar.Host)       { f.add(hangar.HostChange{ID: h.ID, Host: &h}) }
func (f *feed) remove(id hangar.HostID) { f.add(hangar.HostChange{ID: id}) }
func (f *feed) sync()                   { f.add(hangar.HostChange{Synced: true}) }

// restart breaks the feed, which then has other changes.
func (f *feed) restart(changes ...hangar.HostChange) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changes, f.broken = changes, true
	close(f.more)
	f.more = make(chan struct{})
}

// WatchHosts implements hangar.HostFeed.
func (f *feed) WatchHosts(ctx context.Context) iter.Seq2[hangar.HostChange, error] {
	return func(yield func(hangar.HostChange, error) bool) {
		for seen := 0; ; {
			f.mu.Lock()
			if f.broken {
				f.broken = false
				f.mu.Unlock()
				yield(hangar.HostChange{}, io.ErrUnexpectedEOF)
				return
			}
			changes, more := slices.Clone(f.changes[seen:]), f.more
			f.mu.Unlock()
			seen += len(changes)
			for _, c := range changes {
				if !yield(c, nil) {
					return
				}
			}
			select {
			case <-more:
			case <-ctx.Done():
				return
			}
		}
	}
}

// line carries TCP connections between hosts, and can be cut or fall silent.
type line struct {
	address string

	mu     sync.Mutex
	silent chan struct{} // not nil: nothing is carried until it is closed
	conns  map[net.Conn]struct{}
}

func newLine(tb testing.TB, to string) *line {
	tb.Helper()
	listener, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	l := &line{address: listener.Addr().String(), conns: map[net.Conn]struct{}{}}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			target, err := (&net.Dialer{}).Dial("tcp", to)
			if err != nil {
				_ = from.Close()
				continue
			}
			l.mu.Lock()
			l.conns[from], l.conns[target] = struct{}{}, struct{}{}
			l.mu.Unlock()
			all.Go(func() { l.carry(from, target) })
			all.Go(func() { l.carry(target, from) })
		}
	})
	tb.Cleanup(func() {
		_ = listener.Close()
		l.speak()
		l.cut()
		all.Wait()
	})
	return l
}

func (l *line) carry(from, to net.Conn) {
	defer from.Close()
	defer to.Close()
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		if err != nil {
			return
		}
		l.mu.Lock()
		silent := l.silent
		l.mu.Unlock()
		if silent != nil {
			<-silent
		}
		if _, err := to.Write(b[:n]); err != nil {
			return
		}
	}
}

// hush has nothing carried until speak.
func (l *line) hush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.silent = make(chan struct{})
}

func (l *line) speak() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.silent != nil {
		close(l.silent)
		l.silent = nil
	}
}

// cut breaks all connections.
func (l *line) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		_ = c.Close()
		delete(l.conns, c)
	}
}
