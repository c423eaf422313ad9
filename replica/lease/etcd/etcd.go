// Package etcd keeps the records of a cluster of database nodes in an etcd that the user operates.
//
// It sends JSON to the gateway that every member serves at the address of gRPC (etcd 3.4 and later, unless
// --enable-grpc-gateway=false). That adds a tenth of the size of a gRPC client to the program.
package etcd

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hangar-platform/hangar/internal/pause"
	"github.com/hangar-platform/hangar/replica/lease"
)

// DefaultPrefix is the default prefix of the keys of a cluster.
const DefaultPrefix = "/hangar-db"

const (
	connectTimeout = 2 * time.Second
	// A connection whose other end does not answer within about lostAfter is lost.
	lostAfter = 6 * time.Second
	probes    = 3
	maxAnswer = 16 << 20 // bytes of a response, or of one line of a watch
)

// Config names an etcd and a prefix of its keys.
type Config struct {
	Endpoints          []string    // of members, such as "http://10.0.0.1:2379"
	TLS                *tls.Config // for connections to the Endpoints; nil: the default for https
	Username, Password string      // empty: no authentication
	Prefix             string      // of the keys; empty: DefaultPrefix
	// Dial opens connections to etcd; nil: TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
}

// Store is a lease.Store in etcd. A session is a lease of etcd.
type Store struct {
	c    Config
	http *http.Client

	mu       sync.Mutex
	endpoint int    // index of the one to try first
	token    string // of the user; empty: not requested yet
}

var _ lease.Store = (*Store)(nil)

// New returns a Store. It connects with the first request.
func New(c Config) (*Store, error) {
	c.Prefix = strings.TrimSuffix(cmp.Or(c.Prefix, DefaultPrefix), "/") + "/"
	endpoints := make([]string, 0, len(c.Endpoints))
	for _, e := range c.Endpoints {
		if !strings.Contains(e, "://") {
			scheme := "http://"
			if c.TLS != nil {
				scheme = "https://"
			}
			e = scheme + e
		}
		endpoints = append(endpoints, strings.TrimSuffix(e, "/"))
	}
	if c.Endpoints = endpoints; len(endpoints) == 0 {
		return nil, errors.New("no endpoint of etcd is known")
	}
	dial := dialer().DialContext
	if c.Dial != nil {
		dial = func(ctx context.Context, _, address string) (net.Conn, error) { return c.Dial(ctx, address) }
	}
	transport := &http.Transport{DialContext: dial, TLSClientConfig: c.TLS, TLSHandshakeTimeout: connectTimeout, IdleConnTimeout: time.Minute}
	return &Store{c: c, http: &http.Client{Transport: transport}}, nil
}

// dialer opens connections whose loss a watch notices although it only listens: etcd sends nothing while
// nothing changes, for ten minutes by default. Requests would go on over other connections, or to another
// endpoint, while the node missed that the primary is gone.
func dialer() *net.Dialer {
	return &net.Dialer{Timeout: connectTimeout, KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: lostAfter / 2, Interval: lostAfter / 2 / probes, Count: probes,
	}}
}

// String implements lease.Store.
func (s *Store) String() string { return "the prefix " + s.c.Prefix + " in etcd" }

// Close implements lease.Store.
func (s *Store) Close() { s.http.CloseIdleConnections() }

// number is a 64-bit integer, which the JSON of protocol buffers encodes as a string.
type number int64

func (n number) MarshalJSON() ([]byte, error) { return json.Marshal(strconv.FormatInt(int64(n), 10)) }

func (n *number) UnmarshalJSON(b []byte) error {
	v, err := strconv.ParseInt(strings.Trim(string(b), `"`), 10, 64)
	*n = number(v)
	return err
}

