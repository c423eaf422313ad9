package e2e

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge"
	"github.com/hangar-platform/hangar/edge/catalog"
	"github.com/hangar-platform/hangar/edge/edgetest"
	"github.com/hangar-platform/hangar/host"
	"github.com/hangar-platform/hangar/host/driver/gvisor"
	"github.com/hangar-platform/hangar/host/image"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/host/localapi"
	"github.com/hangar-platform/hangar/host/logs"
	"github.com/hangar-platform/hangar/host/network"
	"github.com/hangar-platform/hangar/host/rootfs"
	"github.com/hangar-platform/hangar/host/volumes/volumestest"
	"github.com/hangar-platform/hangar/internal/gobuild"
	"github.com/hangar-platform/hangar/internal/keyset"
	"github.com/hangar-platform/hangar/metrics"
	"github.com/hangar-platform/hangar/metrics/builtin"
)

const (
	measuredHost   hangar.HostID   = "0badcafe"
	measuredDomain hangar.Hostname = "hangar.localhost"
	measuredName                   = "shop.hangar.localhost"
)

// measuredCluster is what is around the server: rows go from the host to the edge, an image is
// there, and one App has an address.
type measuredCluster struct {
	*edgetest.Feed
	agent *host.Agent
	layer string
}

func (c *measuredCluster) PublishMachine(_ context.Context, row hangar.MachineRow) error {
	c.Put(row)
	return nil
}

func (c *measuredCluster) RetractMachine(_ context.Context, _ hangar.HostID, ref hangar.MachineRef) error {
	c.Feed.Remove(ref.ID)
	return nil
}

func (c *measuredCluster) PublishedMachines(context.Context, hangar.HostID) (map[hangar.MachineID]uint64, error) {
	return map[hangar.MachineID]uint64{}, nil
}

func (c *measuredCluster) Gate(hangar.HostID) (hangar.MachineGate, error) { return c.agent, nil }

func (c *measuredCluster) image() *image.Image {
	return &image.Image{
		Ref:    hangar.ImageRef{Registry: "r.test", Repository: "measured", Digest: "sha256:" + strings.Repeat("0", 64)},
		Config: v1.Config{Cmd: []string{"/measured"}}, Layers: []string{c.layer},
	}
}

func (c *measuredCluster) Resolve(context.Context, image.Puller, string) (hangar.ImageRef, error) {
	return c.image().Ref, nil
}

func (c *measuredCluster) Inspect(context.Context, image.Puller, string) (*hangar.ResolvedImage, error) {
	return &hangar.ResolvedImage{Ref: c.image().Ref}, nil
}

func (c *measuredCluster) Pull(context.Context, image.Puller, string, func(hangar.PullProgress)) (*image.Image, error) {
	return c.image(), nil
}
func (c *measuredCluster) Get(string) (*image.Image, error)                { return c.image(), nil }
func (c *measuredCluster) List() ([]hangar.Image, error)                   { return nil, nil }
func (c *measuredCluster) Remove(context.Context, string) error            { return nil }
func (c *measuredCluster) RemoveOrg(context.Context, hangar.OrgID) error   { return nil }
func (c *measuredCluster) GC(context.Context, image.Policy) (int64, error) { return 0, nil }
func (c *measuredCluster) Holds(string) bool                               { return false }
func (c *measuredCluster) Usage(context.Context, hangar.OrgID) (hangar.ImageUsage, error) {
	return hangar.ImageUsage{}, nil
}

// measured is a host with real sandboxes, an edge, and what they measure.
type measured struct {
	*testing.T
	*measuredCluster
	volumestest.Rig
	edge    *edge.Edge
	sampler *builtin.Sampler

	mu      sync.Mutex
	samples map[string]float64
}

// Write implements metrics.Writer.
func (m *measured) Write(_ context.Context, tenant metrics.Tenant, samples []metrics.Sample) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range samples {
		name, labels := "", ""
		for _, l := range s.Labels {
			switch l.Name {
			case metrics.NameLabel:
				name = strings.TrimPrefix(l.Value, hangar.MetricPrefixes.Neutral)
			case "app", "host", "region", "instance", "proxy_id":
			default:
				labels += " " + l.Name + "=" + l.Value
			}
		}
		if metrics.IsStale(s.Value) {
			delete(m.samples, name+labels)
		} else {
			m.samples[name+labels] = s.Value
		}
	}
	if tenant.Org != volumestest.Org {
		m.T.Errorf("series of %s", tenant.Org)
	}
	return nil
}

// read samples, and returns the values that there are.
func (m *measured) read() map[string]float64 {
	m.sampler.Sample(m.T.Context())
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.samples)
}

