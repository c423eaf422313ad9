package delivery

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"

	bolt "go.etcd.io/bbolt"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/boltfile"
)

// ReceiverStatus implements hangar.EventDelivery.
func (d *Dispatcher) ReceiverStatus(id string) hangar.WebhookStatus {
	var status hangar.WebhookStatus
	if r := d.receiver(id); r != nil {
		status = r.status()
	}
	m := d.store.meta(id)
	status.Waiting, status.WaitingBytes, status.Dead, status.Dropped = m.Waiting, m.Bytes, m.Dead, m.Dropped
	if items, err := d.store.next(id, 0, 1, 0); err == nil && len(items) > 0 {
		status.WaitingSince = items[0].At
	}
	return status
}

// ReceiverDeliveries implements hangar.EventDelivery.
func (d *Dispatcher) ReceiverDeliveries(id string, q hangar.DeliveryQuery) ([]hangar.WebhookDelivery, error) {
	list := []hangar.WebhookDelivery{}
	most := q.Most()
	err := boltfile.View(d.store.db, func(tx *bolt.Tx) error {
		for _, part := range []struct {
			bucket []byte
			state  hangar.DeliveryState
		}{{bucketQueue, hangar.DeliveryWaiting}, {bucketDead, hangar.DeliveryDead}, {bucketLog, hangar.DeliveryDelivered}} {
			if q.State != "" && q.State != part.state {
				continue
			}
			n := 0
			newest(d.store.bucket(tx, id, part.bucket), func(_ []byte, e entry) bool {
				list = append(list, e.view(part.state))
				n++
				return n < most
			})
		}
		return nil
	})
	if err != nil {
		return nil, &hangar.Error{Code: hangar.CodeInternal, Message: "The deliveries cannot be read", Err: err}
	}
	slices.SortStableFunc(list, func(a, b hangar.WebhookDelivery) int { return cmp.Compare(b.ID, a.ID) })
	return list[:min(len(list), most)], nil
}

// Resend implements hangar.EventDelivery.
func (d *Dispatcher) Resend(id string, delivery hangar.DeliveryID) (hangar.WebhookDelivery, error) {
	e, err := d.store.resend(id, delivery)
	if err != nil {
		if hangar.CodeOf(err) == hangar.CodeNotFound {
			return hangar.WebhookDelivery{}, err
		}
		return hangar.WebhookDelivery{}, &hangar.Error{Code: hangar.CodeUnavailable, Message: "The event cannot be sent again now", Err: err}
	}
	if r := d.receiver(id); r != nil {
		r.signal()
	}
	return e.view(hangar.DeliveryWaiting), nil
}

// resend puts a dead letter, or an entry of the log, at the end of its queue.
func (s *store) resend(id string, delivery hangar.DeliveryID) (e entry, err error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	t := &transaction{store: s, metas: map[string]meta{}, total: s.total}
	s.mu.Unlock()
	err = boltfile.Update(s.db, func(tx *bolt.Tx) error {
		t.tx, t.evicted = tx, map[string]uint64{}
		found := false
		look := func(name []byte, do func(key []byte, one entry) error) {
			newest(s.bucket(tx, id, name), func(key []byte, one entry) bool {
				if one.ID != delivery {
					return true
				}
				found = true
				err = do(key, one)
				return false
			})
		}
		look(bucketDead, func(key []byte, one entry) error {
			e = entry{ID: one.ID, At: s.o.now().UTC(), Event: one.Event}
			return t.removeDeadLetter(id, key)
		})
		if !found {
			look(bucketLog, func(_ []byte, one entry) error {
				e = newEntry(one.Event, s.o.now())
				return nil
			})
		}
		switch {
		case err != nil:
			return err
		case !found:
			return hangar.Errorf(hangar.CodeNotFound, hangar.ReasonDeliveryNotFound, "There is no delivery %.40q that could be repeated", string(delivery))
		}
		org := t.meta(id).Org
		if err := t.enqueue(id, org, &e); err != nil {
			return fmt.Errorf("queue of receiver %s: %w", id, err)
		}
		if err := t.bound([]insert{{receiver: id, org: org}}); err != nil {
			return err
		}
		return t.conclude()
	})
	if err == nil {
		s.committed(t)
	}
	return e, err
}

// Ping implements hangar.EventDelivery.
func (d *Dispatcher) Ping(ctx context.Context, id string) (hangar.WebhookPing, error) {
	r := d.receiver(id)
	if r == nil {
		return hangar.WebhookPing{}, hangar.Errorf(hangar.CodeNotFound, hangar.ReasonWebhookNotFound, "There is no such webhook")
	}
	spec := r.spec.Load()
	a := d.withSlots(ctx, spec, func(ctx context.Context) attempt {
		return d.post(ctx, spec, func(ctx context.Context) (*http.Request, error) { return newPing(ctx, spec.URL, spec.ID, d.o.Now()) })
	})
	if a.cut {
		return hangar.WebhookPing{}, context.Cause(ctx)
	}
	return hangar.WebhookPing{Delivered: a.err == "", HTTPStatus: a.status, Error: a.err, Took: hangar.Duration(a.took)}, nil
}
