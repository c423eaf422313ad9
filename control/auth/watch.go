package auth

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/internal/pause"
)

const (
	// FlushInterval is how far the times of use in the state lag behind.
	FlushInterval = 5 * time.Minute

	flushTimeout = 5 * time.Second // of the last flush, when the daemon ends
)

// Run follows the state and writes down now and then which tokens were used, until
// ctx ends. While the state cannot be reached, memory stays what it is.
func (t *Tokens) Run(ctx context.Context) error {
	var others sync.WaitGroup
	others.Go(func() { t.flushUses(ctx) })
	others.Go(func() { t.follow(ctx, "users", t.watchAccounts, t.loadAccounts) })
	t.follow(ctx, "tokens", t.watch, t.load)
	others.Wait()
	return ctx.Err()
}

// follow watches until ctx ends: again when the feed breaks, and from what load has read when
// there is no way to go on.
func (t *Tokens) follow(ctx context.Context, what string, watch, load func(context.Context) error) {
	_ = pause.Between(ctx, pause.Feeds, func(ctx context.Context) error {
		err := watch(ctx)
		if errors.Is(err, state.ErrCompacted) {
			err = load(ctx)
		}
		return err
	}, func(err error) {
		t.cfg.Log.Warn("changes by other servers go unnoticed", "of", what, keyError, err)
	})
}

// watch takes changes as they come, until the feed breaks.
func (t *Tokens) watch(ctx context.Context) error {
	for batch, err := range t.cfg.Store.Watch(ctx, Prefix, t.revision()+1) {
		if err != nil {
			return err
		}
		changes := make([]change, 0, len(batch.Changes))
		for _, c := range batch.Changes {
			if c.Deleted {
				changes = append(changes, change{id: idOf(c.Key), at: batch.Revision})
			} else {
				changes = append(changes, t.parse(c.Item))
			}
		}
		t.followTokens(changes, batch.Revision)
	}
	return nil
}

// watchAccounts is watch for users.
func (t *Tokens) watchAccounts(ctx context.Context) error {
	for batch, err := range t.cfg.Store.Watch(ctx, state.UsersPrefix, t.accountsRevision()+1) {
		if err != nil {
			return err
		}
		changes := make([]accountChange, 0, len(batch.Changes))
		for _, c := range batch.Changes {
			if c.Deleted {
				changes = append(changes, accountChange{id: userOf(c.Key), at: batch.Revision})
			} else {
				changes = append(changes, t.parseAccount(c.Item))
			}
		}
		t.followAccounts(changes, batch.Revision, false)
	}
	return nil
}

// loadAccounts reads all users.
func (t *Tokens) loadAccounts(ctx context.Context) error {
	items, revision, err := state.All(ctx, t.cfg.Store, state.UsersPrefix, false)
	if err != nil {
		return err
	}
	all := make([]accountChange, 0, len(items))
	for _, item := range items {
		all = append(all, t.parseAccount(item))
	}
	t.followAccounts(all, revision, true)
	return nil
}

// load reads everything there is.
func (t *Tokens) load(ctx context.Context) error {
	items, revision, err := state.All(ctx, t.cfg.Store, Prefix, false)
	if err != nil {
		return err
	}
	all := make([]change, 0, len(items))
	for _, item := range items {
		all = append(all, t.parse(item))
	}
	t.replace(all, revision)
	uses, _, err := state.All(ctx, t.cfg.Store, usesPrefix, false)
	if err != nil {
		return err
	}
	for _, item := range uses {
		if second, err := strconv.ParseInt(string(item.Value), 10, 64); err == nil {
			t.usedAt(hangar.TokenID(strings.TrimPrefix(item.Key, usesPrefix)), second)
		}
	}
	return nil
}

func (t *Tokens) revision() state.Revision {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.seen
}

func (t *Tokens) usedAt(id hangar.TokenID, second int64) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if e, ok := t.tokens[id]; ok && e.used.Load() < second {
		e.used.Store(second)
	}
}

func idOf(key string) hangar.TokenID { return hangar.TokenID(strings.TrimPrefix(key, Prefix)) }

// parse reads a record. One that makes no sense is logged, and opens nothing.
func (t *Tokens) parse(item state.Item) change {
	c := change{id: idOf(item.Key), at: item.Revision}
	var r Record
	err := json.Unmarshal(item.Value, &r)
	switch {
	case err != nil:
	case r.ID != c.id:
		err = fmt.Errorf("record of token %q", r.ID)
	case len(r.Digest) != sha256.Size:
		err = fmt.Errorf("digest of %d bytes", len(r.Digest))
	case !r.Admin && !wholeUser(r.Kind):
		err = r.Grant.Validate()
	}
	if err != nil {
		t.cfg.Log.Error("token skipped", keyKey, item.Key, keyError, err)
		return c
	}
	c.record = &r
	return c
}

// flushUses writes down which tokens were used, now and then and at the end.
func (t *Tokens) flushUses(ctx context.Context) {
	tick := time.NewTicker(FlushInterval)
	defer tick.Stop()
	written := t.uses()
	for {
		select {
		case <-tick.C:
			t.flush(ctx, written)
		case <-ctx.Done():
			bounded, cancel := finish.Within(ctx, flushTimeout)
			defer cancel()
			t.flush(bounded, written)
			return
		}
	}
}

// uses are the times of the last use, in Unix seconds.
func (t *Tokens) uses() map[hangar.TokenID]int64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	uses := make(map[hangar.TokenID]int64, len(t.tokens))
	for id, e := range t.tokens {
		if e.Record != nil {
			uses[id] = e.used.Load()
		}
	}
	return uses
}

// flush writes what differs from what was written before. A token that has gone
// meanwhile gets nothing.
func (t *Tokens) flush(ctx context.Context, written map[hangar.TokenID]int64) {
	uses := t.uses()
	for id := range written {
		if _, ok := uses[id]; !ok {
			delete(written, id)
		}
	}
	for id, second := range uses {
		if written[id] == second {
			continue
		}
		t.mu.RLock()
		revision := t.tokens[id].revision
		t.mu.RUnlock()
		_, err := t.cfg.Store.Txn(ctx, state.Txn{
			If:   []state.Compare{{Key: Prefix + string(id), Revision: revision}},
			Then: []state.Op{state.Put(usesPrefix+string(id), strconv.AppendInt(nil, second, 10))},
		})
		switch {
		case err == nil:
			written[id] = second
		case !errors.Is(err, state.ErrConflict):
			t.cfg.Log.Debug("uses of tokens are not written down", keyError, err)
			return
		}
	}
}