// startMeasured opens all of it, in directories that go with the test.
func startMeasured(t *testing.T) *measured {
	t.Helper()
	if testing.Short() {
		t.Skip("end-to-end tests are left out of short runs")
	}
	engine, err := filepath.Abs("../../bin/hangar-sandbox")
	check(t, err)
	dir, log := t.TempDir(), slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	run, err := os.MkdirTemp("/run", "hangar-test-") //nolint:usetesting // sockets need a short path
	check(t, err)
	c := &measuredCluster{Feed: edgetest.NewFeed(), layer: t.TempDir()}
	c.PutRoute(hangar.AppRoute{
		ID: "shop", App: "shop", Org: volumestest.Org, Network: 1,
		Addresses: []hangar.Address{{IP: netip.MustParseAddr("127.0.0.1"), Kind: hangar.AddressSharedV4, App: "shop"}},
	})
	check(t, gobuild.Build(t.Context(), filepath.Join(c.layer, "measured"), "./measured"))
	m := &measured{T: t, measuredCluster: c, Rig: volumestest.Rig{TB: t}, samples: map[string]float64{}}

	ctx := context.WithoutCancel(t.Context()) // the clean-up needs it
	drv := gvisor.New(gvisor.Options{Root: filepath.Join(run, "runsc"), Engine: engine, CgroupParent: filepath.Base(run), Log: log})
	check(t, drv.Open(ctx))
	private := network.New(network.Options{Instance: "mtr" + run[len(run)-4:], Host: measuredHost, Log: log, RunDir: filepath.Join(run, "netns")})
	check(t, private.Open(ctx))
	records, err := journal.Open(filepath.Join(dir, "journal.db"), journal.Options{Log: log})
	check(t, err)
	lines := logs.New(logs.Options{Dir: filepath.Join(dir, "logs"), Region: "loc", Log: log, Now: time.Now})
	check(t, lines.Open(ctx))
	sockets := localapi.New(log)
	layers := rootfs.New(rootfs.Options{Dir: filepath.Join(dir, "layers"), Log: log, Size: 1 << 30})
	check(t, layers.Open(ctx))
	keys, err := keyset.Create(filepath.Join(dir, keyset.File))
	check(t, err)
	c.agent = host.New(host.Options{
		Dir: dir, Host: hangar.Host{ID: measuredHost, Region: "loc", CPUs: 2, Memory: 8 << 30}, Driver: drv, Images: c, Network: private,
		Local: sockets, Layers: layers, Logs: lines, Journal: records, Publisher: c, Keys: keys, Log: log, Now: time.Now,
		Devices: volumestest.NewDisk(t.TempDir()).Session(), VolumePublisher: &volumestest.Rows{},
	})
	m.Volumes = c.agent

	machines, routes := catalog.New(c, log), catalog.NewRoutes(c, measuredDomain, log)
	m.edge = edge.New(edge.Options{
		Host: measuredHost, Dir: filepath.Join(dir, "edge"), HTTP: "127.0.0.1:0", HTTPS: "127.0.0.1:0", Domain: measuredDomain, Region: "loc",
		Machines: machines, Routes: routes, Gates: c, Drain: time.Second, Log: log,
	})
	check(t, m.edge.Open(ctx))
	running, stop := context.WithCancel(ctx)
	var ran sync.WaitGroup
	ran.Go(func() { _ = machines.Run(running) })
	check(t, c.agent.Open(ctx))
	serving, end := context.WithCancel(running)
	served := make(chan struct{})
	go func() { _ = m.edge.Run(serving); close(served) }()
	m.sampler = builtin.New(builtin.Options{
		Sources: []hangar.MetricSource{c.agent, m.edge}, Writer: m, Region: "loc", Host: measuredHost, Log: log,
		Apps: func(id hangar.AppID) (hangar.AppName, metrics.Tenant, bool) {
			return hangar.AppName(id), metrics.Tenant{Org: volumestest.Org, Number: 1}, true
		},
	})
	t.Cleanup(func() {
		end()
		<-served
		all, err := c.agent.Machines(ctx, "", hangar.MachineFilter{})
		check(t, err)
		for _, each := range all {
			check(t, c.agent.DestroyMachine(ctx, each.Ref(), hangar.MachineDestroy{Force: true}))
			_, err := c.agent.WaitMachine(ctx, each.Ref(), hangar.MachineWait{States: []hangar.MachineState{hangar.MachineDestroyed}, Timeout: time.Minute})
			check(t, err)
		}
		for _, last := range []func() error{
			m.edge.Close, c.agent.Close, sockets.End, layers.Close, lines.Close, records.Close,
			func() error { return private.Remove(ctx) }, private.Close, func() error { return drv.Remove(ctx) },
			func() error { drv.Close(); return os.RemoveAll(run) },
		} {
			check(t, last())
		}
		stop()
		ran.Wait()
	})
	return m
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// measuredClient is a connection to the edge that counts its bytes.
type measuredClient struct {
	net.Conn
	in        *bufio.Reader
	sent, got int // bytes
}

func (c *measuredClient) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.got += n
	return n, err
}

