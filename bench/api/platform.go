package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
)

// The Apps that Machines are in. Listed ones hold exactly so many, the others at most
// fleetSize.
const (
	listedFew  = 1000
	listedMany = 10_000
	fleetSize  = 1000
)

// platform is hangar as its clients see it.
type platform struct {
	addr  string
	token string
	image string
	apps  map[string]bool
	refs  []ref
}

// ref is a Machine.
type ref struct{ app, id string }

func (r ref) path() string { return "/v1/apps/" + r.app + "/machines/" + r.id }

// request writes a request as clients send it.
func (p *platform) request(method, path string, body any) []byte {
	raw := []byte(nil)
	if body != nil {
		var err error
		if raw, err = json.Marshal(body); err != nil {
			panic(err) // of values of this program
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n", method, path, p.addr, p.token)
	if body != nil {
		fmt.Fprintf(&b, "Content-Type: application/json\r\nContent-Length: %d\r\n", len(raw))
	}
	b.WriteString("\r\n")
	return append([]byte(b.String()), raw...)
}

// appOf is the App of the Machine with a number.
func appOf(n int) string {
	switch {
	case n < listedFew:
		return "listed-few"
	case n >= listedMany && n < 2*listedMany:
		return "listed-many"
	default:
		return "fleet-" + strconv.Itoa(n/fleetSize)
	}
}

// config is that of every Machine: one as people have them.
func (p *platform) config(n int) map[string]any {
	return map[string]any{
		"image":    p.image,
		"env":      map[string]string{"PRIMARY_REGION": "loc", "LOG_LEVEL": "info", "PORT": "8080"},
		"guest":    map[string]any{"cpu_kind": "shared", "cpus": 1, "memory_mb": 256},
		"metadata": map[string]string{"role": "web", "slot": strconv.Itoa(n)},
		"restart":  map[string]any{"policy": "on-failure", "max_retries": 3},
		"services": []any{map[string]any{
			"protocol": "tcp", "internal_port": 8080, "autostart": true, "autostop": "stop",
			"ports":       []any{map[string]any{"port": 80, "handlers": []string{"http"}}, map[string]any{"port": 443, "handlers": []string{"tls", "http"}}},
			"concurrency": map[string]any{"type": "requests", "soft_limit": 20, "hard_limit": 25},
		}},
	}
}

// grow creates Machines, at rest, until there are n, with so many clients at once.
func (p *platform) grow(ctx context.Context, n, clients int) (*load, error) {
	from := len(p.refs)
	for i := from; i < n; i++ {
		app := appOf(i)
		if p.apps[app] {
			continue
		}
		p.apps[app] = true
		if _, err := once(ctx, "tcp", p.addr, p.request(http.MethodPost, "/v1/apps", map[string]string{"app_name": app, "org_slug": "personal"})); err != nil {
			return nil, err
		}
	}
	var next atomic.Int64
	next.Store(int64(from))
	made, err := drive(ctx, "tcp", p.addr, clients, 0, func(int) []byte {
		i := int(next.Add(1)) - 1
		if i >= n {
			return nil
		}
		return p.request(http.MethodPost, "/v1/apps/"+appOf(i)+"/machines", map[string]any{"config": p.config(i), "skip_launch": true})
	})
	if err != nil {
		return nil, err
	}
	if made.failed > 0 {
		return nil, fmt.Errorf("%d of %d creations failed: %s", made.failed, n-from, made.first)
	}
	return made, p.learn(ctx)
}

// learn asks which Machines there are.
func (p *platform) learn(ctx context.Context) error {
	p.refs = p.refs[:0]
	for app := range p.apps {
		raw, err := once(ctx, "tcp", p.addr, p.request(http.MethodGet, "/v1/apps/"+app+"/machines?summary=true", nil))
		if err != nil {
			return err
		}
		var list []struct {
			ID string `json:"id"`
		}
		if err := json.Unmarshal(raw, &list); err != nil {
			return err
		}
		for _, m := range list {
			p.refs = append(p.refs, ref{app, m.ID})
		}
	}
	return nil
}

// anyMachine requests what write makes of a Machine chosen at random.
func (p *platform) anyMachine(write func(ref) []byte) request {
	requests := make([][]byte, min(len(p.refs), 50_000))        // made before the clock starts
	for i, at := range rand.Perm(len(p.refs))[:len(requests)] { //nolint:gosec // no secret
		requests[i] = write(p.refs[at])
	}
	return func(int) []byte { return requests[rand.IntN(len(requests))] } //nolint:gosec // no secret
}
