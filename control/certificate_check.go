package control

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar"
)

// lookupTimeout bounds what CheckCertificate asks of the DNS.
const lookupTimeout = 5 * time.Second

// wildcardLabel stands for any name below a wildcard, which cannot be looked up itself.
const wildcardLabel = "hangar-check."

// Resolver looks names up in the DNS, as *net.Resolver does.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
	LookupCNAME(ctx context.Context, host string) (string, error)
}

// CheckCertificate implements hangar.CertificateService. A name that cannot be looked up
// leads nowhere.
func (s *Certificates) CheckCertificate(ctx context.Context, app hangar.AppName, name hangar.Hostname) (*hangar.CertificateCheck, error) {
	if _, _, err := s.app(ctx, app, hangar.ActionRead); err != nil {
		return nil, err
	}
	name, rec, _, err := s.hostname(ctx, app, name)
	if err != nil {
		return nil, err
	}
	if rec.ACME && s.certificates != nil {
		s.certificates.RetryCertificate(name)
	}
	known, err := s.show(ctx, app, name, rec)
	if err != nil {
		return nil, err
	}
	check := &hangar.CertificateCheck{Certificate: *known}
	s.lookUp(ctx, check)
	return check, nil
}

// lookUp fills in what the DNS says of a Hostname.
func (s *Certificates) lookUp(ctx context.Context, check *hangar.CertificateCheck) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	host := string(check.Hostname) + "."
	if check.Hostname.Wildcard() {
		host = wildcardLabel + string(check.Hostname.Parent()) + "."
	}
	var (
		group     errgroup.Group
		addresses []netip.Addr
		canonical string
	)
	group.Go(func() error {
		addresses, _ = s.resolver.LookupNetIP(ctx, "ip", host) // what fails leads nowhere
		return nil
	})
	group.Go(func() error {
		canonical, _ = s.resolver.LookupCNAME(ctx, host)
		return nil
	})
	_ = group.Wait() // none fails
	check.ResolvedA, check.ResolvedAAAA, check.ResolvedCNAME = []netip.Addr{}, []netip.Addr{}, []hangar.Hostname{}
	for _, ip := range addresses {
		if ip = ip.Unmap(); ip.Is4() {
			check.ResolvedA = append(check.ResolvedA, ip)
		} else {
			check.ResolvedAAAA = append(check.ResolvedAAAA, ip)
		}
	}
	if alias := hangar.Hostname(strings.ToLower(strings.TrimSuffix(canonical, "."))); alias != "" && string(alias) != strings.TrimSuffix(host, ".") {
		check.ResolvedCNAME = append(check.ResolvedCNAME, alias)
	}
	check.Configured = slices.ContainsFunc(check.ResolvedA, func(ip netip.Addr) bool { return slices.Contains(check.A, ip) }) ||
		slices.ContainsFunc(check.ResolvedAAAA, func(ip netip.Addr) bool { return slices.Contains(check.AAAA, ip) }) ||
		check.CNAME != "" && slices.Contains(check.ResolvedCNAME, check.CNAME)
}
