package state

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hangar-platform/hangar/internal/pause"
)

// Numbers of members that a cluster may have. With fewer hosts, each has a member, of which an odd
// number votes.
const (
	DefaultSeats = 3
	MaxSeats     = 5
)

const (
	seatsEvery   = 10 * time.Second // interval at which a host checks whether to take a seat
	askOthers    = 3 * time.Second
	seatTTL      = 10 // seconds, of the lock for changes of members
	addPause     = 500 * time.Millisecond
	addAttempts  = 30
	promotePause = 200 * time.Millisecond
	// promoteAttempts bounds attempts to promote a learner that has not caught up; it is promoted
	// later then.
	promoteAttempts = 25
	takePatience    = time.Minute
)

// SeatsConfig is what the seats of a host need.
type SeatsConfig struct {
	Member    MemberConfig // of this host, if it has one
	Endpoints []string     // the URLs of members, as far as they are known; empty: this host founds the cluster
	TLS       *tls.Config  // towards members
	Seats     int          // how many members there are at most; 0: DefaultSeats
	Prefix    string       // see EtcdConfig
	Timeout   time.Duration
	Log       *slog.Logger
	// Save keeps the URLs of the members, for the next start.
	Save func(endpoints []string) error
}

// Seats decide which hosts have a member of the cluster state: the first that take a seat while
// there are free ones. A host without one is a client of the members.
//
// An even number of voting members survives no more losses than one less, so a member waits as a
// learner, which has all of the state and no vote, until there is another; the two are then
// promoted together. So two hosts have one member that votes.
//
// Changes of the members wait for each other, by a lock in the state; etcd refuses those that would lose the
// quorum. The next Take finishes what a crash interrupted: a member that was added and did not start, or a
// learner.
//
// All methods may be called from many goroutines.
type Seats struct {
	cfg    SeatsConfig
	client *clientv3.Client // of all members
	store  *Etcd

	mu     sync.Mutex // guards member
	member *member    // nil: this host has none
	taking sync.Mutex // held while the members are changed
}

// ErrRemoved says that the cluster does not know this host any more.
var ErrRemoved = errors.New("state: this host was removed from the cluster")

// OpenSeats starts the member of this host, if it has one or founds the cluster, and a client. It
// waits for neither: what the member serves, see ServeHTTP, may be served after it.
func OpenSeats(ctx context.Context, cfg SeatsConfig) (_ *Seats, err error) {
	s := &Seats{cfg: cfg}
	own := cfg.Member.URL
	others := slices.DeleteFunc(slices.Clone(cfg.Endpoints), func(e string) bool { return e == own })
	if hasMember(cfg.Member.Dir) && len(others) > 0 {
		if err := s.compareWith(ctx, others); err != nil {
			return nil, err
		}
	}
	if hasMember(cfg.Member.Dir) || len(cfg.Endpoints) == 0 {
		if s.member, err = startMember(ctx, cfg.Member, nil); err != nil {
			return nil, err
		}
	}
	known := cfg.Endpoints
	if len(known) == 0 {
		known = []string{own}
	}
	if s.client, err = s.dial(known); err != nil {
		if s.member != nil {
			err = errors.Join(err, s.member.close())
		}
		return nil, err
	}
	s.store = &Etcd{client: s.client, dial: s.dial, prefix: cmp.Or(cfg.Prefix, DefaultPrefix), limit: cmp.Or(cfg.Timeout, DefaultTimeout), log: cfg.Log}
	return s, nil
}

func (s *Seats) dial(endpoints []string) (*clientv3.Client, error) {
	return connect(endpoints, s.cfg.TLS, askOthers, s.cfg.Log)
}

// compareWith asks each of the other members for changes while this host was away: a member that
// the cluster has removed starts over, and one that moved updates its address. A cluster that was
// recovered after the loss of most members consists of one of these members, and lacks this host's.
// If none answers, the member starts unchanged, because all may be starting.
func (s *Seats) compareWith(ctx context.Context, others []string) error {
	ctx, cancel := context.WithTimeout(ctx, askOthers)
	defer cancel()
	errs := make(chan error, len(others))
	for _, at := range others {
		go func() { errs <- s.compare(ctx, at) }()
	}
	var found error
	answered := false
	for range others {
		err := <-errs
		switch {
		case err == nil:
			answered = true
		case errors.Is(err, errNotListed), errors.Is(err, ErrRemoved):
			found = errors.Join(found, err)
		default:
			s.cfg.Log.Info("another member of the cluster state does not answer", "error", err)
		}
	}
	switch {
	case errors.Is(found, ErrRemoved):
		return ErrRemoved
	case found != nil:
		s.cfg.Log.Warn("the cluster has removed the member of this host, which starts over", "dir", s.cfg.Member.Dir)
		return s.forget()
	case !answered:
		s.cfg.Log.Info("no other member of the cluster state answers yet")
	}
	return nil
}