// Messages of etcd's API, with the fields that this package uses: see rpc.proto and kv.proto of etcd's
// module api. JSON encodes bytes in base64.
type (
	header   struct{ Revision number }
	keyValue struct {
		Key, Value []byte
		Mod        number `json:"mod_revision"`
		Lease      number
	}
	leaseRequest struct {
		ID  number `json:"ID"`
		TTL number `json:"TTL,omitempty"`
	}
	leaseAnswer struct {
		ID    number `json:"ID"`
		TTL   number `json:"TTL"`
		Error string `json:"error"`
	}
	rangeRequest struct {
		Key []byte `json:"key"`
		End []byte `json:"range_end"`
	}
	rangeAnswer struct {
		Header header
		Kvs    []keyValue
	}
	compare struct {
		Key    []byte `json:"key"`
		Target string `json:"target"`
		Result string `json:"result"`
		Mod    number `json:"mod_revision"`
	}
	put struct {
		Key   []byte `json:"key"`
		Value []byte `json:"value"`
		Lease number `json:"lease,omitempty"`
	}
	deletion struct {
		Key []byte `json:"key"`
	}
	operation struct {
		Put    *put      `json:"request_put,omitempty"`
		Delete *deletion `json:"request_delete_range,omitempty"`
	}
	txnRequest struct {
		Compare []compare   `json:"compare,omitempty"`
		Success []operation `json:"success"`
	}
	txnAnswer struct {
		Header    header
		Succeeded bool
	}
	watchRequest struct {
		Create watchCreate `json:"create_request"`
	}
	watchCreate struct {
		rangeRequest

		Start    number `json:"start_revision"`
		Progress bool   `json:"progress_notify"`
	}
	watchAnswer struct {
		Header   header
		Canceled bool
		Reason   string `json:"cancel_reason"`
		Compact  number `json:"compact_revision"`
		Events   []struct {
			Type string // "DELETE", or empty for a put
			Kv   keyValue
		}
	}
	credentials struct {
		Name     string `json:"name"`
		Password string `json:"password"`
	}
	// streamed is a message of a stream.
	streamed[T any] struct {
		Result *T
		Error  *fault
	}
	fault struct {
		Code    int
		Message string
		Text    string `json:"error"`
	}
)

// Codes of gRPC.
const (
	codeNotFound        = 5
	codeUnauthenticated = 16
)

// Error implements error.
func (f *fault) Error() string {
	return fmt.Sprintf("etcd: %.300s (code %d)", cmp.Or(f.Message, f.Text), f.Code)
}

// prefixEnd returns the first key after all keys with a prefix, which ends with a slash.
func prefixEnd(prefix string) []byte {
	end := []byte(prefix)
	end[len(end)-1]++
	return end
}

func (s *Store) all() rangeRequest { return rangeRequest{[]byte(s.c.Prefix), prefixEnd(s.c.Prefix)} }

// post sends a request to the endpoint that answered last, or to the next one that can be reached. It
// does not repeat a request that an endpoint may have received.
func (s *Store) post(ctx context.Context, path string, in any) (*http.Response, error) {
	body, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	first := s.endpoint
	s.mu.Unlock()
	for i := range s.c.Endpoints {
		at := (first + i) % len(s.c.Endpoints)
		var r *http.Response
		if r, err = s.postTo(ctx, s.c.Endpoints[at], path, body); err == nil {
			s.mu.Lock()
			s.endpoint = at
			s.mu.Unlock()
			return r, nil
		}
		if f := (*fault)(nil); errors.As(err, &f) && f.Code != http.StatusServiceUnavailable || errors.Is(ctx.Err(), context.Canceled) {
			return nil, err
		}
		var dial *net.OpError
		if !errors.As(err, &dial) || dial.Op != "dial" || ctx.Err() != nil {
			s.mu.Lock()
			s.endpoint = (at + 1) % len(s.c.Endpoints) // for the next request
			s.mu.Unlock()
			return nil, err
		}
	}
	return nil, err
}

// postTo sends a request with the user's token. It requests a token if there is none or it has
// expired.
func (s *Store) postTo(ctx context.Context, endpoint, path string, body []byte) (*http.Response, error) {
	for attempt := 0; ; attempt++ {
		token, err := s.authenticate(ctx, endpoint)
		if err != nil {
			return nil, err
		}
		r, err := s.send(ctx, endpoint, path, token, body)
		var f *fault
		// etcd forgets tokens when it restarts. The code is then 16, or 3 with this text.
		if token != "" && attempt == 0 && errors.As(err, &f) && (f.Code == codeUnauthenticated || strings.Contains(f.Error(), "invalid auth token")) {
			s.mu.Lock()
			if s.token == token {
				s.token = ""
			}
			s.mu.Unlock()
			continue
		}
		return r, err
	}
}

