package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api"
	"github.com/hangar-platform/hangar/control"
	"github.com/hangar-platform/hangar/control/auth"
	"github.com/hangar-platform/hangar/control/oidc"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/edge"
	"github.com/hangar-platform/hangar/edge/catalog"
	"github.com/hangar-platform/hangar/host"
	"github.com/hangar-platform/hangar/host/image"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/host/localapi"
	"github.com/hangar-platform/hangar/host/network"
	"github.com/hangar-platform/hangar/internal/connlimit"
	"github.com/hangar-platform/hangar/internal/diskspace"
)

// drainTime is how long requests that are under way may take once the daemon ends.
const drainTime = 2 * time.Second

// How many connections to the API may be open that come from private networks: of one
// Machine or peer, and of all. They are what the tenants' programs hold of the server. Then, how
// many at --api that come from other computers: of one client, and of all.
const (
	maxSourceConns  = 64
	maxPrivateConns = 4096
	maxClientConns  = 512
	maxConns        = 8192
)

// serve runs the platform until ctx ends: it opens the planes in the order in which
// they need each other, calls o.Ready, and closes them in reverse. Machines outlive it.
func serve(ctx context.Context, cfg Config, o Options, listener net.Listener, space *diskspace.Space) (err error) {
	log := o.Log
	// Made below, and used when all is: the edge serves the API, and the API shows the edge.
	var public *edge.Edge
	var handler *api.Handler
	secure, err := cfg.apiTLS(publicCertificate(hangar.PlatformAPI.Hostname(hangar.Hostname(cfg.Domain)), func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		return public.Certificate(hello)
	}), log)
	if err != nil {
		return err
	}
	var opened closers
	defer func() { err = errors.Join(err, opened.close()) }()

	// The host first: Machines that run are taken back before anything else.
	records, err := journal.Open(filepath.Join(cfg.Dir, "journal.db"), journal.Options{Log: log})
	if err != nil {
		return err
	}
	opened.add(records.Close)
	self, err := describeHost(records, cfg.Region)
	if err != nil {
		return err
	}
	held, err := openKeeper(ctx, cfg, log, &opened)
	if err != nil {
		return err
	}
	lines, err := openLogs(ctx, cfg, held, log, &opened)
	if err != nil {
		return err
	}
	engine, wires, err := openEngine(ctx, cfg, self.ID, log, &opened)
	if err != nil {
		return err
	}
	known, err := openState(ctx, cfg, space, log, &opened)
	if err != nil {
		return err
	}
	rows := control.NewRows(known, log)
	view := catalog.New(rows, log)
	routes := catalog.NewRoutes(control.NewRouteRecords(known, log), hangar.Hostname(cfg.Domain), log)
	gateway, err := newGateway(cfg, self.ID, wires, control.NewPeerRecords(known, log), log)
	if err != nil {
		return err
	}
	// Before Machines are taken up: what they ask from here on is answered.
	names, err := openDNS(ctx, cfg, wires, view, routes, gateway, log, &opened)
	if err != nil {
		return err
	}
	keys, err := openKeyset(ctx, cfg, known, records, log)
	if err != nil {
		return err
	}

	pools, err := cfg.addressPools()
	if err != nil {
		return err
	}
	var agent *host.Agent
	images, err := openImages(ctx, cfg, o.DockerConfig, ownAddresses(pools), image.Options{
		Local: registryNames(cfg, listener.Addr()), Credentials: control.NewLogins(known, keys, log).Credentials,
		Quota: rows.AdmitImages,
		InUse: func() map[string]bool { return agent.ImagesInUse() }, Space: space, Log: log,
	}, &opened)
	if err != nil {
		return err
	}
	layers, err := openLayers(ctx, cfg, log, &opened)
	if err != nil {
		return err
	}
	sockets := localapi.New(log)
	opened.add(sockets.End)
	identities := newLateIdentity()
	counts := prometheus.NewRegistry()
	for _, c := range []prometheus.Collector{space, goCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})} {
		if err := counts.Register(c); err != nil {
			return err
		}
	}
	kept := newArchive(cfg, control.NewArchivePassword(known, keys, log), log)
	agent = host.New(host.Options{
		Dir: cfg.Dir, Host: self, Driver: engine, Images: images, Network: hostNetwork(wires), Layers: layers, Logs: lines,
		Journal: records, Space: space, Publisher: rows, View: view, Local: sockets, Identity: identities, Keys: keys,
		Nameservers: nameservers(wires), PublicIP: publicAddress(ctx), Log: log, Now: time.Now,
		Devices: openDevices(ctx, cfg, o.Guard, log, &opened), VolumePublisher: rows, VolumeOvercommit: cfg.VolumeOvercommit,
		MemoryOvercommit: cfg.MemoryOvercommit, CPUOvercommit: cfg.CPUOvercommit, MemoryReserve: memoryReserve(self.Memory),
		VolumesPerMachine: cfg.VolumesPerMachine, Archive: kept, Metrics: counts, AutostopAfter: cfg.AutostopAfter,
	})
	if err := agent.Open(ctx); err != nil {
		return fmt.Errorf("take up machines: %w", err)
	}
	opened.add(agent.Close)

	if err := known.Open(ctx); err != nil {
		return err
	}
	tokens := auth.New(auth.Config{Store: known, Dir: cfg.Dir, Log: log})
	if err := tokens.Open(ctx); err != nil {
		return err
	}
	public, err = openEdge(ctx, cfg, edgeParts{
		host: self.ID, machines: view, routes: routes, certs: control.NewCertificateRecords(known, keys, log),
		gates: oneHost{agent}, sockets: held,
		platform: platformHandlers(ctx, hangar.Hostname(cfg.Domain), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handler.ServeHTTP(w, r) })),
	}, log, &opened)
	if err != nil {
		return err
	}
	if err := counts.Register(public); err != nil {
		return err
	}
	_, https := public.Addrs()
	within := newIngress(public, routes, wires, log)
	issuer := oidc.New(oidc.Config{
		Store: known, Vault: control.NewVault(known, keys, log), Issuer: cfg.oidcURL(https),
		Audience: "https://" + cfg.Domain, Policy: cfg.oidcPolicy(), Log: log,
	})
	limits, err := quotaDefaults(ctx, &cfg, self, agent.Room, pools.V4.Size(), pools.V6.Size())
	if err != nil {
		return err
	}
	quotas := control.QuotaDefaults{Org: limits, Personal: hangar.PersonalQuotas()}
	rows.SetQuotas(quotas)
	decide := control.New(control.Config{
		Quotas: quotas,
		Store:  known, Tokens: tokens, Issuer: issuer, Peers: gateway, Agents: oneHost{agent},
		Keys: keys, Sealed: []hangar.Resealer{agent}, Region: cfg.Region, Log: log,
		Addresses: pools, Routes: within, Certificates: public, EdgeLog: public,
		TrustHostnames: cfg.TrustHostnames, Doors: cfg.doors(),
	})
	if err := decide.Open(ctx); err != nil {
		return err
	}
	if err := issuer.Open(ctx); err != nil {
		return err
	}
	identities.set(decide.Identity())
	handler, err = newHandler(cfg, o.Version, decide, tokens, images, counts, cfg.platformHost(hangar.PlatformRegistry, https), within.appURL, log)
	if err != nil {
		return err
	}
	inside, err := listenInside(ctx, wires, listener.Addr(), log)
	if err != nil {
		return err
	}
	private := connlimit.New(connlimit.From(privateRanges(wires)...), maxSourceConns, maxPrivateConns)
	outside := connlimit.New(comesFromElsewhere, maxClientConns, maxConns).Listener(private.Listener(listener))
	if secure != nil {
		outside = tlsBeyond{outside, secure}
	}

	// Connections wait already: who is answered finds the address written.
	address := listener.Addr().String()
	if err := writeAddress(filepath.Join(cfg.Dir, AddressFile), address); err != nil {
		return err
	}

	group, ctx := errgroup.WithContext(ctx)
	// What requests need that the edge has taken goes on until the last of them is answered:
	// where Machines are, what they ask for names, tokens and the platform, the way of peers.
	lasting, answered := context.WithCancel(context.WithoutCancel(ctx))
	defer answered()
	group.Go(func() error {
		defer answered()
		return public.Run(ctx)
	})
	group.Go(func() error { return view.Run(lasting) })
	group.Go(func() error { return tokens.Run(lasting) })
	group.Go(func() error { return issuer.Run(lasting) })
	group.Go(func() error { return gateway.Run(lasting) })
	group.Go(func() error { return decide.RunHostnames(ctx) })
	group.Go(func() error { return within.run(lasting) })
	group.Go(func() error { return watchJournal(ctx, records) })
	group.Go(func() error { return space.Run(lasting) })
	if names != nil {
		group.Go(func() error { return names.Run(lasting) })
	}
	if cfg.Snapshots != "" {
		group.Go(func() error { agent.TryArchive(ctx); return nil })
	}
	if inside != nil {
		group.Go(func() error { return serveHTTP(ctx, private.Listener(inside), handler, drainTime) })
	}
	group.Go(func() error { return sockets.Run(lasting, api.Server(handler)) })
	group.Go(func() error { return serveHTTP(ctx, outside, handler, drainTime) })
	group.Go(func() error { return o.Ready(address) })
	if err := group.Wait(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// privateRanges are where connections from Machines and peers come from.
func privateRanges(wires *network.Network) []netip.Prefix {
	if wires == nil {
		return []netip.Prefix{network.Private}
	}
	return wires.Ranges()
}

// openState opens the cluster state and what remembers it, which reads nothing before
// its own Open.
func openState(ctx context.Context, cfg Config, space *diskspace.Space, log *slog.Logger, opened *closers) (*state.Mirror, error) {
	store, err := state.OpenEtcd(ctx, state.EtcdConfig{Dir: filepath.Join(cfg.Dir, "state"), Endpoints: cfg.Etcd, Space: space, Log: log})
	if err != nil {
		return nil, err
	}
	opened.add(store.Close)
	known := control.NewMirror(store, log)
	opened.add(known.Close)
	return known, nil
}

// goCollector tells of the daemon's goroutines and memory, and how much of the heap was in use
// after the last collection, which alone tells whether it grows.
func goCollector() prometheus.Collector {
	return collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(
		collectors.GoRuntimeMetricsRule{Matcher: regexp.MustCompile("^/gc/heap/live:bytes$")}))
}

