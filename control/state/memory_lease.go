package state

import (
	"context"
	"time"
)

// memoryLease is a lease that has not ended.
type memoryLease struct {
	ttl   time.Duration
	timer *time.Timer // ends it
}

// Grant implements Store.
func (m *Memory) Grant(ctx context.Context, ttl time.Duration) (Lease, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usable(ctx); err != nil {
		return Lease{}, err
	}
	m.lastLease++
	id, ttl := m.lastLease, time.Duration(seconds(ttl))*time.Second
	m.leases[id] = &memoryLease{ttl: ttl, timer: time.AfterFunc(ttl, func() { m.expire(id) })}
	return Lease{ID: id, TTL: ttl}, nil
}

// Renew implements Store.
func (m *Memory) Renew(ctx context.Context, id LeaseID) (time.Duration, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usable(ctx); err != nil {
		return 0, err
	}
	l := m.leases[id]
	if l == nil || !l.timer.Stop() {
		return 0, ErrLeaseEnded
	}
	l.timer.Reset(l.ttl)
	return l.ttl, nil
}

// Revoke implements Store.
func (m *Memory) Revoke(ctx context.Context, id LeaseID) (Revision, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usable(ctx); err != nil {
		return 0, err
	}
	if m.leases[id] == nil {
		return 0, ErrLeaseEnded
	}
	m.end(id)
	return m.revision, nil
}

func (m *Memory) expire(id LeaseID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed && m.leases[id] != nil {
		m.end(id)
	}
}

// end ends a lease and deletes its keys. m.mu is held.
func (m *Memory) end(id LeaseID) {
	m.leases[id].timer.Stop()
	delete(m.leases, id)
	var ops []Op
	for key, versions := range m.keys {
		if last := versions[len(versions)-1]; last.lease == id && !last.deleted {
			ops = append(ops, Delete(key))
		}
	}
	m.write(ops)
}
