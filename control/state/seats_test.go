package state_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/cluster/authority"
	"github.com/hangar-platform/hangar/cluster/listener"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/internal/freeport"
)

// hosts are servers of one cluster in this process.
type hosts struct {
	t         *testing.T
	authority *authority.Authority
	seats     int
	quota     int64 // of each member; 0: the default
}

// server is a host that can be ended and started again.
type server struct {
	hosts     *hosts
	id        hangar.HostID
	dir       string
	address   string
	endpoints []string

	mu    sync.Mutex // guards saved
	saved []string
	seat  *state.Seats
	stop  func()
}

func newHosts(t *testing.T, seats int) *hosts {
	t.Helper()
	a, err := authority.New(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return &hosts{t: t, authority: a, seats: seats}
}

// server returns a host that has not started.
func (h *hosts) server(n int, endpoints ...string) *server {
	h.t.Helper()
	s := &server{hosts: h, id: hangar.HostID(fmt.Sprintf("a%07x", n)), dir: h.t.TempDir(), endpoints: endpoints}
	request, err := authority.OpenRequest(filepath.Join(s.dir, "request.key"))
	if err != nil {
		h.t.Fatal(err)
	}
	text, err := request.PEM()
	if err != nil {
		h.t.Fatal(err)
	}
	parsed, err := authority.ParseRequest(text)
	if err != nil {
		h.t.Fatal(err)
	}
	cert, err := h.authority.Sign(parsed, s.id, time.Now())
	if err != nil {
		h.t.Fatal(err)
	}
	pair, err := request.Pair(cert)
	if err != nil {
		h.t.Fatal(err)
	}
	if err := authority.Store(s.dir, pair, h.authority); err != nil {
		h.t.Fatal(err)
	}
	return s
}

func (s *server) url() string { return "https://" + s.address }

// open starts a host at its previous address.
func (s *server) open() error {
	log := slog.New(slog.DiscardHandler)
	identity, err := authority.Open(s.dir, s.id, log, time.Now)
	if err != nil {
		return err
	}
	if s.address == "" {
		if s.address, err = freeport.Address(s.hosts.t.Context()); err != nil {
			return err
		}
	}
	inner, err := net.Listen("tcp", s.address)
	if err != nil {
		return err
	}
	door := listener.New(identity, nil, log)
	cert, _, root := identity.Files()
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.hosts.t.Context()))
	seat, err := state.OpenSeats(ctx, state.SeatsConfig{
		Member: state.MemberConfig{
			Dir: filepath.Join(s.dir, "state"), Name: string(s.id), URL: s.url(), Certificate: cert, Authority: root, ServerName: authority.ServerName,
			QuotaBytes: s.hosts.quota, NoSync: true, Log: log,
		},
		Endpoints: s.endpoints, TLS: identity.ClientConfig(""), Seats: s.hosts.seats, Timeout: 5 * time.Second, Log: log,
		Save: func(urls []string) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.saved = urls
			return nil
		},
	})
	if err != nil {
		cancel()
		return errors.Join(err, inner.Close())
	}
	for _, path := range state.Paths() {
		door.Handle(path, seat)
	}
	served := make(chan error, 1)
	go func() { served <- door.Serve(ctx, inner) }()
	s.seat = seat
	s.stop = sync.OnceFunc(func() {
		if err := seat.Close(); err != nil {
			s.hosts.t.Error(err)
		}
		cancel()
		if err := <-served; err != nil {
			s.hosts.t.Error(err)
		}
	})
	s.hosts.t.Cleanup(s.stop)
	return nil
}

// start opens a host, waits for the state and takes a seat.
func (s *server) start(ctx context.Context) error {
	if err := s.open(); err != nil {
		return err
	}
	if err := s.seat.Await(ctx); err != nil {
		return err
	}
	return s.insist(func() error { return s.seat.Take(ctx) })
}

