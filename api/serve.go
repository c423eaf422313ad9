package api

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/hangar-platform/hangar/internal/finish"
)

// Serve serves until ctx ends. Requests see that end, so that streams finish. Serve returns when all
// requests are answered, or when within has passed since then.
func Serve(ctx context.Context, listener net.Listener, handler *Handler, within time.Duration) error {
	server := Server(handler)
	server.BaseContext = func(net.Listener) context.Context { return ctx }
	drained := make(chan error, 1)
	go func() {
		<-ctx.Done()
		bounded, cancel := finish.Within(ctx, within)
		defer cancel()
		var waits sync.WaitGroup
		waits.Go(func() { handler.Drain(bounded) })
		err := server.Shutdown(bounded)
		if err != nil {
			err = server.Close()
		}
		waits.Wait()
		drained <- err
	}()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-drained
}
