package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/internal/pause"
)

// session is one session of the store, to which this node's records belong.
type session struct {
	e    *Elected
	m    Member
	self Peer
	id   string
	ttl  time.Duration // as granted

	v    *view
	last Snapshot // the snapshot of the view

	// During a vacancy:
	vacant  bool
	vacancy int64         // revision of the last term
	since   time.Duration // on the clock
	marks   map[string]Mark
	warned  bool          // the missing quorum was logged
	yields  time.Duration // on the clock, when this node first saw that another candidate is ahead; 0: none is

	won   int64      // revision of the primary's record with which this node won an election
	heard []Standing // of the other nodes in that election
}

// session opens a session and keeps it until it is lost or ctx ends.
func (e *Elected) session(ctx context.Context, m Member) error {
	asked := e.clock.Now()
	bounded, cancel := e.call(ctx)
	id, ttl, err := e.store.Open(bounded, e.c.TTL)
	cancel()
	if err != nil {
		return err
	}
	s := &session{e: e, m: m, self: e.c.Self, id: id, ttl: ttl}
	s.self.Node, _, _ = m.Identity()
	e.mu.Lock()
	e.deadline = asked + s.ttl - s.ttl/margin
	e.mu.Unlock()
	ctx, end := context.WithCancel(ctx)
	lost := make(chan error, 1)
	go func() { lost <- s.renew(ctx) }()
	err = s.run(ctx, lost)
	end()
	// Commits must stop before another node can take the lease.
	e.mu.Lock()
	if e.term.Held {
		e.setTerm(Term{Epoch: e.term.Epoch})
	}
	e.mu.Unlock()
	_ = finish.Do(ctx, s.ttl/patience, func(ctx finish.Context) error {
		return e.store.End(ctx, s.id) // if it fails, the session expires
	})
	return errors.Join(err, <-lost)
}

// renew renews the session until ctx ends, or until the store has ended the session.
func (s *session) renew(ctx context.Context) error {
	for pause.For(ctx, s.ttl/renewals) == nil {
		asked := s.e.clock.Now()
		bounded, cancel := context.WithTimeout(ctx, s.ttl/patience)
		ttl, err := s.e.store.Renew(bounded, s.id)
		cancel()
		switch {
		case errors.Is(err, ErrSessionEnded):
			return err
		case err == nil:
			s.e.renewed(asked, ttl)
		}
	}
	return nil
}

// run takes part in elections until the session ends.
func (s *session) run(ctx context.Context, lost chan error) error {
	for ctx.Err() == nil {
		err := s.observe(ctx, lost)
		if errors.Is(err, ErrCluster) || errors.Is(err, ErrSessionEnded) {
			return err
		}
		if ctx.Err() == nil {
			s.e.c.Log.Warn("the election cannot be watched", "error", err)
		}
		s.e.lapse()
		_ = pause.For(ctx, s.ttl/renewals)
	}
	return nil
}

