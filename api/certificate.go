package api

import (
	"encoding/base64"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
	"github.com/hangar-platform/hangar/api/router"
)

const (
	certificatePage    = 100 // certificates on a page by default
	maxCertificatePage = 500
)

func (s *server) certificateRoutes() {
	const all = "/v1/apps/{app}/certificates"
	const one = all + "/{hostname}"
	const tag = "Certificates"
	example := exampleCertificate()
	detail := viewCertificate(&example)
	refused := []int{http.StatusPreconditionFailed, http.StatusUnprocessableEntity}
	s.Handle("GET "+all, s.listCertificates, router.Operation{
		ID: "listCertificates", Tag: tag, Summary: "List custom hostnames",
		Text: "Sorted by name, page by page.",
		Query: []router.Param{
			{Name: "filter", Example: "example", Text: "Only hostnames that contain this."},
			{Name: "cursor", Example: "d3d3LmV4YW1wbGUuY29t", Text: "`next_cursor` of the page before."},
			{Name: "limit", Example: certificatePage, Text: "How many to answer with, at most 500."},
		},
		Answer: certificateList{[]certificateView{detail}, "d3d3LmV4YW1wbGUuY29t", 120},
	})
	s.Handle("POST "+all+"/acme", s.requestCertificate, router.Operation{
		ID: "requestCertificate", Tag: tag, Summary: "Request a certificate",
		Text: "The edge serves the hostname once something proves that it is the App's: see `proof` and `dns_requirements`. A claim without a proof ends at " +
			"`claim_ends_at`. The certificate is issued once the name leads to the App. " +
			"The answer is 422 when another App has the hostname, and 412 when the server requests no certificates.",
		Body: hostnameRequest{exampleHostname}, Status: http.StatusCreated, Answer: detail, Errors: refused,
	})
	s.Handle("POST "+all+"/custom", s.uploadCertificate, router.Operation{
		ID: "uploadCertificate", Tag: tag, Summary: "Upload a certificate",
		Text: "The hostname needs a proof, as for a requested certificate. A certificate signed by an authority that the server trusts is a proof. " +
			"It takes precedence over an issued certificate, and replaces an uploaded one. `*.example.com` is for all names one label below `example.com`.",
		Body: uploadRequest{exampleHostname, "-----BEGIN CERTIFICATE-----\n…", "-----BEGIN PRIVATE KEY-----\n…"}, Status: http.StatusCreated, Answer: detail, Errors: refused,
	})
	s.Handle("GET "+one, s.getCertificate, router.Operation{
		ID: "getCertificate", Tag: tag, Summary: "Get a hostname and its certificates", Answer: detail,
	})
	s.Handle("POST "+one+"/check", s.checkCertificate, router.Operation{
		ID: "checkCertificate", Tag: tag, Summary: "Check the DNS of a hostname",
		Text:   "Needs the right to change the App, because the DNS may prove that the hostname is the App's. A pending certificate is requested again, unless that was done a moment ago or the authority's rate limit forbids it.",
		Answer: viewCertificateCheck(&hangar.CertificateCheck{Certificate: example, ResolvedA: example.A, ResolvedCNAME: []hangar.Hostname{example.CNAME}, Configured: true}),
	})
	s.Handle("DELETE "+one, s.removeHostname, router.Operation{
		ID: "removeCertificate", Tag: tag, Summary: "Remove a hostname", Text: "With all its certificates.", Status: http.StatusNoContent,
	})
	const left = "The hostname stays with the App and answers. Without another certificate it cannot be reached by TLS, as `warning` says."
	s.Handle("DELETE "+one+"/acme", s.removeKind(hangar.CertificateACME), router.Operation{
		ID: "removeIssuedCertificate", Tag: tag, Summary: "Stop issuing a certificate", Text: left, Answer: detail,
	})
	s.Handle("DELETE "+one+"/custom", s.removeKind(hangar.CertificateCustom), router.Operation{
		ID: "removeCustomCertificate", Tag: tag, Summary: "Remove an uploaded certificate", Text: left, Answer: detail,
	})
}

const exampleHostname hangar.Hostname = "www.example.com"

