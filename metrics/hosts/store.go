package hosts

import (
	"net/http"

	"github.com/hangar-platform/hangar/metrics"
)

// Store is a metrics.Store that writes to the holder. Use Queries to query series.
type Store struct {
	own    metrics.Store
	client *Client
	http   *http.Client
}

var _ metrics.Store = (*Store)(nil)

// NewStore returns a Store over own, which this host uses while it is the holder. own must accept
// samples of several tenants in a request.
func NewStore(own metrics.Store, client *Client) *Store {
	s := &Store{own: own, client: client}
	s.http = &http.Client{Transport: s}
	return s
}

// Client implements metrics.Store.
func (s *Store) Client() *http.Client { return s.http }

// QueryURL implements metrics.Store. Only the holder uses it.
func (s *Store) QueryURL(tenant metrics.Tenant) string { return s.own.QueryURL(tenant) }

// WriteURL implements metrics.Store.
func (s *Store) WriteURL(tenant metrics.Tenant) string { return s.own.WriteURL(tenant) }

// SharedWriteURL implements metrics.Store.
func (s *Store) SharedWriteURL() string { return s.own.SharedWriteURL() }

// RoundTrip implements http.RoundTripper. A request to another host names the tenant in each series,
// as a remote.Writer does for a Store with a SharedWriteURL. The holder checks that.
func (s *Store) RoundTrip(r *http.Request) (*http.Response, error) {
	if s.client.keeps() {
		return s.own.Client().Transport.RoundTrip(r)
	}
	if r.Body != nil {
		defer r.Body.Close()
	}
	return s.client.post(r.Context(), pathWrite, r.Header, r.Body)
}
