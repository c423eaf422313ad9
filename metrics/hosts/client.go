package hosts

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"

	"github.com/hangar-platform/hangar"
)

// Path is where a Handler is mounted.
const Path = "/metrics/v1/"

// What a Handler answers below Path.
const (
	pathWrite  = "write"
	pathQuery  = "query"
	pathAlerts = "alerts"
)

// ClientConfig is what a Client is made of.
type ClientConfig struct {
	Self   hangar.HostID
	Holder func() (hangar.Host, error) // the host that keeps the series of all; CodeUnavailable: none does
	// Transport returns what connects to a host and verifies that it is that host.
	Transport func(hangar.Host) http.RoundTripper
}

// Client is the way to the holder.
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

// way returns the holder and what connects to it, and closes connections to the one before.
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

// closeIdle closes the connections that no request uses. c.mu is held.
func (c *Client) closeIdle() {
	if t, ok := c.transport.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}

// Close closes the connections that no request uses.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closeIdle()
}

// errNotHolder says that the host that was asked is not the holder, or not yet.
var errNotHolder = errors.New("the host does not keep the metrics of others")

// post sends a request to the holder. An answer that no Handler has made for its asker is an error.
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
		_ = resp.Body.Close() // the answer is not looked at
		return nil, unreachable(h, errNotHolder)
	}
	return resp, nil
}

func unreachable(h hangar.Host, cause error) error {
	return &hangar.Error{Code: hangar.CodeUnavailable, Message: "the host that keeps the metrics, " + string(h.ID) + ", cannot be reached", Err: cause}
}

// headerHolder is on every answer of a holder.
const headerHolder = "Hangar-Metrics-Holder"