func (m *measured) client() *measuredClient {
	m.T.Helper()
	plain, _ := m.edge.Addrs()
	conn, err := net.Dial("tcp", plain.String())
	check(m.T, err)
	c := &measuredClient{Conn: conn}
	c.in = bufio.NewReader(c)
	return c
}

func (m *measured) ask(c *measuredClient, path string, want int) {
	m.T.Helper()
	request := "GET " + path + " HTTP/1.1\r\nHost: " + measuredName + "\r\n\r\n"
	c.sent += len(request)
	_, err := io.WriteString(c, request)
	check(m.T, err)
	answer, err := http.ReadResponse(c.in, nil)
	check(m.T, err)
	body, err := io.ReadAll(answer.Body)
	_ = answer.Body.Close()
	if err != nil || answer.StatusCode != want {
		m.T.Fatalf("%s: %s %.100q, %v", path, answer.Status, body, err)
	}
}

func (m *measured) create(memory int) hangar.MachineRef {
	m.T.Helper()
	made, err := m.agent.CreateMachine(m.T.Context(), hangar.MachineSpec{
		ID: hangar.NewMachineID(), Name: "m", App: "shop", AppID: "shop", Org: hangar.OrgPersonal, OrgID: volumestest.Org, Network: 1, Region: "loc",
		Config: hangar.MachineConfig{
			Image: "measured", Guest: &hangar.Guest{CPUKind: "shared", CPUs: 1, MemoryMB: memory}, Restart: &hangar.RestartConfig{Policy: hangar.RestartNo},
			Services: []hangar.Service{{Protocol: "tcp", InternalPort: 8080, Ports: []hangar.ServicePort{
				{Port: 80, Handlers: []string{"http"}}, {Port: 443, Handlers: []string{"tls", "http"}},
			}}},
		},
	})
	check(m.T, err)
	m.NewVolume()
	m.wait(made.Ref(), hangar.MachineStarted)
	return made.Ref()
}

func (m *measured) wait(ref hangar.MachineRef, state hangar.MachineState) {
	m.T.Helper()
	_, err := m.agent.WaitMachine(m.T.Context(), ref, hangar.MachineWait{States: []hangar.MachineState{state}, Timeout: time.Minute})
	check(m.T, err)
}

// between fails unless a series has grown, or is, within bounds.
func (m *measured) between(what string, got, least, most float64) {
	m.T.Helper()
	if got < least || got > most {
		m.T.Errorf("%s is %v, want %v to %v", what, got, least, most)
	}
}

