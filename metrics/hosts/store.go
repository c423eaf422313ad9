package hosts

import (
	"net/http"

	"github.com/hangar-platform/hangar/metrics"
)

// Store is a metrics.Store that takes what is written to the holder. Series are queried with Queries.
type Store struct {
	own    metrics.Store
	client *Client
	http   *http.Client
}

var _ metrics.Store = (*Store)(nil)

// NewStore returns a Store over the one that this host uses while it is the holder, and which takes
// samples of several tenants in a request.
func NewStore(own metrics.Store, client *Client) *Store {
	s := &Store{own: own, client: client}
	s.http = &http.Client{Transport: s}
	return s
}

// Client implements metrics.Store.
func (s *Store) Client() *http.Client { return s.http }

// QueryURL implements metrics.Store; only the holder is asked there.
func (s *Store) QueryURL(tenant metrics.Tenant) string { return s.own.QueryURL(tenant) }

// WriteURL implements metrics.Store.
func (s *Store) WriteURL(tenant metrics.Tenant) string { return s.own.WriteURL(tenant) }

// SharedWriteURL implements metrics.Store.
func (s *Store) SharedWriteURL() string { return s.own.SharedWriteURL() }

// RoundTrip implements http.RoundTripper. What is written to another host names its tenants by itself, as the
// remote.Writer of a Store with a SharedWriteURL has it; the holder looks at that.
func (s *Store) RoundTrip(r *http.Request) (*http.Response, error) {
	if s.client.keeps() {
		return s.own.Client().Transport.RoundTrip(r)
	}
	if r.Body != nil {
		defer r.Body.Close()
	}
	return s.client.post(r.Context(), pathWrite, r.Header, r.Body)
}
