package hangar

import (
	"context"
	"fmt"
	"iter"
	"net/netip"
	"time"
)

// EdgeRequest is what the edge did with a request: a line of its access log.
type EdgeRequest struct {
	Client    netip.Addr `json:"client_ip"`
	Method    string     `json:"method"`
	Host      string     `json:"host"`
	Path      string     `json:"path"` // with the query, as it was sent
	Proto     string     `json:"proto"`
	Status    int        `json:"status"` // 0: the client left before an answer
	Bytes     int64      `json:"bytes"`  // of the body, before it was compressed
	Millis    float64    `json:"duration_ms"`
	UserAgent string     `json:"user_agent,omitempty"`
	RequestID string     `json:"request_id,omitempty"`
	Replays   int        `json:"replays,omitempty"`    // how often the request was replayed
	Code      EdgeCode   `json:"error_code,omitempty"` // of an answer that the edge itself gave
}

// Entry returns the log line of the request. machine and region are those of the Machine that answered;
// both are empty if none did.
func (r EdgeRequest) Entry(at time.Time, machine MachineID, region Region) LogEntry {
	level := "info"
	switch {
	case r.Status >= 500:
		level = "error"
	case r.Status >= 400 || r.Status == 0:
		level = "warn"
	}
	return LogEntry{Time: at.UTC(), Message: r.line(machine), Level: level, Provider: LogProxy, Instance: machine, Region: region, Edge: &r}
}

// line returns the request as text, similar to the combined log format of web servers.
func (r EdgeRequest) line(machine MachineID) string {
	text := fmt.Sprintf("%s %q %s %d %d %.1fms %s %s", r.Client, r.Method+" "+r.Path+" "+r.Proto, dash(r.Host), r.Status, r.Bytes, r.Millis,
		dash(string(machine)), dash(r.RequestID))
	if r.Code != "" {
		text += " [" + string(r.Code) + "]"
	}
	return text
}

// dash returns s, or a dash if s is empty.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// EdgeLog is how control reads the access log of the edge.
type EdgeLog interface {
	// FollowEdge yields what the edge does with requests for an App from now on, until ctx ends or the
	// caller breaks off. A caller that is too slow loses lines; the next line says how many.
	FollowEdge(ctx context.Context, app AppID) iter.Seq2[LogEntry, error]
}
