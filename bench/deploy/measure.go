package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/hangar-platform/hangar/bench/harness"
)

// The kinds of deploys.
const (
	rolling   = "rolling"
	bluegreen = "bluegreen"
)

// bench is what is measured, and what was found.
type bench struct {
	o                   options
	dir, program, guest string
	undo                *harness.Undo

	daemon *harness.Daemon
	token  string
	image  string

	engine  []time.Duration // starts of one sandbox
	deploys map[string]*deploys
	reads   map[string]float64 // a second
}

// deploys are all of one kind.
type deploys struct {
	machines         int
	took             []time.Duration
	requests, failed int64
}

func (b *bench) measure(ctx context.Context) error {
	if err := harness.Build(ctx, b.guest, "./bench/guest"); err != nil {
		return err
	}
	plain, err := b.openRunsc(ctx)
	if err != nil {
		return err
	}
	if err := b.startEngine(ctx, plain); err != nil {
		return err
	}
	if b.daemon, err = harness.Start(ctx, harness.Options{Program: b.program, Args: []string{"--memory-overcommit", "8", "--cpu-overcommit", "32"}, Ready: time.Minute}); err != nil {
		return err
	}
	b.undo.Add(b.daemon.Down)
	if b.token, err = b.daemon.Token(); err != nil {
		return err
	}
	if b.image, err = b.daemon.Push(ctx, b.guest, "deploy:1"); err != nil {
		return err
	}
	for _, kind := range []struct {
		name     string
		machines int
	}{{rolling, b.o.rolling}, {bluegreen, b.o.green}} {
		b.deploys[kind.name] = &deploys{machines: kind.machines}
		if err := b.kind(ctx, kind.name, b.deploys[kind.name]); err != nil {
			return fmt.Errorf("%s: %w", kind.name, err)
		}
	}
	b.reads = map[string]float64{}
	for name, call := range map[string]func(context.Context, *http.Client) error{"REST": b.readREST, "GraphQL": b.readGraphQL} {
		if b.reads[name], err = b.rate(ctx, call); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return b.startEngine(ctx, plain)
}

// openRunsc prepares sandboxes of the unchanged runsc.
func (b *bench) openRunsc(ctx context.Context) (*harness.Runsc, error) {
	r := &harness.Runsc{Program: filepath.Join(b.dir, "runsc"), Dir: filepath.Join(b.dir, "sandbox"), Network: "none"}
	if err := harness.Build(ctx, r.Program, "-tags", "runsc", "./bench/runsc"); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(r.Dir, "rootfs"), 0o700); err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(b.guest)
	if err == nil {
		err = os.WriteFile(filepath.Join(r.Dir, "rootfs", "guest"), raw, 0o755) //nolint:gosec // a program
	}
	b.undo.Add(r.RemoveMounts)
	return r, err
}

// startEngine measures starts of one sandbox.
func (b *bench) startEngine(ctx context.Context, r *harness.Runsc) error {
	for i := range b.o.starts {
		name := fmt.Sprintf("engine-%d-%d", len(b.engine), i)
		began := time.Now()
		err := r.Launch(ctx, name, &specs.Spec{
			Version: specs.Version, Process: &specs.Process{Args: []string{"/guest"}, Cwd: "/"}, Root: &specs.Root{Path: filepath.Join(r.Dir, "rootfs")},
			Mounts: []specs.Mount{{Destination: "/proc", Type: "proc", Source: "proc"}},
			Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.MountNamespace},
			}},
		}, b.undo)
		if err != nil {
			return err
		}
		b.engine = append(b.engine, time.Since(began))
		if err := r.Delete(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// hangar runs a command.
func (b *bench) hangar(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, b.program, args...)
	cmd.Env = append(os.Environ(), "HANGAR_URL=http://"+b.daemon.Addr, "HANGAR_TOKEN="+b.token, "HANGAR_CONFIG=/dev/null")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("hangar %s: %w: %s", args[0], err, bytes.TrimSpace(out))
	}
	return nil
}

