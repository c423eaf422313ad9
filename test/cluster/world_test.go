package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/gobuild"
	"github.com/hangar-platform/hangar/test/daemon"
)

// webConfig is what a Machine is like that serves the edge. It answers with its id.
const webConfig = `{"image":%q,"guest":{"cpus":1,"memory_mb":256},"restart":{"policy":"always"},"stop_config":{"signal":"SIGKILL"},
	"services":[{"protocol":"tcp","internal_port":8080,"autostart":true,"autostop":"off","ports":[{"port":80,"handlers":["http"]}]}]}`

// webCommand is what its program does.
const webCommand = `mkdir /www && echo -n $FLY_MACHINE_ID >/www/index.html && echo up && exec httpd -f -p 8080 -h /www`

// pushWeb pushes the image of such Machines to the registry of each server, and returns what all of
// them call it.
func (c *cluster) pushWeb(org hangar.OrgSlug) string {
	c.Helper()
	dir := daemon.Busybox(c, "sh", "httpd", "mkdir", "echo", "cat", "timeout")
	for _, program := range []string{"spec/call", "e2e/resolve"} { // by which a Machine reaches others, and looks up names
		if err := gobuild.Build(c.Context(), filepath.Join(dir, "bin", filepath.Base(program)), "../"+program); err != nil {
			c.Fatal(err)
		}
	}
	var image string
	for _, s := range c.servers {
		words := strings.Fields(s.run("image", "push", dir, "web:1", "--org", string(org), "--cmd", "/bin/sh", "--cmd", "-c", "--cmd", webCommand))
		if len(words) == 0 {
			c.Fatal("image push printed no reference")
		}
		at := words[len(words)-1]
		if image != "" && image != at {
			c.Fatalf("one image is %s at %s and %s elsewhere", at, s, image)
		}
		image = at
	}
	return image
}

// parse reads the config of a Machine that has an image.
func parse(tb testing.TB, document, image string) hangar.MachineConfig {
	tb.Helper()
	config, err := hangar.ParseMachineConfig(fmt.Appendf(nil, document, image))
	if err != nil {
		tb.Fatal(err)
	}
	return config
}

// createApp makes an App that the edges serve.
func (s *server) createApp(name hangar.AppName, org hangar.OrgSlug) {
	s.c.Helper()
	if _, err := s.client().CreateApp(s.c.Context(), hangar.AppCreate{Name: name, Org: org}); err != nil {
		s.c.Fatal(err)
	}
	if _, err := s.client().AllocateAddress(s.c.Context(), name, hangar.AddressCreate{Kind: hangar.AddressSharedV4}); err != nil {
		s.c.Fatal(err)
	}
}

// oneOnEach makes Machines of an App until each server has one, and starts them: the first on the first
// server. Each is made by another server than the one before.
func (c *cluster) oneOnEach(app hangar.AppName, config hangar.MachineConfig) []*hangar.Machine {
	c.Helper()
	machines := make([]*hangar.Machine, len(c.servers))
	at := map[hangar.HostID]int{}
	for i, s := range c.servers {
		at[s.id()] = i
	}
	for try := range 4 * len(c.servers) {
		s := c.servers[try%len(c.servers)]
		m, err := s.client().CreateMachine(c.Context(), app, hangar.MachineCreate{Config: config})
		if err != nil {
			c.Fatalf("%s: %v", s, err)
		}
		i, known := at[m.Host]
		if !known {
			c.Fatalf("the Machine is on host %q", m.Host)
		}
		if machines[i] != nil { // a host that others took for busy
			if err := s.client().DestroyMachine(c.Context(), m.Ref(), hangar.MachineDestroy{Force: true}); err != nil {
				c.Fatal(err)
			}
			continue
		}
		machines[i] = m
		missing := 0
		for _, m := range machines {
			if m == nil {
				missing++
			}
		}
		if missing == 0 {
			break
		}
	}
	for i, m := range machines {
		if m == nil {
			c.Fatalf("%s gets no Machine of an App that has none there", c.servers[i])
		}
		c.reaches(c.servers[(i+1)%len(c.servers)], m, hangar.MachineStarted)
	}
	return machines
}

// reaches waits for a state of a Machine, by the API of one server. One that is too busy to answer its
// others in time is asked again.
func (c *cluster) reaches(s *server, m *hangar.Machine, state hangar.MachineState) {
	c.Helper()
	c.await(fmt.Sprintf("%s is %s", m.ID, state), func() error {
		_, err := s.client().WaitMachine(c.Context(), m.Ref(), hangar.MachineWait{States: []hangar.MachineState{state}, Timeout: 20 * time.Second})
		if err != nil && hangar.CodeOf(err) != hangar.CodeUnavailable && hangar.CodeOf(err) != hangar.CodeTimeout {
			c.Fatalf("%s waits for %s of %s: %v", s, state, m.ID, err)
		}
		return err
	})
}

// visitor asks the edges for pages. It gives up on an answer after 20 s, more than the edge takes to
// give up by itself.
type visitor struct{ http *http.Client }

func newVisitor(t *testing.T) *visitor {
	t.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: 32, DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &visitor{&http.Client{Transport: transport, Timeout: 20 * time.Second}}
}

var errStatus = errors.New("the edge refuses")

// visit asks the edge of a server for the page of an App, by a certain Machine unless that is empty. It
// returns the Machine that has answered.
func (v *visitor) visit(ctx context.Context, s *server, app hangar.AppName, id hangar.MachineID) (hangar.MachineID, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.address()+"/", http.NoBody)
	if err != nil {
		return "", err
	}
	req.Host = string(app) + "." + domain
	if id != "" {
		req.Header.Set(hangar.HeaderForceInstance.Neutral, string(id))
	}
	res, err := v.http.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 4<<10))
	switch {
	case err != nil:
		return "", err
	case res.StatusCode != http.StatusOK:
		return "", fmt.Errorf("%w: %d %s: %s", errStatus, res.StatusCode, res.Header.Get(hangar.HeaderErrorCode.Neutral), strings.TrimSpace(string(body)))
	case id != "" && string(body) != string(id):
		return "", fmt.Errorf("the answer is %q and not that of %s", body, id)
	}
	return hangar.MachineID(body), nil
}

// awaitVisits returns when all Machines answer by all edges.
func (c *cluster) awaitVisits(v *visitor, app hangar.AppName, machines []*hangar.Machine) time.Duration {
	c.Helper()
	return c.await("all Machines answer by all edges", func() error {
		for _, s := range c.servers {
			for _, m := range machines {
				if _, err := v.visit(c.Context(), s, app, m.ID); err != nil {
					return fmt.Errorf("%s at host %s by %s: %w", m.ID, m.Host, s, err)
				}
			}
		}
		return nil
	})
}