// errNotListed means that a cluster does not have this host's member.
var errNotListed = errors.New("state: the member is not one of the cluster")

// compare asks one member.
func (s *Seats) compare(ctx context.Context, at string) error {
	client, err := s.dial([]string{at})
	if err != nil {
		return err
	}
	defer client.Close()
	list, err := client.MemberList(ctx)
	if removed(err) {
		return ErrRemoved
	}
	if err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	mine := s.find(list.Members)
	if mine == nil {
		return errNotListed
	}
	if slices.Equal(mine.PeerURLs, []string{s.cfg.Member.URL}) {
		return nil
	}
	if _, err := client.MemberUpdate(ctx, mine.ID, []string{s.cfg.Member.URL}); err != nil {
		return fmt.Errorf("state: tell the members that this host has moved: %w", err)
	}
	return nil
}

// removed reports whether members refuse this host.
func removed(err error) bool { return status.Code(err) == codes.PermissionDenied }

// forget removes the data of a member that belongs to no cluster.
func (s *Seats) forget() error {
	if err := os.RemoveAll(filepath.Join(s.cfg.Member.Dir, memberDir)); err != nil {
		return fmt.Errorf("state: %w", err)
	}
	return nil
}

// find returns this host's member: by its name or, if it has not started and so has no name, by its
// URL.
func (s *Seats) find(members []*etcdserverpb.Member) *etcdserverpb.Member {
	for _, m := range members {
		if m.Name == s.cfg.Member.Name || m.Name == "" && slices.Contains(m.PeerURLs, s.cfg.Member.URL) {
			return m
		}
	}
	return nil
}

// ServeHTTP serves what is at Paths.
func (s *Seats) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if m := s.running(); m != nil {
		m.ServeHTTP(w, r)
		return
	}
	http.Error(w, "this host has no member of the cluster state", http.StatusServiceUnavailable)
}

func (s *Seats) running() *member {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.member
}

func (s *Seats) set(m *member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.member = m
}

// Store is the state, by whichever members there are. It is closed with the Seats.
func (s *Seats) Store() *Etcd { return s.store }

// Await returns when the state can be read, which takes as many members as decide. It returns
// ErrRemoved if they do not know this host.
func (s *Seats) Await(ctx context.Context) error {
	for began := time.Now(); ; {
		bounded, cancel := context.WithTimeout(ctx, s.store.limit)
		_, err := s.client.Get(bounded, s.store.prefix)
		cancel()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case removed(err):
			return ErrRemoved
		}
		s.cfg.Log.Warn("the cluster state cannot be reached; start the other servers", "since", time.Since(began).Round(time.Second), "error", err)
		if err := pause.For(ctx, time.Second); err != nil {
			return err
		}
	}
}

// Endpoints are the URLs of the members that vote.
func (s *Seats) Endpoints() []string { return s.client.Endpoints() }

// Take takes a seat if one is free, finishes what was begun, and promotes learners.
func (s *Seats) Take(ctx context.Context) error {
	s.taking.Lock()
	defer s.taking.Unlock()
	ctx, cancel := context.WithTimeout(ctx, takePatience)
	defer cancel()
	settled, err := s.settled(ctx)
	if settled || err != nil {
		return err
	}
	return s.locked(ctx, func() error {
		if err := s.takeSeat(ctx); err != nil {
			return err
		}
		return s.promote(ctx)
	})
}

