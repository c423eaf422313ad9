package api

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
	"github.com/hangar-platform/hangar/api/router"
	"github.com/hangar-platform/hangar/internal/splice"
	"github.com/hangar-platform/hangar/internal/wsconn"
)

func (s *server) tunnelRoutes() {
	s.Stream("GET "+machine+"/tunnel", s.tunnel, router.Operation{
		ID: "dialMachine", Tag: "Execution", Summary: "Connect to a port of a Machine",
		Text:   textOfTunnel,
		Query:  []router.Param{{Name: "port", Example: 5432, Text: "The port, from 1 to 65535. Required."}},
		Status: http.StatusSwitchingProtocols,
		Errors: []int{http.StatusPreconditionFailed, http.StatusNotImplemented, http.StatusRequestTimeout},
	})
}

// textOfTunnel is the protocol of package wsconn, for users.
const textOfTunnel = `Upgrade to WebSocket. The answer comes once the program in the Machine has accepted the
connection. Errors before that are as usual: 412 when the Machine is not started, 503 with the status
` + "`connection_refused`" + ` when nothing listens on the port. It needs the action control, as exec does, because a program
that no service exposes trusts every caller that reaches it.

- A binary message carries bytes; its boundaries mean nothing.
- An empty binary message ends its direction; the other continues.
- A text message is a keepalive from the server and carries nothing.
- When both directions have ended, the client closes with status 1000.
- Status 1014 says that the program has reset the connection, 1001 with a reason that the platform has ended it,
  because the Machine has stopped or has restarted, or the server shuts down, and 1008 that the token is not
  valid any more.

The connection survives a suspend of the Machine and its resume, unless the memory was lost meanwhile.`

// tunnel joins a WebSocket to a connection into a Machine.
func (s *server) tunnel(w http.ResponseWriter, r *http.Request) error {
	ref, err := machineRef(r)
	if err != nil {
		return err
	}
	q := input.QueryOf(r)
	if q.Err == nil && q.Text("port") == "" {
		q.Fail("port", "is required: a number from 1 to %d", hangar.MaxPort)
	}
	port := q.Int("port", 1, hangar.MaxPort)
	if q.Err != nil {
		return q.Err
	}
	if err := mayUpgrade(r); err != nil {
		return err
	}
	conn, err := s.Machines.DialMachine(r.Context(), ref, port)
	if err != nil {
		return err
	}
	ws, err := upgrade(w, r)
	if err != nil {
		splice.Abort(conn, err)
		if errors.Is(err, errHungUp) {
			s.Log.DebugContext(r.Context(), "upgrade failed", router.KeyRequest, router.RequestID(r), router.KeyError, err)
			return nil
		}
		return err
	}
	err = joinTunnel(r.Context(), wsconn.New(ws, r.RemoteAddr), conn)
	s.Log.DebugContext(r.Context(), "tunnel ended", router.KeyRequest, router.RequestID(r), keyPort, strconv.Itoa(port), router.KeyError, err)
	return nil
}

const keyPort = "port"

// joinTunnel joins the client's connection and the Machine's, and returns when both have ended.
func joinTunnel(ctx context.Context, client *wsconn.Conn, machine net.Conn) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		if err := client.KeepAlive(ctx, router.Heartbeat); err != nil {
			cancel(err)
		}
	}()
	err := splice.Join(ctx, client, machine)
	if err == nil {
		// Everything is sent, but the client may still be reading it.
		patience := time.NewTimer(router.StreamTimeout)
		defer patience.Stop()
		select {
		case <-client.Gone():
		case <-patience.C:
		case <-ctx.Done():
		}
		err = errors.Join(client.Close(), machine.Close())
	}
	cancel(nil)
	<-watched
	return err
}
