package metrics

import (
	"context"
	"math"
	"net/http"
	"time"

	"github.com/hangar-platform/hangar"
)

// Interval is the time between two samples of a series.
const Interval = 15 * time.Second

// OrgLabel is on every stored series: the id of the organization. No answer contains it.
const OrgLabel = "__org__"

// HostLabel is on every series: the host that has measured it, in the form of HostLabelOf.
const HostLabel = "host"

// HostLabelOf is the value of HostLabel: the first four digits of the id.
func HostLabelOf(id hangar.HostID) string { return string(id[:min(len(id), 4)]) }

// NameLabel contains the name of a metric.
const NameLabel = "__name__"

// Tenant is the organization that a series belongs to.
type Tenant struct {
	Org    hangar.OrgID
	Number uint32 // of the organization; the account id in a cluster of VictoriaMetrics
}

// Label is a name and a value that distinguish series of one metric.
type Label struct{ Name, Value string }

// Sample is the value of a series at a time.
type Sample struct {
	// Labels are sorted by name, each name once. NameLabel is among them, OrgLabel is not.
	Labels []Label
	Value  float64
	Time   int64 // in milliseconds since 1970
}

// staleBits are the bits of the NaN with which Prometheus marks the end of a series
// (github.com/prometheus/prometheus/model/value).
const staleBits = 0x7ff0000000000002

// Stale is the value of a sample that marks the end of its series. It does not equal itself: IsStale
// distinguishes it from other NaNs.
func Stale() float64 { return math.Float64frombits(staleBits) }

// IsStale reports whether a value marks the end of a series.
func IsStale(v float64) bool { return math.Float64bits(v) == staleBits }

// Writer writes samples.
type Writer interface {
	// Write stores samples of one tenant, and does not retain them. It returns CodeUnavailable where
	// repeating the same call later can help, and CodeInvalid where it cannot.
	Write(ctx context.Context, tenant Tenant, samples []Sample) error
}

// Store is the store of all organizations' series.
type Store interface {
	// Client sends requests to the addresses below. It starts the store if necessary, and fails with
	// CodeUnavailable while the store is unreachable.
	Client() *http.Client
	// QueryURL is the base URL of the Prometheus HTTP API for a tenant, e.g. http://store/prometheus.
	// The URL alone does not confine a query to the tenant: gateway does.
	QueryURL(tenant Tenant) string
	// WriteURL accepts remote writes (protocol 1.0) of a tenant, whose OrgLabel it sets.
	WriteURL(tenant Tenant) string
	// SharedWriteURL accepts remote writes with samples of several tenants, in which each series has
	// its own OrgLabel. It is "" for a store that accepts only one tenant at a time.
	SharedWriteURL() string
}
