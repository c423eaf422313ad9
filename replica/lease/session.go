package lease

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/internal/pause"
)

// session is the time of one lease of etcd, of which this node's keys are.
type session struct {
	e    *Etcd
	m    Member
	self Peer
	id   clientv3.LeaseID
	ttl  time.Duration // as granted

	v   *view
	rev int64 // of the view

	// Of a vacancy.
	vacant  bool
	vacancy int64         // revision of the last term
	since   time.Duration // of the clock
	marks   map[string]Mark
	said    bool          // that the quorum is not there
	yields  time.Duration // since when this node knows a candidate that is further; 0: it knows none

	won      int64 // revision of the primary's key that this node has put
	standing []Standing
}

// session gets a lease of etcd and keeps it until it is lost or ctx ends.
func (e *Etcd) session(ctx context.Context, m Member) error {
	asked := e.clock.Now()
	bounded, cancel := e.call(ctx)
	r, err := e.client.Grant(bounded, int64((e.c.TTL+time.Second-1)/time.Second))
	cancel()
	if err != nil {
		return err
	}
	s := &session{e: e, m: m, self: e.c.Self, id: r.ID, ttl: time.Duration(r.TTL) * time.Second}
	s.self.Node, _, _ = m.Identity()
	e.mu.Lock()
	e.deadline = asked + s.ttl - s.ttl/margin
	e.mu.Unlock()
	ctx, end := context.WithCancel(ctx)
	lost := make(chan error, 1)
	go func() { lost <- s.renew(ctx) }()
	err = s.run(ctx, lost)
	end()
	// Nothing is committed any more before etcd may give the key to another.
	e.mu.Lock()
	if e.term.Held {
		e.setTerm(Term{Epoch: e.term.Epoch})
	}
	e.mu.Unlock()
	_ = finish.Do(ctx, s.ttl/patience, func(ctx finish.Context) error {
		_, err := e.client.Revoke(ctx, s.id) // if it fails, the lease ends by itself
		return err
	})
	return errors.Join(err, <-lost)
}

// renew renews the lease until ctx ends, or etcd no longer has it.
func (s *session) renew(ctx context.Context) error {
	for pause.For(ctx, s.ttl/renewals) == nil {
		asked := s.e.clock.Now()
		bounded, cancel := context.WithTimeout(ctx, s.ttl/patience)
		r, err := s.e.client.KeepAliveOnce(bounded, s.id)
		cancel()
		switch {
		case errors.Is(err, rpctypes.ErrLeaseNotFound):
			return err
		case err == nil:
			s.e.renewed(asked, time.Duration(r.TTL)*time.Second)
		}
	}
	return nil
}

// errLost ends a session.
var errLost = errors.New("the lease of etcd has ended")

// run takes part in elections until the session ends.
func (s *session) run(ctx context.Context, lost chan error) error {
	for ctx.Err() == nil {
		err := s.observe(ctx, lost)
		if errors.Is(err, ErrCluster) || errors.Is(err, errLost) || errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return err
		}
		if ctx.Err() == nil {
			s.e.c.Log.Warn("etcd is not observed", "err", err)
		}
		_ = pause.For(ctx, s.ttl/renewals)
	}
	return nil
}

