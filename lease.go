package hangar

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"time"
)

// Lease is the right to change one Machine while others may not. Its nonce is the key:
// a caller that shows it holds the lease. A lease ends when it is released, when its
// time has passed, and with its Machine.
type Lease struct {
	Nonce       string    `json:"nonce"`      // see NewLeaseNonce; empty for a caller who may only look
	ExpiresAt   time.Time `json:"expires_at"` // UTC, whole seconds
	Owner       string    `json:"owner"`      // Principal.Subject of the caller that acquired it
	Description string    `json:"description"`
	// Version is the Machine's version at the time of the answer, so that the holder knows what it is
	// about to change. It is not stored.
	Version InstanceID `json:"version,omitempty"`
}

// The bounds of a lease.
const (
	DefaultLeaseTTL     = 30 * time.Second
	MinLeaseTTL         = time.Second
	MaxLeaseTTL         = 24 * time.Hour
	MaxLeaseDescription = 255 // bytes
)

// LeaseAcquire is the request for a lease.
type LeaseAcquire struct {
	TTL         time.Duration // 0: DefaultLeaseTTL; rounded up to whole seconds
	Description string        // empty: a refresh keeps the old one
}

// Normalize fills in defaults. It answers CodeInvalid, naming the field that is out of bounds.
func (in *LeaseAcquire) Normalize() error {
	if in.TTL == 0 {
		in.TTL = DefaultLeaseTTL
	}
	if len(in.Description) > MaxLeaseDescription {
		return Errorf(CodeInvalid, "", "invalid description: has %d bytes, more than the %d that are allowed", len(in.Description), MaxLeaseDescription)
	}
	return checkLeaseTTL("ttl", in.TTL)
}

// CheckLeaseTTL checks the LeaseTTL of a creation or an update, which may be 0.
func CheckLeaseTTL(ttl time.Duration) error {
	if ttl == 0 {
		return nil
	}
	return checkLeaseTTL("lease_ttl", ttl)
}

func checkLeaseTTL(name string, ttl time.Duration) error {
	if ttl < MinLeaseTTL || ttl > MaxLeaseTTL {
		return Errorf(CodeInvalid, "", "invalid %s: a lease lasts from %d to %d seconds", name, MinLeaseTTL/time.Second, MaxLeaseTTL/time.Second)
	}
	return nil
}

// NewLeaseNonce returns 12 lowercase hexadecimal characters that cannot be guessed.
func NewLeaseNonce() string {
	var b [6]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand.Read aborts the program instead
	return hex.EncodeToString(b[:])
}

// Live reports whether there is a lease that has not expired.
func (l *Lease) Live(now time.Time) bool { return l != nil && now.Before(l.ExpiresAt) }

// Admits reports whether ctx may change the Machine: there is no lease, or ctx carries its nonce, or
// the caller is the platform. A lease keeps users and Machines out, but not the platform itself, for
// instance when it starts a Machine for a request.
func (l *Lease) Admits(ctx context.Context, now time.Time) bool {
	source := EventSourceFrom(ctx)
	return !l.Live(now) || l.Nonce == LeaseNonceFrom(ctx) || source != SourceUser && source != SourceMachine
}

// Held is the error for callers that the lease keeps out. Clients of the public platform match its
// words.
func (l *Lease) Held(id MachineID) error {
	return Errorf(CodeConflict, ReasonLeaseHeld, "machine ID %s lease currently held by %s, expires at %s",
		id, l.Owner, l.ExpiresAt.UTC().Format(time.RFC3339))
}

// Acquire returns the lease that replaces l, the Machine's lease or nil. If l has ended, that is a new
// lease of the caller. If ctx carries the nonce of l, it is l with a later end. Otherwise Acquire
// answers as Held. It does not change l, and in must be normalized.
func (l *Lease) Acquire(ctx context.Context, id MachineID, in LeaseAcquire, now time.Time) (*Lease, error) {
	next := Lease{Nonce: NewLeaseNonce(), Description: in.Description}
	if l.Live(now) {
		if l.Nonce != LeaseNonceFrom(ctx) {
			return nil, l.Held(id)
		}
		next = *l
		if in.Description != "" {
			next.Description = in.Description
		}
	} else if p, err := PrincipalFrom(ctx); err == nil {
		next.Owner = p.Subject
	}
	next.ExpiresAt = now.UTC().Add(in.TTL + time.Second - 1).Truncate(time.Second)
	return &next, nil
}

// Release answers CodeInvalid with ReasonLeaseNotFound unless ctx carries the nonce
// of l, the Machine's lease or nil.
func (l *Lease) Release(ctx context.Context, id MachineID, now time.Time) error {
	switch nonce := LeaseNonceFrom(ctx); {
	case nonce == "":
		return Errorf(CodeInvalid, ReasonLeaseNotFound, "machine ID %s lease not found: the nonce of the lease is missing, send it in the header %s",
			id, HeaderLeaseNonce.Neutral)
	case !l.Live(now):
		return Errorf(CodeInvalid, ReasonLeaseNotFound, "machine ID %s lease not found", id)
	case l.Nonce != nonce:
		return Errorf(CodeInvalid, ReasonLeaseNotFound, "machine ID %s lease not found under this nonce", id)
	default:
		return nil
	}
}

// NotLeased is the error for a request for a lease that does not exist.
func NotLeased(id MachineID) error {
	return Errorf(CodeNotFound, ReasonLeaseNotFound, "machine ID %s lease not found", id)
}

type leaseNonceKey struct{}

// WithLeaseNonce returns a context that carries the nonce of a lease, with which
// AcquireLease, ReleaseLease and every method that a lease guards are called.
func WithLeaseNonce(ctx context.Context, nonce string) context.Context {
	return context.WithValue(ctx, leaseNonceKey{}, nonce)
}

// LeaseNonceFrom returns the nonce that ctx carries, or "".
func LeaseNonceFrom(ctx context.Context) string {
	nonce, _ := ctx.Value(leaseNonceKey{}).(string)
	return nonce
}

// MachineLeaser acquires and releases leases of Machines. While a Machine is leased, UpdateMachine,
// StartMachine, StopMachine, SuspendMachine, RestartMachine, CordonMachine, UncordonMachine and
// DestroyMachine answer CodeConflict with ReasonLeaseHeld to a user whose context does not carry the
// nonce; see Lease.Admits. Other methods ignore the lease. The nonce of a lease that has ended is
// ignored.
type MachineLeaser interface {
	// AcquireLease leases the Machine to the caller. With the nonce of a current lease
	// in ctx it restarts the time of that lease, which keeps its nonce. It answers
	// CodeConflict with ReasonLeaseHeld when another holds one, and CodeInvalid for a
	// bad request. Of several concurrent callers, one gets the lease.
	AcquireLease(ctx context.Context, ref MachineRef, in LeaseAcquire) (Lease, error)
	// MachineLease returns the lease of the Machine. Its nonce is empty for a caller who may not change
	// the Machine. It answers CodeNotFound with ReasonLeaseNotFound when there is none.
	MachineLease(ctx context.Context, ref MachineRef) (Lease, error)
	// ReleaseLease ends the lease whose nonce ctx carries. It answers CodeInvalid
	// with ReasonLeaseNotFound when that is not the Machine's lease.
	ReleaseLease(ctx context.Context, ref MachineRef) error
}
