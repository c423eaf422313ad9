package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/connlimit"
	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/internal/hostcert"
)

// The bounds of peers' requests.
const (
	// peerStreams is how many calls and connections of one peer are under way at most, and
	// allStreams of all.
	peerStreams = 16 << 10
	allStreams  = 64 << 10
	// finishTime bounds a call that changes something and whose caller has gone.
	finishTime = time.Minute
)

// HandlerConfig has the dependencies of a Handler.
type HandlerConfig struct {
	Agent hangar.Agent
	Gate  hangar.MachineGate
	// Pushed is what the host holds of the built-in registry; nil: nothing.
	Pushed hangar.PushedReader
	// Admits reports whether a host may call; nil: every one that has a certificate of the cluster.
	Admits func(hangar.HostID) bool
	Log    *slog.Logger
}

// Handler answers the calls of other hosts, below Path.
type Handler struct {
	owner

	pushed  hangar.PushedReader
	admits  func(hangar.HostID) bool
	log     *slog.Logger
	methods map[string]method
	streams map[string]streaming
	open    *connlimit.Count[hangar.HostID]
}

// streaming is how a host answers calls of a method with more than one result.
type streaming struct {
	args  int
	serve func(h *Handler, x *served)
}

// NewHandler returns a Handler. The listener requires certificates of the cluster's authority.
func NewHandler(cfg HandlerConfig) *Handler {
	if cfg.Admits == nil {
		cfg.Admits = func(hangar.HostID) bool { return true }
	}
	return &Handler{
		owner: owner{cfg.Agent, cfg.Gate}, pushed: cfg.Pushed, admits: cfg.Admits, log: cfg.Log, methods: methods(), streams: streams(),
		open: connlimit.NewCount[hangar.HostID](peerStreams, allStreams),
	}
}

// The windows of HTTP/2, in bytes. That of a connection has room for those of thousands of streams,
// so that one whose reader is slow does not hold up the others.
const (
	streamWindow     = 256 << 10
	connectionWindow = 1 << 30
)

// Server returns the HTTP/2 settings of a listener on which a Handler is mounted.
func Server() *http.HTTP2Config {
	return &http.HTTP2Config{
		MaxConcurrentStreams: 4096, SendPingTimeout: 15 * time.Second, PingTimeout: 15 * time.Second,
		MaxReceiveBufferPerStream: streamWindow, MaxReceiveBufferPerConnection: connectionWindow,
	}
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	peer, ok := hostcert.Peer(r.TLS)
	if !ok || !h.admits(peer) {
		http.Error(w, "only hosts of the cluster may call", http.StatusForbidden)
		return
	}
	name := strings.TrimPrefix(r.URL.Path, Path)
	m, once := h.methods[name]
	s, streams := h.streams[name]
	switch {
	case r.Method != http.MethodPost || !once && !streams:
		http.Error(w, "unknown method", http.StatusNotFound)
		return
	case r.ProtoMajor < 2:
		http.Error(w, "HTTP/2 is required", http.StatusHTTPVersionNotSupported)
		return
	case !h.open.Take(peer):
		http.Error(w, "too many calls", http.StatusTooManyRequests)
		return
	}
	defer h.open.Leave(peer)
	w.Header().Set("Content-Type", contentType)
	x := &served{name: name, peer: peer, r: r, control: http.NewResponseController(w)}
	x.out = &frameWriter{w: w, flush: x.control.Flush}
	defer x.finish()
	args := m.args
	if streams {
		args = s.args
	}
	if err := x.read(args); err != nil {
		h.answer(x, nil, err)
		return
	}
	if streams {
		s.serve(h, x)
		return
	}
	h.once(x, m)
}

// served is a call that is being answered.
type served struct {
	name    string
	peer    hangar.HostID
	r       *http.Request
	call    call
	out     *frameWriter
	control *http.ResponseController

	ending   sync.Mutex // guards what follows
	answered bool       // nothing may be done to the exchange any more
}

// read reads the call.
func (x *served) read(args int) error {
	k, payload, err := readFrame(x.r.Body, maxCall)
	if err == nil && k != kindCall {
		err = fmt.Errorf("unexpected frame %q", k)
	}
	if err == nil {
		err = json.Unmarshal(payload, &x.call)
	}
	if err != nil {
		return hangar.Errorf(hangar.CodeInvalid, "", "a call of another host cannot be read: %w", err)
	}
	if len(x.call.Args) != args {
		return errOtherVersion(x.name, "it takes other arguments of %s")
	}
	return nil
}

// abort ends the exchange, so that reads and writes under way fail. It does nothing after that.
func (x *served) abort() {
	x.ending.Lock()
	defer x.ending.Unlock()
	if x.answered {
		return
	}
	past := time.Unix(1, 0)
	_ = x.control.SetReadDeadline(past) // neither fails on HTTP/2
	_ = x.control.SetWriteDeadline(past)
}

// finish protects the exchange from abort and from late writes, as of a timer: the server uses it for
// the next one, and panics over a write.
func (x *served) finish() {
	x.out.close(x.abort)
	x.ending.Lock()
	defer x.ending.Unlock()
	x.answered = true
}

// once answers a call with one result. A call that changes something continues when its caller is
// gone: otherwise a partial change would go unnoticed.
func (h *Handler) once(x *served, m method) {
	ctx, cancel := x.call.context(x.r.Context())
	defer cancel()
	if m.reads {
		result, err := m.serve(ctx, &h.owner, &x.call)
		h.answer(x, result, err)
		return
	}
	limit := finishTime
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline))
	}
	var result any
	err := finish.Do(ctx, limit, func(ctx finish.Context) (err error) {
		result, err = m.serve(ctx, &h.owner, &x.call)
		return err
	})
	h.answer(x, result, err)
}

// answer writes the last frame.
func (h *Handler) answer(x *served, result any, failed error) {
	var raw json.RawMessage
	if failed == nil {
		raw, failed = encode(result)
	}
	if failed == nil {
		_ = x.out.write(kindResult, raw) // a caller that has gone learns nothing
		return
	}
	if hangar.CodeOf(failed) == hangar.CodeInternal && !errors.Is(failed, context.Canceled) {
		h.log.Error("call of another host failed", "method", x.name, "peer", x.peer, "error", failed)
	}
	raw, err := json.Marshal(faultOf(failed))
	if err != nil {
		return
	}
	_ = x.out.write(kindError, raw)
}

// frames reads frames until the exchange ends.
func (x *served) frames(use func(k kind, payload []byte) error) error {
	for {
		k, payload, err := readFrame(x.r.Body, maxCall)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = use(k, payload)
		}
		if err != nil {
			return err
		}
	}
}