// insist tries until it succeeds, as hosts do: a request fails while members that stood still elect a leader.
func (s *server) insist(try func() error) error {
	for deadline := time.Now().Add(time.Minute); ; {
		if err := try(); err == nil || errors.Is(err, state.ErrRemoved) || time.Now().After(deadline) {
			return err
		}
	}
}

func (s *server) mustStart() {
	s.hosts.t.Helper()
	if err := s.start(s.hosts.t.Context()); err != nil {
		s.hosts.t.Fatal(err)
	}
}

// put writes through a host, until the state accepts it.
func (s *server) put(key string) {
	s.hosts.t.Helper()
	for {
		_, err := s.seat.Store().Txn(s.hosts.t.Context(), state.Txn{Then: []state.Op{state.Put(key, []byte(key))}})
		if err == nil {
			return
		}
		if s.hosts.t.Context().Err() != nil {
			s.hosts.t.Fatal(err)
		}
	}
}

func (s *server) has(key string) bool {
	s.hosts.t.Helper()
	for {
		_, err := s.seat.Store().Get(s.hosts.t.Context(), key)
		if err == nil || errors.Is(err, state.ErrNotFound) {
			return err == nil
		}
		if s.hosts.t.Context().Err() != nil {
			s.hosts.t.Fatal(err)
		}
	}
}

// members are the names of the voting members and the learners.
func (s *server) members() (voters, learners []string) {
	s.hosts.t.Helper()
	identity, err := authority.Open(s.dir, s.id, slog.New(slog.DiscardHandler), time.Now)
	if err != nil {
		s.hosts.t.Fatal(err)
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: s.seat.Endpoints(), TLS: identity.ClientConfig("")})
	if err != nil {
		s.hosts.t.Fatal(err)
	}
	defer c.Close()
	list, err := c.MemberList(s.hosts.t.Context())
	if err != nil {
		s.hosts.t.Fatal(err)
	}
	for _, m := range list.Members {
		if m.IsLearner {
			learners = append(learners, m.Name)
		} else {
			voters = append(voters, m.Name)
		}
	}
	slices.Sort(voters)
	return voters, learners
}

// catchUp returns when the member of a host has what was acknowledged, which the others may have alone.
func (s *server) catchUp() {
	s.hosts.t.Helper()
	identity, err := authority.Open(s.dir, s.id, slog.New(slog.DiscardHandler), time.Now)
	if err != nil {
		s.hosts.t.Fatal(err)
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.url()}, TLS: identity.ClientConfig("")})
	if err != nil {
		s.hosts.t.Fatal(err)
	}
	defer c.Close()
	if err := s.insist(func() error { _, err := c.Get(s.hosts.t.Context(), "any"); return err }); err != nil { // a linearizable read
		s.hosts.t.Fatal(err)
	}
}

