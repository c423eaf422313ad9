package router

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/hangar-platform/hangar"
)

// EndTimeout is how long a client may take to read that its request was ended early. It
// is part of the bound after which a void token has no effect any more.
const EndTimeout = time.Second

// ErrTokenEnded ends a request that has outlived one of its tokens.
var ErrTokenEnded = func() *hangar.Error {
	e := hangar.Unauthenticated()
	e.Message += ": a token of this request has expired or was revoked since"
	return e
}()

// attended also ends the context of a request when the first of its tokens becomes invalid, no matter
// which of them allowed the request. It is for long requests.
func (rt *Router) attended(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, err := hangar.PrincipalFrom(r.Context())
		if err != nil || len(p.Tokens) == 0 {
			next.ServeHTTP(w, r)
			return
		}
		ctx, cancel := context.WithCancelCause(r.Context())
		defer cancel(nil)
		for _, id := range p.Tokens {
			life := rt.Auth.Life(id)
			defer context.AfterFunc(life, func() { cancel(ErrTokenEnded) })()
		}
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// EndedBy returns err, or ErrTokenEnded if err follows from the end of a token.
func EndedBy(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), ErrTokenEnded) {
		return ErrTokenEnded
	}
	return err
}
