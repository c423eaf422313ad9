package hostnames

import (
	"context"
	"net/netip"
	"slices"

	"github.com/hangar-platform/hangar"
)

// Resolver looks names up in the DNS, as *net.Resolver does.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
	LookupCNAME(ctx context.Context, host string) (string, error)
	LookupTXT(ctx context.Context, name string) ([]string, error)
}

// CheckCertificate implements hangar.CertificateService. A name that cannot be looked up
// leads nowhere.
func (s *Certificates) CheckCertificate(ctx context.Context, app hangar.AppName, name hangar.Hostname) (*hangar.CertificateCheck, error) {
	owner, _, err := s.tenants.App(ctx, app, hangar.ActionWrite)
	if err != nil {
		return nil, err
	}
	name, rec, _, err := s.names.find(ctx, owner, name)
	if err != nil {
		return nil, err
	}
	observed, ok := s.names.lookUp(ctx, rec.OrgID, name)
	if !ok {
		return nil, hangar.Errorf(hangar.CodeExhausted, hangar.ReasonRateLimited, "The hostnames of the organization are looked up too often; try again in a moment")
	}
	if rec, err = s.names.put(ctx, owner, name, &evidence{observed: observed}, nil, nil); err != nil {
		return nil, err
	}
	if rec.ACME && rec.State.ordered() && s.names.edge != nil {
		s.names.edge.RetryCertificate(name)
	}
	who, err := s.names.claimant(ctx, owner)
	if err != nil {
		return nil, err
	}
	check := &hangar.CertificateCheck{
		Certificate: *s.names.view(name, rec, who), ResolvedA: []netip.Addr{}, ResolvedAAAA: []netip.Addr{}, ResolvedCNAME: []hangar.Hostname{},
		OwnershipTXT: append([]string{}, observed.txt...),
		Configured:   who.ownDNS(&observed) || who.here(&observed, s.names.domain),
	}
	check.ResolvedA = append(check.ResolvedA, who.shown(observed.a)...)
	check.ResolvedAAAA = append(check.ResolvedAAAA, who.shown(observed.aaaa)...)
	if observed.cname != "" {
		check.ResolvedCNAME = append(check.ResolvedCNAME, observed.cname)
	}
	return check, nil
}

// shown leaves out addresses that the server's resolver may tell the server alone.
func (c *claimant) shown(list []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(list, func(ip netip.Addr) bool {
		return (!ip.IsGlobalUnicast() || ip.IsPrivate()) && !slices.Contains(c.leads.a, ip) && !slices.Contains(c.leads.aaaa, ip)
	})
}
