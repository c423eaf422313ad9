// Package proxy is the HTTP proxy between the clients of an App and the App beside a node: it sends
// writes to the primary and lets clients read what they wrote.
//
// A request with the method GET or HEAD reads, every other one writes. The App of this node answers
// reads. A replica answers a write with the header fly-replay (and its neutral name), with which the
// edge repeats the write at the primary. The answer to a write has the position of the database in the
// cookie __txid. A replica delays a read with that cookie until it has the transaction. The behaviour
// and the names are those of the proxy of LiteFS, except for the cookie __txepoch: a new primary reuses
// the IDs of transactions that were lost with the previous one, and the epoch distinguishes them.
//
// A Proxy may be used by many goroutines. A transaction that an App commits after it has sent the header
// of its answer is only in the cookie of a later answer.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"time"

	"github.com/superfly/ltx"

	"github.com/hangar-platform/hangar"
)

const (
	// Cookie has the transaction ID, in 16 hexadecimal digits, of the client's last write.
	Cookie = "__txid"
	// EpochCookie has the epoch in which that transaction was committed, in the same form.
	EpochCookie = "__txepoch"
	// HealthPath answers 200 while the replica keeps up, and 503 otherwise.
	HealthPath = "/litefs/health"
	// LagHeader is the header of a replica with the milliseconds since it last had all transactions of the primary.
	LagHeader = "Hangar-Db-Lag"
)

const (
	cookieAge   = 5 * time.Minute
	readTimeout = 5 * time.Second // how long a replica delays a read
	ackTimeout  = 5 * time.Second // how long the response to a write waits for replicas
	seenTimeout = time.Second     // how long it waits for the position of the write, if no replicas are required
)

// Node is the node beside the App.
type Node interface {
	// PrimaryEpoch returns the epoch in which the node is the primary, 0 if it is not.
	PrimaryEpoch() uint64
	// WaitPrimary waits until this node is the primary or connected to one. It returns the hostname of the
	// primary, or "" for this node.
	WaitPrimary(ctx context.Context) (hostname string, err error)
	// Committed returns the last transaction that programs have committed to a database so far, 0 if there is
	// none, and the epoch in which it was committed. With an error, there may be later transactions.
	Committed(ctx context.Context, db string) (epoch uint64, id ltx.TXID, err error)
	// WaitMark waits until readers see a transaction of a database that was committed in an epoch, or one of a
	// later epoch. Epoch 0 means any epoch.
	WaitMark(ctx context.Context, db string, epoch uint64, id ltx.TXID) error
	// Lag returns the time since the node last had all transactions of the primary; 0 on the primary.
	Lag() time.Duration
}

// Options configure a Proxy.
type Options struct {
	Target string // host:port of the App
	DB     string // the database whose position is in the cookie
	// MaxLag is the lag at which a replica is no longer healthy; 0 means any is healthy.
	MaxLag time.Duration
	// RedirectTimeout bounds how long a write waits for a primary to be known.
	RedirectTimeout time.Duration
	// Passthrough has patterns of paths that always go to the App, unchanged. "*" matches any characters.
	Passthrough []string
	// AlwaysForward has patterns of paths at which GET and HEAD write, too.
	AlwaysForward []string
	// Acknowledged waits until enough replicas have a transaction; nil if none are required. The proxy sends the answer
	// to a write only after that, and only if this node has been the primary throughout.
	Acknowledged func(ctx context.Context, db string, id ltx.TXID) error
	// Debug logs every request.
	Debug bool
	Node  Node
	Log   *slog.Logger
}

// Proxy is an http.Handler.
type Proxy struct {
	o                      Options
	passthrough, forwarded patterns
	reverse                *httputil.ReverseProxy
	transport              *http.Transport
}

