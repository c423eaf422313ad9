package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

// edgeHost is the name of the tests' App.
const edgeHost = string(app) + ".hangar.localhost"

// publish makes the App public and returns where the edge serves it, host:port.
func (p *platform) publish(t *testing.T) (httpAddr, httpsAddr string) {
	t.Helper()
	if _, err := p.c.AllocateAddress(t.Context(), app, hangar.AddressCreate{Kind: hangar.AddressSharedV4}); err != nil {
		t.Fatal(err)
	}
	return p.d.Edge()
}

// web is a service that is started and put to rest by need.
func web(change func(*hangar.Service)) []hangar.Service {
	yes := true
	s := hangar.Service{
		Protocol: "tcp", InternalPort: 8080, Autostart: &yes,
		Ports: []hangar.ServicePort{{Port: 80, Handlers: []string{"http"}}, {Port: 443, Handlers: []string{"tls", "http"}}},
	}
	if change != nil {
		change(&s)
	}
	return []hangar.Service{s}
}

// edgeClient is a client of the edge as any program has one, with connections that it keeps.
func edgeClient(address string, from net.IP, conns int) *http.Client {
	dialer := &net.Dialer{Timeout: patience}
	if from != nil {
		dialer.LocalAddr = &net.TCPAddr{IP: from}
	}
	return &http.Client{Timeout: patience, Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, address)
		},
		MaxIdleConnsPerHost: conns,
	}}
}

// quickly asks for what is answered at once, and expects its own question back.
func quickly(ctx context.Context, c *http.Client, question string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+edgeHost+"/quick?"+question, http.NoBody)
	if err != nil {
		return err
	}
	res, err := c.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && (res.StatusCode != http.StatusOK || string(body) != question) {
		err = fmt.Errorf("%s: %s", res.Status, body)
	}
	return err
}

// TestEdgeLosesNoRequest keeps the edge busy while Machines start, stop, are suspended and crash,
// and the daemon is restarted: every request is answered, except for one with each crash, which
// is blamed for that if it was alone in the Machine.
func TestEdgeLosesNoRequest(t *testing.T) {
	p := start(t)
	address, _ := p.publish(t)
	config := hangar.MachineConfig{
		Image: p.push(t, keeperImage(t), "keeper:1"), Restart: &hangar.RestartConfig{Policy: hangar.RestartNo},
		Services: web(func(s *hangar.Service) {
			s.Concurrency = &hangar.ServiceConcurrency{Type: "requests", SoftLimit: 4, HardLimit: 20}
		}),
	}
	const machines, clients = 3, 12
	var all []*machine
	for i := range machines {
		all = append(all, p.run(t, "keeper-"+strconv.Itoa(i), config))
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var answered, slow, blamed atomic.Int64
	var failures sync.Map
	var loads sync.WaitGroup
	for i := range clients {
		loads.Go(func() {
			c := edgeClient(address, nil, 1)
			defer c.CloseIdleConnections()
			for n := 0; ctx.Err() == nil; n++ {
				began := time.Now()
				err := quickly(t.Context(), c, fmt.Sprintf("client=%d&n=%d", i, n))
				if err != nil && strings.Contains(err.Error(), "has ended over the request") {
					blamed.Add(1)
				} else if err != nil {
					failures.Store(fmt.Sprintf("%s client %d, request %d, after %s", began.Format(time.StampMilli), i, n, time.Since(began)), err)
				}
				if answered.Add(1); time.Since(began) > 5*time.Second {
					slow.Add(1)
				}
			}
		})
	}
	end := time.Now().Add(time.Duration(times(60, 20)) * time.Second)
	done := map[string]int{}
	var most int64
	for round := 0; time.Now().Before(end); round++ {
		what := []string{"stop", "suspend", "crash", "restart the daemon", "start"}[rand.N(5)]
		m := all[rand.N(machines)]
		t.Logf("%s %s %s", time.Now().Format(time.StampMilli), what, m.ref.ID)
		if err := p.disturb(t.Context(), what, m); err != nil && hangar.CodeOf(err) != hangar.CodeFailedPrecondition {
			t.Fatalf("%s: %v", what, err)
		}
		if what == "restart the daemon" {
			p.d.Term()
			p.d.Up()
		}
		done[what]++
		most = max(most, residentBytes(t, p.d.PID()))
		time.Sleep(time.Duration(rand.IntN(700)) * time.Millisecond)
	}
	stop()
	loads.Wait()
	lost := 0
	failures.Range(func(key, err any) bool {
		lost++
		t.Errorf("%s: %v", key, err)
		return lost < 20
	})
	t.Logf("%d requests answered, %d of them after more than 5 s; %v; %d blamed; at most %d MB", answered.Load(), slow.Load(), done, blamed.Load(), most>>20)
	if blamed.Load() > int64(done["crash"]) {
		t.Errorf("%d requests were blamed for %d crashes", blamed.Load(), done["crash"])
	}
	if most > 600<<20 {
		t.Errorf("the daemon held %d MB", most>>20)
	}
}

// disturb does something to a Machine; what its state forbids is refused.
func (p *platform) disturb(ctx context.Context, what string, m *machine) error {
	switch what {
	case "stop":
		return p.c.StopMachine(ctx, m.ref, hangar.MachineStop{})
	case "suspend":
		return p.c.SuspendMachine(ctx, m.ref)
	case "crash":
		const kill = 9
		return p.c.SignalMachine(ctx, m.ref, kill)
	case "start":
		_, err := p.c.StartMachine(ctx, m.ref)
		return err
	default:
		return nil
	}
}

// residentBytes is the memory of a process.
func residentBytes(t *testing.T, pid int) int64 {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "VmRSS:" {
			kb, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kb << 10
		}
	}
	t.Fatal("no resident memory")
	return 0
}

