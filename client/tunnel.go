package client

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"

	"github.com/coder/websocket"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/wsconn"
)

// DialMachine implements hangar.MachineDialer. A deadline that passes during a Read or
// Write ends the connection. Close may take some seconds if the server does not answer.
func (c *Client) DialMachine(ctx context.Context, ref hangar.MachineRef, port int) (net.Conn, error) {
	if err := hangar.CheckPort(port); err != nil {
		return nil, err
	}
	in := get(machinePath(ref, "tunnel"))
	in.query = url.Values{"port": {strconv.Itoa(port)}}
	ws, err := c.upgrade(ctx, in)
	if err != nil {
		return nil, err
	}
	return wsconn.New(ws, fmt.Sprintf("%s:%d", ref.ID, port)), nil
}

// upgrade makes a call and returns the WebSocket of its answer.
func (c *Client) upgrade(ctx context.Context, in call) (*websocket.Conn, error) {
	//nolint:bodyclose // Dial leaves nothing of the body to close
	ws, res, err := websocket.Dial(ctx, c.base+in.path+"?"+in.query.Encode(), &websocket.DialOptions{
		HTTPClient: c.http, HTTPHeader: c.header(), CompressionMode: websocket.CompressionDisabled,
	})
	switch {
	case err == nil:
		return ws, nil
	case res != nil && res.StatusCode >= http.StatusBadRequest:
		return nil, errorFrom(res)
	default:
		return nil, lost(ctx, in, err)
	}
}
