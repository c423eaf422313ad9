package api

import (
	"net/http"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
)

const maxLeaseSeconds = int(hangar.MaxLeaseTTL / time.Second)

// exampleNonce is that of a lease in the document.
const exampleNonce = "3fd8a1c09b72"

// leaseHeaders are those of an operation that a lease guards.
var leaseHeaders = []param{
	{hangar.HeaderLeaseNonce.Neutral, exampleNonce, "The nonce of the Machine's lease. While the Machine is leased, 409 answers who does not send it."},
	{hangar.HeaderLeaseNonce.Original, exampleNonce, "Another name of " + hangar.HeaderLeaseNonce.Neutral + "."},
}

func (s *server) leaseRoutes() {
	const lease = machine + "/lease"
	example := viewLease(hangar.Lease{
		Nonce: exampleNonce, ExpiresAt: exampleTime, Owner: "admin", Description: "a deployment", Version: exampleVersion,
	})
	s.handle("POST "+lease, s.acquireLease, operation{
		ID: "acquireLease", Tag: "Leases", Summary: "Lease a Machine, or lease it for longer",
		Text: "While a Machine is leased, only a request with the nonce of the lease may update, start, stop, suspend, restart, destroy, " +
			"cordon or uncordon it. With the nonce of its lease, the time of that lease begins anew and the nonce stays the same.",
		Query:   []param{{"ttl", 30, "For how many seconds, from 1 to 86400, instead of the `ttl` of the body. The default is 30."}},
		Headers: leaseHeaders, Lenient: true, Body: leaseWish{Description: "a deployment", TTL: new(30)}, MayOmit: true,
		Status: http.StatusCreated, Answer: example, Errors: []int{http.StatusConflict, http.StatusPreconditionFailed},
	})
	s.handle("GET "+lease, s.getLease, operation{
		ID: "getLease", Tag: "Leases", Summary: "See who holds the lease of a Machine",
		Text: "The nonce is answered to who may change the Machine.", Answer: example,
	})
	s.handle("DELETE "+lease, s.releaseLease, operation{
		ID: "releaseLease", Tag: "Leases", Summary: "End a lease before its time",
		Headers: leaseHeaders, Answer: releasedAnswer{"success", doneView{true}},
	})
}

// leaseNonce reads the lease that a request acts under, or "".
func leaseNonce(h http.Header) string {
	if nonce := h.Get(hangar.HeaderLeaseNonce.Neutral); nonce != "" {
		return nonce
	}
	return h.Get(hangar.HeaderLeaseNonce.Original)
}

// leaseWish is the body of a request for a lease.
type leaseWish struct {
	Description string `json:"description"`
	TTL         *int   `json:"ttl"` // seconds
}

// leaseView is a lease as clients decode it. Its fields hide those of the same name
// in the lease.
type leaseView struct {
	hangar.Lease
	ExpiresAt int64             `json:"expires_at"` // Unix seconds
	Version   hangar.InstanceID `json:"version"`
}

// leaseAnswer answers with a lease.
type leaseAnswer struct {
	Status string    `json:"status"` // always "success"
	Data   leaseView `json:"data"`
}

// releasedAnswer answers a release.
type releasedAnswer struct {
	Status string   `json:"status"` // always "success"
	Data   doneView `json:"data"`
}

func viewLease(l hangar.Lease) leaseAnswer {
	return leaseAnswer{"success", leaseView{Lease: l, ExpiresAt: l.ExpiresAt.Unix(), Version: l.Version}}
}

// acquireLease takes the ttl as a parameter, or with a description in the body.
func (s *server) acquireLease(r *http.Request) (answer, error) {
	ref, err := machineRef(r)
	if err != nil {
		return answer{}, err
	}
	in, err := input.DecodeOptional[leaseWish](r)
	if err != nil {
		return answer{}, err
	}
	q := input.QueryOf(r)
	seconds := q.Int("ttl", 1, maxLeaseSeconds)
	if in.TTL != nil {
		switch {
		case *in.TTL < 1 || *in.TTL > maxLeaseSeconds:
			return answer{}, input.Invalid("ttl", "%d is not a number of seconds from 1 to %d", *in.TTL, maxLeaseSeconds)
		case seconds != 0 && seconds != *in.TTL:
			q.Fail("ttl", "%d is not the %d of the body", seconds, *in.TTL)
		}
		seconds = *in.TTL
	}
	if q.Err != nil {
		return answer{}, q.Err
	}
	lease, err := s.Machines.AcquireLease(r.Context(), ref, hangar.LeaseAcquire{
		TTL: time.Duration(seconds) * time.Second, Description: in.Description,
	})
	if err != nil {
		return answer{}, err
	}
	return answer{status: http.StatusCreated, body: viewLease(lease)}, nil
}

func (s *server) getLease(r *http.Request) (answer, error) {
	ref, err := machineRef(r)
	if err != nil {
		return answer{}, err
	}
	lease, err := s.Machines.MachineLease(r.Context(), ref)
	if err != nil {
		return answer{}, err
	}
	return ok(viewLease(lease))
}

func (s *server) releaseLease(r *http.Request) (answer, error) {
	ref, err := machineRef(r)
	if err != nil {
		return answer{}, err
	}
	if err := s.Machines.ReleaseLease(r.Context(), ref); err != nil {
		return answer{}, err
	}
	return ok(releasedAnswer{"success", doneView{true}})
}
