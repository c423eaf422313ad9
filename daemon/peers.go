package daemon

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/cluster/authority"
	"github.com/hangar-platform/hangar/cluster/join"
	"github.com/hangar-platform/hangar/cluster/listener"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/host/remote"
	"github.com/hangar-platform/hangar/internal/durable"
	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/internal/hint"
	"github.com/hangar-platform/hangar/internal/keyset"
	"github.com/hangar-platform/hangar/internal/pause"
)

// peersDir is below the data directory of a server in a cluster. It has the server's certificate, and
// peersFile once the server is a part of the cluster.
const (
	peersDir  = "cluster"
	peersFile = "cluster.json"
	joinKey   = "join.key" // while the server joins
)

// peersRecord is the content of peersFile.
type peersRecord struct {
	Joined    bool     `json:"joined"`              // it was not the first
	Listen    string   `json:"listen"`              // host:port
	Address   string   `json:"address"`             // where the others reach it
	Members   int      `json:"members,omitempty"`   // the most members of the state
	Endpoints []string `json:"endpoints,omitempty"` // of the members, as last known; empty: this server's
}

// peers connects a server with the others of its cluster.
type peers struct {
	dir      string
	identity *authority.Identity
	door     *listener.Listener
	seats    *state.Seats
	log      *slog.Logger
	served   chan error // the result of door.Serve

	mu  sync.Mutex // guards rec
	rec peersRecord
}

func readPeers(dir string) (rec peersRecord, there bool, err error) {
	b, err := os.ReadFile(filepath.Join(dir, peersDir, peersFile))
	if errors.Is(err, fs.ErrNotExist) {
		return rec, false, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &rec)
	}
	if err != nil {
		return rec, false, fmt.Errorf("read %s: %w", peersFile, err)
	}
	return rec, true, nil
}

func (r peersRecord) save(dir string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return durable.WriteChanged(filepath.Join(dir, peersDir, peersFile), append(b, '\n'), 0o600)
}

// openPeers makes this server a part of a cluster: the first, one that joins, or one that was a part
// before. It returns nil if the server is alone.
func (d *opening) openPeers(ctx context.Context, s *server) (*peers, error) {
	rec, there, err := readPeers(d.cfg.Dir)
	if err != nil {
		return nil, err
	}
	if key := filepath.Join(d.cfg.Dir, peersDir, joinKey); !there && d.cfg.Join == "" && exists(key) {
		return nil, hint.With(errors.New("this server has begun to join a cluster, and may be a part of it"),
			"start it with --join and --token again; if it is to have a platform of its own, remove "+key)
	}
	if d.options.Around.State != nil || len(d.cfg.Etcd) > 0 || !there && d.cfg.Cluster == "" && d.cfg.Join == "" {
		return nil, nil //nolint:nilnil // it is alone
	}
	p := &peers{dir: filepath.Join(d.cfg.Dir, peersDir), rec: rec, log: d.log, served: make(chan error, 1)}
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return nil, err
	}
	p.rec.Listen = cmp.Or(d.cfg.Cluster, rec.Listen, listener.DefaultAddress)
	inner, err := (&net.ListenConfig{}).Listen(ctx, "tcp", p.rec.Listen)
	if err != nil {
		return nil, hint.With(fmt.Errorf("--cluster: %w", err), "another program, or another daemon, may listen there: name another address")
	}
	d.opened.add(func() error { _ = inner.Close(); return nil }) // once served, it is closed already
	if p.rec.Address, err = d.clusterAddress(ctx, inner.Addr(), rec.Address); err != nil {
		return nil, err
	}
	if d.cfg.ClusterMembers != 0 {
		p.rec.Members = d.cfg.ClusterMembers
	}
	s.self.Address = p.rec.Address
	switch {
	case !there && d.cfg.Join != "":
		err = d.join(ctx, p, s.self)
	case !there:
		if err = authority.Found(p.dir, s.self.ID, time.Now()); err == nil {
			err = p.rec.save(d.cfg.Dir)
		}
	default:
		err = p.rec.save(d.cfg.Dir)
	}
	if err != nil {
		return nil, err
	}
	if p.identity, err = authority.Open(p.dir, s.self.ID, d.log, time.Now); err != nil {
		return nil, err
	}
	return p, d.openSeats(ctx, p, inner, s.self)
}