// New returns a Proxy, which the caller closes.
func New(o Options) *Proxy {
	p := &Proxy{
		o:           o,
		passthrough: compile(o.Passthrough),
		forwarded:   compile(o.AlwaysForward),
		transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
			MaxIdleConnsPerHost: 128,
			IdleConnTimeout:     30 * time.Second,
			DisableCompression:  true, // bodies pass unchanged
		},
	}
	target := &url.URL{Scheme: "http", Host: o.Target}
	p.reverse = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = r.In.Host
			r.Out.URL.RawQuery = r.In.URL.RawQuery
			// The edge has set these headers for the App.
			for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
				if v, ok := r.In.Header[name]; ok {
					r.Out.Header[name] = v
				}
			}
		},
		Transport:      p.transport,
		FlushInterval:  -1, // flush streams immediately
		ModifyResponse: p.answered,
		ErrorHandler:   p.failed,
		ErrorLog:       slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
	}
	return p
}

// Close ends the idle connections to the App.
func (p *Proxy) Close() { p.transport.CloseIdleConnections() }

// kind classifies a request.
type kind string

const (
	passes kind = "passes"
	reads  kind = "reads"
	writes kind = "writes"
)

// request is the proxy's state in the context of a request.
type request struct {
	kind  kind
	epoch uint64 // in which the node was the primary when the request was forwarded
}

type requestKey struct{}

func (p *Proxy) kind(r *http.Request) kind {
	switch {
	case p.passthrough.match(r.URL.Path):
		return passes
	case p.forwarded.match(r.URL.Path):
		return writes
	case r.Method == http.MethodGet || r.Method == http.MethodHead:
		return reads
	}
	return writes
}

// ServeHTTP answers one request.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == HealthPath {
		p.health(w)
		return
	}
	k := p.kind(r)
	if p.o.Debug {
		p.o.Log.Info("request", "method", r.Method, "path", r.URL.Path, "kind", string(k))
	}
	asked := request{kind: k}
	switch k {
	case passes:
	case reads:
		if !p.mayRead(w, r) {
			return
		}
	case writes:
		if !p.mayWrite(w, r) {
			return
		}
		asked.epoch = p.o.Node.PrimaryEpoch()
	}
	p.reverse.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), requestKey{}, asked)))
}

func (p *Proxy) health(w http.ResponseWriter) {
	lag := p.o.Node.Lag()
	p.setLag(w.Header())
	if p.o.MaxLag > 0 && lag > p.o.MaxLag {
		refuse(w, http.StatusServiceUnavailable, "the replica is behind by more than "+p.o.MaxLag.String())
		return
	}
	fmt.Fprintln(w, "OK")
}

// setLag adds the lag of a replica to a response.
func (p *Proxy) setLag(h http.Header) {
	if p.o.Node.PrimaryEpoch() != 0 {
		return
	}
	h.Set(LagHeader, strconv.FormatInt(min(p.o.Node.Lag().Milliseconds(), math.MaxInt32), 10))
}

// refuse responds without the App.
func refuse(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Cache-Control", "no-store")
	http.Error(w, "Proxy error: "+text, status)
}

// mayRead delays a read until this node has the client's last write.
func (p *Proxy) mayRead(w http.ResponseWriter, r *http.Request) bool {
	epoch, id := wrote(r)
	// The primary has everything that still exists: transactions lost with an earlier primary never
	// arrive.
	if id == 0 || p.o.DB == "" || p.o.Node.PrimaryEpoch() != 0 {
		return true
	}
	ctx, cancel := context.WithTimeout(r.Context(), readTimeout)
	defer cancel()
	if err := p.o.Node.WaitMark(ctx, p.o.DB, epoch, id); err == nil {
		return true
	}
	if r.Context().Err() == nil {
		p.o.Log.Warn("a read was given up", "db", p.o.DB, "txid", id.String(), "timeout", readTimeout)
		p.setLag(w.Header())
		refuse(w, http.StatusGatewayTimeout, "the replica does not have what this client wrote")
	}
	return false
}

// wrote returns the transaction in the cookies of a request and its epoch, or 0 if they are
// missing.
func wrote(r *http.Request) (epoch uint64, id ltx.TXID) {
	number := func(cookie string) ltx.TXID {
		c, err := r.Cookie(cookie)
		if err != nil {
			return 0
		}
		n, err := ltx.ParseTXID(c.Value)
		if err != nil {
			return 0 // not our cookie
		}
		return n
	}
	return uint64(number(EpochCookie)), number(Cookie)
}

