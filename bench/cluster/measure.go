package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/bench/harness"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/internal/pause"
)

const (
	domain = "cluster.test"
	app    = "bench"
	// patience bounds what has to happen by itself.
	patience = 2 * time.Minute
)

// config is of a Machine that serves the edges.
const config = `{"image":%q,"guest":{"cpus":1,"memory_mb":256},
	"services":[{"protocol":"tcp","internal_port":8080,"autostart":true,"autostop":"off","ports":[{"port":80,"handlers":["http"]}]}]}`

type bench struct {
	o            options
	dir, program string
	undo         *harness.Undo

	servers  []*server
	machines []*hangar.Machine // one of each server, in the same order
	edges    *http.Client
	pairs    []*pair
	rates    map[string][]float64 // in MB/s, by way
}

// server is one of the platform.
type server struct {
	Name, API, HTTP, Token string

	api *client.Client
	id  hangar.HostID
}

func (b *bench) measure(ctx context.Context) error {
	if err := b.mesh(ctx); err != nil {
		return err
	}
	if err := b.start(ctx); err != nil {
		return err
	}
	if err := b.populate(ctx); err != nil {
		return err
	}
	for _, step := range []struct {
		name string
		goal time.Duration
		run  func(context.Context, *pair) error
	}{
		{"GET by an edge, over an open connection", 300 * time.Microsecond, b.requests},
		{"create without launch", 5 * time.Millisecond, b.creates},
		{"GET that wakes a stopped Machine", 0, b.wakes},
		{"from a start to an answer by an edge", 100 * time.Millisecond, b.starts},
		{"query of metrics", 0, b.queries},
	} {
		p := &pair{name: step.name, goal: step.goal}
		if err := step.run(ctx, p); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		b.pairs = append(b.pairs, p)
	}
	return nil
}

// script runs examples/cluster.sh and returns the last line that it prints.
func (b *bench) script(ctx context.Context, args ...string) (string, error) {
	program, err := filepath.Abs(b.program)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "examples/cluster.sh", args...)
	cmd.Env = append(os.Environ(), "HANGAR_CONFIG=/dev/null", "HANGAR="+program, "CLUSTER_DIR="+filepath.Join(b.dir, "c"), "CLUSTER_NET=10.212.99", "CLUSTER_NAME=hgb",
		"CLUSTER_DOMAIN="+domain, "CLUSTER_FLAGS=--quota apps=unlimited,machines=unlimited")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("cluster.sh %s: %w\n%s", strings.Join(args, " "), err, stderr.String())
	}
	lines := strings.Split(strings.TrimSpace(stdout.String()), "\n")
	return lines[len(lines)-1], nil
}

// start starts the servers, and returns when each knows all.
func (b *bench) start(ctx context.Context) error {
	b.undo.Add(func() error {
		return finish.Do(ctx, patience, func(ctx finish.Context) error {
			_, err := b.script(ctx, "down")
			return err
		})
	})
	out, err := b.script(ctx, "up", fmt.Sprint(b.o.servers))
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(out), &b.servers); err != nil {
		return err
	}
	for _, s := range b.servers {
		s.api = client.New("http://"+s.API, s.Token, client.WithHTTPClient(&http.Client{Transport: &http.Transport{}}))
		b.undo.Add(func() error { s.api.Close(); return nil })
	}
	transport := &http.Transport{DisableCompression: true}
	b.edges = &http.Client{Transport: transport, Timeout: time.Minute}
	b.undo.Add(func() error { transport.CloseIdleConnections(); return nil })
	for _, s := range b.servers {
		if err := await(ctx, func() error { return b.alive(ctx, s) }); err != nil {
			return err
		}
	}
	return nil
}

// alive fails until a server knows that all are alive.
func (b *bench) alive(ctx context.Context, s *server) error {
	hosts, err := s.api.Hosts(ctx)
	if err == nil && len(hosts) != len(b.servers) {
		err = fmt.Errorf("%s knows %d servers", s.Name, len(hosts))
	}
	for _, h := range hosts {
		if h.State != hangar.HostAlive {
			err = fmt.Errorf("%s knows that %s is %s", s.Name, h.Name, h.State)
		}
		if h.Name == s.Name {
			s.id = h.ID
		}
	}
	return err
}

