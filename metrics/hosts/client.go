package hosts

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"

	"github.com/hangar-platform/hangar"
)

// Path is the path at which a Handler is mounted.
const Path = "/metrics/v1/"

// The paths of a Handler below Path.
const (
	pathWrite  = "write"
	pathQuery  = "query"
	pathAlerts = "alerts"
)

// ClientConfig has the dependencies of a Client.
type ClientConfig struct {
	Self   hangar.HostID
	Holder func() (hangar.Host, error) // the host that keeps all series; CodeUnavailable: none does
	// Transport returns a transport to a host, which verifies that it is that host.
	Transport func(hangar.Host) http.RoundTripper
}

// Client is the connection to the holder.
type Client struct {
	cfg ClientConfig

	mu        sync.Mutex // guards what follows
	to        hangar.Host
	transport http.RoundTripper
}

// NewClient returns a Client without connections.
func NewClient(cfg ClientConfig) *Client { return &Client{cfg: cfg} }

// keeps reports whether this host is the holder.
func (c *Client) keeps() bool {
	h, err := c.cfg.Holder()
	return err == nil && h.ID == c.cfg.Self
}

// way returns the holder and a transport to it. It closes connections to the previous holder.
func (c *Client) way() (hangar.Host, http.RoundTripper, error) {
	h, err := c.cfg.Holder()
	if err != nil {
		return h, nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.transport == nil || c.to.ID != h.ID || c.to.Address != h.Address {
		c.closeIdle()
		c.to, c.transport = h, c.cfg.Transport(h)
	}
	return h, c.transport, nil
}

// closeIdle closes unused connections. c.mu is held.
func (c *Client) closeIdle() {
	if t, ok := c.transport.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}

// Close closes unused connections.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closeIdle()
}

// errNotHolder means that the other host is not the holder, or not yet.
var errNotHolder = errors.New("the host does not keep the metrics of others")

// post sends a request to the holder. It returns an error for a response that is not from a holder's
// Handler.
func (c *Client) post(ctx context.Context, path string, header http.Header, body io.Reader) (*http.Response, error) {
	h, transport, err := c.way()
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+h.Address+Path+path, body)
	if err != nil {
		return nil, unreachable(h, err)
	}
	r.Header = header
	resp, err := transport.RoundTrip(r)
	switch {
	case err != nil:
		return nil, unreachable(h, err)
	case resp.Header.Get(headerHolder) == "":
		_ = resp.Body.Close() // the response is not used
		return nil, unreachable(h, errNotHolder)
	}
	return resp, nil
}

func unreachable(h hangar.Host, cause error) error {
	return &hangar.Error{Code: hangar.CodeUnavailable, Message: "the host that keeps the metrics, " + string(h.ID) + ", cannot be reached", Err: cause}
}

// headerHolder is in every response of a holder.
const headerHolder = "Hangar-Metrics-Holder"
