package fake

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
)

// domain is the one below which Apps have names.
const domain hangar.Hostname = "hangar.localhost"

// BrokenHostname begins the Hostnames for which no certificate is issued, and which lead
// nowhere. All others have theirs at once, and lead to their App.
const BrokenHostname = "broken."

// UnprovenHostname begins the Hostnames that nothing proves to be the App's.
const UnprovenHostname = "unproven."

// fakeLife is how long a certificate lasts that was issued.
const fakeLife = 90 * 24 * time.Hour

// Certificates implements hangar.CertificateService.
func (s *Service) Certificates(ctx context.Context, app hangar.AppName) ([]*hangar.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.appFor(ctx, hangar.ActionRead, hangar.MachineRef{App: app}); err != nil {
		return nil, err
	}
	list := []*hangar.Certificate{}
	for _, c := range s.hostnames {
		if c.App == app {
			list = append(list, copyCertificate(c))
		}
	}
	slices.SortFunc(list, func(a, b *hangar.Certificate) int { return strings.Compare(string(a.Hostname), string(b.Hostname)) })
	return list, nil
}

func copyCertificate(c *hangar.Certificate) *hangar.Certificate {
	shown := *c
	shown.Issued, shown.Errors = slices.Clone(c.Issued), slices.Clone(c.Errors)
	return &shown
}

// hostname returns a Hostname of an App. The caller holds mu.
func (s *Service) hostname(ctx context.Context, app hangar.AppName, action hangar.Action, name hangar.Hostname) (*hangar.Certificate, error) {
	if _, err := s.appFor(ctx, action, hangar.MachineRef{App: app}); err != nil {
		return nil, err
	}
	ascii, err := hangar.ParseHostname(string(name))
	c := s.hostnames[ascii]
	if err != nil || c == nil || c.App != app {
		return nil, hangar.Errorf(hangar.CodeNotFound, hangar.ReasonCertificateNotFound, "app %q has no hostname %.100q", app, string(name))
	}
	return c, nil
}

// Certificate implements hangar.CertificateService.
func (s *Service) Certificate(ctx context.Context, app hangar.AppName, name hangar.Hostname) (*hangar.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.hostname(ctx, app, hangar.ActionRead, name)
	if err != nil {
		return nil, err
	}
	return copyCertificate(c), nil
}

// RequestCertificate implements hangar.CertificateService.
func (s *Service) RequestCertificate(ctx context.Context, app hangar.AppName, name hangar.Hostname) (*hangar.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.claimHostname(ctx, app, name)
	if err != nil {
		return nil, err
	}
	if c.Hostname.Wildcard() {
		return nil, hangar.Errorf(hangar.CodeInvalid, hangar.ReasonUnsupported, "invalid hostname: a wildcard takes a validation by DNS, which is not offered; upload a certificate")
	}
	if !c.ACME {
		now := s.now().UTC().Truncate(time.Second)
		issued := hangar.IssuedCertificate{
			Kind: hangar.CertificateACME, Status: hangar.CertificateActive, KeyType: "ecdsa", Issuer: "Fake CA", CreatedAt: now, ExpiresAt: now.Add(fakeLife),
		}
		if strings.HasPrefix(string(c.Hostname), BrokenHostname) {
			issued = hangar.IssuedCertificate{Kind: hangar.CertificateACME, Status: hangar.CertificatePending}
			c.Errors = []hangar.CertificateError{{
				Code: "dns", Message: "No valid A records found for " + string(c.Hostname), Remediation: "Let the name lead to the App.", Timestamp: now,
			}}
		}
		if c.Proof == "" {
			issued = hangar.IssuedCertificate{Kind: hangar.CertificateACME, Status: hangar.CertificateUnproven}
		}
		c.ACME, c.UpdatedAt, c.Issued = true, now, append(c.Issued, issued)
	}
	s.hostnames[c.Hostname] = c
	return copyCertificate(c), nil
}

// UploadCertificate implements hangar.CertificateService.
func (s *Service) UploadCertificate(ctx context.Context, app hangar.AppName, name hangar.Hostname, in hangar.CertificateUpload) (*hangar.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.claimHostname(ctx, app, name)
	if err != nil {
		return nil, err
	}
	leaf, err := in.Check(c.Hostname, s.now())
	if err != nil {
		return nil, err
	}
	forget(c, hangar.CertificateCustom)
	c.Custom, c.UpdatedAt = true, s.now().UTC().Truncate(time.Second)
	c.Issued = append([]hangar.IssuedCertificate{{
		Kind: hangar.CertificateCustom, Status: hangar.CertificateActive, KeyType: strings.ToLower(leaf.PublicKeyAlgorithm.String()), Issuer: leaf.Issuer.CommonName,
		CreatedAt: leaf.NotBefore.UTC(), ExpiresAt: leaf.NotAfter.UTC(),
	}}, c.Issued...)
	s.hostnames[c.Hostname] = c
	return copyCertificate(c), nil
}