func exampleCertificate() hangar.Certificate {
	return hangar.Certificate{
		Hostname: exampleHostname, App: "web", ACME: true, CreatedAt: exampleTime, UpdatedAt: exampleTime,
		CertificateState: hangar.CertificateState{
			Issued: []hangar.IssuedCertificate{{
				Kind: hangar.CertificateACME, Status: hangar.CertificateActive, KeyType: "ecdsa", Issuer: "E8",
				CreatedAt: exampleTime, ExpiresAt: exampleTime.AddDate(0, 0, 90),
			}},
			Errors: []hangar.CertificateError{{
				Code: "dns", Message: "no valid A records found for www.example.com", Remediation: "Give the name A, AAAA or CNAME records that lead to the App.", Timestamp: exampleTime,
			}},
			RateLimitedUntil: exampleTime,
		},
		Proof: hangar.ProofDNS, ProvenAt: exampleTime, Ownership: exampleHostname.Ownership("w5yt2wl6j1qgakzn", "4w2vx0h9d6k3m7qp"),
		A: []netip.Addr{netip.MustParseAddr("203.0.113.7")}, AAAA: []netip.Addr{netip.MustParseAddr("2001:db8::7")}, CNAME: "web.apps.example.com",
	}
}

// The words of clients for where a certificate comes from.
const (
	sourceIssued = "fly" // the platform had it issued
	sourceCustom = "custom"
)

// warningBare is the warning about a hostname without a certificate.
const warningBare = "The hostname has no certificate left, so that clients cannot reach it by TLS"

// statusBare is the status of such a hostname.
const statusBare = "no_certificate"

// certificateList is a page of hostnames.
type certificateList struct {
	Certificates []certificateView `json:"certificates"`
	Next         string            `json:"next_cursor"`
	Total        int               `json:"total_count"`
}

// certificateView is a hostname as clients decode it, whether they expect a summary or details.
type certificateView struct {
	Hostname         hangar.Hostname           `json:"hostname"`
	Status           string                    `json:"status"`
	Configured       bool                      `json:"configured"`
	Requested        bool                      `json:"acme_requested"`
	ALPNConfigured   bool                      `json:"acme_alpn_configured"`
	DNSConfigured    bool                      `json:"acme_dns_configured"`
	HTTPConfigured   bool                      `json:"acme_http_configured"`
	OwnershipTXT     bool                      `json:"ownership_txt_configured"`
	Proof            hangar.HostnameProof      `json:"proof"`
	ClaimEndsAt      *time.Time                `json:"claim_ends_at"`
	DNSProvider      string                    `json:"dns_provider"`
	HasCustom        bool                      `json:"has_custom_certificate"`
	HasIssued        bool                      `json:"has_fly_certificate"`
	RateLimitedUntil *time.Time                `json:"rate_limited_until"`
	Certificates     []issuedView              `json:"certificates"`
	Validation       validationView            `json:"validation"`
	Errors           []hangar.CertificateError `json:"validation_errors"`
	Requirements     requirementsView          `json:"dns_requirements"`
	CreatedAt        time.Time                 `json:"created_at"`
	UpdatedAt        time.Time                 `json:"updated_at"`
	Warning          string                    `json:"warning,omitempty"`
}

// issuedView is a certificate of a hostname. It has one key.
type issuedView struct {
	Source    string          `json:"source"`
	Status    string          `json:"status"`
	Issuer    string          `json:"issuer"`
	CreatedAt *time.Time      `json:"created_at"`
	ExpiresAt *time.Time      `json:"expires_at"`
	Issued    []issuedKeyView `json:"issued"`
}

// issuedKeyView is the certificate of one key.
type issuedKeyView struct {
	Type      string    `json:"type"`
	ExpiresAt time.Time `json:"expires_at"`
	Authority string    `json:"certificate_authority"`
}

// validationView says how a hostname can be validated.
type validationView struct {
	ALPN         bool `json:"alpn_configured"`
	DNS          bool `json:"dns_configured"`
	HTTP         bool `json:"http_configured"`
	OwnershipTXT bool `json:"ownership_txt_configured"`
}

// requirementsView has the DNS records that a hostname needs. Those that this server does not need are
// empty.
type requirementsView struct {
	A         []netip.Addr             `json:"a"`
	AAAA      []netip.Addr             `json:"aaaa"`
	CNAME     hangar.Hostname          `json:"cname"`
	Challenge challengeView            `json:"acme_challenge"`
	Ownership hangar.HostnameOwnership `json:"ownership"`
}

type challengeView struct {
	Name   string `json:"name"`
	Target string `json:"target"`
}

// certificateCheckView is a hostname with what the DNS says.
type certificateCheckView struct {
	certificateView
	Records recordsView `json:"dns_records"`
}

