package router

import (
	"net/http"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
)

// self limits a Machine that calls over its own socket to the operations marked with
// Self, about itself. About other Apps and Machines it receives the answers of a caller
// that may not see them. Tokens do not count: the socket identifies the caller.
func (rt *Router) self(op Operation, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ref, ok := hangar.SelfFrom(r.Context())
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		if err := aboutSelf(r, ref, op); err != nil {
			rt.WriteError(w, r, err)
			return
		}
		r.Header.Del("Authorization")
		next.ServeHTTP(w, r)
	})
}

// aboutSelf refuses requests that are not about the Machine ref, and those that it may not make.
func aboutSelf(r *http.Request, ref hangar.MachineRef, op Operation) error {
	app, id := r.PathValue("app"), r.PathValue("machine")
	switch {
	case app != "" && app != string(ref.App):
		return hangar.AppNotFound()
	case id != "" && id != string(ref.ID):
		return hangar.Errorf(hangar.CodeNotFound, hangar.ReasonMachineNotFound, "machine not found: %s", input.Clip(id))
	case op.Self:
		return nil
	default:
		return hangar.Errorf(hangar.CodeForbidden, "", "A machine may not do this over its local socket: use a token, and the API of the server")
	}
}

// textOfSelf is added to what the document says of operations that are marked with Self.
const textOfSelf = "A Machine may ask this of itself over its local socket `/.fly/api`, without a token."
