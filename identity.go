package hangar

import (
	"context"
	"strconv"
	"time"
	"unicode"
	"unicode/utf8"
)

// IdentityTokenLifetime is how long an identity token is valid.
const IdentityTokenLifetime = 15 * time.Minute

// MaxAudience bounds the audience of an identity token, in bytes.
const MaxAudience = 1 << 10

// IdentityTokenRequest is the request for an identity token.
type IdentityTokenRequest struct {
	Audience string `json:"aud,omitempty"` // the recipient of the token; empty: the platform's address with the organization as its path
	// AWSPrincipalTags adds the tags by which policies of AWS tell Machines apart.
	AWSPrincipalTags bool `json:"aws_principal_tags,omitempty"`
}

// Validate answers CodeInvalid and names the field that is wrong.
func (in IdentityTokenRequest) Validate() error {
	switch {
	case len(in.Audience) > MaxAudience:
		return Errorf(CodeInvalid, "", "invalid aud: has %d bytes, more than the %d that are allowed", len(in.Audience), MaxAudience)
	case !utf8.ValidString(in.Audience):
		return Errorf(CodeInvalid, "", "invalid aud: is not valid UTF-8")
	}
	for _, c := range in.Audience {
		if unicode.IsControl(c) {
			return Errorf(CodeInvalid, "", "invalid aud: must not hold control characters")
		}
	}
	return nil
}

// IdentityClaims are what an identity token says, as JSON: who a Machine is, who
// vouches for it, to whom, and for how long.
type IdentityClaims struct {
	AppID          string     `json:"app_id"` // its number
	AppName        AppName    `json:"app_name"`
	Audience       string     `json:"aud"`
	Expiry         int64      `json:"exp"` // Unix seconds
	IssuedAt       int64      `json:"iat"` // Unix seconds
	Image          string     `json:"image"`
	ImageDigest    string     `json:"image_digest"`
	Issuer         string     `json:"iss"`
	ID             string     `json:"jti"` // a UUID that no other token has
	MachineID      MachineID  `json:"machine_id"`
	MachineName    string     `json:"machine_name"`
	MachineVersion InstanceID `json:"machine_version"`
	NotBefore      int64      `json:"nbf"`    // Unix seconds
	OrgID          string     `json:"org_id"` // its number
	OrgName        OrgSlug    `json:"org_name"`
	Region         Region     `json:"region"`
	Subject        string     `json:"sub"` // ORG:APP:MACHINE, by their names, none of which can hold a colon
	AWSTags        *AWSTags   `json:"https://aws.amazon.com/tags,omitempty"`
}

// AWSTags are the tags of a session at AWS, each with one value.
type AWSTags struct {
	PrincipalTags map[string][]string `json:"principal_tags"`
}

// IdentityOf returns the claims that follow from the record of a Machine and its App.
func IdentityOf(app *App, m *Machine) IdentityClaims {
	image := m.ImageRef
	image.Digest = ""
	return IdentityClaims{
		AppID: strconv.FormatUint(app.NumericID, 10), AppName: app.Name,
		OrgID: strconv.FormatUint(app.Org.NumericID, 10), OrgName: app.Org.Slug,
		MachineID: m.ID, MachineName: m.Name, MachineVersion: m.InstanceID, Region: m.Region,
		Image: image.String(), ImageDigest: m.ImageRef.Digest,
		Subject: string(app.Org.Slug) + ":" + string(app.Name) + ":" + m.Name,
	}
}

// Tags returns the tags by which policies of AWS tell Machines apart.
func (c *IdentityClaims) Tags() *AWSTags {
	return &AWSTags{PrincipalTags: map[string][]string{
		"org_name": {string(c.OrgName)}, "app_name": {string(c.AppName)}, "machine_name": {c.MachineName},
		"machine_id": {string(c.MachineID)}, "region": {string(c.Region)},
	}}
}