// openSeats opens this server's part of the cluster state, and serves the other hosts.
func (d *opening) openSeats(ctx context.Context, p *peers, inner net.Listener, self hangar.Host) (err error) {
	certificate, _, root := p.identity.Files()
	p.seats, err = state.OpenSeats(ctx, state.SeatsConfig{
		Member: state.MemberConfig{
			Dir: stateDir(d.cfg.Dir), Name: string(self.ID), URL: "https://" + self.Address,
			Certificate: certificate, Authority: root, ServerName: authority.ServerName, Space: d.space, NoSync: d.options.Around.NoSync, Log: d.log,
		},
		Endpoints: p.rec.Endpoints, TLS: p.identity.ClientConfig(""), Seats: p.rec.Members, Log: d.log,
		Save: func(endpoints []string) error {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.rec.Endpoints = endpoints
			return p.rec.save(d.cfg.Dir)
		},
	})
	if err != nil {
		return err
	}
	p.door = listener.New(p.identity, remote.Server(), d.log)
	for _, path := range state.Paths() {
		p.door.Handle(path, p.seats)
	}
	serving, stop := finish.Lifetime(ctx)
	go func() { p.served <- p.door.Serve(serving, inner) }()
	d.opened.add(func() error { stop(); return <-p.served })
	d.opened.add(p.seats.Close)
	return nil
}

// settle waits until the cluster state can be read, and takes a seat if one is free.
func (p *peers) settle(ctx context.Context) error {
	if err := p.seats.Await(ctx); err != nil {
		return explainRemoved(err)
	}
	err := p.seats.Take(ctx)
	if errors.Is(err, state.ErrRemoved) {
		return explainRemoved(err)
	}
	if err != nil {
		p.log.Warn("this server is not a member of the cluster state yet, and retries later", "error", err)
	}
	return ctx.Err()
}

func explainRemoved(err error) error {
	if errors.Is(err, state.ErrRemoved) {
		return hint.With(err, "its Machines are lost to the platform: `hangar down` removes what is left of them here; then the server can join again")
	}
	return err
}

// run maintains the certificate and the members of the state until ctx ends.
func (p *peers) run(ctx context.Context) error {
	if p == nil {
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.identity.Run(ctx) })
	group.Go(func() error { return explainRemoved(p.seats.Run(ctx)) })
	group.Go(func() error {
		select {
		case err := <-p.served:
			p.served <- nil // for Close
			return fmt.Errorf("--cluster: %w", err)
		case <-ctx.Done():
			return nil
		}
	})
	return group.Wait()
}

// endpoints are the members of the state.
func (p *peers) endpoints() []string { return p.seats.Endpoints() }

// The attempts to join a cluster whose servers may be starting.
const (
	joinAttempts = 30
	joinPause    = 2 * time.Second
)

// join obtains and stores what this server needs to be a part of the cluster. It writes the record
// last: without one, the next start joins again with the same key, by which the cluster recognizes it.
func (d *opening) join(ctx context.Context, p *peers, self hangar.Host) error {
	token, err := authority.ParseToken(d.cfg.JoinToken.Reveal())
	if err != nil {
		return fmt.Errorf("--join needs --token, or HANGAR_JOIN_TOKEN: %w", err)
	}
	keyPath := filepath.Join(p.dir, joinKey)
	keysPath := filepath.Join(d.cfg.Dir, keyset.File)
	if !exists(keyPath) && (exists(keysPath) || exists(stateDir(d.cfg.Dir))) {
		return hint.With(fmt.Errorf("--join: %s has a platform of its own", d.cfg.Dir), "name an empty directory with --dir, or remove the platform with `hangar down`")
	}
	request, err := authority.OpenRequest(keyPath)
	if err != nil {
		return err
	}
	text, err := request.PEM()
	if err != nil {
		return err
	}
	grant, a, err := d.apply(ctx, token, join.Application{Host: self.ID, Name: self.Name, Address: self.Address, Request: string(text), Domain: d.cfg.Domain})
	if err != nil {
		return err
	}
	pair, err := request.Pair([]byte(grant.Certificate))
	if err != nil {
		return err
	}
	if err := durable.WriteFile(keysPath, grant.Keyset, 0o600); err != nil {
		return err
	}
	if err := authority.Store(p.dir, pair, a); err != nil {
		return err
	}
	p.rec.Joined, p.rec.Endpoints = true, grant.Endpoints
	if p.rec.Members == 0 {
		p.rec.Members = grant.Members
	}
	if err := p.rec.save(d.cfg.Dir); err != nil {
		return err
	}
	d.log.Info("joined the cluster", "host", self.ID, "address", self.Address, "at", d.cfg.Join)
	return request.Done()
}

