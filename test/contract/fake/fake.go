// Package fake is a whole platform in memory, for tests of what stands on the
// service interfaces: the API, the client, the CLI.
//
// A Service implements all the service interfaces of package hangar and keeps to
// the state tables of that package: a change that they do not allow panics. Verbs take effect at
// once, so that a Machine is created
// when CreateMachine answers and started right after. Nothing runs; a few commands
// are imitated, see ExecMachine, and a program that listens, see EchoPort. It passes the suites of package contract.
//
// A Service may be used from many goroutines. It starts none but that of an
// imitated cat, which ends with its input.
//
// It is not a model of time: nothing ends by itself, no deadline but that of a
// wait or a command passes, and that until which a destroyed volume can be undeleted.
package fake

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
)

// hostID is the one host.
const hostID hangar.HostID = "0000000a"

// Service is the platform. Make it with New.
type Service struct {
	region hangar.Region
	now    func() time.Time

	mu        sync.Mutex // guards what follows
	orgs      map[hangar.OrgSlug]*hangar.Org
	quotas    map[hangar.OrgSlug]hangar.Quotas
	orgsMade  uint64
	tokens    map[hangar.TokenID]*token
	apps      map[hangar.AppName]*hangar.App
	machines  map[hangar.MachineID]*machine
	logs      []logLine
	images    map[string]hangar.Image // by digest
	secrets   map[hangar.AppName]secrets
	logins    map[string]registryLogin // by registry
	key       uint32                   // how often the encryption key was replaced
	signing   []signingKey             // oldest first; empty until one is needed
	peers     peers
	volumes   volumes
	addresses addresses
	numbers   uint64        // the last one given out
	changed   chan struct{} // closed and replaced by every change
	hostnames map[hangar.Hostname]*hangar.Certificate
}

// The interfaces that a Service offers.
var (
	_ hangar.OrgService         = (*Service)(nil)
	_ hangar.TokenService       = (*Service)(nil)
	_ hangar.AppService         = (*Service)(nil)
	_ hangar.MachineService     = (*Service)(nil)
	_ hangar.LogService         = (*Service)(nil)
	_ hangar.ImageService       = (*Service)(nil)
	_ hangar.PlatformService    = (*Service)(nil)
	_ hangar.SecretService      = (*Service)(nil)
	_ hangar.SecretKeyService   = (*Service)(nil)
	_ hangar.RegistryService    = (*Service)(nil)
	_ hangar.EncryptionService  = (*Service)(nil)
	_ hangar.IdentityService    = (*Service)(nil)
	_ hangar.SigningKeyService  = (*Service)(nil)
	_ hangar.IdentityIssuer     = (*Service)(nil)
	_ hangar.PeerService        = (*Service)(nil)
	_ hangar.VolumeService      = (*Service)(nil)
	_ hangar.AddressService     = (*Service)(nil)
	_ hangar.Authenticator      = Tokens(nil)
	_ hangar.OrgService         = (*Service)(nil)
	_ hangar.TokenService       = (*Service)(nil)
	_ hangar.AppService         = (*Service)(nil)
	_ hangar.MachineService     = (*Service)(nil)
	_ hangar.LogService         = (*Service)(nil)
	_ hangar.ImageService       = (*Service)(nil)
	_ hangar.PlatformService    = (*Service)(nil)
	_ hangar.SecretService      = (*Service)(nil)
	_ hangar.RegistryService    = (*Service)(nil)
	_ hangar.EncryptionService  = (*Service)(nil)
	_ hangar.IdentityService    = (*Service)(nil)
	_ hangar.SigningKeyService  = (*Service)(nil)
	_ hangar.IdentityIssuer     = (*Service)(nil)
	_ hangar.PeerService        = (*Service)(nil)
	_ hangar.VolumeService      = (*Service)(nil)
	_ hangar.CertificateService = (*Service)(nil)
	_ hangar.Authenticator      = Tokens(nil)
)

// machine is everything that is known of a Machine.
type machine struct {
	hangar.Machine
	events   []hangar.Event          // newest first
	versions []hangar.MachineVersion // newest first
	changes  []hangar.MachineChange  // oldest first
	tagged   hangar.MetadataTimes
	restarts int
	lease    *hangar.Lease // nil: none; it may have expired

	connections map[*echo]struct{} // to its programs
}

// Option changes a Service that New makes.
type Option func(*Service)

// WithClock makes now the time of everything that happens.
func WithClock(now func() time.Time) Option { return func(s *Service) { s.now = now } }

// New returns an empty platform in a region.
func New(region hangar.Region, opts ...Option) *Service {
	s := &Service{
		region: region, now: time.Now,
		orgs:     map[hangar.OrgSlug]*hangar.Org{hangar.OrgPersonal: {ID: "org0001", Slug: hangar.OrgPersonal, Name: "Personal", NumericID: 1}},
		orgsMade: 1,
		tokens:   map[hangar.TokenID]*token{},
		apps:     map[hangar.AppName]*hangar.App{}, machines: map[hangar.MachineID]*machine{}, images: map[string]hangar.Image{},
		volumes:   volumes{byID: map[hangar.VolumeID]*volume{}, drills: map[hangar.AppName]hangar.VolumeDrill{}},
		addresses: addresses{made: map[string]uint64{}},
		changed:   make(chan struct{}),
		logins:    map[string]registryLogin{}, hostnames: map[hangar.Hostname]*hangar.Certificate{}, secrets: map[hangar.AppName]secrets{},
	}
	for _, opt := range opts {
		opt(s)
	}
	return s
}

