package hangar

import (
	"context"
	"iter"
	"time"
)

// LogProvider says who wrote a log line.
type LogProvider string

// The writers of log lines.
const (
	LogApp    LogProvider = "app"    // the Machine's own output
	LogRunner LogProvider = "runner" // the platform
	LogHealth LogProvider = "health" // its health checks
	LogProxy  LogProvider = "proxy"  // the edge, about requests to the App
)

// LogEntry is one line of a Machine's log.
type LogEntry struct {
	Time     time.Time   `json:"timestamp"`
	Message  string      `json:"message"` // without its line end
	Level    string      `json:"level"`   // "info", "warn" or "error"
	Provider LogProvider `json:"provider"`
	Instance MachineID   `json:"instance"`
	Region   Region      `json:"region"`
	// Edge describes the request of a line that LogQuery.Edge selects.
	Edge *EdgeRequest `json:"edge,omitempty"`
}

// LogQuery selects lines of an App's log.
type LogQuery struct {
	Instance MachineID // empty: every Machine of the App
	Region   Region    // empty: every region
	Token    string    // from a LogPage: only lines after it; empty: the newest Limit lines
	Limit    int       // 0: DefaultLogLimit
	// Edge selects what the edge does with requests, and nothing else. Such lines are not stored: a
	// follower receives those from its start on. Token and Limit are ignored.
	Edge bool
}

// DefaultLogLimit is how many lines a query returns at most.
const DefaultLogLimit = 100

// LogPage is a piece of a log, oldest line first.
type LogPage struct {
	Entries []LogEntry
	Next    string // token of the next query, which continues after the last entry
}

// LogService reads the logs of Apps.
type LogService interface {
	// Logs answers with an empty page and the same token when nothing is new, and
	// CodeInvalid for LogQuery.Edge.
	Logs(ctx context.Context, app AppName, q LogQuery) (LogPage, error)
	// FollowLogs yields what Logs would and then every new line as it is written, until ctx ends or the
	// caller breaks off. It ends with CodeNotFound when the App is destroyed, or the Machine of
	// LogQuery.Instance is no longer known. For LogQuery.Edge it answers CodeUnavailable where there is
	// no edge.
	FollowLogs(ctx context.Context, app AppName, q LogQuery) iter.Seq2[LogEntry, error]
}
