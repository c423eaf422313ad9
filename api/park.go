package api

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/router"
	"github.com/hangar-platform/hangar/api/view"
)

// maxSeated is how many waits are served like any other request, which costs some 25 KiB each. The
// connections of further waits are parked at a fraction of that, and closed after their answer.
const maxSeated = 500

// park takes over the connection of a wait. It reports false, and has done nothing, for a request that
// cannot be parked.
func (s *server) park(w http.ResponseWriter, r *http.Request, ref hangar.MachineRef, in hangar.MachineWait) (bool, error) {
	awaiter, ok := s.Machines.(hangar.MachineAwaiter)
	// A connection with TLS cannot be watched by its descriptor. A connection from the edge also has
	// TLS, and must stay within the limits that it counts against.
	if !ok || r.TLS != nil || r.Method != http.MethodGet || !r.ProtoAtLeast(1, 1) || r.ProtoMajor > 1 || r.ContentLength != 0 {
		return false, nil
	}
	who, err := hangar.PrincipalFrom(r.Context())
	if err != nil {
		return true, err
	}
	lives := make([]context.Context, 0, len(who.Tokens))
	for _, id := range who.Tokens {
		lives = append(lives, s.Auth.Life(id))
	}
	return s.waits.Park(w, router.RequestID(r), func(told func(hangar.MachineReached, error)) (func(), error) {
		return awaiter.AwaitMachine(r.Context(), ref, in, told)
	}, lives, router.ErrTokenEnded)
}

// parkedResponse is the response to a wait that was parked.
func parkedResponse(id string, reached hangar.MachineReached, err error) (http.Response, error) {
	status, body := http.StatusOK, any(view.Reached{OK: true, MachineReached: reached})
	header := http.Header{"Content-Type": {router.MediaJSON}, "X-Content-Type-Options": {"nosniff"}, "Date": {time.Now().UTC().Format(http.TimeFormat)}}
	header.Set(hangar.HeaderRequestID.Neutral, id)
	header.Set(hangar.HeaderRequestID.Original, id)
	if err != nil {
		e := router.Describe(err)
		status, body = e.Status(), e
		e.Advise(header)
	}
	var raw bytes.Buffer
	if err := view.Encode(&raw, body); err != nil {
		return http.Response{}, err
	}
	return http.Response{
		StatusCode: status, ProtoMajor: 1, ProtoMinor: 1, Header: header,
		Body: io.NopCloser(&raw), ContentLength: int64(raw.Len()),
	}, nil
}