// TestSeatsOfHostsThatJoinAtOnce: a single server becomes the first of a cluster with all its data.
// Of four that join at the same moment, two become voting members together with the first; the
// others are clients. The cluster survives the loss of a member, and a client replaces a removed
// one.
func TestSeatsOfHostsThatJoinAtOnce(t *testing.T) {
	h := newHosts(t, 0)
	first := h.server(1)
	lone, err := state.OpenEtcd(t.Context(), state.EtcdConfig{Dir: filepath.Join(first.dir, "state"), NoSync: true, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lone.Txn(t.Context(), state.Txn{Then: []state.Op{state.Put("/before", nil)}}); err != nil {
		t.Fatal(err)
	}
	if err := lone.Close(); err != nil {
		t.Fatal(err)
	}
	first.mustStart()
	if !first.has("/before") {
		t.Fatal("what the server had when it was alone is lost")
	}

	joining := make([]*server, 4)
	var group sync.WaitGroup
	for i := range joining {
		joining[i] = h.server(i+2, first.url())
		group.Go(func() {
			if err := joining[i].start(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if t.Failed() {
		t.FailNow()
	}
	voters, learners := first.members()
	if len(voters) != 3 || len(learners) != 0 || !slices.Contains(voters, string(first.id)) {
		t.Fatalf("members %v, learners %v: want 3 that vote, the first among them", voters, learners)
	}
	var members, clients []*server
	for _, s := range joining {
		s.put("/by/" + string(s.id))
		if slices.Contains(voters, string(s.id)) {
			members = append(members, s)
		} else {
			clients = append(clients, s)
		}
	}

	dead := members[0]
	dead.stop()
	members[1].put("/after-a-loss")
	if !clients[0].has("/after-a-loss") || !first.has("/by/"+string(dead.id)) {
		t.Error("a write is lost with a member")
	}
	if err := first.insist(func() error { return first.seat.Vacate(t.Context(), string(dead.id), dead.url()) }); err != nil {
		t.Fatal(err)
	}
	if err := clients[1].insist(func() error { return clients[1].seat.Take(t.Context()) }); err != nil {
		t.Fatal(err)
	}
	if voters, _ := first.members(); len(voters) != 3 || !slices.Contains(voters, string(clients[1].id)) {
		t.Errorf("members %v: want that of %s among them", voters, clients[1].id)
	}

	// The removed one comes back with its old data, and is a client.
	dead.endpoints = []string{first.url(), members[1].url(), dead.url()}
	dead.mustStart()
	if !dead.has("/after-a-loss") {
		t.Error("a server that comes back does not see what was written meanwhile")
	}
	if voters, learners := dead.members(); len(voters) != 3 || len(learners) != 0 || slices.Contains(voters, string(dead.id)) {
		t.Errorf("members %v, learners %v after the return", voters, learners)
	}
}

// TestMemberRecoversFromItsQuota: old values alone make a member refuse writes only for a while.
func TestMemberRecoversFromItsQuota(t *testing.T) {
	h := newHosts(t, 0)
	h.quota = 24 << 20
	first := h.server(1)
	first.mustStart()
	put := func() error {
		_, err := first.seat.Store().Txn(t.Context(), state.Txn{Then: []state.Op{state.Put("/k", make([]byte, 1<<20))}})
		return err
	}
	deadline := time.Now().Add(time.Minute)
	for n := 0; !errors.Is(put(), rpctypes.ErrNoSpace); n++ {
		if time.Now().After(deadline) {
			t.Fatalf("%d MiB were written with a quota of 24 MiB", n)
		}
	}
	for put() != nil {
		if time.Now().After(deadline) {
			t.Fatal("it refuses writes for a minute")
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// TestTwoHostsHaveOneVote: losing the second host does no harm, and the third makes three.
func TestTwoHostsHaveOneVote(t *testing.T) {
	h := newHosts(t, 0)
	first := h.server(1)
	first.mustStart()
	second := h.server(2, first.url())
	second.mustStart()
	if voters, learners := first.members(); len(voters) != 1 || len(learners) != 1 {
		t.Fatalf("members %v, learners %v: want one of each", voters, learners)
	}
	second.stop()
	first.put("/alone")
	second.mustStart()
	third := h.server(3, first.url())
	third.mustStart()
	if voters, learners := third.members(); len(voters) != 3 || len(learners) != 0 {
		t.Fatalf("members %v, learners %v: want three that vote", voters, learners)
	}
	third.mu.Lock()
	saved := len(third.saved)
	third.mu.Unlock()
	if saved != 3 {
		t.Errorf("%d URLs of members kept for the next start, want 3", saved)
	}

	// All end, and start again in another order.
	for _, s := range []*server{first, second, third} {
		s.stop()
		s.endpoints = []string{first.url(), second.url(), third.url()}
	}
	var group sync.WaitGroup
	for _, s := range []*server{third, second, first} {
		if err := s.open(); err != nil {
			t.Fatal(err)
		}
		group.Go(func() {
			if err := s.seat.Await(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if !third.has("/alone") {
		t.Error("a write is lost with a restart of all")
	}
}

// TestHalfDoneJoinIsFinished: a host that stopped after it was added, and before its member
// started, is a member when it starts again.
func TestHalfDoneJoinIsFinished(t *testing.T) {
	h := newHosts(t, 0)
	first := h.server(1)
	first.mustStart()
	second := h.server(2, first.url())
	if err := second.open(); err != nil { // so that it has an address
		t.Fatal(err)
	}
	second.stop()
	identity, err := authority.Open(first.dir, first.id, slog.New(slog.DiscardHandler), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{first.url()}, TLS: identity.ClientConfig("")})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.MemberAddAsLearner(t.Context(), []string{second.url()}); err != nil {
		t.Fatal(err)
	}
	second.mustStart()
	if voters, learners := first.members(); len(voters) != 1 || !slices.Equal(learners, []string{string(second.id)}) {
		t.Errorf("members %v, learners %v: want the second host as a learner", voters, learners)
	}
}

// TestRecoverAfterTheLossOfMost: the remaining one of three members becomes a cluster with all of
// its data, which the others join again. An earlier backup restores its own.
func TestRecoverAfterTheLossOfMost(t *testing.T) {
	h := newHosts(t, 0)
	first := h.server(1)
	first.mustStart()
	second, third := h.server(2, first.url()), h.server(3, first.url())
	second.mustStart()
	third.mustStart()
	third.put("/kept")
	backup := filepath.Join(t.TempDir(), "backup")
	f, err := os.Create(backup)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(third.seat.Store().Backup(t.Context(), f), f.Close()); err != nil {
		t.Fatal(err)
	}
	third.put("/later")
	third.catchUp() // of the three, it remains
	for _, s := range []*server{first, second, third} {
		s.stop()
	}

	if err := state.Recover(t.Context(), filepath.Join(third.dir, "state"), slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	third.endpoints = []string{third.url()}
	third.mustStart()
	if !third.has("/kept") || !third.has("/later") {
		t.Error("the recovered state has lost a write")
	}
	second.endpoints = []string{first.url(), second.url(), third.url()}
	second.mustStart()
	if voters, learners := third.members(); !slices.Equal(voters, []string{string(third.id)}) || !slices.Equal(learners, []string{string(second.id)}) {
		t.Errorf("members %v, learners %v after the recovery", voters, learners)
	}
	second.stop()
	third.stop()

	dir := filepath.Join(third.dir, "state")
	before, err := state.Restore(dir, backup, time.Now(), slog.New(slog.DiscardHandler))
	if err != nil || before == "" {
		t.Fatalf("%q, %v", before, err)
	}
	third.mustStart()
	if !third.has("/kept") || third.has("/later") {
		t.Error("the restored state is not that of the backup")
	}
}

// TestBackupOfALoneServer: a damaged backup is refused and changes nothing.
func TestBackupOfALoneServer(t *testing.T) {
	dir := t.TempDir()
	s := openEtcd(t, dir)
	if _, err := s.Txn(t.Context(), state.Txn{Then: []state.Op{state.Put("/kept", nil)}}); err != nil {
		t.Fatal(err)
	}
	backup := filepath.Join(t.TempDir(), "backup")
	f, err := os.Create(backup)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Backup(t.Context(), f), f.Close()); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	if _, err := state.Restore(dir, backup, time.Now(), log); !errors.Is(err, state.ErrLocked) {
		t.Errorf("restore while it is open: %v, want ErrLocked", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(backup)
	if err != nil {
		t.Fatal(err)
	}
	raw[len(raw)/2] ^= 1
	damaged := backup + "-damaged"
	if err := os.WriteFile(damaged, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := state.Restore(dir, damaged, time.Now(), log); err == nil {
		t.Error("a damaged backup was restored")
	}
	if kept, err := state.Restore(dir, backup, time.Now(), log); err != nil || kept == "" {
		t.Fatalf("%q, %v", kept, err)
	}
	again := openEtcd(t, dir)
	defer again.Close()
	if _, err := again.Get(t.Context(), "/kept"); err != nil {
		t.Error(err)
	}
}
