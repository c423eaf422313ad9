package replica

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hangar-platform/hangar/replica/database"
	"github.com/hangar-platform/hangar/replica/stream"
)

// DefaultPort is the TCP port on which a node serves HTTP.
const DefaultPort = 20202

// endpoints serves HTTP requests.
type endpoints struct{ *Node }

// Handler serves the HTTP API of the node: its events, its state, copies of its databases, and the
// stream that replicas follow. The network must be private, because the API needs no credentials. Only
// with Config.ServerTLS.ClientCAs, all but /events, /info and /metrics need a client certificate.
func (n *Node) Handler() http.Handler {
	mux, e := http.NewServeMux(), endpoints{n}
	mux.Handle("/events", n.hub.Handler(n.Find))
	mux.Handle("/info", only(http.MethodGet, e.serveInfo))
	mux.Handle("/export", e.private(only(http.MethodGet, e.serveExport)))
	mux.Handle("/import", e.private(only(http.MethodPost, e.serveImport)))
	mux.Handle("/handoff", e.private(only(http.MethodPost, e.serveHandoff)))
	mux.Handle("/promote", e.private(only(http.MethodPost, e.servePromote)))
	mux.Handle("/halt", e.private(only(http.MethodPost+", "+http.MethodDelete, e.serveHalt)))
	mux.Handle("/tx", e.private(only(http.MethodPost, e.serveTx)))
	mux.Handle("/log", e.private(only(http.MethodGet, n.sender.ServeRecords)))
	mux.Handle("/marks", e.private(only(http.MethodGet, e.serveMarks)))
	mux.Handle("/metrics", only(http.MethodGet, e.metrics))
	mux.Handle("/stream", e.private(only(http.MethodPost, n.sender.ServeHTTP)))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n.mu.Lock()
		id, cluster := n.id.Node, n.id.Cluster
		n.mu.Unlock()
		w.Header().Set("Litefs-Id", fmt.Sprintf("%016X", id))
		if cluster != "" {
			w.Header().Set("Litefs-Cluster-Id", cluster)
		}
		mux.ServeHTTP(w, r)
	})
}

