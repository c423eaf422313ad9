// Package platform runs the whole platform inside a test, with pretended Machines.
//
// It is the shipped daemon, of package daemon, with the fake driver, in a directory of the test's
// own and with a cluster state in memory. The surroundings of a server are a part of the test:
// registries that have every image, a network in which every Machine has the same few programs, and
// a DNS that has no name. It starts in a tenth of a second and needs no root, except for volumes.
//
// Several run at the same time. A Platform may be used from many goroutines.
//
// It decides nothing: all behaviour is the shipped code's.
package platform

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/openapi/openapitest"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/control/auth"
	"github.com/hangar-platform/hangar/control/users"
	"github.com/hangar-platform/hangar/daemon"
)

// Domain is that below which Apps have their names.
const Domain = "hangar.localhost"

// Options say how a platform differs from an ordinary one.
type Options struct {
	Version string                      // that the API shows; empty: test
	Config  func(config *daemon.Config) // changes what the daemon is started with; may be nil
	// MetricsProgram is the path of the program of the store of metrics; empty: that of the build,
	// if there is one.
	MetricsProgram string
	OAuthClients   hangar.OAuthClients // third parties that users sign in at; nil: none
	Program        http.Handler        // answers at HTTPPort in every Machine; nil: as HTTPPort says

	member *member // of a cluster; nil: the platform is one server
}

// Platform is a running platform.
type Platform struct {
	tb      testing.TB
	dir     string
	address string
	token   string
	end     func()

	document func() *openapitest.Document
	member   *member // of a cluster; nil: it is alone
}

// Start runs a platform until the test ends.
func Start(tb testing.TB, o Options) *Platform {
	tb.Helper()
	// Short, because sockets live below it.
	dir, err := os.MkdirTemp("", "hgin") //nolint:usetesting // a TempDir is named after the test and too long
	if err != nil {
		tb.Fatal(err)
	}
	cfg := daemon.DefaultConfig()
	cfg.Dir, cfg.Driver, cfg.Domain = dir, daemon.DriverFake, Domain
	cfg.API, cfg.HTTP, cfg.HTTPS, cfg.ACME = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0", "off"
	if o.Config != nil {
		o.Config(&cfg)
	}
	if err := cfg.Validate(); err != nil {
		tb.Fatal(err)
	}
	if o.Version == "" {
		o.Version = "test"
	}
	p := &Platform{tb: tb, dir: dir, member: o.member}
	p.document = sync.OnceValue(p.readDocument)
	around := daemon.Around{
		State: o.member.state(), NoSync: true, Registries: &registries{}, Network: newNetwork(tb, o.Program), Devices: newDisk(dir), Gateway: gateway{}, Resolver: names{},
		NewKey: newKey, OAuthClients: o.OAuthClients,
		PasswordCost: users.PasswordCost{Memory: 16, Passes: 1, Threads: 1},
	}
	if o.member != nil {
		o.member.prepare(dir)
		around.Hosts = o.member.join
	}
	if o.MetricsProgram != "" {
		around.MetricsProgram = func(context.Context) (string, error) { return o.MetricsProgram, nil }
	}
	p.run(cfg, daemon.Options{
		Version: o.Version, Log: slog.New(slog.NewTextHandler(tb.Output(), &slog.HandlerOptions{Level: slog.LevelError})),
		Around: around,
	})
	token, err := os.ReadFile(filepath.Join(dir, auth.AdminFile))
	if err != nil {
		tb.Fatal(err)
	}
	p.token = strings.TrimSpace(string(token))
	return p
}

// run runs the daemon until the test ends, and waits until it serves.
func (p *Platform) run(cfg daemon.Config, o daemon.Options) {
	p.tb.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(p.tb.Context())) // the test's own clean-up needs it
	ready, ended := make(chan string, 1), make(chan error, 1)
	o.Ready = func(address string) error {
		ready <- address
		return nil
	}
	go func() { ended <- daemon.Run(ctx, cfg, o) }()
	select {
	case p.address = <-ready:
	case err := <-ended:
		stop()
		p.tb.Fatal(err)
	}
	p.end = sync.OnceFunc(func() {
		stop()
		if err := <-ended; err != nil {
			p.tb.Error(err)
		}
		if err := daemon.Uninstall(context.WithoutCancel(ctx), cfg, o.Log); err != nil {
			p.tb.Error(err)
		}
	})
	p.tb.Cleanup(p.end)
}

// End ends the platform before the test does.
func (p *Platform) End() { p.end() }

func (p *Platform) readDocument() *openapitest.Document {
	p.tb.Helper()
	res, err := http.Get(p.URL() + "/v1/openapi.json")
	if err != nil {
		p.tb.Fatal(err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		p.tb.Fatal(err)
	}
	d, err := openapitest.Read(raw, "/v2/")
	if err != nil {
		p.tb.Fatal(err)
	}
	return d
}

// The keys of identity tokens, each of which is of many platforms: making one takes longer than
// all else together.
//
//nolint:gochecknoglobals // see above
var (
	keys = [3]func() (*rsa.PrivateKey, error){sync.OnceValues(makeKey), sync.OnceValues(makeKey), sync.OnceValues(makeKey)}
	made atomic.Uint32
)

func makeKey() (*rsa.PrivateKey, error) { return rsa.GenerateKey(rand.Reader, 2048) }

// newKey returns another key than the last time.
func newKey() (*rsa.PrivateKey, error) { return keys[made.Add(1)%uint32(len(keys))]() }

// Dir returns the data directory.
func (p *Platform) Dir() string { return p.dir }

// Addr returns the address of the API, host:port.
func (p *Platform) Addr() string { return p.address }

// URL returns the base URL of the API.
func (p *Platform) URL() string { return "http://" + p.address }

// Token returns the token of the administrator.
func (p *Platform) Token() string { return p.token }

// Request asks the edge for a path of an App, with headers, name and value in turn, and returns
// the status of the answer.
func (p *Platform) Request(ctx context.Context, app hangar.AppName, path string, headers ...string) (status int, err error) {
	edge, err := os.ReadFile(filepath.Join(p.dir, "http.addr"))
	if err != nil {
		return 0, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+strings.TrimSpace(string(edge))+path, http.NoBody)
	if err != nil {
		return 0, err
	}
	r.Host = string(app) + "." + Domain
	for pair := range slices.Chunk(headers, 2) {
		r.Header.Set(pair[0], pair[1])
	}
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	return res.StatusCode, err
}

// Client returns a client with the token of the administrator, whose answers are checked; see
// Transport.
func (p *Platform) Client() *client.Client {
	p.tb.Helper()
	c := client.New(p.URL(), p.token, client.WithHTTPClient(&http.Client{Transport: p.Transport()}))
	p.tb.Cleanup(c.Close)
	return c
}

// Transport returns a transport for clients of the platform. An answer that is not as the OpenAPI
// document says fails the test.
func (p *Platform) Transport() http.RoundTripper {
	p.tb.Helper()
	return p.Checked(&http.Transport{MaxIdleConnsPerHost: 16})
}

// Checked returns next with every answer checked, as Transport does.
func (p *Platform) Checked(next http.RoundTripper) http.RoundTripper {
	p.tb.Helper()
	return p.document().Transport(p.tb, next)
}