// wake tells everybody who waits that something changed. The caller holds mu.
func (s *Service) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// CreateApp implements hangar.AppService.
func (s *Service) CreateApp(ctx context.Context, in hangar.AppCreate) (*hangar.App, error) {
	p, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	if in.Org == "" {
		in.Org = defaultOrg(p)
	}
	if !validName(string(in.Name)) {
		return nil, hangar.Errorf(hangar.CodeInvalid, hangar.ReasonBadName, "Validation failed: Name may only contain numbers, lowercase letters and dashes")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	org, err := s.org(p, hangar.ActionCreate, in.Org)
	if err != nil {
		return nil, err
	}
	if _, ok := s.apps[in.Name]; ok {
		return nil, hangar.Errorf(hangar.CodeInvalid, hangar.ReasonNameTaken, "Validation failed: Name has already been taken")
	}
	s.numbers++
	network := in.Network
	if network == "" {
		network = hangar.DefaultNetwork
	}
	app := &hangar.App{
		ID: hangar.AppID(fmt.Sprintf("app%013d", s.numbers)), Name: in.Name, NumericID: s.numbers, Org: *org, Network: network, NetworkID: 1, Status: hangar.AppPending, CreatedAt: s.now().UTC().Truncate(time.Millisecond),
	}
	s.apps[in.Name] = app
	return s.copyApp(app), nil
}

// App implements hangar.AppService.
func (s *Service) App(ctx context.Context, name hangar.AppName) (*hangar.App, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	app, ok := s.apps[name]
	switch {
	case !ok:
		return nil, appNotFound(name)
	case !p.May(hangar.ActionRead, targetOf(app, "")):
		return nil, forbidden()
	}
	return s.copyApp(app), nil
}

// Apps implements hangar.AppService.
func (s *Service) Apps(ctx context.Context, filter hangar.AppFilter) ([]*hangar.App, error) {
	p, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if filter.Org != "" && (s.orgs[filter.Org] == nil || !p.Sees(s.orgTarget(filter.Org))) {
		return nil, orgNotFound(filter.Org)
	}
	var apps []*hangar.App
	for _, a := range s.apps {
		if p.May(hangar.ActionRead, targetOf(a, "")) && (filter.Org == "" || filter.Org == a.Org.Slug) {
			apps = append(apps, s.copyApp(a))
		}
	}
	slices.SortFunc(apps, func(a, b *hangar.App) int { return strings.Compare(string(a.Name), string(b.Name)) })
	return apps, nil
}

// DestroyApp implements hangar.AppService.
func (s *Service) DestroyApp(ctx context.Context, name hangar.AppName, force bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, err := s.appFor(ctx, hangar.ActionDelete, hangar.MachineRef{App: name})
	if err != nil {
		return err
	}
	for _, m := range s.machines {
		if m.App == name && m.State.NeedsForce() && !force {
			return hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonMachinesRunning, "app %s has running machines; stop them, or use force", name)
		}
	}
	for _, m := range s.machines {
		if m.App == name && m.State != hangar.MachineDestroyed {
			s.destroy(m, hangar.SourceUser)
		}
	}
	for _, v := range s.volumes.byID {
		if s.volumeOf(a, v.ID) != nil {
			s.destroyVolume(v)
		}
	}
	delete(s.volumes.drills, name)
	delete(s.apps, name)
	delete(s.secrets, name)
	s.addresses.list = slices.DeleteFunc(s.addresses.list, func(a hangar.Address) bool { return a.App == name })
	maps.DeleteFunc(s.hostnames, func(_ hangar.Hostname, c *hangar.Certificate) bool { return c.App == name })
	s.wake()
	return nil
}

func (s *Service) copyApp(a *hangar.App) *hangar.App {
	c := *a
	c.MachineCount = 0
	for _, m := range s.machines {
		if m.App == a.Name && m.State != hangar.MachineDestroyed {
			c.MachineCount++
		}
	}
	c.VolumeCount = 0
	for _, v := range s.volumes.byID {
		if s.volumeOf(a, v.ID) != nil && !v.State.Gone() {
			c.VolumeCount++
		}
	}
	return &c
}

func validName(name string) bool {
	return name != "" && len(name) <= 63 && !strings.ContainsFunc(name, func(c rune) bool {
		return c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z')
	})
}

// resolve imitates a registry that has every image.
func resolve(reference string) hangar.ImageRef {
	ref := hangar.ImageRef{Registry: "registry-1.docker.io", Labels: map[string]string{}}
	name, digest, pinned := strings.Cut(reference, "@")
	if host, rest, ok := strings.Cut(name, "/"); ok && strings.ContainsAny(host, ".:") {
		ref.Registry, name = host, rest
	} else if !ok {
		name = "library/" + name
	}
	ref.Repository, ref.Tag, _ = strings.Cut(name, ":")
	if ref.Tag == "" && !pinned {
		ref.Tag = "latest"
	}
	if ref.Digest = digest; !pinned {
		sum := sha256.Sum256([]byte(reference))
		ref.Digest = "sha256:" + hex.EncodeToString(sum[:])
	}
	return ref
}

// address is the private address of the n-th Machine.
func address(n uint64) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf("fdaa:0:1:a7b:1:%x:%x:2", n>>16&0xffff, n&0xffff))
}