// observe watches the records and acts on them.
func (s *session) observe(ctx context.Context, lost chan error) error {
	if err := s.load(ctx); err != nil {
		return err
	}
	if err := s.enter(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	events := make(chan watched)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for next, err := range s.e.store.Watch(ctx, s.last) {
			select {
			case events <- watched{next, err}:
			case <-ctx.Done():
			}
		}
		close(events)
	}()
	defer func() { cancel(); <-done }()
	for {
		next, err := s.step(ctx)
		if err != nil {
			return err
		}
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case err := <-lost:
			timer.Stop()
			lost <- nil // session receives from it as well
			return errors.Join(ErrSessionEnded, err)
		case w, ok := <-events:
			timer.Stop()
			if !ok {
				return errUnwatched
			}
			if err := errors.Join(w.err, s.show(w.Snapshot)); err != nil {
				return err
			}
		case <-s.e.poked:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// watched is what a watch yields.
type watched struct {
	Snapshot

	err error
}

// errUnwatched means that a watch ended without an error.
var errUnwatched = errors.New("the watch has ended")

// show replaces the view with a snapshot.
func (s *session) show(next Snapshot) error {
	v, err := newView(next)
	if err == nil {
		s.v, s.last = v, next
	}
	return err
}

// load reads all records.
func (s *session) load(ctx context.Context) error {
	bounded, cancel := s.e.call(ctx)
	defer cancel()
	now, err := s.e.store.Read(bounded)
	if err != nil {
		return err
	}
	return s.show(now)
}

// enter makes this node a member of the cluster whose records these are, and creates the cluster in an empty
// store.
func (s *session) enter(ctx context.Context) error {
	node, cluster, epoch := s.m.Identity()
	if s.v.cluster.ID == "" {
		record := clusterRecord{ID: cluster, Base: epoch}
		if cluster == "" {
			record.ID = NewClusterID()
		}
		bounded, cancel := s.e.call(ctx)
		_, _, err := s.e.store.Swap(bounded, Change{If: []Condition{{Key: keyCluster}}, Put: []Put{{Key: keyCluster, Value: encode(record)}}})
		cancel()
		if err != nil {
			return err
		}
		if err := s.load(ctx); err != nil {
			return err
		}
	}
	if cluster != "" && cluster != s.v.cluster.ID {
		return fmt.Errorf("%w: %s belongs to cluster %s, and the data of this node %016X to %s: use another one, or an empty data.dir",
			ErrCluster, s.e.store, s.v.cluster.ID, node, cluster)
	}
	if err := s.m.Adopt(s.v.cluster.ID); err != nil {
		return err
	}
	s.vacant = false
	return s.publish(ctx, nodeRecord{})
}

// publish writes this node's record for the other nodes.
func (s *session) publish(ctx context.Context, r nodeRecord) error {
	r.Peer, r.Candidate = s.self, s.e.c.Candidate
	bounded, cancel := s.e.call(ctx)
	defer cancel()
	_, _, err := s.e.store.Swap(bounded, Change{Put: []Put{{Key: nodeKey(s.self.Node), Value: encode(r), Session: s.id}}})
	return err
}

// maxMarks is how many bytes of marks a node publishes. The records of 25 nodes fit in an election of the platform.
const maxMarks = 2 << 10

// standing returns what the node publishes in an election.
func (s *session) standing() Standing {
	if len(encode(s.marks)) <= maxMarks {
		return Standing{Marks: s.marks}
	}
	summary := Summarize(s.marks)
	return Standing{Summary: &summary}
}

// step updates the term from the view, and takes part in an election. It returns how long to wait
// before the next call if nothing changes.
func (s *session) step(ctx context.Context) (time.Duration, error) {
	e, v := s.e, s.v
	if v.primaryRev == 0 {
		return s.campaign(ctx)
	}
	s.vacant, s.warned = false, false
	next := s.ttl
	e.mu.Lock()
	defer e.mu.Unlock()
	term := Term{Epoch: v.epoch(), Primary: v.primary}
	e.claim = false
	switch left := e.deadline - e.clock.Now(); {
	case v.primaryOf != s.id:
		if v.primary.Node == s.self.Node {
			term.Primary = Peer{} // an earlier session of this node, which has not ended yet
		}
	case v.primaryRev == e.given:
		// An attempt to hand over this record may still succeed, so only a new revision is reliable.
		e.mu.Unlock()
		err := s.retake(ctx)
		e.mu.Lock()
		return s.ttl / renewals, err
	case left <= 0:
		term.Primary = Peer{} // until a renewal proves that the record is still this node's
	default:
		e.rev = v.primaryRev
		term.Held, term.Quorum = true, v.quorum
		if s.won == v.primaryRev {
			term.Heard = s.heard
		}
		next = left
	}
	e.setTerm(term)
	return next, nil
}

// retake writes this node's primary record again.
func (s *session) retake(ctx context.Context) error {
	err := s.e.swap(ctx, "keep the lease", s.v.primaryRev, Change{Put: s.take()})
	if errors.Is(err, ErrNotHeld) {
		return nil // the hand-over succeeded, which the watch will report
	}
	return err
}

// take returns the records that make this node the primary.
func (s *session) take() []Put {
	return []Put{{Key: keyPrimary, Value: encode(s.self), Session: s.id}, {Key: keyTerm, Value: encode(termRecord{Peer: s.self})}}
}

// campaign reports how far this node is, and takes the lease if this node is the right candidate. There
// is no primary.
func (s *session) campaign(ctx context.Context) (time.Duration, error) {
	e, v := s.e, s.v
	e.mu.Lock()
	e.setTerm(Term{Epoch: e.term.Epoch})
	claim, holdoff := e.claim, e.holdoff
	e.mu.Unlock()
	now := e.clock.Now()
	if !s.vacant || s.vacancy != v.termRev {
		if !s.vacant {
			s.since = now
		}
		s.marks = s.m.Marks()
		if err := s.publish(ctx, nodeRecord{Standing: s.standing(), Vacancy: v.termRev + 1}); err != nil {
			return 0, err
		}
		s.vacant, s.vacancy, s.yields = true, v.termRev, 0
	}
	if !e.c.Candidate {
		return s.ttl, nil
	}
	grace := s.ttl / renewals
	delay := e.c.LockDelay
	if v.term.Resigned || v.termRev == 0 {
		delay = 0
	}
	p := v.poll(s.self.Node, s.marks)
	switch {
	case !p.ahead:
		s.yields = 0
	case s.yields == 0:
		s.yields = now
	}
	age := now - s.since - delay
	if !p.covered && !claim && age > 2*grace && !s.warned {
		s.warned = true
		e.c.Log.Warn("there is no primary, and this node cannot become it: unreachable nodes may have acknowledged transactions",
			"nodes", fmt.Sprintf("%016X", v.quorum.Nodes), "copies", v.quorum.Copies)
	}
	if now < holdoff || age < 0 || !p.covered && !claim || p.missing && age < grace || p.ahead && now-s.yields < 2*grace {
		return max(grace/10, 10*time.Millisecond), nil
	}
	return s.ttl / renewals, s.acquire(ctx, p)
}

// acquire takes the lease, unless another node has taken it.
func (s *session) acquire(ctx context.Context, p poll) error {
	e, v := s.e, s.v
	puts := s.take()
	if _, _, known := s.m.Identity(); v.cluster.Base+uint64(s.last.Revision) < known {
		// The node saw a higher epoch in another store: raise the base, so that epochs grow.
		puts = append(puts, Put{Key: keyCluster, Value: encode(clusterRecord{v.cluster.ID, known})})
	}
	bounded, cancel := e.call(ctx)
	defer cancel()
	revision, done, err := e.store.Swap(bounded, Change{If: []Condition{{Key: keyPrimary}, {Key: keyTerm, Revision: v.termRev}}, Put: puts})
	if err != nil {
		return err
	}
	if done {
		s.won, s.heard = revision, p.heard
	}
	return nil
}