// authenticate returns the user's token, or "" if there is no user.
func (s *Store) authenticate(ctx context.Context, endpoint string) (string, error) {
	s.mu.Lock()
	token := s.token
	s.mu.Unlock()
	if s.c.Username == "" || token != "" {
		return token, nil
	}
	body, err := json.Marshal(credentials{s.c.Username, s.c.Password}) //nolint:gosec // to etcd, which needs them
	if err != nil {
		return "", err
	}
	r, err := s.send(ctx, endpoint, "/v3/auth/authenticate", "", body)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	var made struct{ Token string }
	if err := json.NewDecoder(io.LimitReader(r.Body, maxAnswer)).Decode(&made); err != nil {
		return "", fmt.Errorf("etcd: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token = made.Token
	return made.Token, nil
}

// send sends one request, and returns an error response as an error.
func (s *Store) send(ctx context.Context, endpoint, path, token string, body []byte) (*http.Response, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set("Grpc-Metadata-hasleader", "true") // a member without quorum then returns an error
	if token != "" {
		q.Header.Set("Authorization", token)
	}
	r, err := s.http.Do(q)
	if err != nil {
		return nil, err
	}
	if r.StatusCode == http.StatusOK {
		return r, nil
	}
	defer r.Body.Close()
	f := &fault{}
	if err := json.NewDecoder(io.LimitReader(r.Body, maxAnswer)).Decode(f); err != nil || f.Code == 0 {
		f = &fault{Code: r.StatusCode, Message: "status " + r.Status}
	}
	return nil, f
}

// ask sends a request and decodes the response.
func ask[T any](ctx context.Context, s *Store, path string, in any) (T, error) {
	var out T
	r, err := s.post(ctx, path, in)
	if err != nil {
		return out, err
	}
	defer r.Body.Close()
	err = json.NewDecoder(io.LimitReader(r.Body, maxAnswer)).Decode(&out)
	_, _ = io.Copy(io.Discard, io.LimitReader(r.Body, maxAnswer)) // to reuse the connection
	return out, err
}

// sessionErr returns lease.ErrSessionEnded for etcd's error about an unknown lease.
func sessionErr(err error) error {
	var f *fault
	if errors.As(err, &f) && f.Code == codeNotFound && strings.Contains(f.Error(), "lease not found") {
		return lease.ErrSessionEnded
	}
	return err
}

func sessionOf(id number) string {
	if id == 0 {
		return ""
	}
	return strconv.FormatInt(int64(id), 10)
}

func parse(session string) (number, error) {
	if session == "" {
		return 0, nil
	}
	id, err := strconv.ParseInt(session, 10, 64)
	return number(id), err
}

// Open implements lease.Store.
func (s *Store) Open(ctx context.Context, ttl time.Duration) (string, time.Duration, error) {
	made, err := ask[leaseAnswer](ctx, s, "/v3/lease/grant", leaseRequest{TTL: number((ttl + time.Second - 1) / time.Second)})
	if err == nil && (made.Error != "" || made.ID == 0) {
		err = fmt.Errorf("etcd grants no lease: %.300s", made.Error)
	}
	return sessionOf(made.ID), time.Duration(made.TTL) * time.Second, err
}

// Renew implements lease.Store.
func (s *Store) Renew(ctx context.Context, session string) (time.Duration, error) {
	id, err := parse(session)
	if err != nil {
		return 0, err
	}
	kept, err := ask[streamed[leaseAnswer]](ctx, s, "/v3/lease/keepalive", leaseRequest{ID: id})
	switch {
	case err != nil:
		return 0, sessionErr(err)
	case kept.Error != nil:
		return 0, sessionErr(kept.Error)
	case kept.Result == nil || kept.Result.TTL <= 0:
		return 0, lease.ErrSessionEnded
	}
	return time.Duration(kept.Result.TTL) * time.Second, nil
}

// End implements lease.Store.
func (s *Store) End(ctx context.Context, session string) error {
	id, err := parse(session)
	if err != nil {
		return err
	}
	_, err = ask[struct{}](ctx, s, "/v3/lease/revoke", leaseRequest{ID: id})
	return sessionErr(err)
}

// Read implements lease.Store.
func (s *Store) Read(ctx context.Context) (lease.Snapshot, error) {
	r, err := ask[rangeAnswer](ctx, s, "/v3/kv/range", s.all())
	if err != nil {
		return lease.Snapshot{}, err
	}
	now := lease.Snapshot{Revision: int64(r.Header.Revision), Records: map[string]lease.Record{}}
	for _, kv := range r.Kvs {
		s.note(now.Records, kv)
	}
	return now, nil
}

func (s *Store) note(records map[string]lease.Record, kv keyValue) {
	records[strings.TrimPrefix(string(kv.Key), s.c.Prefix)] = lease.Record{Value: string(kv.Value), Revision: int64(kv.Mod), Session: sessionOf(kv.Lease)}
}

// errMissed ends a watch that has not reported a change.
var errMissed = errors.New("etcd: the watch has missed a change")

// watching is the progress of a watch.
type watching struct {
	mu   sync.Mutex
	now  lease.Snapshot
	idle bool // it waits for etcd
}

func (w *watching) set(now lease.Snapshot, idle bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now, w.idle = now, idle
}

func (w *watching) get() (now lease.Snapshot, idle bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now, w.idle
}

// check reads all records now and then, and returns errMissed once they have differed from a watch twice while it
// reported nothing. A member that hangs keeps its connections, while other requests go to another member.
func (s *Store) check(ctx context.Context, w *watching) error {
	suspect := int64(-1) // revision of the watch when the records differed
	for pause.For(ctx, lostAfter/2) == nil {
		bounded, cancel := context.WithTimeout(ctx, connectTimeout)
		read, err := s.Read(bounded)
		cancel()
		now, idle := w.get()
		switch {
		case err != nil:
		case !idle || maps.Equal(read.Records, now.Records):
			suspect = -1
		case suspect == now.Revision:
			return errMissed
		default:
			suspect = now.Revision
		}
	}
	return nil
}

// Watch implements lease.Store.
func (s *Store) Watch(ctx context.Context, after lease.Snapshot) iter.Seq2[lease.Snapshot, error] {
	return func(yield func(lease.Snapshot, error) bool) {
		ctx, cancel := context.WithCancelCause(ctx)
		var checking sync.WaitGroup
		defer checking.Wait()
		defer cancel(nil)
		// etcd sends the first response immediately. Without it, the connection counts as lost.
		silence := time.AfterFunc(connectTimeout, func() { cancel(errors.New("etcd: no answer to a watch")) })
		defer silence.Stop()
		progress := &watching{now: after, idle: true}
		checking.Go(func() {
			if err := s.check(ctx, progress); err != nil {
				cancel(err)
			}
		})
		fail := func(err error) {
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			if err == nil || errors.Is(err, io.EOF) {
				err = errors.New("etcd: the watch has ended")
			}
			yield(lease.Snapshot{}, err)
		}
		r, err := s.post(ctx, "/v3/watch", watchRequest{watchCreate{s.all(), number(after.Revision + 1), true}})
		if err != nil {
			fail(err)
			return
		}
		defer r.Body.Close()
		lines := json.NewDecoder(bufio.NewReader(r.Body))
		now := after
		for {
			var m streamed[watchAnswer]
			if err := lines.Decode(&m); err != nil {
				fail(err)
				return
			}
			silence.Stop()
			if m.Error != nil {
				fail(m.Error)
				return
			}
			if m.Result == nil {
				continue
			}
			if m.Result.Canceled || m.Result.Compact > 0 {
				fail(fmt.Errorf("etcd: the watch was canceled: %.300s (compacted %d)", m.Result.Reason, m.Result.Compact))
				return
			}
			if len(m.Result.Events) == 0 {
				continue
			}
			now = lease.Snapshot{Revision: max(now.Revision, int64(m.Result.Header.Revision)), Records: maps.Clone(now.Records)}
			for _, e := range m.Result.Events {
				if e.Type == "DELETE" {
					delete(now.Records, strings.TrimPrefix(string(e.Kv.Key), s.c.Prefix))
				} else {
					s.note(now.Records, e.Kv)
				}
			}
			progress.set(now, false)
			if !yield(now, nil) {
				return
			}
			progress.set(now, true)
		}
	}
}

// Swap implements lease.Store.
func (s *Store) Swap(ctx context.Context, c lease.Change) (int64, bool, error) {
	var in txnRequest
	for _, i := range c.If {
		in.Compare = append(in.Compare, compare{Key: s.key(i.Key), Target: "MOD", Result: "EQUAL", Mod: number(i.Revision)})
	}
	for _, p := range c.Put {
		id, err := parse(p.Session)
		if err != nil {
			return 0, false, err
		}
		in.Success = append(in.Success, operation{Put: &put{Key: s.key(p.Key), Value: []byte(p.Value), Lease: id}})
	}
	for _, key := range c.Delete {
		in.Success = append(in.Success, operation{Delete: &deletion{s.key(key)}})
	}
	r, err := ask[txnAnswer](ctx, s, "/v3/kv/txn", in)
	return int64(r.Header.Revision), r.Succeeded, sessionErr(err)
}

func (s *Store) key(name string) []byte { return []byte(s.c.Prefix + name) }
