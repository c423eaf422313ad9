package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"go.etcd.io/bbolt"

	"github.com/hangar-platform/hangar/provider"
)

// post adds a webhook to the outbox in the transaction of the change. It does nothing for an empty action.
func post(tx *bbolt.Tx, action provider.Action, r provider.Resource) error {
	if action == "" {
		return nil
	}
	raw, err := json.Marshal(provider.Event{Action: action, Resource: r})
	if err != nil {
		return err
	}
	b := tx.Bucket(outbox)
	n, err := b.NextSequence()
	if err != nil {
		return err
	}
	return b.Put(binary.BigEndian.AppendUint64(nil, n), raw)
}

// sender sends the webhooks in the outbox, one after the other.
type sender struct {
	store  *store
	client *provider.WebhookClient // nil: webhooks are dropped
	log    *slog.Logger
}

func newSender(c config, s *store, log *slog.Logger) *sender {
	v := &sender{store: s, log: log}
	if c.webhookURL != "" {
		v.client = &provider.WebhookClient{URL: c.webhookURL, Signer: provider.Signer{Secret: c.webhookSecret}}
	}
	return v
}

// run sends until ctx ends. The rest is sent after the next start.
func (v *sender) run(ctx context.Context) {
	look := time.NewTicker(time.Second)
	defer look.Stop()
	for {
		for v.next(ctx) {
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return
		}
	}
}

// next sends the oldest webhook, and reports whether it removed one from the outbox.
func (v *sender) next(ctx context.Context) bool {
	var key []byte
	var e provider.Event
	err := v.store.View(func(tx *bbolt.Tx) error {
		k, raw := tx.Bucket(outbox).Cursor().First()
		if k == nil {
			return errNotFound
		}
		key = append(key, k...)
		return json.Unmarshal(raw, &e)
	})
	if errors.Is(err, errNotFound) {
		return false
	}
	if err == nil && v.client != nil {
		err = v.client.Send(ctx, e)
	}
	if ctx.Err() != nil {
		return false
	}
	if err != nil {
		v.log.Error("webhook failed", "action", e.Action, "resource", e.Resource.ID, "error", err)
		if _, refused := errors.AsType[*provider.WebhookError](err); !refused {
			return false // the platform is unreachable: later webhooks would fail, too
		}
	}
	err = v.store.Update(func(tx *bbolt.Tx) error { return tx.Bucket(outbox).Delete(key) })
	if err != nil {
		v.log.Error("outbox", "error", err)
	}
	return err == nil
}