// TestEdgeBearsHostileClients: a client that holds connections and sends a byte now and then, and
// one that opens as many as it can, keep no other client from being served.
func TestEdgeBearsHostileClients(t *testing.T) {
	p := start(t)
	address, _ := p.publish(t)
	p.run(t, "keeper", hangar.MachineConfig{Image: p.push(t, keeperImage(t), "keeper:1"), Services: web(nil)}).serves(t, 8080, "/state")
	ctx, stop := context.WithCancel(t.Context())
	var hostile sync.WaitGroup
	defer hostile.Wait()
	defer stop()
	for i := range 400 {
		hostile.Go(func() { drip(ctx, address, net.IPv4(127, 0, 0, 66), i) })
	}
	for range 4 {
		hostile.Go(func() { flood(ctx, address, net.IPv4(127, 0, 0, 67)) })
	}
	good := edgeClient(address, net.IPv4(127, 0, 0, 68), 1)
	defer good.CloseIdleConnections()
	var worst time.Duration
	for end := time.Now().Add(time.Duration(times(20, 6)) * time.Second); time.Now().Before(end); {
		began := time.Now()
		if err := quickly(ctx, good, "x"); err != nil {
			t.Fatal(err)
		}
		good.CloseIdleConnections() // each a connection of its own
		worst = max(worst, time.Since(began))
	}
	t.Logf("at worst %s", worst)
	if worst > patience/2 { // what is broken never answers
		t.Errorf("a request took %s", worst)
	}
}

// drip opens a connection and sends a header without an end.
func drip(ctx context.Context, address string, from net.IP, n int) {
	d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: from}}
	for ctx.Err() == nil {
		c, err := d.DialContext(ctx, "tcp", address)
		if err == nil {
			_, err = fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\nX-Slow-%d: ", edgeHost, n)
		}
		for err == nil {
			select {
			case <-ctx.Done():
				err = ctx.Err()
			case <-time.After(200 * time.Millisecond):
				_, err = c.Write([]byte("x"))
			}
		}
		if c != nil {
			_ = c.Close()
		}
		if errors.Is(err, context.Canceled) {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// flood opens connections as fast as it can and forgets them.
func flood(ctx context.Context, address string, from net.IP) {
	d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: from}}
	var open []net.Conn
	defer func() {
		for _, c := range open {
			_ = c.Close()
		}
	}()
	for ctx.Err() == nil {
		c, err := d.DialContext(ctx, "tcp", address)
		if err != nil {
			time.Sleep(time.Millisecond)
			continue
		}
		if open = append(open, c); len(open) > 2000 {
			_ = open[0].Close()
			open = open[1:]
		}
	}
}
