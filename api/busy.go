package api

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
	"github.com/hangar-platform/hangar/api/router"
)

// busyRequest says for how long a Machine is busy.
type busyRequest struct {
	TTL *busyTime `json:"ttl" schema:"required"`
}

// busyTime is a duration as programs write it: a text with a unit, or a number of seconds.
type busyTime time.Duration

// MarshalJSON writes a text such as "5m0s".
func (d busyTime) MarshalJSON() ([]byte, error) { return hangar.Duration(d).MarshalJSON() }

// UnmarshalJSON reads both forms.
func (d *busyTime) UnmarshalJSON(b []byte) error {
	text := string(b)
	if len(b) > 0 && b[0] == '"' {
		if err := json.Unmarshal(b, &text); err != nil {
			return err
		}
	}
	ttl, err := input.ParseDuration(text)
	if err != nil || ttl < time.Second || ttl > hangar.MaxBusy {
		return input.Invalid("ttl", "%s is not a duration from 1s to %s", input.Clip(string(b)), hangar.MaxBusy)
	}
	*d = busyTime(ttl)
	return nil
}

func (s *server) busyRoutes() {
	const busy, state = machine + "/busy", http.StatusPreconditionFailed
	s.Handle("POST "+busy, s.keepBusy, router.Operation{
		ID: "keepMachineBusy", Self: true, Tag: "Machines", Summary: "Keep a Machine busy",
		Text: "For a time from now, at most 24 hours. It replaces the time of an earlier call. This is for a Machine that works while no request is open.  " +
			"It needs no lease, does not keep users from stopping the Machine, and ends when the Machine stops.",
		Lenient: true, Body: busyRequest{TTL: new(busyTime(5 * time.Minute))}, Answer: hangar.MachineBusy{Until: exampleTime}, Errors: []int{state},
	})
	s.Handle("DELETE "+busy, s.endBusy, router.Operation{
		ID: "endMachineBusy", Self: true, Tag: "Machines", Summary: "End the busy state of a Machine",
		Text: "May be repeated. The idle time of the Machine begins now.", Answer: hangar.MachineBusy{}, Errors: []int{state},
	})
}

func (s *server) keepBusy(r *http.Request) (router.Answer, error) {
	ref, err := machineRef(r)
	if err != nil {
		return router.Answer{}, err
	}
	in, err := input.Decode[busyRequest](r)
	if err != nil {
		return router.Answer{}, err
	}
	if in.TTL == nil {
		return router.Answer{}, input.Invalid("ttl", `is required: a text such as "5m", or a number of seconds`)
	}
	return s.busy(r, ref, time.Duration(*in.TTL))
}

func (s *server) endBusy(r *http.Request) (router.Answer, error) {
	ref, err := machineRef(r)
	if err != nil {
		return router.Answer{}, err
	}
	return s.busy(r, ref, 0)
}

func (s *server) busy(r *http.Request, ref hangar.MachineRef, ttl time.Duration) (router.Answer, error) {
	return router.AnswerOf(s.Machines.KeepMachineBusy(r.Context(), ref, ttl))
}