// mayWrite reports whether the App on this node may write. Otherwise it redirects the request to
// the primary.
func (p *Proxy) mayWrite(w http.ResponseWriter, r *http.Request) bool {
	ctx, cancel := context.WithTimeout(r.Context(), p.o.RedirectTimeout)
	defer cancel()
	hostname, err := p.o.Node.WaitPrimary(ctx)
	switch {
	case err != nil && r.Context().Err() == nil:
		refuse(w, http.StatusServiceUnavailable, "no primary available")
		return false
	case err != nil:
		return false // the client is gone
	case hostname == "":
		return true
	}
	for _, name := range []string{hangar.HeaderReplay.Neutral, hangar.HeaderReplay.Original} {
		w.Header().Set(name, "instance="+hostname)
	}
	w.Header().Set("Cache-Control", "no-store")
	return false
}

// answered handles the header of the App's response.
func (p *Proxy) answered(resp *http.Response) error {
	asked, _ := resp.Request.Context().Value(requestKey{}).(request)
	if asked.kind == passes {
		return nil
	}
	p.setLag(resp.Header)
	if asked.kind != writes || p.o.DB == "" {
		return nil
	}
	epoch, id, err := p.written(resp.Request.Context(), asked)
	switch {
	case err != nil && p.o.Acknowledged != nil:
		return &unacknowledgedError{id, err}
	case err != nil:
		p.o.Log.Warn("the position of the write is not known", "db", p.o.DB, "error", err)
		return nil
	case id == 0:
		return nil
	}
	for _, c := range []struct{ name, value string }{{Cookie, id.String()}, {EpochCookie, ltx.TXID(epoch).String()}} {
		cookie := &http.Cookie{ //nolint:gosec // a position is no secret, and must be sent over plain HTTP as well
			Name: c.name, Value: c.value, Path: "/", Expires: time.Now().Add(cookieAge), HttpOnly: true,
		}
		resp.Header.Add("Set-Cookie", cookie.String())
	}
	return nil
}

// errNotLeading is returned for a write during which the node stopped being the primary: the next
// primary may lack it.
var errNotLeading = errors.New("this node is no longer the primary")

// written returns the last transaction that the App has committed, once enough replicas have it.
func (p *Proxy) written(ctx context.Context, asked request) (epoch uint64, id ltx.TXID, err error) {
	limit := seenTimeout
	if p.o.Acknowledged != nil {
		limit = ackTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	epoch, id, err = p.o.Node.Committed(ctx, p.o.DB)
	if err == nil && id != 0 && p.o.Acknowledged != nil {
		err = p.o.Acknowledged(ctx, p.o.DB, id)
	}
	if err == nil && (asked.epoch == 0 || p.o.Node.PrimaryEpoch() != asked.epoch) {
		err = errNotLeading
	}
	return epoch, id, err
}

// unacknowledgedError means that a write was committed here but is on too few replicas.
type unacknowledgedError struct {
	id  ltx.TXID
	err error
}

func (e *unacknowledgedError) Error() string {
	return fmt.Sprintf("transaction %s has too few acknowledgements: %v", e.id, e.err)
}

func (e *unacknowledgedError) Unwrap() error { return e.err }

// failed responds when the App has not responded, or its response must be withheld.
func (p *Proxy) failed(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		return // the client is gone
	}
	if _, ok := errors.AsType[*unacknowledgedError](err); ok {
		p.o.Log.Warn("an answer was withheld", "error", err)
		text := "the write is committed, but not yet on as many replicas as required"
		if errors.Is(err, errNotLeading) {
			text = "the primary changed before the write was on as many replicas as required: it may be lost"
		}
		refuse(w, http.StatusGatewayTimeout, text)
		return
	}
	p.o.Log.Warn("the App does not answer", "error", err)
	refuse(w, http.StatusBadGateway, "the App does not answer")
}