// recordsView is what the DNS says of a hostname.
type recordsView struct {
	A         []netip.Addr      `json:"a"`
	AAAA      []netip.Addr      `json:"aaaa"`
	CNAME     []hangar.Hostname `json:"cname"`
	Resolved  []netip.Addr      `json:"resolved_addresses"`
	SOA       string            `json:"soa"`
	Challenge *string           `json:"acme_challenge_cname"`
	Ownership *string           `json:"ownership_txt"`
}

func viewCertificate(c *hangar.Certificate) certificateView {
	active := c.Active()
	v := certificateView{
		Hostname: c.Hostname, Status: string(statusOfCertificate(c)), Configured: active, Requested: c.ACME, HasCustom: c.Custom,
		RateLimitedUntil: timeOrNull(c.RateLimitedUntil), Certificates: []issuedView{}, Errors: append([]hangar.CertificateError{}, c.Errors...),
		Requirements: requirementsView{
			A: append([]netip.Addr{}, c.A...), AAAA: append([]netip.Addr{}, c.AAAA...), CNAME: c.CNAME,
			Ownership: c.Ownership,
		},
		Proof: c.Proof, ClaimEndsAt: timeOrNull(c.ClaimEndsAt), OwnershipTXT: c.Proof == hangar.ProofTXT,
		CreatedAt: c.CreatedAt, UpdatedAt: c.UpdatedAt,
	}
	if !c.ACME && !c.Custom {
		v.Status, v.Warning = statusBare, warningBare
	}
	for _, i := range c.Issued {
		one := issuedView{
			Source: sourceCustom, Status: string(i.Status), Issuer: i.Issuer,
			CreatedAt: timeOrNull(i.CreatedAt), ExpiresAt: timeOrNull(i.ExpiresAt), Issued: []issuedKeyView{},
		}
		if i.Kind == hangar.CertificateACME {
			one.Source = sourceIssued
			v.HasIssued = i.Status != hangar.CertificatePending && i.Status != hangar.CertificateUnproven
		}
		if i.KeyType != "" {
			one.Issued = append(one.Issued, issuedKeyView{i.KeyType, i.ExpiresAt, i.Issuer})
		}
		v.Certificates = append(v.Certificates, one)
	}
	v.ALPNConfigured, v.HTTPConfigured = active && v.HasIssued, active && v.HasIssued
	v.Validation = validationView{ALPN: v.ALPNConfigured, HTTP: v.HTTPConfigured, OwnershipTXT: v.OwnershipTXT}
	return v
}

// statusOfCertificate returns the best status of the certificates of a hostname.
func statusOfCertificate(c *hangar.Certificate) hangar.CertificateStatus {
	for _, status := range []hangar.CertificateStatus{hangar.CertificateActive, hangar.CertificateUnproven, hangar.CertificatePending} {
		if slices.ContainsFunc(c.Issued, func(i hangar.IssuedCertificate) bool { return i.Status == status }) {
			return status
		}
	}
	if len(c.Issued) == 0 { // the edge does not know of it yet
		return hangar.CertificatePending
	}
	return hangar.CertificateExpired
}

func timeOrNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return new(t.UTC())
}

func viewCertificateCheck(c *hangar.CertificateCheck) certificateCheckView {
	v := certificateCheckView{viewCertificate(&c.Certificate), recordsView{
		A: append([]netip.Addr{}, c.ResolvedA...), AAAA: append([]netip.Addr{}, c.ResolvedAAAA...),
		CNAME: append([]hangar.Hostname{}, c.ResolvedCNAME...), Resolved: append(append([]netip.Addr{}, c.ResolvedA...), c.ResolvedAAAA...),
	}}
	v.Configured = c.Configured
	v.ALPNConfigured, v.HTTPConfigured, v.OwnershipTXT = c.Configured, c.Configured, c.Ownership.Proves(c.OwnershipTXT)
	v.Validation = validationView{ALPN: c.Configured, HTTP: c.Configured, OwnershipTXT: v.OwnershipTXT}
	if len(c.OwnershipTXT) > 0 {
		v.Records.Ownership = new(strings.Join(c.OwnershipTXT, "\n"))
	}
	return v
}

// hostnameRequest is the body that requests a certificate.
type hostnameRequest struct {
	Hostname hangar.Hostname `json:"hostname" schema:"required"`
}

// uploadRequest is the body that uploads a certificate.
type uploadRequest struct {
	Hostname   hangar.Hostname `json:"hostname" schema:"required"`
	Fullchain  string          `json:"fullchain" schema:"required"`
	PrivateKey string          `json:"private_key" schema:"required"`
}

