package machines

import (
	"context"
	"fmt"
	"sync"

	"github.com/hangar-platform/hangar"
)

// edgeLogSize bounds the queued log lines of the edge and of the metrics scraper.
const edgeLogSize = 1024

// edgeLog queues log lines of the edge and of the metrics scraper, which do not wait for the disk:
// surplus lines are dropped, counted and reported.
type edgeLog struct {
	some chan struct{} // buffered 1: there are lines

	mu    sync.Mutex
	lines []edgeLine
	lost  map[hangar.MachineRef]int
}

type edgeLine struct {
	ref            hangar.MachineRef
	provider       hangar.LogProvider
	level, message string
}

func (l *edgeLog) add(line edgeLine) {
	l.mu.Lock()
	if len(l.lines) < edgeLogSize {
		l.lines = append(l.lines, line)
	} else {
		if l.lost == nil {
			l.lost = make(map[hangar.MachineRef]int)
		}
		if _, known := l.lost[line.ref]; known || len(l.lost) < edgeLogSize {
			l.lost[line.ref]++
		}
	}
	l.mu.Unlock()
	select {
	case l.some <- struct{}{}:
	default:
	}
}

func (l *edgeLog) take() ([]edgeLine, map[hangar.MachineRef]int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines, lost := l.lines, l.lost
	l.lines, l.lost = nil, nil
	return lines, lost
}

// LogEdge implements hangar.MachineGate. A line about no particular Machine goes to the log of the
// App's first Machine on this host; without one it is dropped.
func (mg *machineGate) LogEdge(ref hangar.MachineRef, level, message string) {
	mg.lines.add(edgeLine{ref, hangar.LogProxy, level, message})
}

// LogMetrics adds a line about a Machine's own metrics to its log. It does not wait.
func (mg *machineGate) LogMetrics(ref hangar.MachineRef, level, message string) {
	mg.lines.add(edgeLine{ref, hangar.LogRunner, level, message})
}

// writeEdgeLog writes queued lines until ctx ends, and then the rest.
func (mg *machineGate) writeEdgeLog(ctx context.Context) {
	for {
		select {
		case <-mg.lines.some:
		case <-ctx.Done():
			mg.writeEdgeLines()
			return
		}
		mg.writeEdgeLines()
	}
}

func (mg *machineGate) writeEdgeLines() {
	lines, lost := mg.lines.take()
	for _, line := range lines {
		if ref, ok := mg.index.loggedAs(line.ref); ok {
			mg.logs.Append(ref, line.provider, line.level, line.message)
		}
	}
	for ref, n := range lost {
		if ref, ok := mg.index.loggedAs(ref); ok {
			mg.logs.Append(ref, hangar.LogProxy, "warn", fmt.Sprintf("%d lines of the edge were lost: there were too many at once", n))
		}
	}
}
