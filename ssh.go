package hangar

import (
	"context"
	"net/netip"
	"regexp"
	"strings"
	"time"
)

// SSHCertificateCreate is the request for a certificate with which its holder signs in to Machines.
type SSHCertificateCreate struct {
	Apps       []AppName // whose Machines; empty: all of the organization
	Principals []string  // users of Machines that the holder may sign in as; empty: DefaultSSHUser
	// PublicKey is an Ed25519 key as in authorized_keys (RFC 8709). Empty: the server makes a pair.
	PublicKey     string
	ValidHours    int    // 0: DefaultSSHHours
	SourceAddress string // addresses or prefixes, separated by commas, from which it is valid; empty: from everywhere
}

// The defaults and bounds of an SSHCertificateCreate.
const (
	DefaultSSHUser   = "root"
	DefaultSSHHours  = 24
	MaxSSHHours      = 72
	MaxSSHPrincipals = 16
	maxSSHSources    = 16
)

// sshUser matches the name of a user of a Machine.
var sshUser = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}$`)

// Complete fills in what a request leaves out. It answers CodeInvalid, naming the field.
func (in *SSHCertificateCreate) Complete() error {
	if len(in.Principals) == 0 {
		in.Principals = []string{DefaultSSHUser}
	}
	if in.ValidHours == 0 {
		in.ValidHours = DefaultSSHHours
	}
	switch {
	case in.ValidHours < 1 || in.ValidHours > MaxSSHHours:
		return Errorf(CodeInvalid, "", "invalid validHours: %d is not from 1 to %d", in.ValidHours, MaxSSHHours)
	case len(in.Principals) > MaxSSHPrincipals:
		return Errorf(CodeInvalid, "", "invalid principals: there are %d, more than %d", len(in.Principals), MaxSSHPrincipals)
	case len(in.Apps) > MaxGrantScope:
		return Errorf(CodeInvalid, "", "invalid appNames: there are %d, more than %d", len(in.Apps), MaxGrantScope)
	}
	for _, name := range in.Principals {
		if !sshUser.MatchString(name) {
			return Errorf(CodeInvalid, "", "invalid principals: %.40q is not the name of a user", name)
		}
	}
	if in.SourceAddress == "" {
		return nil
	}
	sources := strings.Split(in.SourceAddress, ",")
	if len(sources) > maxSSHSources {
		return Errorf(CodeInvalid, "", "invalid sourceAddress: has %d entries, more than %d", len(sources), maxSSHSources)
	}
	for _, s := range sources {
		_, err := netip.ParsePrefix(s)
		if _, wrong := netip.ParseAddr(s); err != nil && wrong != nil {
			return Errorf(CodeInvalid, "", "invalid sourceAddress: %.80q is neither an IP address nor a prefix", s)
		}
	}
	return nil
}

// SSHPrincipals returns the principals of a certificate: "user@app" for each user and App. With
// everywhere, which is for callers who may execute commands in the whole organization, each user's name
// alone is a principal, too.
func SSHPrincipals(users []string, apps []AppName, everywhere bool) []string {
	var list []string
	for _, user := range users {
		if everywhere {
			list = append(list, user)
		}
		for _, app := range apps {
			list = append(list, user+"@"+string(app))
		}
	}
	return list
}

// SSHCertificate is a new certificate.
type SSHCertificate struct {
	Certificate string    // as in authorized_keys, type ssh-ed25519-cert-v01@openssh.com
	PrivateKey  Sensitive // PEM in the format of OpenSSH; zero: the client has it
	ExpiresAt   time.Time
}

// SSHAuthority is the certificate authority of an organization, as its Machines trust it.
type SSHAuthority struct {
	PublicKey string `json:"public_key"` // as in authorized_keys
}

// SSHService issues certificates for OpenSSH (PROTOCOL.certkeys), signed by an authority that each
// organization has to itself.
type SSHService interface {
	// IssueSSHCertificate is for callers who may execute every command in the Machines: ActionControl
	// in the named Apps or, without any, in the whole organization. Without the right to the whole
	// organization, the certificate has only principals with an App. It answers CodeInvalid for a bad
	// field, and for an App of another organization.
	IssueSSHCertificate(ctx context.Context, org OrgSlug, in SSHCertificateCreate) (*SSHCertificate, error)
	// SSHAuthorities returns the authority, once a certificate was issued. It needs the right to read
	// the organization.
	SSHAuthorities(ctx context.Context, org OrgSlug) ([]SSHAuthority, error)
}

// MachineSSHPort is the TCP port of a Machine's private address at which its host signs in the holders
// of certificates, independently of the Machine's image.
const MachineSSHPort = 22

// SSHProgram is the path in Machines of the program that serves files and connections to SSH sessions.
const SSHProgram = "/.hangar/guest"

// SSHTrust says whose certificates Machines accept.
type SSHTrust interface {
	// TrustedSSHAuthorities returns the authority of an organization, if it has one. It requires no
	// principal, because hosts call it.
	TrustedSSHAuthorities(ctx context.Context, org OrgID) ([]SSHAuthority, error)
}

// SSHUser is a user of a Machine, as its image lists them.
type SSHUser struct {
	Name   string
	UID    uint32
	GID    uint32
	Groups []uint32 // supplementary
	Home   string   // absolute
	Shell  string   // absolute
}

// SSHExec is a command of a user who has signed in to a Machine.
type SSHExec struct {
	ExecRequest

	User SSHUser
	Env  []string // "NAME=value", before those of the Machine's main process
}

// SSHHost is what a host does for users who have signed in to its Machines.
type SSHHost interface {
	// SSHMachine finds a Machine that is started. It answers CodeNotFound, and CodeFailedPrecondition
	// for another state.
	SSHMachine(id MachineID) (ref MachineRef, org OrgID, err error)
	// SSHUser finds a user. It answers CodeInvalid for one that the image does not list; every image
	// has root.
	SSHUser(ref MachineRef, name string) (SSHUser, error)
	// ExecSSH runs a command as ExecMachine does, with its errors, in the directory /.
	ExecSSH(ctx context.Context, ref MachineRef, in SSHExec, streams ExecStreams) (ExecResult, error)
}