func (s *server) listCertificates(r *http.Request) (router.Answer, error) {
	app, err := appName(r)
	if err != nil {
		return router.Answer{}, err
	}
	q := input.QueryOf(r)
	filter, limit := strings.ToLower(q.Text("filter")), q.Int("limit", 1, maxCertificatePage)
	after := hostnameCursor(q)
	if q.Err != nil {
		return router.Answer{}, q.Err
	}
	if limit == 0 {
		limit = certificatePage
	}
	list, err := s.Certificates.Certificates(r.Context(), app)
	if err != nil {
		return router.Answer{}, err
	}
	list = slices.DeleteFunc(list, func(c *hangar.Certificate) bool { return !strings.Contains(string(c.Hostname), filter) })
	page := certificateList{Certificates: []certificateView{}, Total: len(list)}
	for _, c := range list {
		if c.Hostname <= after {
			continue
		}
		if len(page.Certificates) == limit {
			page.Next = base64.RawURLEncoding.EncodeToString([]byte(page.Certificates[limit-1].Hostname))
			break
		}
		page.Certificates = append(page.Certificates, viewCertificate(c))
	}
	return router.OK(page)
}

// hostnameCursor reads the hostname after which a listing continues.
func hostnameCursor(q *input.Query) hangar.Hostname {
	text, err := base64.RawURLEncoding.DecodeString(q.Text("cursor"))
	if err == nil && len(text) > 0 {
		_, err = hangar.ParseHostname(string(text))
	}
	if err != nil {
		q.Fail("cursor", "is not the next_cursor of a page of certificates")
	}
	return hangar.Hostname(text)
}

func (s *server) requestCertificate(r *http.Request) (router.Answer, error) {
	app, err := appName(r)
	if err != nil {
		return router.Answer{}, err
	}
	in, err := input.Decode[hostnameRequest](r)
	if err != nil {
		return router.Answer{}, err
	}
	c, err := s.Certificates.RequestCertificate(r.Context(), app, in.Hostname)
	if err != nil {
		return router.Answer{}, err
	}
	return router.Answer{Status: http.StatusCreated, Body: viewCertificate(c)}, nil
}

func (s *server) uploadCertificate(r *http.Request) (router.Answer, error) {
	app, err := appName(r)
	if err != nil {
		return router.Answer{}, err
	}
	in, err := input.Decode[uploadRequest](r)
	if err != nil {
		return router.Answer{}, err
	}
	c, err := s.Certificates.UploadCertificate(r.Context(), app, in.Hostname, hangar.CertificateUpload{Fullchain: in.Fullchain, PrivateKey: in.PrivateKey})
	if err != nil {
		return router.Answer{}, err
	}
	return router.Answer{Status: http.StatusCreated, Body: viewCertificate(c)}, nil
}

func (s *server) getCertificate(r *http.Request) (router.Answer, error) {
	app, err := appName(r)
	if err != nil {
		return router.Answer{}, err
	}
	c, err := s.Certificates.Certificate(r.Context(), app, hangar.Hostname(r.PathValue("hostname")))
	if err != nil {
		return router.Answer{}, err
	}
	return router.OK(viewCertificate(c))
}

func (s *server) checkCertificate(r *http.Request) (router.Answer, error) {
	app, err := appName(r)
	if err != nil {
		return router.Answer{}, err
	}
	c, err := s.Certificates.CheckCertificate(r.Context(), app, hangar.Hostname(r.PathValue("hostname")))
	if err != nil {
		return router.Answer{}, err
	}
	return router.OK(viewCertificateCheck(c))
}

func (s *server) removeHostname(r *http.Request) (router.Answer, error) {
	app, err := appName(r)
	if err != nil {
		return router.Answer{}, err
	}
	if _, err := s.Certificates.RemoveCertificate(r.Context(), app, hangar.Hostname(r.PathValue("hostname")), ""); err != nil {
		return router.Answer{}, err
	}
	return router.Answer{Status: http.StatusNoContent}, nil
}

// removeKind removes one certificate of a hostname.
func (s *server) removeKind(kind hangar.CertificateKind) router.Handler {
	return func(r *http.Request) (router.Answer, error) {
		app, err := appName(r)
		if err != nil {
			return router.Answer{}, err
		}
		name := hangar.Hostname(r.PathValue("hostname"))
		left, err := s.Certificates.RemoveCertificate(r.Context(), app, name, kind)
		if err != nil {
			return router.Answer{}, err
		}
		return router.OK(viewCertificate(left))
	}
}
