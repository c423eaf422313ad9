package hangar

import (
	"context"
	"time"
)

// EventType says what an event is about.
type EventType string

// The types of events, as clients of the public platform know them.
const (
	EventLaunch   EventType = "launch"   // a config version was created
	EventStart    EventType = "start"    // starting, started
	EventUpdate   EventType = "update"   // replacing, replaced
	EventRestart  EventType = "restart"  // starting again
	EventExit     EventType = "exit"     // the main process ended; Request.ExitEvent is set
	EventStop     EventType = "stop"     // stopping, stopped
	EventSuspend  EventType = "suspend"  // suspending, suspended
	EventDestroy  EventType = "destroy"  // destroying, destroyed
	EventCordon   EventType = "cordon"   // the edge sends no more requests; the status is the Machine's state
	EventUncordon EventType = "uncordon" // the edge sends requests again

	// EventSchedule reports scheduled runs that did not take place. Request.Schedule is set. Only
	// hangar has this type.
	EventSchedule EventType = "schedule"
)

// EventTypes lists every type.
func EventTypes() []EventType {
	return []EventType{
		EventLaunch, EventStart, EventUpdate, EventRestart, EventExit, EventStop, EventSuspend, EventDestroy, EventCordon, EventUncordon, EventSchedule,
	}
}

// Transits reports whether an event of this type changes the state of the Machine to its status.
func (t EventType) Transits() bool {
	return t != EventCordon && t != EventUncordon && t != EventSchedule
}

// EventSource says who caused an event.
type EventSource string

// The sources of events. SourceAgent is spelled as on the wire.
const (
	SourceUser    EventSource = "user"
	SourceMachine EventSource = "machine" // the Machine itself
	SourceAgent   EventSource = "flyd"
	SourceProxy   EventSource = "proxy"
)

type eventSourceKey struct{}

// WithEventSource returns a context that names the source of the events it causes. The public API sets
// none, so its callers are users.
func WithEventSource(ctx context.Context, source EventSource) context.Context {
	return context.WithValue(ctx, eventSourceKey{}, source)
}

// EventSourceFrom returns the source that ctx names, or SourceUser.
func EventSourceFrom(ctx context.Context) EventSource {
	if source, ok := ctx.Value(eventSourceKey{}).(EventSource); ok {
		return source
	}
	return SourceUser
}

// Event is one immutable fact of a Machine's life. Listings are newest first.
type Event struct {
	ID        EventID       `json:"id"`
	Type      EventType     `json:"type"`
	Status    string        `json:"status"`
	Source    EventSource   `json:"source"`
	Timestamp int64         `json:"timestamp"` // Unix milliseconds
	Request   *EventRequest `json:"request,omitempty"`
}

// EventRequest holds what an event has beyond its type.
type EventRequest struct {
	ExitEvent    *ExitEvent    `json:"exit_event,omitempty"`
	MonitorEvent *MonitorEvent `json:"MonitorEvent,omitempty"` // the same exit, under the name that older clients read
	RestartCount int           `json:"restart_count,omitempty"`
	// ColdBoot says, on a start from suspended, why memory was not restored; empty when it was. Only
	// hangar has this field.
	ColdBoot string `json:"cold_boot,omitempty"`
	// Error is why a launch, start or suspend failed. Only hangar has this field.
	Error string `json:"error,omitempty"`
	// Schedule is set on the start of a scheduled run, and on an EventSchedule. Only hangar has this
	// field.
	Schedule *ScheduledRun `json:"schedule,omitempty"`
}

// ScheduledRun is the scheduled run for which a Machine started, or the runs that did not take place.
type ScheduledRun struct {
	Due    time.Time `json:"due"`              // of the run that begins, or of the latest that did not take place
	Missed int       `json:"missed,omitempty"` // runs that did not take place
	Since  time.Time `json:"since,omitzero"`   // when the first of them was due
	Reason string    `json:"reason,omitempty"` // why
}

// MonitorEvent wraps an exit for clients that read the older place.
type MonitorEvent struct {
	ExitEvent *ExitEvent `json:"exit_event"`
}

// ExitEvent says how the main process of a Machine ended.
type ExitEvent struct {
	ExitCode      int       `json:"exit_code"`       // 128+signal for a process that a signal ended
	GuestExitCode int       `json:"guest_exit_code"` // equal to ExitCode
	GuestSignal   int       `json:"guest_signal"`    // number, -1 for none
	Signal        int       `json:"signal"`          // number, -1 for none
	OOMKilled     bool      `json:"oom_killed"`
	RequestedStop bool      `json:"requested_stop"`
	Restarting    bool      `json:"restarting"`
	ExitedAt      time.Time `json:"exited_at"`
	Error         string    `json:"error,omitempty"` // why the exit code is not known, e.g. the sandbox was killed
}