// settled reports whether nothing needs to change, so that the lock is not needed.
func (s *Seats) settled(ctx context.Context) (bool, error) {
	list, err := s.client.MemberList(ctx)
	if err != nil {
		if removed(err) {
			err = ErrRemoved
		}
		return false, err
	}
	if err := s.follow(list.Members); err != nil {
		return false, err
	}
	mine := s.find(list.Members)
	if mine == nil {
		return s.running() == nil && len(list.Members) >= s.seats(), nil
	}
	learner := slices.ContainsFunc(list.Members, func(m *etcdserverpb.Member) bool { return m.IsLearner })
	return s.running() != nil && mine.Name == s.cfg.Member.Name && slices.Equal(mine.PeerURLs, []string{s.cfg.Member.URL}) &&
		(!learner || len(list.Members)%2 == 0), nil
}

func (s *Seats) seats() int { return cmp.Or(s.cfg.Seats, DefaultSeats) }

// follow makes the client use the voting members, and saves their URLs.
func (s *Seats) follow(members []*etcdserverpb.Member) error {
	var urls []string
	for _, m := range members {
		if m.Name != "" && !m.IsLearner {
			urls = append(urls, m.ClientURLs...)
		}
	}
	slices.Sort(urls)
	if len(urls) == 0 || slices.Equal(urls, s.client.Endpoints()) {
		return nil
	}
	if err := s.cfg.Save(urls); err != nil {
		return err
	}
	s.client.SetEndpoints(urls...)
	return nil
}

// locked calls change while no other host changes the members.
func (s *Seats) locked(ctx context.Context, change func() error) error {
	session, err := concurrency.NewSession(s.client, concurrency.WithTTL(seatTTL), concurrency.WithContext(ctx))
	if err != nil {
		return fmt.Errorf("state: lock the members: %w", err)
	}
	defer session.Close()
	mutex := concurrency.NewMutex(session, s.store.prefix+"-seats/")
	if err := mutex.Lock(ctx); err != nil {
		return fmt.Errorf("state: lock the members: %w", err)
	}
	defer func() { _ = mutex.Unlock(ctx) }() // it ends with the session anyway
	return change()
}

// takeSeat makes this host a member if there is a free seat, or if it was already added.
func (s *Seats) takeSeat(ctx context.Context) error {
	list, err := s.client.MemberList(ctx)
	if err != nil {
		return err
	}
	mine, m := s.find(list.Members), s.running()
	if m != nil && list.Header.ClusterId != m.cluster() {
		if m, err = nil, s.leave(m); err != nil {
			return err
		}
	}
	if m != nil {
		return s.announce(ctx, list.Members, m)
	}
	if mine != nil && mine.Name != "" { // it has lost its data
		if list, err = s.remove(ctx, mine.ID); err != nil {
			return err
		}
		mine = nil
	}
	if mine == nil {
		if len(list.Members) >= s.seats() {
			return nil
		}
		added, err := s.add(ctx)
		if err != nil {
			return fmt.Errorf("state: add a member: %w", err)
		}
		list.Members = added.Members
	}
	var peers []string
	for _, p := range list.Members {
		name := cmp.Or(p.Name, fmt.Sprintf("%x", p.ID))
		if slices.Contains(p.PeerURLs, s.cfg.Member.URL) {
			name = s.cfg.Member.Name
		}
		for _, at := range p.PeerURLs {
			peers = append(peers, name+"="+at)
		}
	}
	if err := s.forget(); err != nil { // left by an interrupted start
		return err
	}
	if m, err = startMember(ctx, s.cfg.Member, peers); err != nil {
		return err
	}
	s.set(m)
	select {
	case <-m.etcd.Server.ReadyNotify():
		return nil
	case <-m.stopped():
		return errors.New("state: the member has ended while it started")
	case <-ctx.Done():
		return fmt.Errorf("state: the member is not ready: %w", ctx.Err())
	}
}

// leave ends the member of a cluster that no longer exists: the state was restored or recovered,
// and this host's member has started unchanged, because no other member answered in time.
func (s *Seats) leave(m *member) error {
	s.cfg.Log.Warn("the member of this host is of another cluster, and starts over", "dir", s.cfg.Member.Dir)
	s.set(nil)
	return errors.Join(m.close(), s.forget())
}

// add adds this host's member as a learner. etcd refuses that until the members have been connected
// for some seconds.
func (s *Seats) add(ctx context.Context) (*clientv3.MemberAddResponse, error) {
	for attempt := 1; ; attempt++ {
		added, err := s.client.MemberAddAsLearner(ctx, []string{s.cfg.Member.URL})
		if !errors.Is(err, rpctypes.ErrUnhealthy) || attempt == addAttempts || pause.For(ctx, addPause) != nil {
			return added, err
		}
	}
}