// await repeats what fails until it does not.
func await(ctx context.Context, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := try()
		if err == nil {
			return nil
		}
		if pause.For(ctx, 20*time.Millisecond) != nil {
			return err
		}
	}
}

// populate makes a Machine on each server.
func (b *bench) populate(ctx context.Context) error {
	guest := filepath.Join(b.dir, "guest")
	if err := harness.Build(ctx, guest, "./bench/guest"); err != nil {
		return err
	}
	first := b.servers[0]
	push := exec.CommandContext(ctx, b.program, "image", "push", guest, "guest:1")
	push.Env = append(os.Environ(), "HANGAR_CONFIG=/dev/null", "HANGAR_URL=http://"+first.API, "HANGAR_INSECURE=1", "HANGAR_TOKEN="+first.Token)
	out, err := push.Output()
	if err != nil {
		return fmt.Errorf("image push: %w", err)
	}
	words := strings.Fields(string(out))
	if len(words) == 0 {
		return errors.New("image push printed no reference")
	}
	parsed, err := hangar.ParseMachineConfig(fmt.Appendf(nil, config, words[len(words)-1]))
	if err != nil {
		return err
	}
	if _, err := first.api.CreateApp(ctx, hangar.AppCreate{Name: app, Org: hangar.OrgPersonal}); err != nil {
		return err
	}
	if _, err := first.api.AllocateAddress(ctx, app, hangar.AddressCreate{Kind: hangar.AddressSharedV4}); err != nil {
		return err
	}
	b.machines = make([]*hangar.Machine, len(b.servers))
	for missing, tries := len(b.servers), 0; missing > 0; tries++ {
		m, err := first.api.CreateMachine(ctx, app, hangar.MachineCreate{Config: parsed})
		if err != nil {
			return err
		}
		if tries > 10*len(b.servers) {
			return errors.New("a server gets no Machine")
		}
		for i, s := range b.servers {
			if m.Host == s.id && b.machines[i] == nil {
				b.machines[i] = m
				missing--
				m = nil
				break
			}
		}
		if m == nil {
			continue
		}
		if err := first.api.DestroyMachine(ctx, m.Ref(), hangar.MachineDestroy{Force: true}); err != nil {
			return err
		}
	}
	for _, s := range b.servers {
		for _, m := range b.machines {
			if err := await(ctx, func() error { return b.get(ctx, s, m) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// get asks a Machine by the edge of a server.
func (b *bench) get(ctx context.Context, s *server, m *hangar.Machine) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.HTTP+"/", http.NoBody)
	if err != nil {
		return err
	}
	req.Host = app + "." + domain
	req.Header.Set(hangar.HeaderForceInstance.Neutral, string(m.ID))
	res, err := b.edges.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("the edge of %s answers %d for %s", s.Name, res.StatusCode, m.ID)
	}
	return nil
}

// timed returns how long something took.
func timed(do func() error) (time.Duration, error) {
	began := time.Now()
	err := do()
	return time.Since(began), err
}

// requests asks, by the edge of the first server, its own Machine and that of another.
func (b *bench) requests(ctx context.Context, p *pair) error {
	for n := range 2 * b.o.requests {
		far := n%2 == 1
		m := b.machines[0]
		if far {
			m = b.machines[1+n/2%(len(b.machines)-1)]
		}
		took, err := timed(func() error { return b.get(ctx, b.servers[0], m) })
		if err != nil {
			return err
		}
		p.add(far, took)
	}
	return nil
}

// creates makes Machines by the API of the first server, wherever they come to be.
func (b *bench) creates(ctx context.Context, p *pair) error {
	api := b.servers[0].api
	for range b.o.creates {
		var m *hangar.Machine
		took, err := timed(func() (err error) {
			m, err = api.CreateMachine(ctx, app, hangar.MachineCreate{Config: b.machines[0].Config, SkipLaunch: true})
			return err
		})
		if err != nil {
			return err
		}
		p.add(m.Host != b.servers[0].id, took)
		if err := api.DestroyMachine(ctx, m.Ref(), hangar.MachineDestroy{Force: true}); err != nil {
			return err
		}
	}
	return nil
}

// wakes stops the Machine of the second server, and asks for it by that server's edge and by the first's in turns.
func (b *bench) wakes(ctx context.Context, p *pair) error {
	m := b.machines[1]
	for n := range 2 * b.o.wakes {
		far := n%2 == 1
		by := b.servers[1]
		if far {
			by = b.servers[0]
		}
		if err := b.servers[1].api.StopMachine(ctx, m.Ref(), hangar.MachineStop{}); err != nil {
			return err
		}
		if _, err := b.servers[1].api.WaitMachine(ctx, m.Ref(), hangar.MachineWait{States: []hangar.MachineState{hangar.MachineStopped}, Timeout: time.Minute}); err != nil {
			return err
		}
		took, err := timed(func() error { return b.get(ctx, by, m) })
		if err != nil {
			return err
		}
		p.add(far, took)
	}
	return nil
}

// starts makes Machines, and looks for each, from the moment at which its own server says that it runs, by the
// edges of that server and of another. No edge starts it.
func (b *bench) starts(ctx context.Context, p *pair) error {
	wanted := b.machines[0].Config
	wanted.Services = slices.Clone(wanted.Services)
	for i := range wanted.Services {
		wanted.Services[i].Autostart = new(false)
	}
	for range b.o.starts {
		m, err := b.servers[0].api.CreateMachine(ctx, app, hangar.MachineCreate{Config: wanted})
		if err != nil {
			return err
		}
		own := slices.IndexFunc(b.servers, func(s *server) bool { return s.id == m.Host })
		if own < 0 {
			return fmt.Errorf("no server has the id %s", m.Host)
		}
		edges := [2]*server{b.servers[own], b.servers[(own+1)%len(b.servers)]}
		if _, err := edges[0].api.WaitMachine(ctx, m.Ref(), hangar.MachineWait{States: []hangar.MachineState{hangar.MachineStarted}, Timeout: time.Minute}); err != nil {
			return err
		}
		var group errgroup.Group
		var took [2]time.Duration
		for i, edge := range edges {
			group.Go(func() (err error) {
				took[i], err = timed(func() error { return b.found(ctx, edge, m) })
				return err
			})
		}
		if err := group.Wait(); err != nil {
			return err
		}
		p.add(false, took[0])
		p.add(true, took[1])
		if err := b.servers[0].api.DestroyMachine(ctx, m.Ref(), hangar.MachineDestroy{Force: true}); err != nil {
			return err
		}
	}
	return nil
}

// found asks for a Machine by an edge until it answers.
func (b *bench) found(ctx context.Context, edge *server, m *hangar.Machine) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := b.get(ctx, edge, m)
		if err == nil {
			return nil
		}
		if pause.For(ctx, time.Millisecond) != nil {
			return err
		}
	}
}

// queries asks for metrics at the server that keeps them, which is the first, and at another.
func (b *bench) queries(ctx context.Context, p *pair) error {
	query := func(s *server) error {
		got, err := s.api.QueryMetrics(ctx, client.MetricsQuery{Org: hangar.OrgPersonal, Expr: `platform_instance_up{app="` + app + `"}`}, time.Time{})
		if err == nil && len(got) < len(b.machines) {
			err = fmt.Errorf("%s knows of %d Machines", s.Name, len(got))
		}
		return err
	}
	for _, s := range b.servers[:2] {
		if err := await(ctx, func() error { return query(s) }); err != nil {
			return err
		}
	}
	// An organization has twenty queries a second, and the wait may have used up what may come at once.
	if err := pause.For(ctx, time.Second); err != nil {
		return err
	}
	for n := range 2 * b.o.queries {
		took, err := timed(func() error { return query(b.servers[n%2]) })
		if err != nil {
			return err
		}
		p.add(n%2 == 1, took)
		if err := pause.For(ctx, 60*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}