// private requires a client certificate, if the configuration has CAs for them.
func (n endpoints) private(h http.Handler) http.Handler {
	if n.c.ServerTLS == nil || n.c.ServerTLS.ClientCAs == nil {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
			http.Error(w, "a client certificate is required", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// only rejects methods other than the given ones, which are separated by ", ".
func only(methods string, h http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !slices.Contains(strings.Split(methods, ", "), r.Method) {
			w.Header().Set("Allow", methods)
			http.Error(w, "Method not allowed", http.StatusMethodNotAllowed)
			return
		}
		h(w, r)
	})
}

// Info is the response of GET /info.
type Info struct {
	ClusterID string       `json:"clusterID,omitempty"`
	NodeID    string       `json:"nodeID"`
	IsPrimary bool         `json:"isPrimary"`
	Candidate bool         `json:"candidate"`
	Path      string       `json:"path"` // the directory of the databases
	Capture   string       `json:"capture"`
	Primary   *InfoPrimary `json:"primary,omitempty"`
	Epoch     uint64       `json:"epoch"`
	// Replicas are the connected replicas, if this node is the primary.
	Replicas []InfoReplica `json:"replicas,omitempty"`
	// Aside counts the files with transactions that this node had and its primary lacked.
	Aside     InfoAside `json:"aside"`
	Databases []InfoDB  `json:"databases"`
}

// InfoPrimary is the primary that a replica follows.
type InfoPrimary struct {
	Hostname string `json:"hostname"`
}

// InfoReplica is a connected replica.
type InfoReplica struct {
	Hostname  string `json:"hostname"`
	NodeID    string `json:"nodeID"`
	Candidate bool   `json:"candidate"`
}

// InfoAside counts the LTX files in a directory.
type InfoAside struct {
	Path  string `json:"path"`
	Files int    `json:"files"`
	Bytes int64  `json:"bytes"`
}

// InfoDB is one database.
type InfoDB struct {
	Name     string `json:"name"`
	TXID     string `json:"txID"`
	Checksum string `json:"postApplyChecksum"`
	Pages    uint32 `json:"commit"`
	PageSize uint32 `json:"pageSize"`
	Diverged bool   `json:"diverged,omitempty"`
	// Late says that replicas lack the last transaction, and that no program may write until they have it.
	Late bool `json:"late,omitempty"`
}

// Info describes the node and its databases.
func (n *Node) Info() Info {
	n.mu.Lock()
	i := Info{
		ClusterID: n.id.Cluster, NodeID: fmt.Sprintf("%016X", n.id.Node),
		Candidate: n.c.Candidate, Path: n.c.Dir, Capture: n.mode, Databases: []InfoDB{},
	}
	n.mu.Unlock()
	i.IsPrimary, i.Epoch = n.Writable(), n.epoch()
	i.Aside.Path = n.asideDir()
	i.Aside.Files, i.Aside.Bytes = n.aside.now()
	for _, f := range n.sender.Followers(nil) {
		i.Replicas = append(i.Replicas, InfoReplica{f.Hostname, fmt.Sprintf("%016X", f.Node), f.Candidate})
	}
	if host, ok := n.Primary(); ok {
		i.Primary = &InfoPrimary{host}
	}
	for _, db := range n.All() {
		last := db.Last()
		diverged, _ := db.Diverged()
		i.Databases = append(i.Databases, InfoDB{
			Name: last.Name, TXID: last.Pos.TXID.String(), Checksum: last.Pos.PostApplyChecksum.String(),
			Pages: last.Pages, PageSize: last.PageSize, Diverged: diverged, Late: n.late(db),
		})
	}
	return i
}

func (n endpoints) serveInfo(w http.ResponseWriter, _ *http.Request) {
	b, err := json.MarshalIndent(n.Info(), "", "  ")
	if err != nil {
		http.Error(w, "Internal server error", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(b, '\n')) // the client may be gone
}

func (n endpoints) serveExport(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Query().Get("name")
	if name == "" {
		http.Error(w, "name required", http.StatusBadRequest)
		return
	}
	db := n.Find(name)
	if db == nil || db.Last().Pages == 0 {
		http.Error(w, "database not found", http.StatusNotFound)
		return
	}
	f, err := n.exportFile()
	if err != nil {
		n.fail(w, r, err)
		return
	}
	defer f.Close()
	defer os.Remove(f.Name())
	change, err := db.Export(r.Context(), f)
	if err != nil {
		n.fail(w, r, err)
		return
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		n.fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", fmt.Sprint(int64(change.Pages)*int64(change.PageSize)))
	w.Header().Set("Hangar-Db-Position", change.Pos.String())
	if _, err := io.Copy(w, f); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// serveMarks answers how far the databases are, for a node that becomes primary.
func (n endpoints) serveMarks(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(n.marks()); err != nil {
		panic(http.ErrAbortHandler)
	}
}

func (n endpoints) serveImport(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Query().Get("name")
	if !ValidName(name) {
		http.Error(w, "name required", http.StatusBadRequest)
		return
	}
	if !n.Writable() {
		http.Error(w, database.ErrFenced.Error(), http.StatusServiceUnavailable)
		return
	}
	db, err := n.Database(name, true)
	if err != nil {
		n.fail(w, r, err)
		return
	}
	change, err := db.Import(r.Context(), steadyBody{r.Body, http.NewResponseController(w)})
	switch {
	case errors.Is(err, database.ErrBadImport):
		http.Error(w, err.Error(), http.StatusBadRequest)
	case errors.Is(err, database.ErrFenced):
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	case err != nil:
		n.fail(w, r, err)
	default:
		w.Header().Set("Hangar-Db-Position", change.Pos.String())
		w.WriteHeader(http.StatusOK)
	}
}

// importPatience is how long the client of an import may be silent.
const importPatience = time.Minute

// steadyBody is the body of a request, of any size, whose client may not stall.
type steadyBody struct {
	body    io.Reader
	control *http.ResponseController
}

// Read implements io.Reader. Between reads there is no deadline: what is done with the body may take long.
func (b steadyBody) Read(p []byte) (int, error) {
	_ = b.control.SetReadDeadline(time.Now().Add(importPatience))
	n, err := b.body.Read(p)
	_ = b.control.SetReadDeadline(time.Time{})
	return n, err
}

// fail responds to a request that failed through a fault of the node.
func (n endpoints) fail(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() == nil {
		n.c.Log.Error("request failed", "path", r.URL.Path, "error", err)
	}
	http.Error(w, "Internal server error", http.StatusInternalServerError)
}

// NewServer returns a server of the node's handler, for HTTP/1.1 and for HTTP/2 with or without TLS. It closes the
// connection of a replica that was lost without a word.
func (n *Node) NewServer() *http.Server {
	var p http.Protocols
	p.SetHTTP1(true)
	p.SetHTTP2(true)
	p.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler: n.Handler(), ReadHeaderTimeout: 10 * time.Second, Protocols: &p, TLSConfig: n.c.ServerTLS.Clone(),
		HTTP2:    &http.HTTP2Config{SendPingTimeout: stream.Silence, PingTimeout: stream.Silence},
		ErrorLog: slog.NewLogLogger(n.c.Log.Handler(), slog.LevelWarn),
	}
}
