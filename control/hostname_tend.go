package control

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
)

// The bounds of what tenants have looked up in the DNS.
const (
	lookupTimeout  = 5 * time.Second
	lookupsAtOnce  = 16 // Hostnames, of all organizations
	lookupsAtTurn  = 64 // of TendHostnames
	lookupsPerOrg  = rate.Limit(1)
	lookupBurst    = 20
	maxLookupOrgs  = 10_000 // that are remembered
	maxRecords     = 100    // of an answer
	tendEvery      = 5 * time.Second
	firstRecheck   = 15 * time.Second
	slowestRecheck = time.Hour
)

// lookups bounds how often Hostnames are looked up, for each organization and for all.
type lookups struct {
	slots chan struct{} // one for each under way

	mu sync.Mutex // guards what follows
	of map[hangar.OrgID]*rate.Limiter
}

func newLookups() *lookups {
	return &lookups{slots: make(chan struct{}, lookupsAtOnce), of: map[hangar.OrgID]*rate.Limiter{}}
}

// allow takes a lookup of an organization from its share.
func (l *lookups) allow(org hangar.OrgID, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	limiter := l.of[org]
	if limiter == nil {
		if len(l.of) >= maxLookupOrgs {
			clear(l.of)
		}
		limiter = rate.NewLimiter(lookupsPerOrg, lookupBurst)
		l.of[org] = limiter
	}
	return limiter.AllowN(now, 1)
}

// lookUp observes a Hostname for an organization; false: it has to wait.
func (c *Control) lookUp(ctx context.Context, org hangar.OrgID, name hangar.Hostname) (observation, bool) {
	if !c.lookups.allow(org, c.now()) {
		return observation{}, false
	}
	select {
	case c.lookups.slots <- struct{}{}:
		defer func() { <-c.lookups.slots }()
		return c.observeHostname(ctx, name), true
	case <-ctx.Done():
		return observation{}, false
	}
}

// RunHostnames tends Hostnames until ctx ends, and returns its error.
func (c *Control) RunHostnames(ctx context.Context) error {
	ticker := time.NewTicker(tendEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
			if err := c.TendHostnames(ctx); err != nil && ctx.Err() == nil {
				c.log.WarnContext(ctx, "hostnames are not tended now", keyError, err)
			}
		}
	}
}

// TendHostnames looks once at every Hostname that is not proven: it looks up those whose
// turn it is, and removes those whose time has passed. One of each organization is looked up,
// so that those of another do not wait for all of them.
func (c *Control) TendHostnames(ctx context.Context) error {
	all, _, err := state.All(ctx, c.store, hostnamesPrefix, false)
	if err != nil {
		return stateError(err)
	}
	now := c.now()
	turns := map[hangar.OrgID]hangar.Hostname{} // of each organization, the one that has waited longest
	unproven := map[hangar.Hostname]struct{}{}
	for _, item := range all {
		name := hostnameOf(item.Key)
		rec, err := decode[hostnameRecord](item)
		switch {
		case err != nil:
			c.log.ErrorContext(ctx, "hostname skipped", keyKey, item.Key, keyError, err)
		case rec.due(now):
			org, counts := rec.counted()
			_, err := c.ledger.giveBack(ctx, org, counts, state.Txn{
				If:   []state.Compare{state.Unchanged(item)},
				Then: []state.Op{state.Delete(item.Key), state.Delete(certificateKey(name))},
			})
			if err != nil && !errors.Is(err, state.ErrConflict) {
				return stateError(err)
			}
		case rec.State == claimPending, rec.State == claimLeading:
			unproven[name] = struct{}{}
			if c.certificateIssued(name, rec) {
				if err := c.settle(ctx, name, claimIssued, hangar.ProofACME); err != nil {
					return err
				}
				continue
			}
			at := c.tended.at(name)
			if first, ok := turns[rec.OrgID]; !at.After(now) && (!ok || at.Before(c.tended.at(first))) {
				turns[rec.OrgID] = name
			}
		}
	}
	c.tended.keep(unproven)
	var working sync.WaitGroup
	started := 0
	defer working.Wait()
	for _, name := range turns {
		if started++; started > lookupsAtTurn {
			break
		}
		working.Go(func() {
			if err := c.reconsider(ctx, name); err != nil && ctx.Err() == nil {
				c.log.WarnContext(ctx, "hostname is looked at again later", keyHostname, name, keyError, err)
			}
		})
	}
	return nil
}

// certificateIssued reports whether an ACME server has issued a certificate to this server
// since the Hostname was claimed: it has been ordered only since it leads here.
func (c *Control) certificateIssued(name hangar.Hostname, rec hostnameRecord) bool {
	if c.certificates == nil || !rec.ACME || rec.State != claimLeading {
		return false
	}
	for _, i := range c.certificates.CertificateState(name).Issued {
		if i.Kind == hangar.CertificateACME && i.Status == hangar.CertificateActive {
			return true
		}
	}
	return false
}

// reconsider looks up a Hostname that is not proven.
func (c *Control) reconsider(ctx context.Context, name hangar.Hostname) error {
	rec, _, err := read[hostnameRecord](ctx, c.store, hostnameKey(name))
	if errors.Is(err, state.ErrNotFound) {
		return nil
	}
	if err != nil {
		return stateError(err)
	}
	// Young claims are looked at often: somebody is just about to change the DNS.
	pause := min(max(c.now().Sub(rec.CreatedAt)/10, firstRecheck), slowestRecheck)
	c.tended.set(name, c.now().Add(pause))
	observed, ok := c.lookUp(ctx, rec.OrgID, name)
	if !ok {
		return nil
	}
	_, err = c.Certificates().put(ctx, appRecord{ID: rec.AppID, Name: rec.App}, name, &evidence{observed: observed}, nil, nil)
	return err
}

// settle applies an event to a Hostname that no evidence is needed for.
func (c *Control) settle(ctx context.Context, name hangar.Hostname, event claimEvent, proof hangar.HostnameProof) error {
	for {
		rec, item, err := read[hostnameRecord](ctx, c.store, hostnameKey(name))
		if errors.Is(err, state.ErrNotFound) {
			return nil
		}
		if err != nil {
			return stateError(err)
		}
		r, err := c.rivals(ctx, name, rec.OrgID)
		if err != nil {
			return err
		}
		if r.domain || rec.Contested {
			event, proof = claimStray, ""
		}
		_, unclaimed, count, err := c.next(ctx, hostnameCounter)
		if err != nil {
			return err
		}
		if !rec.prove(event, proof, c.now()) {
			return nil
		}
		put, err := write(item.Key, rec)
		if err != nil {
			return err
		}
		_, err = c.store.Txn(ctx, state.Txn{If: []state.Compare{state.Unchanged(item), unclaimed}, Then: []state.Op{put, count}})
		if !errors.Is(err, state.ErrConflict) {
			return stateError(err)
		}
	}
}

// tended is when Hostnames that are not proven are looked up again.
type tended struct {
	mu   sync.Mutex // guards next
	next map[hangar.Hostname]time.Time
}

func (t *tended) at(name hangar.Hostname) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.next[name]
}

func (t *tended) set(name hangar.Hostname, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.next == nil {
		t.next = map[hangar.Hostname]time.Time{}
	}
	t.next[name] = at
}

// keep forgets all other Hostnames.
func (t *tended) keep(names map[hangar.Hostname]struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name := range t.next {
		if _, ok := names[name]; !ok {
			delete(t.next, name)
		}
	}
}
