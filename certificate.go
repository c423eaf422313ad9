package hangar

import (
	"context"
	"iter"
	"net/netip"
	"slices"
	"time"
)

// Hostname is a DNS name in lower case, without a final dot. It may begin with "*.", which stands for
// any one label.
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
	// CertificateUnproven: nothing proves yet that the Hostname is the App's.
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

// Certificate is a custom Hostname of an App, with the state of its certificates.
type Certificate struct {
	Hostname  Hostname
	App       AppName
	ACME      bool // an ACME server is to issue one
	Custom    bool // one was uploaded; it takes precedence
	CreatedAt time.Time
	UpdatedAt time.Time
	// Proof shows that the Hostname is the App's. Without one, the edge does not serve the Hostname,
	// and the claim ends at ClaimEndsAt.
	Proof       HostnameProof
	ProvenAt    time.Time // zero without a Proof
	ClaimEndsAt time.Time // zero with a Proof
	Ownership   HostnameOwnership
	// CertificateState is what the edge of the answering server knows.
	CertificateState
	// A, AAAA and CNAME are the targets that the name's DNS records must have.
	A, AAAA []netip.Addr
	CNAME   Hostname // <app>.<domain>
}

// Active reports whether the edge serves the Hostname with a valid certificate.
func (c *Certificate) Active() bool {
	return slices.ContainsFunc(c.Issued, func(i IssuedCertificate) bool { return i.Status == CertificateActive })
}

// CertificateCheck is a Certificate and what the DNS says of its Hostname.
type CertificateCheck struct {
	Certificate
	ResolvedA, ResolvedAAAA []netip.Addr
	ResolvedCNAME           []Hostname
	OwnershipTXT            []string // values found at Ownership.Name
	Configured              bool     // the Hostname leads to the App
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
	// RequestCertificate makes the edge request a certificate from an ACME server. It answers
	// CodeInvalid for a bad Hostname, one that no App can have (see Unclaimable), one below the
	// platform's own domain, and one that another App has. It answers CodeFailedPrecondition when ACME
	// is switched off, and CodeExhausted beyond MaxCertificates. It may be repeated.
	RequestCertificate(ctx context.Context, app AppName, name Hostname) (*Certificate, error)
	// UploadCertificate answers as RequestCertificate, and CodeInvalid for a certificate that does not
	// parse, does not fit its key, does not name the Hostname, or has expired.
	UploadCertificate(ctx context.Context, app AppName, name Hostname, in CertificateUpload) (*Certificate, error)
	// CheckCertificate looks the Hostname up and stores a proof that it finds. It requests a pending
	// certificate again. It needs ActionWrite, and answers CodeExhausted with ReasonRateLimited when an
	// organization checks too often.
	CheckCertificate(ctx context.Context, app AppName, name Hostname) (*CertificateCheck, error)
	// RemoveCertificate removes the Hostname and returns nil. With a kind, it removes only that
	// certificate and returns the Hostname, which stays even without a certificate.
	RemoveCertificate(ctx context.Context, app AppName, name Hostname, kind CertificateKind) (*Certificate, error)
}

// CustomCertificate is an uploaded certificate as the edge needs it.
type CustomCertificate struct {
	Hostname   Hostname
	Fullchain  []byte // PEM
	PrivateKey []byte // PEM
}

// CertificateFeed tells the edge which certificates it needs.
type CertificateFeed interface {
	// WatchCertificates yields all certificates that the edge needs, and yields all of them again after
	// every change, until ctx ends. Unreadable ones are left out. After an error the caller starts
	// again.
	WatchCertificates(ctx context.Context) iter.Seq2[CertificateSet, error]
}

// CertificateSet is every certificate that the edge serves.
type CertificateSet struct {
	ACME   []WantedCertificate
	Custom []CustomCertificate
}

// WantedCertificate is a certificate that an ACME server is to issue. It names the organization,
// because organizations share the requests that the server may make.
type WantedCertificate struct {
	Hostname Hostname `json:"hostname"`
	Org      OrgID    `json:"org_id"`
}

// CertificateState is what an edge knows about the certificates of a Hostname.
type CertificateState struct {
	Issued           []IssuedCertificate
	Errors           []CertificateError // newest first
	RateLimitedUntil time.Time          // zero: not limited
}

// CertificateHost tells control what the edge of a server knows about certificates.
type CertificateHost interface {
	// ACME reports whether the edge can request certificates.
	ACME() bool
	// CertificateState is the state of the certificates of a Hostname.
	CertificateState(name Hostname) CertificateState
	// RetryCertificate requests a pending certificate again, in the background.
	RetryCertificate(name Hostname)
}
