package store

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/hangar-platform/hangar/metrics"
)

// Cluster is a metrics.Store that an operator runs: a VictoriaMetrics cluster, in which each
// organization is an account. Every request also names the organization's label, in case two clusters
// of hangar use the same numbers.
//
// The documentation of its paths is
// https://docs.victoriametrics.com/victoriametrics/cluster-victoriametrics/#url-format.
type Cluster struct {
	selects, inserts string
	client           *http.Client
}

var _ metrics.Store = (*Cluster)(nil)

// NewCluster returns the cluster whose vmselect is at selectURL and whose vminsert is at insertURL,
// e.g. http://vmselect:8481 and http://vminsert:8480.
func NewCluster(selectURL, insertURL string, client *http.Client) (*Cluster, error) {
	for _, raw := range []string{selectURL, insertURL} {
		u, err := url.Parse(raw)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.RawQuery != "" || u.Fragment != "" {
			return nil, fmt.Errorf("metrics cluster: %q is not the URL of an HTTP server", raw)
		}
	}
	return &Cluster{
		selects: strings.TrimSuffix(selectURL, "/"),
		inserts: strings.TrimSuffix(insertURL, "/"),
		client:  client,
	}, nil
}

// Client implements metrics.Store.
func (c *Cluster) Client() *http.Client { return c.client }

// QueryURL implements metrics.Store.
func (c *Cluster) QueryURL(tenant metrics.Tenant) string {
	return fmt.Sprintf("%s/select/%d/prometheus", c.selects, tenant.Number)
}

// WriteURL implements metrics.Store.
func (c *Cluster) WriteURL(tenant metrics.Tenant) string {
	return fmt.Sprintf("%s/insert/%d/prometheus/api/v1/write?%s", c.inserts, tenant.Number, confine(tenant))
}

// SharedWriteURL implements metrics.Store. A cluster accepts samples of one organization at a time.
// Its path for several (/insert/multitenant) takes the account from a label, silently puts series
// without one into account 0, and does not set the label of the organization.
func (c *Cluster) SharedWriteURL() string { return "" }