// IdentityService lets Machines prove who they are to third parties.
type IdentityService interface {
	// IssueIdentityToken returns a new JSON Web Token that says who a Machine is. The zero ref stands
	// for the calling Machine; see CallerMachine. Otherwise the caller must be that Machine, or be
	// allowed ActionControl of it, because such a caller could ask from inside the Machine. It answers
	// CodeInvalid for a bad request, and CodeFailedPrecondition with ReasonWrongState for a Machine
	// that does not run.
	IssueIdentityToken(ctx context.Context, ref MachineRef, in IdentityTokenRequest) (string, error)
}

// CallerMachine returns the Machine that a caller is, or acts for because its tokens
// are for that Machine alone. It answers CodeForbidden if there is no such Machine.
func CallerMachine(ctx context.Context) (MachineRef, error) {
	p, err := PrincipalFrom(ctx)
	if err != nil {
		return MachineRef{}, err
	}
	if ref, ok := SelfFrom(ctx); ok {
		return ref, nil
	}
	var only MachineRef
	for _, g := range p.Grants {
		targets := g.Targets()
		ref := MachineRef{App: targets[0].App, AppID: targets[0].AppID, ID: targets[0].Machine}
		if len(targets) != 1 || ref.ID == "" || only != (MachineRef{}) && only != ref {
			only = MachineRef{}
			break
		}
		only = ref
	}
	if p.Admin || only == (MachineRef{}) {
		return MachineRef{}, Errorf(CodeForbidden, "",
			"Only a Machine has an identity: ask from within the Machine, or with a token that is for one Machine alone")
	}
	return only, nil
}

// MayIdentify reports whether a caller may get identity tokens of a Machine.
func MayIdentify(ctx context.Context, p Principal, target Target) bool {
	self, ok := SelfFrom(ctx)
	return ok && self == MachineRef{App: target.App, AppID: target.AppID, ID: target.Machine} || p.May(ActionControl, target)
}

// HasIdentity reports whether a Machine in state s may prove who it is: whether it
// runs, or is just about to.
func (s MachineState) HasIdentity() bool { return s.NeedsForce() }

// SigningKeyState is the use of a signing key.
type SigningKeyState string

// The states of a signing key. Third parties see the keys of all states.
const (
	SigningKeyNext    SigningKeyState = "next"    // published ahead of its use
	SigningKeyCurrent SigningKeyState = "current" // signs
	SigningKeyRetired SigningKeyState = "retired" // verifies the tokens that it has signed, until they have expired
)

// SigningKey is a key that signs identity tokens, without its secret part.
type SigningKey struct {
	ID        string          `json:"kid"`
	State     SigningKeyState `json:"state"`
	CreatedAt time.Time       `json:"created_at"`
	NotBefore time.Time       `json:"not_before"`         // it signs from then on
	NotAfter  time.Time       `json:"not_after,omitzero"` // it signs until then; zero: until there is another
}

// SigningKeyService is about the keys that sign identity tokens. Only administrators
// may use it.
type SigningKeyService interface {
	// SigningKeys are sorted by the time from which they sign.
	SigningKeys(ctx context.Context) ([]SigningKey, error)
	// RotateSigningKey makes the next key current, creates another next one, and returns all keys. If
	// third parties may not have seen the next key yet, it becomes current later, at its NotBefore.
	// Until then, repeating the call changes nothing.
	RotateSigningKey(ctx context.Context) ([]SigningKey, error)
}

// IdentityIssuer serves the verifiers of identity tokens, without authentication. It answers from
// memory, even while the cluster state cannot be reached.
type IdentityIssuer interface {
	// IssuerMetadata is what OpenID Connect Discovery says of the issuer of an
	// organization. It answers CodeNotFound with ReasonOrgNotFound.
	IssuerMetadata(ctx context.Context, org OrgSlug) (IssuerDocument, error)
	// IssuerKeys is the set of keys of the issuer of an organization, as JSON Web Keys. It answers
	// CodeNotFound with ReasonOrgNotFound, and CodeUnavailable before it has read any key.
	IssuerKeys(ctx context.Context, org OrgSlug) (IssuerDocument, error)
}

// IssuerDocument is a public JSON document.
type IssuerDocument struct {
	Body   []byte // shared: must not be changed
	MaxAge time.Duration
}
