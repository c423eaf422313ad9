package api

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/hangar-platform/hangar"
)

// endTimeout is how long a client may take to be told that what it asked for was ended
// early. It is part of the time in which a token that is void has no effect any more.
const endTimeout = time.Second

// errTokenEnded ends what has outlived a token of its request.
var errTokenEnded = func() *hangar.Error {
	e := hangar.Unauthenticated()
	e.Message += ": a token of this request has expired or was revoked since"
	return e
}()

// attended ends the context of a request also when the first of its tokens is not valid
// any longer, whichever it was that allowed the request. It is for what may last.
func (s *server) attended(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, err := hangar.PrincipalFrom(r.Context())
		if err != nil || len(p.Tokens) == 0 {
			next.ServeHTTP(w, r)
			return
		}
		ctx, cancel := context.WithCancelCause(r.Context())
		defer cancel(nil)
		for _, id := range p.Tokens {
			life := s.Auth.Life(id)
			defer context.AfterFunc(life, func() { cancel(errTokenEnded) })()
		}
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// endedBy is err, or why ctx has ended where that has to do with the request: then err
// only follows from it.
func endedBy(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), errTokenEnded) {
		return errTokenEnded
	}
	return err
}
