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

// OrgLabel is on every series that is stored: the id of the organization. No answer shows it.
const OrgLabel = "__org__"

// HostLabel is on every series: the host that has measured it, as HostLabelOf has it.
const HostLabel = "host"

// HostLabelOf is the value of HostLabel: the first four digits of the id.
func HostLabelOf(id hangar.HostID) string { return string(id[:min(len(id), 4)]) }

// NameLabel holds the name of a metric.
const NameLabel = "__name__"

// Tenant is the organization that a series belongs to.
type Tenant struct {
	Org    hangar.OrgID
	Number uint32 // of the organization; the account in a cluster
}

// Label is a name and a value that tell series of one metric apart.
type Label struct{ Name, Value string }

// Sample is the value of a series at a time.
type Sample struct {
	// Labels are sorted by name, each name once. NameLabel is among them, OrgLabel is not.
	Labels []Label
	Value  float64
	Time   int64 // in milliseconds since 1970
}

// staleBits are the NaN by which Prometheus marks the end of a series
// (github.com/prometheus/prometheus/model/value).
const staleBits = 0x7ff0000000000002

// Stale is the value of a sample that says that its series has ended. It does not equal
// itself: IsStale distinguishes it from other NaNs.
func Stale() float64 { return math.Float64frombits(staleBits) }

// IsStale reports whether a value marks the end of a series.
func IsStale(v float64) bool { return math.Float64bits(v) == staleBits }

// Writer takes samples.
type Writer interface {
	// Write stores samples of one tenant, and keeps nothing of them. It answers
	// CodeUnavailable where repeating the same call later can help, and CodeInvalid where it
	// cannot.
	Write(ctx context.Context, tenant Tenant, samples []Sample) error
}

// Store is where the series of all organizations are.
type Store interface {
	// Client sends requests to the addresses below. It starts the store if it has to, and fails
	// with CodeUnavailable while the store is away.
	Client() *http.Client
	// QueryURL is below which the HTTP API of Prometheus answers for a tenant, as in
	// http://store/prometheus. By itself it confines a query to nothing: gateway does.
	QueryURL(tenant Tenant) string
	// WriteURL takes remote writes (protocol 1.0) of a tenant, whose OrgLabel it sets.
	WriteURL(tenant Tenant) string
	// SharedWriteURL takes remote writes with samples of several tenants, in which each series has
	// the OrgLabel of its own. It is "" for a store that takes those of one tenant at a time.
	SharedWriteURL() string
}
