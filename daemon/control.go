package daemon

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control"
	"github.com/hangar-platform/hangar/control/addresses"
	"github.com/hangar-platform/hangar/control/extensions/call"
	"github.com/hangar-platform/hangar/control/ledger"
	"github.com/hangar-platform/hangar/control/oidc"
	"github.com/hangar-platform/hangar/edge"
	"github.com/hangar-platform/hangar/internal/publicdial"
)

// controlParts are the control plane and the authentication of callers.
type controlParts struct {
	issuer *oidc.Issuer
	decide *control.Control
}

// openControl opens the control plane. From then on Machines get identity tokens.
func (d *opening) openControl(ctx context.Context, s *server, c *cluster, n *private, m *machines, f *servers, public *edge.Edge) (*controlParts, error) {
	pools, err := d.cfg.addressPools()
	if err != nil {
		return nil, err
	}
	limits, err := d.quotas(ctx, s, m, pools)
	if err != nil {
		return nil, err
	}
	c.rows.SetQuotas(limits)
	_, https := public.Addrs()
	issuer := oidc.New(oidc.Config{
		Store: c.mirror, Vault: c.sealed, Issuer: d.cfg.oidcURL(https),
		Audience: "https://" + d.cfg.Domain, Policy: d.cfg.oidcPolicy(), NewKey: d.options.Around.NewKey, Log: d.log,
	})
	gateway := hangar.PeerHost(n.gateway)
	if d.options.Around.Gateway != nil {
		gateway = d.options.Around.Gateway
	}
	decide := control.New(control.Config{
		Quotas: limits, Store: c.mirror, Tokens: f.tokens, Issuer: issuer, Peers: gateway, Agents: f.hosts,
		Keys: c.keys, Sole: f.fleet.Sole, Sealed: []hangar.Resealer{m.agent}, Region: d.cfg.Region, Log: d.log,
		Addresses: pools, Routes: public, Certificates: public, EdgeLog: public,
		Calls:        call.New(publicdial.New(publicdial.Options{Own: func(a netip.Addr) bool { return pools.Contains(a) || publicdial.OnThisServer(a) }}), time.Now),
		Hooks:        d.cfg.platformURL(hangar.PlatformAPI, https) + "/hooks/extensions",
		OAuthClients: d.options.Around.OAuthClients, TrustHostnames: d.cfg.TrustHostnames, Doors: d.cfg.doors(), Resolver: d.options.Around.Resolver,
		PasswordCost: d.options.Around.PasswordCost,
	})
	if err := decide.Open(ctx); err != nil {
		return nil, err
	}
	if err := issuer.Open(ctx); err != nil {
		return nil, err
	}
	d.late.identities.set(decide.Identity())
	return &controlParts{issuer, decide}, nil
}

// quotas returns the quotas of organizations without their own: those that the operator names, and
// shares of the server for the rest.
func (d *opening) quotas(ctx context.Context, s *server, m *machines, pools addresses.Pools) (ledger.Defaults, error) {
	given, err := hangar.ParseQuotas(d.cfg.Quotas)
	if err != nil {
		return ledger.Defaults{}, fmt.Errorf("--quota: %w", err)
	}
	now, err := m.agent.Room(ctx)
	if err != nil {
		return ledger.Defaults{}, err
	}
	const many = 1 << 40
	size := hangar.ServerSize{
		MemoryMB: now.Memory >> 20, CPUs: int64(float64(s.self.CPUs) * d.cfg.CPUOvercommit), VolumeGB: now.Volumes>>30 + now.VolumesPromised>>30,
		IPv4: int64(min(pools.V4.Size(), many)), IPv6: int64(min(pools.V6.Size(), many)),
	}
	return ledger.Defaults{Org: hangar.DefaultQuotas(size).With(given), Personal: hangar.PersonalQuotas()}, nil
}

// lateIdentity issues identity tokens once control is open. The host takes up its Machines before that.
type lateIdentity struct {
	ready  chan struct{} // closed by set
	issuer hangar.IdentityService
}

func newLateIdentity() *lateIdentity { return &lateIdentity{ready: make(chan struct{})} }

func (l *lateIdentity) set(issuer hangar.IdentityService) {
	l.issuer = issuer
	close(l.ready)
}

// IssueIdentityToken implements hangar.IdentityService.
func (l *lateIdentity) IssueIdentityToken(ctx context.Context, ref hangar.MachineRef, in hangar.IdentityTokenRequest) (string, error) {
	select {
	case <-l.ready:
		return l.issuer.IssueIdentityToken(ctx, ref, in)
	case <-ctx.Done():
		return "", hangar.Errorf(hangar.CodeUnavailable, "", "there is no issuer of identity tokens yet")
	}
}
