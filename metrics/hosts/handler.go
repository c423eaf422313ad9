package hosts

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"sync"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/hostcert"
	"github.com/hangar-platform/hangar/metrics"
)

// The bounds of one host's requests.
const (
	maxWrites  = 8 // in progress; a Writer has four
	maxOthers  = 128
	maxRequest = 8 << 20 // bytes of a write, compressed and uncompressed; a Writer sends at most 2 MiB
)

// HandlerConfig has the dependencies of a Handler.
type HandlerConfig struct {
	Client  *Client // knows whether this host is the holder
	Own     metrics.Store
	Queries hangar.SeriesQuerier // of Own
	Alerts  hangar.AlertHost     // of this host
	Log     *slog.Logger
}

// Handler answers the other hosts while this host is the holder. Its listener must accept hosts only.
type Handler struct {
	cfg HandlerConfig
	mux *http.ServeMux

	mu     sync.Mutex
	inside map[use]int // guarded by mu: requests under way
}

// use is a host's kind of request.
type use struct {
	host  hangar.HostID
	write bool
}

// NewHandler returns the Handler of a host.
func NewHandler(cfg HandlerConfig) *Handler {
	h := &Handler{cfg: cfg, mux: http.NewServeMux(), inside: map[use]int{}}
	h.mux.HandleFunc("POST "+Path+pathWrite, h.write)
	h.mux.HandleFunc("POST "+Path+pathQuery, h.query)
	h.mux.HandleFunc("POST "+Path+pathAlerts, h.alerts)
	return h
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	peer, ok := hostcert.Peer(r.TLS)
	if !ok {
		http.Error(w, "a certificate of a host of the cluster is required", http.StatusForbidden)
		return
	}
	if !h.cfg.Client.keeps() {
		http.Error(w, "this host does not keep the metrics of others", http.StatusMisdirectedRequest)
		return
	}
	w.Header().Set(headerHolder, string(h.cfg.Client.cfg.Self))
	what, most := use{peer, r.URL.Path == Path+pathWrite}, maxOthers
	if what.write {
		most = maxWrites
	}
	if !h.enter(what, most) {
		http.Error(w, "too many requests of this host are under way", http.StatusTooManyRequests)
		return
	}
	defer h.leave(what)
	h.mux.ServeHTTP(w, r)
}

func (h *Handler) enter(what use, most int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.inside[what] >= most {
		return false
	}
	h.inside[what]++
	return true
}

func (h *Handler) leave(what use) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.inside[what]--; h.inside[what] == 0 {
		delete(h.inside, what)
	}
}

// write stores samples of a host.
func (h *Handler) write(w http.ResponseWriter, r *http.Request) {
	peer, _ := hostcert.Peer(r.TLS)
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
	if err != nil {
		http.Error(w, "the request cannot be read", http.StatusBadRequest)
		return
	}
	if err := check(body, metrics.HostLabelOf(peer)); err != nil {
		h.cfg.Log.WarnContext(r.Context(), "refusing metrics of a host", "host", peer, "error", err)
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	status, err := h.store(r.Context(), body)
	if err != nil {
		h.cfg.Log.WarnContext(r.Context(), "cannot store metrics of a host, which it sends again", "host", peer, "error", err)
		http.Error(w, "the store cannot take it now", http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(status)
}

// store writes a body to the store of this host, and returns the status of the response.
func (h *Handler) store(ctx context.Context, body []byte) (int, error) {
	out, err := http.NewRequestWithContext(ctx, http.MethodPost, h.cfg.Own.SharedWriteURL(), bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	out.Header.Set("Content-Encoding", "snappy")
	out.Header.Set("Content-Type", "application/x-protobuf")
	resp, err := h.cfg.Own.Client().Do(out)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxQuery))
	return resp.StatusCode, err
}

// query answers a query that another host has authorized.
func (h *Handler) query(w http.ResponseWriter, r *http.Request) {
	var in question
	// A body contains its parameters twice, once in base64.
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 4*maxQuery)).Decode(&in); err != nil {
		http.Error(w, "the query cannot be read", http.StatusBadRequest)
		return
	}
	h.cfg.Queries.QuerySeries(w, in.request(r), in.Scope, in.Path)
}

// alerts answers with the state of an organization's rules.
func (h *Handler) alerts(w http.ResponseWriter, r *http.Request) {
	org, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<10))
	if err != nil {
		http.Error(w, "the request cannot be read", http.StatusBadRequest)
		return
	}
	report, err := h.cfg.Alerts.AlertReport(r.Context(), hangar.OrgID(org))
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(report) // fails only if the host has disconnected
}