// TestMeasures compares series with what a client and a program have done, over a suspend and a
// resume, and finds every documented series.
func TestMeasures(t *testing.T) {
	m := startMeasured(t)
	ref := m.create(256)
	const mib = 1 << 20
	before := m.read()
	c := m.client()
	for range 20 {
		m.ask(c, "/send?1000", http.StatusOK)
	}
	m.ask(c, "/status?404", http.StatusNotFound)
	m.ask(c, fmt.Sprintf("/send?%d", 5*mib), http.StatusOK)
	m.ask(c, "/burn?1500", http.StatusOK)
	m.ask(c, "/hold?64", http.StatusOK)
	m.ask(c, "/write?32", http.StatusOK)
	check(t, c.Close())
	after := m.read()
	for deadline := time.Now().Add(stepPatience); after["edge_tcp_disconnects_count"] == 0 && time.Now().Before(deadline); after = m.read() {
		time.Sleep(10 * time.Millisecond)
	}
	grown := func(name string, least, most float64) {
		t.Helper()
		m.between(name, after[name]-before[name], least, most)
	}
	for name, exact := range map[string]float64{
		"edge_http_responses_count status=200": 24, "edge_http_responses_count status=404": 1, "app_http_responses_count status=200": 24,
		"app_http_responses_count status=404": 1, "edge_tcp_connects_count": 1, "edge_tcp_disconnects_count": 1, "edge_data_in": float64(c.sent), "edge_data_out": float64(c.got),
		"app_concurrency": 0, "edge_http_response_time_seconds_count status=200": 24,
	} {
		grown(name, exact, exact)
	}
	busy := func(all map[string]float64) float64 {
		return all["instance_cpu cpu_id=all mode=user"] + all["instance_cpu cpu_id=all mode=system"]
	}
	m.between("processor time", busy(after)-busy(before), 120, 1000) // of 150 centiseconds, with what the sandbox needs beside
	grown("instance_memory_mem_available", -128*mib, -64*mib)        // 64 are held, and 37 are buffers that may be garbage by now
	m.between("memory", after["instance_memory_mem_total"], 256*mib, 256*mib)
	grown("instance_disk_sectors_written device=vdb", 32*mib/512, 40*mib/512)
	grown("instance_filesystem_blocks_free mount=/", -40*mib/4096, -32*mib/4096)
	grown("instance_net_sent_bytes device=eth0", 5*mib, 6*mib)
	m.between("up", after["instance_up"], 1, 1)

	check(t, m.agent.SuspendMachine(t.Context(), ref))
	m.wait(ref, hangar.MachineSuspended)
	if _, up := m.read()["instance_up"]; up {
		t.Error("a suspended Machine is up")
	}
	_, err := m.agent.StartMachine(t.Context(), ref)
	check(t, err)
	m.wait(ref, hangar.MachineStarted)
	resumed := m.read()
	m.between("processor time after a resume", busy(resumed), 0, busy(after))
	m.between("memory after a resume", resumed["instance_memory_mem_available"], 0, 256*mib-64*mib)
	m.between("bytes sent, over a resume", resumed["instance_net_sent_bytes device=eth0"], after["instance_net_sent_bytes device=eth0"], 1e12)
	m.between("answers, over a resume", resumed["edge_http_responses_count status=200"], after["edge_http_responses_count status=200"], after["edge_http_responses_count status=200"])
	if _, told := resumed["instance_exit_code"]; told {
		t.Error("a suspend is reported as an exit")
	}

	_, secure := m.edge.Addrs()
	for _, trusting := range []bool{true, false} {
		conn, err := tls.Dial("tcp", secure.String(), &tls.Config{ServerName: measuredName, InsecureSkipVerify: trusting})
		if (err == nil) != trusting {
			t.Errorf("TLS: %v", err)
		}
		if err == nil {
			_ = conn.Close()
		}
	}
	m.documented(t)

	end := m.client()
	_, err = fmt.Fprintf(end, "GET /exit?7 HTTP/1.1\r\nHost: %s\r\n\r\n", measuredName)
	check(t, err)
	m.wait(ref, hangar.MachineStopped)
	_ = end.Close()
	exited := m.read()
	m.between("exit code", exited["instance_exit_code"], 7, 7)
	m.between("out of memory", exited["instance_exit_oom"], 0, 0)
}

// TestMeasuresOutOfMemory: a Machine that takes more than it has.
func TestMeasuresOutOfMemory(t *testing.T) {
	m := startMeasured(t)
	ref := m.create(256)
	c := m.client()
	_, err := fmt.Fprintf(c, "GET /hold?1000 HTTP/1.1\r\nHost: %s\r\n\r\n", measuredName)
	check(t, err)
	m.wait(ref, hangar.MachineStopped)
	_ = c.Close()
	all := m.read()
	m.between("out of memory", all["instance_exit_oom"], 1, 1)
	m.between("exit code", all["instance_exit_code"], 137, 137)
}

// documented fails for a series of the reference that is nowhere. The sampler writes only series
// of the reference.
func (m *measured) documented(t *testing.T) {
	t.Helper()
	all := map[string]bool{}
	for deadline := time.Now().Add(stepPatience); ; time.Sleep(50 * time.Millisecond) {
		for name := range m.read() {
			name, _, _ = strings.Cut(name, " ")
			all[name] = true
		}
		if all["edge_tls_handshake_errors"] && all["instance_load_average"] || time.Now().After(deadline) {
			break
		}
	}
	for _, f := range builtin.Reference() {
		for _, name := range f.Series() {
			later := strings.HasPrefix(name, "instance_exit_") || name == "volume_used_pct" // of what has not happened yet
			if !all[name] && f.Absent == "" && !later {
				t.Errorf("%s is documented, and is not there", name)
			}
			if all[name] && f.Absent != "" {
				t.Errorf("%s is documented as absent", name)
			}
		}
	}
	for _, source := range []hangar.MetricSource{m.agent, m.edge} {
		for metric := range source.Metrics() {
			if !all[metric.Name] {
				t.Errorf("%s is measured, and is not documented", metric.Name)
			}
		}
	}
}