// apply applies to join, and retries temporary errors.
func (d *opening) apply(ctx context.Context, token authority.Token, in join.Application) (join.Grant, *authority.Authority, error) {
	for attempt := 1; ; attempt++ {
		grant, a, err := join.Apply(ctx, d.cfg.Join, token, in, time.Now)
		if err == nil || errors.Is(err, join.ErrRefused) || attempt == joinAttempts {
			return grant, a, err
		}
		d.log.Warn("retrying to join the cluster", "error", err, "pause", joinPause)
		if err := pause.For(ctx, joinPause); err != nil {
			return grant, a, err
		}
	}
}

// clusterAddress is where other hosts reach this one: the configured address, the one that it listens
// on, the last known one, or the one from which its packets to the cluster come.
func (d *opening) clusterAddress(ctx context.Context, listening net.Addr, last string) (string, error) {
	at, err := netip.ParseAddrPort(listening.String())
	if err != nil {
		return "", err
	}
	port := fmt.Sprint(at.Port())
	switch {
	case d.cfg.ClusterAddress != "":
		if _, _, err := net.SplitHostPort(d.cfg.ClusterAddress); err == nil {
			return d.cfg.ClusterAddress, nil
		}
		return net.JoinHostPort(d.cfg.ClusterAddress, port), nil
	case !at.Addr().IsUnspecified():
		return at.String(), nil
	case last != "":
		return last, nil
	}
	toward := somewhereIPv4
	if u, err := url.Parse(d.cfg.Join); err == nil && u.Host != "" {
		toward = u.Host
		if u.Port() == "" {
			toward = net.JoinHostPort(u.Hostname(), "443")
		}
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "udp", toward) // this sends nothing
	if err != nil {
		return "", hint.With(fmt.Errorf("--cluster: which address of this server others reach is not clear: %w", err), "name it with --cluster-address")
	}
	defer c.Close()
	own, ok := c.LocalAddr().(*net.UDPAddr)
	if !ok {
		return "", fmt.Errorf("--cluster: no address in %s", c.LocalAddr())
	}
	return net.JoinHostPort(own.IP.String(), port), nil
}

// somewhereIPv4 is an address of the internet (RFC 5737). Nothing is sent to it.
const somewhereIPv4 = "192.0.2.1:9"

// validateCluster checks the settings about other servers.
func (c *Config) validateCluster() error {
	if c.Cluster != "" {
		if err := checkAddress(c.Cluster); err != nil {
			return fmt.Errorf("--cluster %q: %w", c.Cluster, err)
		}
	}
	if c.ClusterAddress != "" {
		address := c.ClusterAddress
		if _, _, err := net.SplitHostPort(address); err != nil {
			address = net.JoinHostPort(address, "4281")
		}
		if err := join.CheckAddress(address); err != nil {
			return fmt.Errorf("--cluster-address %q: %w", c.ClusterAddress, err)
		}
	}
	if c.MeshPort < 0 || c.MeshPort > math.MaxUint16 {
		return fmt.Errorf("--mesh-port %d: must be from 0 to %d", c.MeshPort, math.MaxUint16)
	}
	if !slices.Contains([]int{0, state.DefaultSeats, state.MaxSeats}, c.ClusterMembers) {
		return fmt.Errorf("--cluster-members %d: must be %d or %d", c.ClusterMembers, state.DefaultSeats, state.MaxSeats)
	}
	if len(c.Zone) > hangar.MaxHostNameBytes || len(c.HostName) > hangar.MaxHostNameBytes {
		return fmt.Errorf("--zone and --host-name must not be longer than %d bytes", hangar.MaxHostNameBytes)
	}
	switch {
	case len(c.Etcd) > 0 && (c.Cluster != "" || c.Join != ""):
		return errors.New("--etcd: servers that share an etcd of their own form no cluster by --cluster and --join")
	}
	return nil
}
