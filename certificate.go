package hangar

import (
	"context"
	"iter"
	"net/netip"
	"time"
)

// Hostname is a DNS name, in lower case and without a dot at its end; it may begin with
// "*." for all names one label below the rest.
type Hostname string

// CertificateKind says where the certificate of a Hostname comes from.
type CertificateKind string

// The kinds of certificates.
const (
	CertificateACME   CertificateKind = "acme"   // an ACME server issues and renews it
	CertificateCustom CertificateKind = "custom" // its owner has uploaded it
)

// CertificateStatus says whether the certificate of a Hostname can be used.
type CertificateStatus string

// The statuses of a certificate.
const (
	CertificateActive  CertificateStatus = "active"
	CertificatePending CertificateStatus = "pending_validation" // the ACME server has not issued it yet
	CertificateExpired CertificateStatus = "expired"
	// CertificateUnproven is one of a Hostname that nothing proves to be the App's.
	CertificateUnproven CertificateStatus = "pending_ownership"
)

// IssuedCertificate is a certificate that the edge has.
type IssuedCertificate struct {
	Kind      CertificateKind   `json:"kind"`
	Status    CertificateStatus `json:"status"`
	KeyType   string            `json:"key_type,omitempty"` // "ecdsa" or "rsa"
	Issuer    string            `json:"issuer,omitempty"`   // its common name
	CreatedAt time.Time         `json:"created_at,omitzero"`
	ExpiresAt time.Time         `json:"expires_at,omitzero"`
}

// CertificateError is why a certificate was not issued.
type CertificateError struct {
	Code        string    `json:"code"` // a type of RFC 8555, section 6.7, without its prefix, or "internal"
	Message     string    `json:"message"`
	Remediation string    `json:"remediation"`
	Timestamp   time.Time `json:"timestamp"`
}

// Certificate is a custom Hostname of an App, and what is known of its certificates.
type Certificate struct {
	Hostname  Hostname
	App       AppName
	ACME      bool // one is asked of the ACME server
	Custom    bool // one was uploaded, which goes before the other
	CreatedAt time.Time
	UpdatedAt time.Time
	// Proof is what proves the Hostname to be the App's; without one it is not served, and
	// its claim ends.
	Proof       HostnameProof
	ProvenAt    time.Time // zero without a Proof
	ClaimEndsAt time.Time // zero with a Proof
	Ownership   HostnameOwnership
	// CertificateState is what the edge of the answering server knows.
	CertificateState
	// A, AAAA and CNAME are where the name has to lead.
	A, AAAA []netip.Addr
	CNAME   Hostname // <app>.<domain>
}

// Active reports whether the edge serves the Hostname with a valid certificate.
func (c *Certificate) Active() bool {
	for _, i := range c.Issued {
		if i.Status == CertificateActive {
			return true
		}
	}
	return false
}

// CertificateCheck is what the DNS says of a Hostname.
type CertificateCheck struct {
	Certificate
	ResolvedA, ResolvedAAAA []netip.Addr
	ResolvedCNAME           []Hostname
	OwnershipTXT            []string // what the record of Ownership holds
	Configured              bool     // it leads to the App
}

// CertificateUpload is a certificate with its key.
type CertificateUpload struct {
	Fullchain  string // PEM: the certificate, then those that sign it
	PrivateKey string // PEM, PKCS #8, SEC 1 or PKCS #1; never shown
}

// MaxCertificates is how many custom Hostnames an App may have.
const MaxCertificates = 1000

// CertificateService keeps the custom Hostnames of Apps and their certificates. It answers
// CodeNotFound with ReasonCertificateNotFound for a Hostname that the App does not have.
type CertificateService interface {
	// Certificates are sorted by Hostname.
	Certificates(ctx context.Context, app AppName) ([]*Certificate, error)
	Certificate(ctx context.Context, app AppName, name Hostname) (*Certificate, error)
	// RequestCertificate makes the edge ask an ACME server for a certificate. It answers
	// CodeInvalid for a bad Hostname, for one that no App can have (see Unclaimable), for one
	// below the platform's own domain and for one that another App has, CodeFailedPrecondition when ACME is switched off, and
	// CodeExhausted beyond MaxCertificates. It may be repeated.
	RequestCertificate(ctx context.Context, app AppName, name Hostname) (*Certificate, error)
	// UploadCertificate answers as RequestCertificate, and CodeInvalid for a certificate
	// that does not parse, fit its key or name the Hostname, or that has expired.
	UploadCertificate(ctx context.Context, app AppName, name Hostname, in CertificateUpload) (*Certificate, error)
	// CheckCertificate looks the Hostname up, takes what it finds for a proof, and has a certificate that is pending asked
	// for again, for which it takes the right to write.
	CheckCertificate(ctx context.Context, app AppName, name Hostname) (*CertificateCheck, error)
	// RemoveCertificate forgets the Hostname and returns nil, or with a kind only that
	// certificate: the Hostname stays, also without any, and is returned.
	RemoveCertificate(ctx context.Context, app AppName, name Hostname, kind CertificateKind) (*Certificate, error)
}

// CustomCertificate is an uploaded certificate as the edge needs it.
type CustomCertificate struct {
	Hostname   Hostname
	Fullchain  []byte // PEM
	PrivateKey []byte // PEM
}

// CertificateFeed is how the edge learns which certificates to have.
type CertificateFeed interface {
	// WatchCertificates yields all Hostnames that need one from an ACME server and all
	// that were uploaded, and again after every change, until ctx ends. What cannot be
	// read is left out. After an error the caller starts again.
	WatchCertificates(ctx context.Context) iter.Seq2[CertificateSet, error]
}

// CertificateSet is every certificate that the edge serves.
type CertificateSet struct {
	ACME   []WantedCertificate
	Custom []CustomCertificate
}

// WantedCertificate is one that an ACME server is to issue, and for whom: organizations share
// what the server may ask for.
type WantedCertificate struct {
	Hostname Hostname `json:"hostname"`
	Org      OrgID    `json:"org_id"`
}

// CertificateState is what an edge has of a Hostname.
type CertificateState struct {
	Issued           []IssuedCertificate
	Errors           []CertificateError // newest first
	RateLimitedUntil time.Time          // zero: it is not
}

// CertificateHost is a server's edge as control sees it: what it knows of certificates.
type CertificateHost interface {
	// ACME reports whether certificates can be asked for.
	ACME() bool
	// CertificateState is what the edge has of a Hostname.
	CertificateState(name Hostname) CertificateState
	// RetryCertificate asks again for one that is pending, in the background.
	RetryCertificate(name Hostname)
}
