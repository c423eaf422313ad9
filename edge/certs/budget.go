package certs

import (
	"fmt"
	"sync"
	"time"

	"github.com/mholt/acmez/v3/acme"
	"golang.org/x/time/rate"

	"github.com/hangar-platform/hangar"
)

// Limit is a token bucket: N tokens, which refill evenly within Per.
type Limit struct {
	N   int
	Per time.Duration
}

// Limits bound the orders of tenants, who share one account at the ACME server. Orders for the
// platform's own names do not count.
type Limits struct {
	Account Limit // orders of all organizations
	Org     Limit // orders of one organization
	Domain  Limit // first certificates of one organization for names of one registered domain
	Own     Limit // the same for its Apps' own names
	Name    Limit // orders for one name, across all its owners
}

// DefaultLimits stay below those of Let's Encrypt (letsencrypt.org/docs/rate-limits): 300 new orders
// of an account in 3 hours, 50 certificates of a registered domain in 7 days, 5 failed
// validations of a name in an hour.
func DefaultLimits() Limits {
	const week = 7 * 24 * time.Hour
	return Limits{
		Account: Limit{240, 3 * time.Hour}, Org: Limit{60, 3 * time.Hour},
		Domain: Limit{40, week}, Own: Limit{10, week}, Name: Limit{5, time.Hour},
	}
}

// orderRequest is what an order is placed for, with what the budget has to know of it.
type orderRequest struct {
	name    hangar.Hostname
	org     hangar.OrgID
	own     bool // the name is an App's own, below the domain of the platform
	renewal bool
}

// budget counts orders before they are placed.
type budget struct {
	limits Limits

	mu      sync.Mutex // guards what follows
	buckets map[string]*rate.Limiter
	most    int // number of buckets at which full ones are dropped
	waiting map[hangar.Hostname]*wait
}

// wait says why, and until when, no order may be placed for a name. It never changes.
type wait struct {
	until time.Time
	shown hangar.CertificateError
}

// fewBuckets is the number of buckets that needs no sweep.
const fewBuckets = 4096

func newBudget(l Limits) *budget {
	return &budget{limits: l, buckets: map[string]*rate.Limiter{}, most: fewBuckets, waiting: map[hangar.Hostname]*wait{}}
}

// share is one of the limits that an order counts against.
type share struct {
	key    string
	limit  Limit
	what   string // for people
	issued bool   // it counts issued certificates instead of orders
}

func (b *budget) shares(req orderRequest) []share {
	l := &b.limits
	shares := []share{
		{"name " + string(req.name), l.Name, "for this name", false},
		{"org " + string(req.org), l.Org, "for the organization", false},
		{"account", l.Account, "for all who use this server", false},
	}
	domain := req.name.Registrable()
	switch {
	case req.renewal:
	case req.own:
		shares = append(shares, share{"own " + string(req.org), l.Own, "for names of the organization's apps below the platform's domain", true})
	case domain != "":
		shares = append(shares, share{"domain " + string(req.org) + " " + string(domain), l.Domain, "for names of " + string(domain), true})
	}
	return shares
}

// take counts an order, or returns why it has to wait, without counting it. Issued certificates may
// exceed their limit by the number of orders in flight.
func (b *budget) take(req orderRequest, now time.Time) *wait {
	b.mu.Lock()
	defer b.mu.Unlock()
	held := b.lacking(req, now)
	if held == nil {
		b.place(req, now)
	}
	return held
}

// room is take without counting the order.
func (b *budget) room(req orderRequest, now time.Time) *wait {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lacking(req, now)
}

// placed counts an order that another edge has placed.
func (b *budget) placed(req orderRequest, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.place(req, now)
}

// place counts an order. The caller holds mu.
func (b *budget) place(req orderRequest, now time.Time) {
	for _, s := range b.shares(req) {
		if !s.issued {
			b.bucket(s, now).AllowN(now, 1)
		}
	}
}

// lacking returns why an order has to wait; nil: it need not. The caller holds mu.
func (b *budget) lacking(req orderRequest, now time.Time) *wait {
	var longest time.Duration
	var lacking share
	for _, s := range b.shares(req) {
		bucket := b.bucket(s, now)
		if tokens := bucket.TokensAt(now); tokens < 1 {
			if pause := time.Duration((1-tokens)/float64(bucket.Limit())*float64(time.Second)) + time.Millisecond; pause > longest {
				longest, lacking = pause, s
			}
		}
	}
	if longest == 0 {
		return nil
	}
	at := now.Add(longest)
	held := &wait{at, hangar.CertificateError{
		Code: typeOf(acme.ProblemTypeRateLimited), Timestamp: now.UTC().Truncate(time.Second),
		Message:     fmt.Sprintf("The platform asks for no more than %d certificates %s within %s, and has done so", lacking.limit.N, lacking.what, lacking.limit.Per),
		Remediation: "Nothing to do: it is asked for by itself when there is room again. A certificate of your own can be uploaded at any time.",
	}}
	b.waiting[req.name] = held
	return held
}

// issued counts a certificate that was issued.
func (b *budget) issued(req orderRequest, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.shares(req) {
		if s.issued {
			b.bucket(s, now).AllowN(now, 1)
		}
	}
}

// bucket returns the bucket of a share, making it if necessary. It may drop full buckets, which
// equal new ones. The caller holds mu.
func (b *budget) bucket(s share, now time.Time) *rate.Limiter {
	bucket := b.buckets[s.key]
	if bucket != nil {
		return bucket
	}
	if len(b.buckets) >= b.most {
		for key, old := range b.buckets {
			if old.TokensAt(now) >= float64(old.Burst()) {
				delete(b.buckets, key)
			}
		}
		b.most = max(fewBuckets, 2*len(b.buckets))
	}
	bucket = rate.NewLimiter(rate.Limit(float64(s.limit.N)/s.limit.Per.Seconds()), s.limit.N)
	b.buckets[s.key] = bucket
	return bucket
}

// held returns why an order for a name has to wait; nil: it need not.
func (b *budget) held(name hangar.Hostname, now time.Time) *wait {
	b.mu.Lock()
	defer b.mu.Unlock()
	if held := b.waiting[name]; held != nil && held.until.After(now) {
		return held
	}
	return nil
}

// drop forgets the wait of a name.
func (b *budget) drop(name hangar.Hostname) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.waiting, name)
}
