package client

import (
	"context"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
)

// certificatesPerPage is how many hostnames are requested at once.
const certificatesPerPage = 500

// certificateAnswer is a hostname as the server shows it.
type certificateAnswer struct {
	Hostname         hangar.Hostname `json:"hostname"`
	Status           string          `json:"status"`
	ACME             bool            `json:"acme_requested"`
	Custom           bool            `json:"has_custom_certificate"`
	RateLimitedUntil time.Time       `json:"rate_limited_until"`
	Certificates     []struct {
		Source    string                   `json:"source"`
		Status    hangar.CertificateStatus `json:"status"`
		Issuer    string                   `json:"issuer"`
		CreatedAt time.Time                `json:"created_at"`
		ExpiresAt time.Time                `json:"expires_at"`
		Issued    []struct {
			Type string `json:"type"`
		} `json:"issued"`
	} `json:"certificates"`
	Errors       []hangar.CertificateError `json:"validation_errors"`
	Requirements struct {
		A     []netip.Addr    `json:"a"`
		AAAA  []netip.Addr    `json:"aaaa"`
		CNAME hangar.Hostname `json:"cname"`

		Ownership hangar.HostnameOwnership `json:"ownership"`
	} `json:"dns_requirements"`
	Proof       hangar.HostnameProof `json:"proof"`
	ClaimEndsAt time.Time            `json:"claim_ends_at"`
	CreatedAt   time.Time            `json:"created_at"`
	UpdatedAt   time.Time            `json:"updated_at"`
}

func (a *certificateAnswer) certificate(app hangar.AppName) *hangar.Certificate {
	c := &hangar.Certificate{
		Hostname: a.Hostname, App: app, ACME: a.ACME, Custom: a.Custom, CreatedAt: a.CreatedAt, UpdatedAt: a.UpdatedAt,
		CertificateState: hangar.CertificateState{Errors: a.Errors, RateLimitedUntil: a.RateLimitedUntil},
		Proof:            a.Proof, ClaimEndsAt: a.ClaimEndsAt, Ownership: a.Requirements.Ownership,
		A: a.Requirements.A, AAAA: a.Requirements.AAAA, CNAME: a.Requirements.CNAME,
	}
	for _, i := range a.Certificates {
		one := hangar.IssuedCertificate{
			Kind: hangar.CertificateACME, Status: i.Status, Issuer: i.Issuer, CreatedAt: i.CreatedAt, ExpiresAt: i.ExpiresAt,
		}
		if i.Source == string(hangar.CertificateCustom) {
			one.Kind = hangar.CertificateCustom
		}
		if len(i.Issued) > 0 {
			one.KeyType = i.Issued[0].Type
		}
		c.Issued = append(c.Issued, one)
	}
	return c
}

func (c *Client) certificate(ctx context.Context, app hangar.AppName, in call) (*hangar.Certificate, error) {
	var out certificateAnswer
	if err := c.do(ctx, in, &out); err != nil {
		return nil, err
	}
	return out.certificate(app), nil
}

// Certificates implements hangar.CertificateService.
func (c *Client) Certificates(ctx context.Context, app hangar.AppName) ([]*hangar.Certificate, error) {
	list := []*hangar.Certificate{}
	for cursor := ""; ; {
		in := get(appPath(app, "certificates"))
		in.query = url.Values{"limit": {strconv.Itoa(certificatesPerPage)}}
		if cursor != "" {
			in.query.Set("cursor", cursor)
		}
		var page struct {
			Certificates []certificateAnswer `json:"certificates"`
			Next         string              `json:"next_cursor"`
		}
		if err := c.do(ctx, in, &page); err != nil {
			return nil, err
		}
		for i := range page.Certificates {
			list = append(list, page.Certificates[i].certificate(app))
		}
		if cursor = page.Next; cursor == "" {
			return list, nil
		}
	}
}

// Certificate implements hangar.CertificateService.
func (c *Client) Certificate(ctx context.Context, app hangar.AppName, name hangar.Hostname) (*hangar.Certificate, error) {
	return c.certificate(ctx, app, get(appPath(app, "certificates", string(name))))
}

// RequestCertificate implements hangar.CertificateService.
func (c *Client) RequestCertificate(ctx context.Context, app hangar.AppName, name hangar.Hostname) (*hangar.Certificate, error) {
	in := post(appPath(app, "certificates", "acme"))
	in.in = map[string]any{"hostname": name}
	return c.certificate(ctx, app, in)
}

// UploadCertificate implements hangar.CertificateService.
func (c *Client) UploadCertificate(ctx context.Context, app hangar.AppName, name hangar.Hostname, up hangar.CertificateUpload) (*hangar.Certificate, error) {
	in := post(appPath(app, "certificates", "custom"))
	in.in = map[string]any{"hostname": name, "fullchain": up.Fullchain, "private_key": up.PrivateKey}
	return c.certificate(ctx, app, in)
}

// CheckCertificate implements hangar.CertificateService.
func (c *Client) CheckCertificate(ctx context.Context, app hangar.AppName, name hangar.Hostname) (*hangar.CertificateCheck, error) {
	var out struct {
		certificateAnswer
		Configured bool `json:"configured"`
		Records    struct {
			A     []netip.Addr      `json:"a"`
			AAAA  []netip.Addr      `json:"aaaa"`
			CNAME []hangar.Hostname `json:"cname"`
			TXT   string            `json:"ownership_txt"`
		} `json:"dns_records"`
	}
	if err := c.do(ctx, post(appPath(app, "certificates", string(name), "check")), &out); err != nil {
		return nil, err
	}
	check := &hangar.CertificateCheck{
		Certificate: *out.certificate(app), Configured: out.Configured,
		ResolvedA: out.Records.A, ResolvedAAAA: out.Records.AAAA, ResolvedCNAME: out.Records.CNAME,
	}
	if out.Records.TXT != "" {
		check.OwnershipTXT = strings.Split(out.Records.TXT, "\n")
	}
	return check, nil
}

// RemoveCertificate implements hangar.CertificateService.
func (c *Client) RemoveCertificate(
	ctx context.Context, app hangar.AppName, name hangar.Hostname, kind hangar.CertificateKind,
) (*hangar.Certificate, error) {
	path := appPath(app, "certificates", string(name))
	if kind == "" {
		return nil, c.do(ctx, call{method: http.MethodDelete, path: path}, nil)
	}
	return c.certificate(ctx, app, call{method: http.MethodDelete, path: appPath(app, "certificates", string(name), string(kind))})
}
