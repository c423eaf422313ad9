package hangar

import (
	"context"
	"net/netip"
	"regexp"
	"strings"
	"time"
)

// RegistryCredential is how hosts sign in at a registry of images. The password is
// never shown.
type RegistryCredential struct {
	Registry  string    `json:"registry"` // as RegistryName returns it
	Username  string    `json:"username"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
}

// RegistryLogin is the request for a credential.
type RegistryLogin struct {
	Username string
	Password Sensitive // or a token
}

// The bounds of a credential, in bytes.
const (
	MaxRegistryUsername = 1 << 10
	MaxRegistryPassword = 16 << 10
)

// Validate answers CodeInvalid and names the field that is wrong.
func (l RegistryLogin) Validate() error {
	password := l.Password.Reveal()
	switch {
	case l.Username == "":
		return Errorf(CodeInvalid, "", "invalid username: is required")
	case len(l.Username) > MaxRegistryUsername:
		return Errorf(CodeInvalid, "", "invalid username: has %d bytes, more than the %d that are allowed", len(l.Username), MaxRegistryUsername)
	case strings.ContainsFunc(l.Username, func(c rune) bool { return c == ':' || c < ' ' }):
		return Errorf(CodeInvalid, "", "invalid username: must not hold a colon or control characters")
	case password == "":
		return Errorf(CodeInvalid, "", "invalid password: is required")
	case len(password) > MaxRegistryPassword:
		return Errorf(CodeInvalid, "", "invalid password: has %d bytes, more than the %d that are allowed", len(password), MaxRegistryPassword)
	case strings.ContainsRune(password, 0):
		return Errorf(CodeInvalid, "", "invalid password: must not hold the character NUL")
	}
	return nil
}

// dockerHub is the registry behind the names of Docker Hub.
const dockerHub = "registry-1.docker.io"

var registryHost = regexp.MustCompile(`^(?:[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?$`)

// RegistryName returns the name of a registry as it is in an ImageRef: host or host:port. text may also
// be a URL. It answers CodeInvalid.
func RegistryName(text string) (string, error) {
	name := strings.ToLower(text)
	name = strings.TrimPrefix(strings.TrimPrefix(name, "https://"), "http://")
	name, _, _ = strings.Cut(name, "/")
	if name == "docker.io" || name == "index.docker.io" {
		name = dockerHub
	}
	if len(name) > maxRegistryName || !registryHost.MatchString(name) {
		return "", Errorf(CodeInvalid, "", "invalid registry: %.200q is not a host or host:port", text)
	}
	if address, ok := strings.CutPrefix(name, "["); ok {
		if address, _, _ = strings.Cut(address, "]"); !isAddress(address) {
			return "", Errorf(CodeInvalid, "", "invalid registry: %.200q is not an address", text)
		}
	}
	return name, nil
}

const maxRegistryName = 255 + len(":65535")

func isAddress(text string) bool {
	_, err := netip.ParseAddr(text)
	return err == nil
}

// RegistryService keeps the credentials with which hosts pull images. Only an
// administrator may use it: every method answers CodeForbidden to others, and
// CodeInvalid for a name that RegistryName refuses.
type RegistryService interface {
	// RegistryCredentials are sorted by registry.
	RegistryCredentials(ctx context.Context) ([]RegistryCredential, error)
	// RegistryCredential answers CodeNotFound.
	RegistryCredential(ctx context.Context, registry string) (RegistryCredential, error)
	// SetRegistryCredential creates or replaces a credential, which the next pull uses. It may be
	// repeated.
	SetRegistryCredential(ctx context.Context, registry string, in RegistryLogin) (RegistryCredential, error)
	// DeleteRegistryCredential answers CodeNotFound.
	DeleteRegistryCredential(ctx context.Context, registry string) error
}