// newHandler returns the API of a platform.
func newHandler(
	cfg Config, version string, decide *control.Control, tokens *auth.Tokens, images *image.Store, counts prometheus.Gatherer,
	registryName string, appURL func(hangar.AppName) string, log *slog.Logger,
) (*api.Handler, error) {
	limits, err := cfg.rateLimits()
	if err != nil {
		return nil, err
	}
	return api.New(api.Config{
		Orgs: decide.Orgs(), Tokens: decide.Tokens(), Apps: decide.Apps(), Machines: decide.Machines(), Logs: decide.Logs(),
		Images: decide.Images(), Platform: decide.Platform(), Secrets: decide.Secrets(), SecretKeys: decide.SecretKeys(), Registries: decide.Registries(),
		Encryption: decide.Encryption(), Identity: decide.Identity(), SigningKeys: decide.Identity(),
		Issuer: decide.Issuer(), Peers: decide.Peers(), Volumes: decide.Volumes(), Addresses: decide.Addresses(), Certificates: decide.Certificates(), Auth: tokens, Registry: images.Registry(registryAccess{tokens, decide.Repositories(), decide.Orgs()}),
		Metrics: counts, RateLimits: limits, AppURL: appURL, RegistryName: registryName, Region: cfg.Region, Version: version, Log: log,
	}), nil
}

// watchJournal ends the daemon when its journal cannot record any more, so that it
// starts again with what is really on the disk. Machines run on.
func watchJournal(ctx context.Context, records *journal.Journal) error {
	select {
	case <-records.Broken():
		return journal.ErrBroken
	case <-ctx.Done():
		return nil
	}
}

// serveHTTP serves until ctx ends. Requests see its end, so that streams finish. It returns
// when all are answered, or have had the time.
func serveHTTP(ctx context.Context, listener net.Listener, handler *api.Handler, within time.Duration) error {
	server := api.Server(handler)
	server.BaseContext = func(net.Listener) context.Context { return ctx }
	drained := make(chan error, 1)
	go func() {
		<-ctx.Done()
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), within)
		defer cancel()
		var waits sync.WaitGroup
		waits.Go(func() { handler.Drain(bounded) })
		err := server.Shutdown(bounded)
		if err != nil {
			err = server.Close()
		}
		waits.Wait()
		drained <- err
	}()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-drained
}

// closers closes in reverse what was opened.
type closers []func() error

func (c *closers) add(f func() error) { *c = append(*c, f) }

func (c *closers) close() error {
	var errs []error
	for _, f := range slices.Backward(*c) {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}
