package api

import (
	"net/http"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
	"github.com/hangar-platform/hangar/api/router"
)

const maxLeaseSeconds = int(hangar.MaxLeaseTTL / time.Second)

// exampleNonce is the nonce of the lease in the document.
const exampleNonce = "3fd8a1c09b72"

// leaseHeaders are the headers of an operation that a lease guards.
var leaseHeaders = []router.Param{
	{Name: hangar.HeaderLeaseNonce.Neutral, Example: exampleNonce, Text: "The nonce of the Machine's lease. While the Machine is leased, a request without it is refused with 409."},
	{Name: hangar.HeaderLeaseNonce.Original, Example: exampleNonce, Text: "Another name of " + hangar.HeaderLeaseNonce.Neutral + "."},
}

func (s *server) leaseRoutes() {
	const lease = machine + "/lease"
	example := viewLease(hangar.Lease{
		Nonce: exampleNonce, ExpiresAt: exampleTime, Owner: "admin", Description: "a deployment", Version: exampleVersion,
	})
	s.Handle("POST "+lease, s.acquireLease, router.Operation{
		ID: "acquireLease", Tag: "Leases", Summary: "Acquire or renew a lease",
		Text: "While a Machine is leased, only a request with the nonce of the lease may update, start, stop, suspend, restart, destroy, " +
			"cordon or uncordon it. A request with the nonce of the lease restarts its time and keeps the nonce.",
		Query:   []router.Param{{Name: "ttl", Example: 30, Text: "For how many seconds, from 1 to 86400, instead of the `ttl` of the body. The default is 30."}},
		Headers: leaseHeaders, Lenient: true, Body: leaseRequest{Description: "a deployment", TTL: new(30)}, MayOmit: true,
		Status: http.StatusCreated, Answer: example, Errors: []int{http.StatusConflict, http.StatusPreconditionFailed},
	})
	s.Handle("GET "+lease, s.getLease, router.Operation{
		ID: "getLease", Tag: "Leases", Summary: "Get a lease",
		Text: "The nonce is only for callers that may change the Machine.", Answer: example,
	})
	s.Handle("DELETE "+lease, s.releaseLease, router.Operation{
		ID: "releaseLease", Tag: "Leases", Summary: "Release a lease",
		Headers: leaseHeaders, Answer: releasedAnswer{"success", router.DoneAnswer{OK: true}},
	})
}

// leaseRequest is the body of a request for a lease.
type leaseRequest struct {
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
	Status string            `json:"status"` // always "success"
	Data   router.DoneAnswer `json:"data"`
}

func viewLease(l hangar.Lease) leaseAnswer {
	return leaseAnswer{"success", leaseView{Lease: l, ExpiresAt: l.ExpiresAt.Unix(), Version: l.Version}}
}

// acquireLease reads the ttl from a parameter or from the body, which may have a description.
func (s *server) acquireLease(r *http.Request) (router.Answer, error) {
	ref, err := machineRef(r)
	if err != nil {
		return router.Answer{}, err
	}
	in, err := input.DecodeOptional[leaseRequest](r)
	if err != nil {
		return router.Answer{}, err
	}
	q := input.QueryOf(r)
	seconds := q.Int("ttl", 1, maxLeaseSeconds)
	if in.TTL != nil {
		switch {
		case *in.TTL < 1 || *in.TTL > maxLeaseSeconds:
			return router.Answer{}, input.Invalid("ttl", "%d is not a number of seconds from 1 to %d", *in.TTL, maxLeaseSeconds)
		case seconds != 0 && seconds != *in.TTL:
			q.Fail("ttl", "%d is not the %d of the body", seconds, *in.TTL)
		}
		seconds = *in.TTL
	}
	if q.Err != nil {
		return router.Answer{}, q.Err
	}
	lease, err := s.Machines.AcquireLease(r.Context(), ref, hangar.LeaseAcquire{
		TTL: time.Duration(seconds) * time.Second, Description: in.Description,
	})
	if err != nil {
		return router.Answer{}, err
	}
	return router.Answer{Status: http.StatusCreated, Body: viewLease(lease)}, nil
}

func (s *server) getLease(r *http.Request) (router.Answer, error) {
	ref, err := machineRef(r)
	if err != nil {
		return router.Answer{}, err
	}
	lease, err := s.Machines.MachineLease(r.Context(), ref)
	return router.AnswerOf(viewLease(lease), err)
}

func (s *server) releaseLease(r *http.Request) (router.Answer, error) {
	ref, err := machineRef(r)
	if err != nil {
		return router.Answer{}, err
	}
	if err := s.Machines.ReleaseLease(r.Context(), ref); err != nil {
		return router.Answer{}, err
	}
	return router.OK(releasedAnswer{"success", router.DoneAnswer{OK: true}})
}
