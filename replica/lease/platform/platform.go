// Package platform keeps the records of a cluster of database nodes in an election of their App, which
// the platform serves to Machines.
//
// A node reaches it without credentials, through the API socket in its Machine.
package platform

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/replica/lease"
)

// DefaultElection is the default name of the election.
const DefaultElection = "databases"

const (
	connectTimeout = 2 * time.Second
	waitTime       = 10 * time.Second // of one request that waits for a change
	waitSlack      = 5 * time.Second  // additional time for the response
	maxAnswer      = 4 << 20          // bytes
)

// sockets are the paths of the API's socket in a Machine.
func sockets() []string { return []string{"/.platform/api", "/.fly/api"} }

// Config names an election.
type Config struct {
	App  string // name of the Machine's App
	Name string // of the election; empty: DefaultElection
	// Dial opens connections to the API; nil: through the socket of the Machine.
	Dial func(ctx context.Context) (net.Conn, error)
}

// Store is a lease.Store that is an election of an App.
type Store struct {
	c    Config
	http *http.Client
}

var _ lease.Store = (*Store)(nil)

// Within returns the name of the App and the ID of the Machine in which this process runs, from the environment.
// ok is false outside of a Machine.
func Within(getenv func(string) string) (app, machine string, ok bool) {
	for _, prefix := range []string{hangar.GuestEnvPrefixes.Neutral, hangar.GuestEnvPrefixes.Original} {
		app, machine = getenv(prefix+"APP_NAME"), getenv(prefix+"MACHINE_ID")
		if _, found := socket(); app != "" && machine != "" && found {
			return app, machine, true
		}
	}
	return "", "", false
}

// socket finds the API's socket in a Machine.
func socket() (string, bool) {
	for _, name := range sockets() {
		if info, err := os.Stat(name); err == nil && info.Mode()&os.ModeSocket != 0 {
			return name, true
		}
	}
	return "", false
}

func dialSocket(ctx context.Context) (net.Conn, error) {
	name, ok := socket()
	if !ok {
		return nil, errors.New("the socket of the platform is missing: this is not one of its Machines, or the server is starting")
	}
	return (&net.Dialer{Timeout: connectTimeout}).DialContext(ctx, "unix", name)
}

// New returns a Store. It connects with the first request.
func New(c Config) (*Store, error) {
	if c.Name == "" {
		c.Name = DefaultElection
	}
	if err := hangar.ElectionName(c.Name).Validate(); err != nil {
		return nil, err
	}
	if c.App == "" {
		return nil, errors.New("the name of the App is not known: the environment has neither " +
			hangar.GuestEnvPrefixes.Neutral + "APP_NAME nor " + hangar.GuestEnvPrefixes.Original + "APP_NAME")
	}
	if c.Dial == nil {
		c.Dial = dialSocket
	}
	transport := &http.Transport{
		DialContext:     func(ctx context.Context, _, _ string) (net.Conn, error) { return c.Dial(ctx) },
		IdleConnTimeout: 20 * time.Second, // the server keeps idle connections longer
	}
	return &Store{c: c, http: &http.Client{Transport: transport}}, nil
}

// String implements lease.Store.
func (s *Store) String() string { return "the election " + s.c.Name + " of the App " + s.c.App }

// Close implements lease.Store.
func (s *Store) Close() { s.http.CloseIdleConnections() }

// failure is an error of the API.
type failure struct {
	Text   string `json:"error"`
	Reason string `json:"status"`
	Status int    `json:"-"`
}

func (f *failure) Error() string { return fmt.Sprintf("the platform: %.300s (%d)", f.Text, f.Status) }

// ask sends a request about the election and decodes the response into out.
func (s *Store) ask(ctx context.Context, method, path string, query url.Values, in, out any) error {
	var body io.Reader
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(raw)
	}
	to := url.URL{Scheme: "http", Host: "platform", Path: "/v1/apps/" + s.c.App + "/elections/" + s.c.Name + path, RawQuery: query.Encode()}
	q, err := http.NewRequestWithContext(ctx, method, to.String(), body)
	if err != nil {
		return err
	}
	if in != nil {
		q.Header.Set("Content-Type", "application/json")
	}
	r, err := s.http.Do(q)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(r.Body, maxAnswer))
	if err != nil {
		return err
	}
	if r.StatusCode >= http.StatusBadRequest {
		f := &failure{Status: r.StatusCode}
		if json.Unmarshal(raw, f) != nil || f.Text == "" {
			f.Text = r.Status
		}
		if f.Reason == hangar.ReasonSessionNotFound {
			return lease.ErrSessionEnded
		}
		return f
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(raw, out)
}

func sessionPath(id string) string { return "/sessions/" + id }

// Open implements lease.Store.
func (s *Store) Open(ctx context.Context, ttl time.Duration) (string, time.Duration, error) {
	var made hangar.ElectionSession
	err := s.ask(ctx, http.MethodPost, "/sessions", nil, hangar.ElectionSessionOpen{TTL: hangar.Duration(ttl)}, &made)
	return string(made.ID), time.Duration(made.TTL), err
}

// Renew implements lease.Store.
func (s *Store) Renew(ctx context.Context, id string) (time.Duration, error) {
	var kept hangar.ElectionSession
	err := s.ask(ctx, http.MethodPost, sessionPath(id)+"/renew", nil, nil, &kept)
	return time.Duration(kept.TTL), err
}

// End implements lease.Store.
func (s *Store) End(ctx context.Context, id string) error {
	return s.ask(ctx, http.MethodDelete, sessionPath(id), nil, nil, nil)
}

// Read implements lease.Store.
func (s *Store) Read(ctx context.Context) (lease.Snapshot, error) { return s.read(ctx, nil) }

func (s *Store) read(ctx context.Context, query url.Values) (lease.Snapshot, error) {
	var e hangar.Election
	if err := s.ask(ctx, http.MethodGet, "", query, nil, &e); err != nil {
		return lease.Snapshot{}, err
	}
	now := lease.Snapshot{Revision: e.Revision, Version: e.Version, Records: make(map[string]lease.Record, len(e.Records))}
	for _, r := range e.Records {
		now.Records[r.Key] = lease.Record{Value: r.Value, Revision: r.Revision, Session: string(r.Session)}
	}
	return now, nil
}

// Watch implements lease.Store.
func (s *Store) Watch(ctx context.Context, after lease.Snapshot) iter.Seq2[lease.Snapshot, error] {
	return func(yield func(lease.Snapshot, error) bool) {
		for now := after; ; {
			bounded, cancel := context.WithTimeout(ctx, waitTime+waitSlack)
			next, err := s.read(bounded, url.Values{"after": {now.Version}, "wait": {waitTime.String()}})
			cancel()
			if err != nil {
				yield(lease.Snapshot{}, err)
				return
			}
			if next.Version == now.Version {
				continue
			}
			if now = next; !yield(now, nil) {
				return
			}
		}
	}
}

// Swap implements lease.Store.
func (s *Store) Swap(ctx context.Context, c lease.Change) (int64, bool, error) {
	in := hangar.ElectionChange{Delete: c.Delete}
	for _, i := range c.If {
		in.If = append(in.If, hangar.ElectionCondition(i))
	}
	for _, p := range c.Put {
		in.Put = append(in.Put, hangar.ElectionPut{Key: p.Key, Value: p.Value, Session: hangar.ElectionSessionID(p.Session)})
	}
	var done hangar.ElectionChanged
	err := s.ask(ctx, http.MethodPost, "", nil, in, &done)
	return done.Revision, done.Changed, err
}
