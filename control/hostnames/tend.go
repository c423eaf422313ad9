package hostnames

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/internal/fairsem"
)

// The bounds of what tenants have looked up in the DNS.
const (
	lookupTimeout  = 5 * time.Second
	lookupsAtOnce  = 16 // Hostnames, of all organizations, which share them fairly
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
	slots *fairsem.Semaphore[hangar.OrgID] // of lookups under way

	mu sync.Mutex // guards what follows
	of map[hangar.OrgID]*rate.Limiter
}

func newLookups() *lookups {
	return &lookups{slots: fairsem.New[hangar.OrgID](lookupsAtOnce), of: map[hangar.OrgID]*rate.Limiter{}}
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
func (h *Hostnames) lookUp(ctx context.Context, org hangar.OrgID, name hangar.Hostname) (observation, bool) {
	if !h.lookups.allow(org, h.now()) {
		return observation{}, false
	}
	release, err := h.lookups.slots.Acquire(ctx, org)
	if err != nil {
		return observation{}, false
	}
	defer release()
	return h.observe(ctx, name), true
}

// Run tends Hostnames until ctx ends, and returns its error.
func (h *Hostnames) Run(ctx context.Context) error {
	ticker := time.NewTicker(tendEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
			if err := h.Tend(ctx); err != nil && ctx.Err() == nil {
				h.log.WarnContext(ctx, "hostnames are not tended now", keyError, err)
			}
		}
	}
}

// Tend looks once at every Hostname that is not proven: it looks up those whose
// turn it is, and removes those whose time has passed. One of each organization is looked up,
// so that those of another do not wait for all of them.
func (h *Hostnames) Tend(ctx context.Context) error {
	all, _, err := state.All(ctx, h.store, state.HostnamesPrefix, false)
	if err != nil {
		return state.HangarError(err)
	}
	now := h.now()
	turns := map[hangar.OrgID]hangar.Hostname{} // of each organization, the one that has waited longest
	unproven := map[hangar.Hostname]struct{}{}
	var failed error // the others are looked at nevertheless
	for _, item := range all {
		name := Name(item.Key)
		rec, err := state.Decode[hostnameRecord](item)
		switch {
		case err != nil:
			h.log.ErrorContext(ctx, "hostname skipped", keyKey, item.Key, keyError, err)
		case rec.due(now):
			org, counts := rec.Counted()
			_, err := h.ledger.GiveBack(ctx, org, counts, state.Txn{
				If:   []state.Compare{state.Unchanged(item)},
				Then: append(held(name, rec, hostnameRecord{}), state.Delete(item.Key), state.Delete(certificateKey(name))),
			})
			if err != nil && !errors.Is(err, state.ErrConflict) {
				failed = errors.Join(failed, state.HangarError(err))
			}
		case rec.State == claimPending, rec.State == claimLeading:
			unproven[name] = struct{}{}
			if h.certificateIssued(name, rec) {
				failed = errors.Join(failed, h.settle(ctx, name, claimIssued, hangar.ProofACME))
				continue
			}
			at := h.tended.at(name)
			if first, ok := turns[rec.OrgID]; !at.After(now) && (!ok || at.Before(h.tended.at(first))) {
				turns[rec.OrgID] = name
			}
		}
	}
	h.tended.keep(unproven)
	var working sync.WaitGroup
	started := 0
	defer working.Wait()
	for _, name := range turns {
		if started++; started > lookupsAtTurn {
			break
		}
		working.Go(func() {
			if err := h.reconsider(ctx, name); err != nil && ctx.Err() == nil {
				h.log.WarnContext(ctx, "hostname is looked at again later", keyHostname, name, keyError, err)
			}
		})
	}
	return failed
}

// certificateIssued reports whether an ACME server has issued a certificate to this server
// since the Hostname was claimed: it has been ordered only since it leads here.
func (h *Hostnames) certificateIssued(name hangar.Hostname, rec hostnameRecord) bool {
	if h.edge == nil || !rec.ACME || rec.State != claimLeading {
		return false
	}
	return slices.ContainsFunc(h.edge.CertificateState(name).Issued, func(i hangar.IssuedCertificate) bool {
		return i.Kind == hangar.CertificateACME && i.Status == hangar.CertificateActive
	})
}

// reconsider looks up a Hostname that is not proven.
func (h *Hostnames) reconsider(ctx context.Context, name hangar.Hostname) error {
	rec, _, err := state.Read[hostnameRecord](ctx, h.store, hostnameKey(name))
	if errors.Is(err, state.ErrNotFound) {
		return nil
	}
	if err != nil {
		return state.HangarError(err)
	}
	// Young claims are checked often: their owner is probably just changing the DNS.
	pause := min(max(h.now().Sub(rec.CreatedAt)/10, firstRecheck), slowestRecheck)
	h.tended.set(name, h.now().Add(pause))
	observed, ok := h.lookUp(ctx, rec.OrgID, name)
	if !ok {
		return nil
	}
	_, err = h.put(ctx, tenants.AppRecord{ID: rec.AppID, Name: rec.App}, name, &evidence{observed: observed}, nil, nil)
	return err
}

// settle applies an event to a Hostname that no evidence is needed for.
func (h *Hostnames) settle(ctx context.Context, name hangar.Hostname, event claimEvent, proof hangar.HostnameProof) error {
	for {
		rec, item, err := state.Read[hostnameRecord](ctx, h.store, hostnameKey(name))
		if errors.Is(err, state.ErrNotFound) {
			return nil
		}
		if err != nil {
			return state.HangarError(err)
		}
		r, err := h.rivals(ctx, name, rec.OrgID)
		if err != nil {
			return err
		}
		if r.domain || rec.Contested {
			event, proof = claimStray, ""
		}
		_, unclaimed, count, err := state.NextNumber(ctx, h.store, state.HostnameCounter)
		if err != nil {
			return err
		}
		if !rec.prove(event, proof, h.now()) {
			return nil
		}
		put, err := state.Write(item.Key, rec)
		if err != nil {
			return err
		}
		_, err = h.store.Txn(ctx, state.Txn{If: []state.Compare{state.Unchanged(item), unclaimed}, Then: []state.Op{put, count}})
		if !errors.Is(err, state.ErrConflict) {
			return state.HangarError(err)
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
