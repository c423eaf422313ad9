package state

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Grant implements Store.
func (s *Etcd) Grant(ctx context.Context, ttl time.Duration) (Lease, error) {
	if s.closed.Load() {
		return Lease{}, ErrClosed
	}
	if s.room != nil {
		if err := s.room.admit(Txn{}); err != nil {
			return Lease{}, err
		}
	}
	bounded, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	r, err := s.client.Grant(bounded, seconds(ttl))
	if err != nil {
		return Lease{}, s.classify(ctx, "grant", "a lease", err)
	}
	return Lease{ID: LeaseID(r.ID), TTL: time.Duration(r.TTL) * time.Second}, nil
}

// Renew implements Store.
func (s *Etcd) Renew(ctx context.Context, id LeaseID) (time.Duration, error) {
	if s.closed.Load() {
		return 0, ErrClosed
	}
	bounded, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	r, err := s.client.KeepAliveOnce(bounded, clientv3.LeaseID(id))
	if err != nil {
		return 0, s.classify(ctx, "renew", "a lease", err)
	}
	return time.Duration(r.TTL) * time.Second, nil
}

// Revoke implements Store.
func (s *Etcd) Revoke(ctx context.Context, id LeaseID) (Revision, error) {
	if s.closed.Load() {
		return 0, ErrClosed
	}
	bounded, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	r, err := s.client.Revoke(bounded, clientv3.LeaseID(id))
	if err != nil {
		return 0, s.classify(ctx, "revoke", "a lease", err)
	}
	return Revision(r.Header.Revision), nil
}

// seconds rounds a time to live to whole seconds, at least MinLease.
func seconds(ttl time.Duration) int64 {
	return int64((max(ttl, MinLease) + time.Second - 1) / time.Second)
}
