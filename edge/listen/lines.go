package listen

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
)

const (
	// linesEvery is how often an App's log gets a line about the same kind of failure.
	linesEvery = 10 * time.Second
	// maxLines is how many kinds of failures of how many Apps are remembered.
	maxLines = 10_000
)

// lines writes to the logs of Apps, at a limited rate.
type lines struct {
	gates hangar.MachineGates
	host  hangar.HostID

	mu     sync.Mutex
	latest map[line]*lineState
}

// line is a line that is repeated only after linesEvery.
type line struct {
	app  hangar.AppID
	code hangar.EdgeCode
}

type lineState struct {
	at     time.Time
	missed int // how often it was not said since
}

// failure logs a connection that could not be served in the App's log.
func (l *lines) failure(ref hangar.MachineRef, client netip.AddrPort, err error) {
	e, ok := errors.AsType[*hangar.EdgeError](err)
	if !ok {
		e = &hangar.EdgeError{Code: hangar.EdgeInternal, Message: "the connection failed", Err: err}
	}
	missed, due := l.due(line{ref.AppID, e.Code}, time.Now())
	if !due {
		return
	}
	text := fmt.Sprintf("[%s] %s (client %s)", e.Code, e.Message, client)
	if e.Err != nil {
		text = fmt.Sprintf("[%s] %s: %v (client %s)", e.Code, e.Message, cause(e.Err), client)
	}
	if missed > 0 {
		text += fmt.Sprintf(", and %d times before", missed)
	}
	l.say(ref, "error", text)
}

// due reports whether to write a line, and how often it was suppressed.
func (l *lines) due(key line, now time.Time) (missed int, due bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.latest[key]
	if t != nil && now.Sub(t.at) < linesEvery {
		t.missed++
		return 0, false
	}
	if l.latest == nil || len(l.latest) >= maxLines {
		l.latest = make(map[line]*lineState)
	}
	l.latest[key] = &lineState{at: now}
	if t != nil {
		missed = t.missed
	}
	return missed, true
}

// say writes a line to the log of an App.
func (l *lines) say(ref hangar.MachineRef, level, text string) {
	if gate, err := l.gates.Gate(l.host); err == nil {
		gate.LogEdge(ref, level, text)
	}
}