// kind measures the deploys of one kind, of an App of its own, which goes at the end.
func (b *bench) kind(ctx context.Context, strategy string, d *deploys) error {
	app := "bench-" + strategy
	if err := b.hangar(ctx, "apps", "create", app); err != nil {
		return err
	}
	dir := filepath.Join(b.dir, app)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	deploy := func(version int) error {
		text := fmt.Sprintf("app = %q\n[build]\nimage = %q\n[env]\nVERSION = \"%d\"\n[scale]\napp = %d\n[http_service]\ninternal_port = 8080\nauto_stop_machines = \"off\"\n"+
			"[[http_service.checks]]\npath = \"/\"\ninterval = \"1s\"\n", app, b.image, version, d.machines)
		if err := os.WriteFile(filepath.Join(dir, "hangar.toml"), []byte(text), 0o600); err != nil {
			return err
		}
		return b.hangar(ctx, "deploy", dir, "--strategy", strategy, "--smoke-time", "0")
	}
	if err := deploy(0); err != nil {
		return err
	}
	for round := range b.o.rounds {
		stop := b.use(ctx, app, d)
		began := time.Now()
		err := deploy(round + 1)
		d.took = append(d.took, time.Since(began))
		stop()
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "%s %d of %d: %s, %d requests, %d failed\n", strategy, round+1, b.o.rounds, d.took[round].Round(time.Millisecond), d.requests, d.failed)
	}
	return b.hangar(ctx, "apps", "destroy", app, "--yes", "--force")
}

// use calls an App from several users until stop is called.
func (b *bench) use(ctx context.Context, app string, d *deploys) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var users sync.WaitGroup
	for range b.o.users {
		users.Go(func() {
			client := b.edge()
			defer client.CloseIdleConnections()
			for ctx.Err() == nil {
				err := b.get(ctx, client, "http://"+app+".hangar.localhost/", nil)
				if ctx.Err() != nil {
					return
				}
				atomic.AddInt64(&d.requests, 1)
				if err != nil {
					atomic.AddInt64(&d.failed, 1)
					fmt.Fprintln(os.Stderr, "failed:", err)
				}
			}
		})
	}
	return func() {
		cancel()
		users.Wait()
	}
}

// edge is a client of the edge.
func (b *bench) edge() *http.Client {
	return &http.Client{Timeout: time.Minute, Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			at, err := os.ReadFile(filepath.Join(b.daemon.Dir(), "http.addr"))
			if err != nil {
				return nil, err
			}
			return (&net.Dialer{}).DialContext(ctx, network, strings.TrimSpace(string(at)))
		},
	}}
}

// get asks for a page, or posts a body, and reads the answer.
func (b *bench) get(ctx context.Context, client *http.Client, url string, body []byte) error {
	method := http.MethodGet
	if body != nil {
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+b.token)
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	said, err := io.ReadAll(res.Body)
	switch {
	case err != nil:
		return err
	case res.StatusCode != http.StatusOK:
		return fmt.Errorf("%s: %.100s", res.Status, said)
	case body != nil && bytes.Contains(said, []byte(`"errors"`)):
		return fmt.Errorf("%.200s", said)
	}
	return nil
}

// readApp is the App that is read.
const readApp = "bench-read"

// appcompact is what existing clients ask for with nearly every command.
const appcompact = `query($appName: String!) { appcompact: app(name: $appName) { id internalNumericId name hostname cnameTarget deployed network status appUrl
 platformVersion organization { id internalNumericId slug paidPlan } postgresAppRole: role { name } } }`

func (b *bench) readREST(ctx context.Context, c *http.Client) error {
	return b.get(ctx, c, "http://"+b.daemon.Addr+"/v1/apps/"+readApp, nil)
}

func (b *bench) readGraphQL(ctx context.Context, c *http.Client) error {
	body, err := json.Marshal(map[string]any{"query": appcompact, "variables": map[string]any{"appName": readApp}})
	if err != nil {
		return err
	}
	return b.get(ctx, c, "http://"+b.daemon.Addr+"/graphql", body)
}

// rate is how often a second two clients read.
func (b *bench) rate(ctx context.Context, call func(context.Context, *http.Client) error) (float64, error) {
	if err := b.hangar(ctx, "apps", "create", readApp); err != nil && !strings.Contains(err.Error(), "taken") && !strings.Contains(err.Error(), "exists") {
		return 0, err
	}
	began := time.Now()
	var done atomic.Int64
	var clients sync.WaitGroup
	errs := make([]error, 2)
	for i := range errs {
		clients.Go(func() {
			c := &http.Client{Transport: &http.Transport{}}
			defer c.CloseIdleConnections()
			for time.Since(began) < b.o.reads && errs[i] == nil {
				if errs[i] = call(ctx, c); errs[i] == nil {
					done.Add(1)
				}
			}
		})
	}
	clients.Wait()
	return float64(done.Load()) / time.Since(began).Seconds(), errors.Join(errs...)
}
