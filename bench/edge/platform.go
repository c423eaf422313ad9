package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/bench/harness"
)

const (
	app = hangar.AppName("edge")
	// rawPort passes through to the guest's port 9090.
	rawPort = 9090
)

// platform is a daemon with its edge.
type platform struct {
	*harness.Platform
	http  string // where its edge serves, host:port
	https string
}

func startPlatform(ctx context.Context, bin, guest string, undo *harness.Undo) (*platform, error) {
	started, err := harness.StartPlatform(ctx, harness.Options{
		// All load comes from one client here.
		Program: filepath.Join(bin, "hangar"), Args: []string{"--client-connections", "20000", "--client-handshakes", "1000000"},
	}, guest, undo)
	if err != nil {
		return nil, err
	}
	p := &platform{Platform: started}
	for name, to := range map[string]*string{"http.addr": &p.http, "https.addr": &p.https} {
		raw, err := os.ReadFile(filepath.Join(p.Dir(), name))
		if err != nil {
			return nil, err
		}
		*to = strings.TrimSpace(string(raw))
	}
	return p, nil
}

// app makes an App with addresses and one Machine, and waits until that is started.
func (p *platform) app(ctx context.Context, name hangar.AppName, config hangar.MachineConfig, kinds ...hangar.AddressKind) (*hangar.Machine, []hangar.Address, error) {
	if _, err := p.Client.CreateApp(ctx, hangar.AppCreate{Name: name, Org: hangar.OrgPersonal}); err != nil {
		return nil, nil, err
	}
	var addresses []hangar.Address
	for _, kind := range kinds {
		a, err := p.Client.AllocateAddress(ctx, name, hangar.AddressCreate{Kind: kind})
		if err != nil {
			return nil, nil, err
		}
		addresses = append(addresses, *a)
	}
	m, err := p.Client.CreateMachine(ctx, name, hangar.MachineCreate{Config: config})
	if err != nil {
		return nil, nil, err
	}
	if _, err = p.Client.WaitMachine(ctx, m.Ref(), hangar.MachineWait{}); err != nil {
		return nil, nil, err
	}
	m, err = p.Client.Machine(ctx, m.Ref())
	return m, addresses, err
}

// config runs the guest behind services.
func (p *platform) config(memory int, services ...hangar.Service) hangar.MachineConfig {
	return hangar.MachineConfig{
		Image: p.Image, Guest: &hangar.Guest{CPUKind: hangar.CPUShared, CPUs: 2, MemoryMB: memory}, Services: services,
	}
}

// webService serves HTTP and HTTPS, at whichever ports the daemon's edge has for them.
func webService() hangar.Service {
	return hangar.Service{
		Protocol: "tcp", InternalPort: 8080, Concurrency: &hangar.ServiceConcurrency{Type: "requests", SoftLimit: 100_000},
		Ports: []hangar.ServicePort{
			{Port: 80, Handlers: []string{"http"}},
			{Port: 443, Handlers: []string{"tls", "http"}},
		},
	}
}

// front makes the Machine that is behind all proxies, and returns it and hangar's edge.
func (p *platform) front(ctx context.Context) (direct, edge *front, to netip.Addr, err error) {
	raw := hangar.Service{
		Protocol: "tcp", InternalPort: rawPort, Concurrency: &hangar.ServiceConcurrency{SoftLimit: 100_000}, Ports: []hangar.ServicePort{{Port: rawPort}},
	}
	m, addresses, err := p.app(ctx, app, p.config(1024, webService(), raw), hangar.AddressSharedV4, hangar.AddressV4)
	if err != nil {
		return nil, nil, netip.Addr{}, err
	}
	at := func(ip netip.Addr, port int) string { return netip.AddrPortFrom(ip, uint16(port)).String() }
	direct = &front{name: nameDirect, http: at(m.PrivateIP, 8080), tcp: at(m.PrivateIP, rawPort)}
	edge = &front{name: nameHangar, version: "this tree", pids: func() []int { return []int{p.PID()} }, http: p.http, https: p.https, tcp: at(addresses[1].IP, rawPort)}
	return direct, edge, m.PrivateIP, errors.Join(started(ctx, direct.http), started(ctx, edge.tcp))
}

// sleeper is an App with one Machine that is at rest.
type sleeper struct {
	ref hangar.MachineRef
	ip  netip.Addr
}

// sleepers makes Apps whose Machines start on demand.
func (p *platform) sleepers(ctx context.Context, n int) ([]sleeper, error) {
	all := make([]sleeper, n)
	group, bounded := errgroup.WithContext(ctx)
	group.SetLimit(4)
	yes := true
	for i := range n {
		group.Go(func() error {
			service := webService()
			service.Autostart = &yes
			m, _, err := p.app(bounded, hangar.AppName(fmt.Sprintf("sleeper-%d", i)), p.config(256, service), hangar.AddressSharedV4)
			if err != nil {
				return err
			}
			all[i] = sleeper{m.Ref(), m.PrivateIP}
			return nil
		})
	}
	return all, group.Wait()
}

// rest puts Machines to rest.
func (p *platform) rest(ctx context.Context, all []sleeper, state hangar.MachineState) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(4)
	for _, s := range all {
		group.Go(func() error {
			var err error
			if state == hangar.MachineSuspended {
				err = p.Client.SuspendMachine(ctx, s.ref)
			} else {
				err = p.Client.StopMachine(ctx, s.ref, hangar.MachineStop{})
			}
			if err != nil {
				return err
			}
			_, err = p.Client.WaitMachine(ctx, s.ref, hangar.MachineWait{States: []hangar.MachineState{state}})
			return err
		})
	}
	return group.Wait()
}

// wake asks all at once for the first byte, through the edge or without it: by the API and
// then from the Machine itself. It returns how long each took.
func (p *platform) wake(ctx context.Context, all []sleeper, edge bool) ([]time.Duration, error) {
	took := make([]time.Duration, len(all))
	group, ctx := errgroup.WithContext(ctx)
	for i, s := range all {
		group.Go(func() error {
			began := time.Now()
			ask := func() error { return p.byAPI(ctx, s) }
			if edge {
				ask = func() error { return firstByte(ctx, p.http, string(s.ref.App)+".hangar.localhost") }
			}
			err := ask()
			took[i] = time.Since(began)
			return err
		})
	}
	return took, group.Wait()
}

func (p *platform) byAPI(ctx context.Context, s sleeper) error {
	if _, err := p.Client.StartMachine(ctx, s.ref); err != nil {
		return err
	}
	if _, err := p.Client.WaitMachine(ctx, s.ref, hangar.MachineWait{}); err != nil {
		return err
	}
	address := netip.AddrPortFrom(s.ip, 8080).String()
	for {
		err := firstByte(ctx, address, "machine")
		if err == nil || ctx.Err() != nil {
			return err
		}
		time.Sleep(time.Millisecond) // there is no event when a program starts to listen
	}
}

// firstByte asks once and waits for the answer to begin.
func firstByte(ctx context.Context, address, host string) error {
	c, err := (&net.Dialer{Timeout: patience}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host); err != nil {
		return err
	}
	var status [12]byte
	if _, err := c.Read(status[:]); err != nil {
		return err
	}
	if string(status[9:]) != "200" {
		return fmt.Errorf("%s answered %s", host, status)
	}
	return nil
}
