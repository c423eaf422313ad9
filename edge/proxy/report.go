package proxy

import (
	"cmp"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/proxy/page"
)

// fail answers a request with an error.
func (x *exchange) fail(e *hangar.EdgeError) {
	x.answered(e.Status)
	x.report(e)
	h := x.w.Header()
	clear(h)
	h["Server"] = product
	requestIDs.set(h, []string{x.id})
	if e.Status == http.StatusServiceUnavailable || e.Status == http.StatusTooManyRequests {
		h["Retry-After"] = retryAfter
	}
	if e.Code == hangar.EdgeNoMethod {
		h["Allow"] = []string{"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"}
	}
	page.Write(x.w, x.sent, e, x.id)
}

var retryAfter = []string{"1"}

// report counts a failed request and logs it for the App.
func (x *exchange) report(e *hangar.EdgeError) {
	x.code = e.Code
	x.p.stats.failures.Add(1)
	x.p.options.Traffic.Failed(e.Code)
	if x.route == nil {
		return
	}
	if e.Err != nil {
		x.p.log.DebugContext(x.client.ctx, "a request to an app failed", "app", x.route.App, "machine", x.machine.ID, "code", e.Code, "error", e.Err)
	}
	more, ok := x.p.lines.allow(line{x.route.ID, e.Code}, time.Now())
	if !ok {
		return
	}
	ref := x.machine
	if ref.AppID != x.route.ID {
		ref = hangar.MachineRef{App: x.route.App, AppID: x.route.ID}
	}
	text := fmt.Sprintf("[%s] %s (%s %s%s, request %s)", e.Code, e.Message, x.sent.Method, x.sent.Host, printable(x.sent.URL.EscapedPath()), x.id)
	x.p.logEdge(cmp.Or(x.host, x.p.options.Host), ref, level(e.Status), text+leftOut(more))
}

// leftOut reports how many similar lines were not written.
func leftOut(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" (%d more like this were left out before)", n)
}

func level(status int) string {
	if status >= 500 {
		return "error"
	}
	return "warn"
}

// printable shortens a path for a log.
func printable(path string) string {
	if len(path) > maxLoggedPath {
		return path[:maxLoggedPath] + "…"
	}
	return path
}

const maxLoggedPath = 200 // bytes

// logEdge writes to the log of an App, on the server of a Machine.
func (p *Proxy) logEdge(host hangar.HostID, ref hangar.MachineRef, level, text string) {
	gate, err := p.options.Gates.Gate(host)
	if err != nil {
		if gate, err = p.options.Gates.Gate(p.options.Host); err != nil {
			return
		}
	}
	gate.LogEdge(ref, level, text)
}

// record publishes a line about a request to the followers of its App.
func (x *exchange) record() {
	if x.route == nil || !x.p.access.Wanted(x.route.ID) {
		return
	}
	now := time.Now()
	region := x.p.options.Region
	if x.machine.ID == "" {
		region = ""
	}
	x.p.access.Publish(x.route.ID, hangar.EdgeRequest{
		Client: x.client.Remote.Addr().Unmap().WithZone(""), Method: x.sent.Method, Host: x.sent.Host, Path: printable(x.sent.URL.RequestURI()),
		Proto: x.sent.Proto, Status: x.status, Bytes: x.bytes, Millis: float64(now.Sub(x.start).Microseconds()) / 1000,
		UserAgent: x.sent.UserAgent(), RequestID: x.id, Replays: x.replays.count, Code: x.code,
	}.Entry(now, x.machine.ID, region))
}

// Bounds of lines about failed requests of one App and code in a period. The rest is counted.
const (
	linesPerPeriod = 10
	linePeriod     = 10 * time.Second
)

// line identifies similar lines in the log of an App.
type line struct {
	app  hangar.AppID
	code hangar.EdgeCode
}

// lines protects the logs of Apps from floods.
type lines struct {
	mu     sync.Mutex
	recent map[line]*tally
}

type tally struct {
	since   time.Time
	written int
	left    int // omitted lines
}

// allow reports whether a line may be written, and how many were omitted before it.
func (l *lines) allow(of line, now time.Time) (more int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.recent == nil {
		l.recent = make(map[line]*tally)
	}
	t := l.recent[of]
	if t == nil {
		t = &tally{since: now}
		l.recent[of] = t
	}
	if now.Sub(t.since) >= linePeriod {
		t.since, t.written, more, t.left = now, 0, t.left, 0
	}
	if t.written == linesPerPeriod {
		t.left++
		return 0, false
	}
	t.written++
	return more, true
}

// sweep drops expired entries, and returns how many lines were omitted.
func (l *lines) sweep(now time.Time) map[line]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	left := map[line]int{}
	for of, t := range l.recent {
		if now.Sub(t.since) >= linePeriod {
			if t.left > 0 {
				left[of] = t.left
			}
			delete(l.recent, of)
		}
	}
	return left
}

// refuse answers a request that could not be parsed.
func refuse(w http.ResponseWriter, e *hangar.EdgeError, id string) {
	h := w.Header()
	h["Server"] = product
	requestIDs.set(h, []string{id})
	page.Write(w, nil, e, id)
}