// observe follows what is in etcd, and acts on it.
func (s *session) observe(ctx context.Context, lost chan error) error {
	if err := s.load(ctx); err != nil {
		return err
	}
	if err := s.enter(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	prefix := s.e.c.Prefix
	events := s.e.client.Watch(clientv3.WithRequireLeader(ctx), prefix, clientv3.WithPrefix(), clientv3.WithRev(s.rev+1))
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
			lost <- nil // the end of the session waits for it, too
			return errors.Join(errLost, err)
		case r, ok := <-events:
			timer.Stop()
			if !ok {
				return errLost
			}
			if err := s.apply(r); err != nil {
				return err
			}
		case <-s.e.poked:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// apply brings what a watch tells into the view.
func (s *session) apply(r clientv3.WatchResponse) error {
	if err := r.Err(); err != nil {
		return err
	}
	s.rev = max(s.rev, r.Header.Revision)
	for _, ev := range r.Events {
		name := strings.TrimPrefix(string(ev.Kv.Key), s.e.c.Prefix)
		if ev.Type == mvccpb.DELETE {
			s.v.remove(name)
		} else if err := s.v.set(name, ev.Kv); err != nil {
			return err
		}
	}
	return nil
}

// load reads all keys.
func (s *session) load(ctx context.Context) error {
	bounded, cancel := s.e.call(ctx)
	defer cancel()
	r, err := s.e.client.Get(bounded, s.e.c.Prefix, clientv3.WithPrefix())
	if err != nil {
		return err
	}
	s.v, s.rev = newView(), r.Header.Revision
	for _, kv := range r.Kvs {
		if err := s.v.set(strings.TrimPrefix(string(kv.Key), s.e.c.Prefix), kv); err != nil {
			return err
		}
	}
	return nil
}

// enter makes this node known, as one of the cluster whose keys these are.
func (s *session) enter(ctx context.Context) error {
	node, cluster, epoch := s.m.Identity()
	if s.v.cluster.ID == "" {
		record := clusterRecord{ID: cluster, Base: epoch}
		if cluster == "" {
			record.ID = NewClusterID()
		}
		key := s.e.c.Prefix + keyCluster
		bounded, cancel := s.e.call(ctx)
		_, err := s.e.client.Txn(bounded).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).Then(clientv3.OpPut(key, encode(record))).Commit()
		cancel()
		if err != nil {
			return err
		}
		if err := s.load(ctx); err != nil {
			return err
		}
	}
	if cluster != "" && cluster != s.v.cluster.ID {
		return fmt.Errorf("%w: the keys %s in etcd are of cluster %s, and the data of this node %016X of %s: use another lease.etcd.prefix, or an empty data.dir",
			ErrCluster, s.e.c.Prefix, s.v.cluster.ID, node, cluster)
	}
	if err := s.m.Adopt(s.v.cluster.ID); err != nil {
		return err
	}
	s.vacant = false
	return s.publish(ctx, nodeRecord{})
}

// publish tells the other nodes of this one.
func (s *session) publish(ctx context.Context, r nodeRecord) error {
	r.Peer, r.Candidate = s.self, s.e.c.Candidate
	bounded, cancel := s.e.call(ctx)
	defer cancel()
	_, err := s.e.client.Put(bounded, s.e.c.Prefix+keyNode+fmt.Sprintf(nodeDigits, s.self.Node), encode(r), clientv3.WithLease(s.id))
	return err
}

// step makes the term what the view says, and takes part in an election. It returns after what time it is to be
// called again if nothing changes.
func (s *session) step(ctx context.Context) (time.Duration, error) {
	e, v := s.e, s.v
	if v.primaryRev == 0 {
		return s.campaign(ctx)
	}
	s.vacant, s.said = false, false
	next := s.ttl
	e.mu.Lock()
	defer e.mu.Unlock()
	term := Term{Epoch: v.epoch(), Primary: v.primary}
	e.claim = false
	switch left := e.deadline - e.clock.Now(); {
	case v.primaryOf != int64(s.id):
		if v.primary.Node == s.self.Node {
			term.Primary = Peer{} // an earlier session of this node, whose lease is not over yet
		}
	case v.primaryRev == e.given:
		// The key was to be given away, and may still be: only another revision can be relied on.
		e.mu.Unlock()
		err := s.retake(ctx)
		e.mu.Lock()
		return s.ttl / renewals, err
	case left <= 0:
		term.Primary = Peer{} // until a renewal proves that the key is still this node's
	default:
		e.rev = v.primaryRev
		term.Held, term.Quorum = true, v.quorum
		if s.won == v.primaryRev {
			term.Heard = s.standing
		}
		next = left
	}
	e.setTerm(term)
	return next, nil
}

// retake puts the primary's key, which is this node's, anew.
func (s *session) retake(ctx context.Context) error {
	err := s.e.swap(ctx, "keep the lease", s.v.primaryRev, s.take()...)
	if errors.Is(err, ErrNotHeld) {
		return nil // it was given away, as the watch will tell
	}
	return err
}

func (s *session) take() []clientv3.Op {
	return []clientv3.Op{
		clientv3.OpPut(s.e.c.Prefix+keyPrimary, encode(s.self), clientv3.WithLease(s.id)),
		clientv3.OpPut(s.e.c.Prefix+keyTerm, encode(termRecord{Peer: s.self})),
	}
}

// campaign takes the key when this node is the one that must, while there is no primary.
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
		if err := s.publish(ctx, nodeRecord{Standing: Standing{Marks: s.marks}, Vacancy: v.termRev + 1}); err != nil {
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
	if !p.covered && !claim && age > 2*grace && !s.said {
		s.said = true
		e.c.Log.Warn("there is no primary, and this node does not become it: nodes that are away may have transactions that were acknowledged",
			"nodes", fmt.Sprintf("%016X", v.quorum.Nodes), "copies", v.quorum.Copies)
	}
	if now < holdoff || age < 0 || !p.covered && !claim || p.missing && age < grace || p.ahead && now-s.yields < 2*grace {
		return max(grace/10, 10*time.Millisecond), nil
	}
	return s.ttl / renewals, s.acquire(ctx, p)
}

// acquire takes the key, if there is still none.
func (s *session) acquire(ctx context.Context, p poll) error {
	e, v := s.e, s.v
	ops := s.take()
	if _, _, known := s.m.Identity(); v.cluster.Base+uint64(s.rev) < known {
		// This etcd is another one than that of which the node knows an epoch.
		ops = append(ops, clientv3.OpPut(e.c.Prefix+keyCluster, encode(clusterRecord{v.cluster.ID, known})))
	}
	bounded, cancel := e.call(ctx)
	defer cancel()
	r, err := e.client.Txn(bounded).If(
		clientv3.Compare(clientv3.CreateRevision(e.c.Prefix+keyPrimary), "=", 0),
		clientv3.Compare(clientv3.ModRevision(e.c.Prefix+keyTerm), "=", v.termRev),
	).Then(ops...).Commit()
	if err != nil {
		return err
	}
	if r.Succeeded {
		s.won, s.standing = r.Header.Revision, p.heard
	}
	return nil
}
