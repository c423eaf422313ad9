package state

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hangar-platform/hangar/internal/finish"
)

// Presence is a Store that can have a key for as long as who wrote it lives.
type Presence interface {
	Store
	// Hold writes a key, calls held, and keeps the key until ctx ends, which is no error, or until
	// it is lost: no sooner than ttl after the Store was last reached, it is gone for everyone. A
	// process that ends otherwise leaves the key for that long.
	Hold(ctx context.Context, key string, value []byte, ttl time.Duration, held func()) error
}

// errLeaseLost means that a held key is gone, or will be.
var errLeaseLost = errors.New("state: the lease has ended")

// releaseWithin bounds the release of a key.
const releaseWithin = 2 * time.Second

// Hold implements Presence by a lease.
func (s *Etcd) Hold(ctx context.Context, key string, value []byte, ttl time.Duration, held func()) error {
	if err := validKey(key); err != nil {
		return err
	}
	if s.closed.Load() {
		return ErrClosed
	}
	bounded, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	lease, err := s.client.Grant(bounded, int64(ttl/time.Second))
	if err != nil {
		return s.classify(ctx, "lease", key, err)
	}
	defer func() {
		_ = finish.Do(ctx, releaseWithin, func(ctx finish.Context) error {
			_, err := s.client.Revoke(ctx, lease.ID)
			return err // the lease then expires
		})
	}()
	if _, err := s.client.Put(bounded, s.prefix+key, string(value), clientv3.WithLease(lease.ID)); err != nil {
		return s.classify(ctx, "put", key, err)
	}
	alive, err := s.client.KeepAlive(ctx, lease.ID)
	if err != nil {
		return s.classify(ctx, "keep", key, err)
	}
	held()
	for range alive { // each message renews the lease
	}
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("%w: %s", errLeaseLost, key)
}

// Hold implements Presence. The key is lost with the Store alone.
func (m *Memory) Hold(ctx context.Context, key string, value []byte, _ time.Duration, held func()) error {
	if _, err := m.Txn(ctx, Txn{Then: []Op{Put(key, value)}}); err != nil {
		return err
	}
	held()
	<-ctx.Done()
	return finish.Do(ctx, releaseWithin, func(ctx finish.Context) error {
		_, err := m.Txn(ctx, Txn{Then: []Op{Delete(key)}})
		return err
	})
}