// announce publishes the address of this host's member: a formerly single member has not announced
// a usable one.
func (s *Seats) announce(ctx context.Context, members []*etcdserverpb.Member, m *member) error {
	for _, p := range members {
		if p.ID == m.id() && !slices.Equal(p.PeerURLs, []string{s.cfg.Member.URL}) {
			if _, err := s.client.MemberUpdate(ctx, p.ID, []string{s.cfg.Member.URL}); err != nil {
				return fmt.Errorf("state: tell the members where this host is: %w", err)
			}
		}
	}
	return nil
}

// promote makes learners voters as long as the number of all members is odd.
func (s *Seats) promote(ctx context.Context) error {
	list, err := s.client.MemberList(ctx)
	if err != nil || len(list.Members)%2 == 0 {
		return err
	}
	for _, m := range list.Members {
		for attempt := 1; m.IsLearner; attempt++ {
			_, err := s.client.MemberPromote(ctx, m.ID)
			if errors.Is(err, rpctypes.ErrMemberLearnerNotReady) && attempt < promoteAttempts && pause.For(ctx, promotePause) == nil {
				continue
			}
			if err != nil && !errors.Is(err, rpctypes.ErrMemberNotLearner) {
				return fmt.Errorf("state: promote the member %x: %w", m.ID, err)
			}
			break
		}
	}
	if list, err = s.client.MemberList(ctx); err != nil {
		return err
	}
	return s.follow(list.Members)
}

func (s *Seats) remove(ctx context.Context, id uint64) (*clientv3.MemberListResponse, error) {
	if _, err := s.client.MemberRemove(ctx, id); err != nil && !errors.Is(err, rpctypes.ErrMemberNotFound) {
		return nil, fmt.Errorf("state: remove the member %x: %w", id, err)
	}
	return s.client.MemberList(ctx)
}

// Vacate removes the member of a host, which another host takes the seat of.
func (s *Seats) Vacate(ctx context.Context, name, at string) error {
	s.taking.Lock()
	defer s.taking.Unlock()
	ctx, cancel := context.WithTimeout(ctx, takePatience)
	defer cancel()
	return s.locked(ctx, func() error {
		list, err := s.client.MemberList(ctx)
		if err != nil {
			return err
		}
		for _, m := range list.Members {
			if m.Name == name || m.Name == "" && slices.Contains(m.PeerURLs, at) {
				if list, err = s.remove(ctx, m.ID); err != nil {
					return err
				}
				return s.follow(list.Members)
			}
		}
		return nil
	})
}

// Run takes a seat when one is free, until ctx ends. It returns ErrRemoved if the cluster has
// removed this host, and an error if its member has ended by itself.
func (s *Seats) Run(ctx context.Context) error {
	for {
		var stopped <-chan struct{}
		if m := s.running(); m != nil {
			stopped = m.stopped()
		}
		timer := time.NewTimer(seatsEvery)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-stopped:
			timer.Stop()
			if err := s.lost(ctx); err != nil {
				return err
			}
		case <-timer.C:
		}
		if err := s.Take(ctx); errors.Is(err, ErrRemoved) {
			return err
		} else if err != nil && ctx.Err() == nil {
			s.cfg.Log.Warn("the members of the cluster state are not as they are to be", "error", err)
		}
	}
}

// lost handles the end of a member: one that the cluster has removed starts over.
func (s *Seats) lost(ctx context.Context) error {
	m := s.running()
	id := m.id()
	s.set(nil)
	if err := m.close(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, takePatience)
	defer cancel()
	list, err := s.client.MemberList(ctx)
	switch {
	case removed(err):
		return ErrRemoved
	case err != nil:
		return fmt.Errorf("state: the member of this host has ended: %w", err)
	case slices.ContainsFunc(list.Members, func(p *etcdserverpb.Member) bool { return p.ID == id }):
		return errors.New("state: the member of this host has ended")
	}
	s.cfg.Log.Warn("the cluster has removed the member of this host")
	return s.forget()
}

// Close ends the store and the member. It may be repeated.
func (s *Seats) Close() error {
	err := s.store.Close()
	if m := s.running(); m != nil {
		s.set(nil)
		err = errors.Join(err, m.close())
	}
	return err
}