// claimHostname returns a copy of a Hostname, or a new one, for an App that may have it. The caller
// holds mu.
func (s *Service) claimHostname(ctx context.Context, app hangar.AppName, text hangar.Hostname) (*hangar.Certificate, error) {
	a, err := s.appFor(ctx, hangar.ActionWrite, hangar.MachineRef{App: app})
	if err != nil {
		return nil, err
	}
	name, err := hangar.ParseHostname(string(text))
	if err != nil {
		return nil, err
	}
	if name == domain || name.Below(domain) {
		return nil, hangar.Errorf(hangar.CodeInvalid, "", "invalid hostname: %q is a name of the platform itself", string(name))
	}
	if why := name.Unclaimable(); why != "" {
		return nil, hangar.Errorf(hangar.CodeInvalid, "", "invalid hostname: %q cannot be an app's: %s", string(name), why)
	}
	if c := s.hostnames[name]; c != nil && c.App == app {
		return copyCertificate(c), nil
	}
	count := 0
	for other, c := range s.hostnames {
		if c.App == app {
			count++
		}
		related := other.Covering() == name || name.Covering() == other
		if other == name || related && s.apps[c.App].Org.Slug != a.Org.Slug {
			return nil, hangar.Errorf(hangar.CodeInvalid, hangar.ReasonNameTaken, "invalid hostname: %q has already been taken by another app", string(name))
		}
	}
	if count >= hangar.MaxCertificates {
		return nil, hangar.Errorf(hangar.CodeExhausted, "", "The app %q has %d hostnames, which is the most there may be", app, count)
	}
	now := s.now().UTC().Truncate(time.Second)
	c := &hangar.Certificate{
		Hostname: name, App: app, CNAME: hangar.Hostname(app) + "." + domain, CreatedAt: now, UpdatedAt: now,
		Proof: hangar.ProofOperator, ProvenAt: now, Ownership: name.Ownership("fakeappfakeapp00", "fakeorgfakeorg00"),
	}
	if strings.HasPrefix(string(name), UnprovenHostname) {
		c.Proof, c.ProvenAt, c.ClaimEndsAt = "", time.Time{}, now.Add(hangar.HostnameClaimLife)
	}
	return c, nil
}

func forget(c *hangar.Certificate, kind hangar.CertificateKind) {
	c.Issued = slices.DeleteFunc(c.Issued, func(i hangar.IssuedCertificate) bool { return i.Kind == kind })
}

// CheckCertificate implements hangar.CertificateService.
func (s *Service) CheckCertificate(ctx context.Context, app hangar.AppName, name hangar.Hostname) (*hangar.CertificateCheck, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.hostname(ctx, app, hangar.ActionWrite, name)
	if err != nil {
		return nil, err
	}
	check := &hangar.CertificateCheck{Certificate: *copyCertificate(c)}
	if !strings.HasPrefix(string(c.Hostname), BrokenHostname) {
		check.Configured, check.ResolvedCNAME = true, []hangar.Hostname{c.CNAME}
	}
	return check, nil
}

// RemoveCertificate implements hangar.CertificateService.
func (s *Service) RemoveCertificate(
	ctx context.Context, app hangar.AppName, name hangar.Hostname, kind hangar.CertificateKind,
) (*hangar.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.hostname(ctx, app, hangar.ActionWrite, name)
	if err != nil {
		return nil, err
	}
	switch {
	case kind == "":
		c.ACME, c.Custom = false, false
	case kind == hangar.CertificateACME && c.ACME:
		c.ACME, c.Errors = false, nil
	case kind == hangar.CertificateCustom && c.Custom:
		c.Custom = false
	default:
		return nil, hangar.Errorf(hangar.CodeNotFound, hangar.ReasonCertificateNotFound, "hostname %.100q has no certificate of kind %.20q", string(name), string(kind))
	}
	if kind == "" {
		delete(s.hostnames, c.Hostname)
		return nil, nil //nolint:nilnil // as the interface says
	}
	forget(c, kind)
	c.UpdatedAt = s.now().UTC().Truncate(time.Second)
	return copyCertificate(c), nil
}
