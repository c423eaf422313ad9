package replica

import (
	"database/sql"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	_ "github.com/mattn/go-sqlite3"
	"github.com/superfly/ltx"

	"github.com/hangar-platform/hangar/replica/database"
	"github.com/hangar-platform/hangar/replica/lease"
	"github.com/hangar-platform/hangar/replica/stream"
)

// TestLostReplica: a client that was lost without a word is disconnected. It reads what the server sends, and never
// answers.
func TestLostReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		listener := oneConn{conns: make(chan net.Conn)}
		server := New(Config{Log: slog.New(slog.DiscardHandler)}).NewServer()
		served := make(chan error)
		go func() { served <- server.Serve(listener) }()
		client, conn := net.Pipe()
		listener.conns <- conn
		settings := []byte{0, 0, 0, 4, 0, 0, 0, 0, 0}
		if _, err := client.Write(append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), settings...)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, client); err != nil {
			t.Error(err)
		}
		close(listener.conns)
		<-served
		if err := errors.Join(server.Close(), client.Close()); err != nil {
			t.Error(err)
		}
	})
}

// elected is the lease of a node that holds it, and may lose it.
type elected struct{ *lease.Static }

// silent is a replica at fixed positions that stores nothing.
type silent struct {
	at   map[string]ltx.Pos
	done chan struct{}
}

func (s silent) Database(string, bool) (*database.DB, error) { <-s.done; return nil, io.ErrClosedPipe }
func (s silent) Positions() map[string]ltx.Pos               { return s.at }
func (silent) Join(string, string, uint64) error             { return nil }
func (silent) Current(uint64) error                          { return nil }
func (silent) CaughtUp(time.Time)                            {}

// TestQuorumOfSilentReplica: of two replicas one leaves and comes back, and the other one is connected but acknowledges
// nothing. Commits do not wait for that.
func TestQuorumOfSilentReplica(t *testing.T) {
	root := t.TempDir()
	n := New(Config{
		Data: filepath.Join(root, "data"), Dir: filepath.Join(root, "files"), Capture: Tail, Replicas: 1, ProxyWaits: true,
		Lease: elected{lease.NewStatic(true, lease.Peer{})}, Log: slog.New(slog.DiscardHandler),
	})
	path := filepath.Join(root, "import")
	file, err := sql.Open("sqlite3", "file:"+path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.Exec("CREATE TABLE t(v)"); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(file.Close(), n.Open()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	n.leading.Store(1)
	pages, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer pages.Close()
	db, err := n.Database("app.db", true)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Import(t.Context(), pages); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := n.NewServer()
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	connect := func(id uint64, at map[string]ltx.Pos) {
		s := silent{at, make(chan struct{})}
		transport := n.newTransport()
		f := stream.Follower{Replica: s, Client: &http.Client{Transport: transport}, Node: id, Candidate: true}
		left := make(chan error)
		go func() { left <- f.Follow(t.Context(), "http://"+listener.Addr().String()) }()
		t.Cleanup(func() { close(s.done); <-left; transport.CloseIdleConnections() })
	}
	all := lease.Quorum{Nodes: []uint64{1, 2, n.ID()}, Copies: 2}
	n.sync.now = all
	connect(1, nil)
	for news := n.sender.News(); n.sender.Count() < 1; news = n.sender.News() {
		<-news
	}
	changed := make(chan error)
	go func() { changed <- quorum{n}.changeQuorum(t.Context(), lease.Term{Epoch: 1}) }()
	for waits := false; !waits; time.Sleep(time.Millisecond) {
		n.sync.mu.Lock()
		waits = n.sync.next != nil
		n.sync.mu.Unlock()
	}
	connect(2, map[string]ltx.Pos{"app.db": db.Pos()})
	if err := <-changed; err != nil {
		t.Fatal(err)
	}
	if err := n.WaitReplicas(t.Context(), "app.db", db.Pos().TXID, 1); err != nil {
		t.Error(err)
	}
	if !n.sync.now.Equal(all) {
		t.Error("the quorum is ", n.sync.now)
	}
}
