package graphql

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/graphql/execute"
)

// certificateOf is a hostname, with what the DNS says of it if the request asked for that.
type certificateOf struct {
	hangar.Certificate

	check *hangar.CertificateCheck // nil: the request did not ask
}

// configured reports whether the name leads to the App, as far as is known.
func (c certificateOf) configured() bool {
	if c.check != nil {
		return c.check.Configured
	}
	return c.Active()
}

// statusText is what clients print about a hostname.
func (c certificateOf) statusText() string {
	switch {
	case c.Active():
		return "Ready"
	case c.configured():
		return "Awaiting certificates"
	default:
		return "Awaiting configuration"
	}
}

func (c certificateOf) issued() []hangar.IssuedCertificate {
	list := []hangar.IssuedCertificate{}
	for _, i := range c.Issued {
		if i.KeyType != "" {
			list = append(list, i)
		}
	}
	return list
}

func certificates(q *query, a *hangar.App, in args) (any, error) {
	all, err := called(q, func() ([]*hangar.Certificate, error) { return q.Services.Certificates.Certificates(q, a.Name) })
	if err != nil {
		return nil, err
	}
	list := make([]certificateOf, 0, len(all))
	for _, c := range all {
		list = append(list, certificateOf{*c, nil})
	}
	return page(in, list)
}

// certificate is a hostname of an App; null: the App does not have it.
func certificate(q *query, a *hangar.App, in args) (any, error) {
	c, err := called(q, func() (*hangar.Certificate, error) {
		return q.Services.Certificates.Certificate(q, a.Name, hangar.Hostname(in.Text("hostname")))
	})
	if hangar.ReasonOf(err) == hangar.ReasonCertificateNotFound {
		return nil, nil //nolint:nilnil // null
	}
	if err != nil {
		return nil, err
	}
	return certificateOf{*c, nil}, nil
}

func defineCertificate(s *schema) {
	type certificate = certificateOf
	type issued = hangar.IssuedCertificate
	defineWhole(s, "IssuedCertificateConnection")
	execute.Define(s, "AppCertificate", fields[certificate]{
		"id":           field(func(c certificate) hangar.Hostname { return c.Hostname }),
		"hostname":     field(func(c certificate) hangar.Hostname { return c.Hostname }),
		"clientStatus": field(certificate.statusText),
		"source": field(func(c certificate) string {
			if c.Custom {
				return "custom"
			}
			return "fly"
		}),
		"configured":         field(certificate.configured),
		"acmeDnsConfigured":  always[certificate](false),
		"acmeAlpnConfigured": field(certificate.configured),
		"certificateAuthority": field(func(c certificate) *string {
			if list := c.issued(); len(list) > 0 {
				return orNull(list[0].Issuer)
			}
			return nil
		}),
		"createdAt":             field(func(c certificate) time.Time { return c.CreatedAt }),
		"dnsProvider":           null[certificate],
		"dnsValidationHostname": field(func(c certificate) hangar.Hostname { return c.Ownership.Name }),
		"dnsValidationTarget":   field(func(c certificate) string { return c.Ownership.AppValue }),
		"dnsValidationInstructions": field(func(c certificate) string {
			return fmt.Sprintf("TXT %s => %s", c.Ownership.Name, c.Ownership.AppValue)
		}),
		"isApex":     field(func(c certificate) bool { return strings.Count(string(c.Hostname), ".") == 1 }),
		"isWildcard": field(func(c certificate) bool { return strings.HasPrefix(string(c.Hostname), "*.") }),
		"issued":     field(func(c certificate) whole { return whole{c.issued()} }),
		"validationErrors": field(func(c certificate) []hangar.CertificateError {
			return append([]hangar.CertificateError{}, c.Errors...)
		}),
	})
	execute.Define(s, "IssuedCertificate", fields[issued]{
		"type":      field(func(i issued) string { return i.KeyType }),
		"expiresAt": field(func(i issued) time.Time { return i.ExpiresAt }),
	})
	execute.Define(s, "CertificateError", fields[hangar.CertificateError]{
		"errorCode":   field(func(e hangar.CertificateError) string { return e.Code }),
		"message":     field(func(e hangar.CertificateError) string { return e.Message }),
		"remediation": field(func(e hangar.CertificateError) *string { return orNull(e.Remediation) }),
		"timestamp":   field(func(e hangar.CertificateError) time.Time { return e.Timestamp }),
	})
	type check = *hangar.CertificateCheck
	execute.Define(s, "HostnameCheck", fields[check]{
		"aRecords":    field(func(c check) []string { return texts(c.ResolvedA) }),
		"aaaaRecords": field(func(c check) []string { return texts(c.ResolvedAAAA) }),
		"cnameRecords": field(func(c check) []string {
			names := []string{}
			for _, n := range c.ResolvedCNAME {
				names = append(names, string(n))
			}
			return names
		}),
		"resolvedAddresses":     field(func(c check) []string { return append(texts(c.ResolvedA), texts(c.ResolvedAAAA)...) }),
		"soa":                   null[check],
		"dnsProvider":           null[check],
		"dnsVerificationRecord": field(func(c check) *string { return orNull(strings.Join(c.OwnershipTXT, "\n")) }),
	})
}

func texts(list []netip.Addr) []string {
	out := []string{}
	for _, a := range list {
		out = append(out, a.String())
	}
	return out
}

// ofHostname makes a change of a hostname, and returns the payload of the mutation.
func ofHostname(q *query, in args, change func(name hangar.AppName, hostname hangar.Hostname) (certificateOf, error)) (payload, error) {
	of, err := app(q, in.Text("appId"))
	if err != nil {
		return nil, err
	}
	if err := q.Call(); err != nil {
		return nil, err
	}
	made, err := change(of.Name, hangar.Hostname(strings.ToLower(in.Text("hostname"))))
	if err != nil {
		return nil, err
	}
	return payload{"app": of, "certificate": made, "check": made.check}, nil
}

func addCertificate(q *query, in args) (payload, error) {
	return ofHostname(q, in, func(name hangar.AppName, hostname hangar.Hostname) (certificateOf, error) {
		made, err := q.Services.Certificates.RequestCertificate(q, name, hostname)
		if err != nil {
			return certificateOf{}, err
		}
		return certificateOf{*made, nil}, nil
	})
}

func checkCertificate(q *query, in args) (payload, error) {
	return ofHostname(q, in, func(name hangar.AppName, hostname hangar.Hostname) (certificateOf, error) {
		checked, err := q.Services.Certificates.CheckCertificate(q, name, hostname)
		if err != nil {
			return certificateOf{}, err
		}
		return certificateOf{checked.Certificate, checked}, nil
	})
}

func deleteCertificate(q *query, in args) (payload, error) {
	return ofHostname(q, in, func(name hangar.AppName, hostname hangar.Hostname) (certificateOf, error) {
		before, err := q.Services.Certificates.Certificate(q, name, hostname)
		if err != nil {
			return certificateOf{}, err
		}
		_, err = q.Services.Certificates.RemoveCertificate(q, name, hostname, "")
		return certificateOf{*before, nil}, err
	})
}
