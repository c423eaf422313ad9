package hangar

import (
	"context"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"
)

// Secret is a value of an App that only its Machines see, as an environment
// variable of the same name.
type Secret struct {
	Name      string    `json:"name"`
	Digest    string    `json:"digest"` // 16 hexadecimal digits; the same for the same value of the same App
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
	Value     Sensitive `json:"value,omitzero"` // only where it was asked for
}

// Secrets are all secrets of an App at one version.
type Secrets struct {
	List    []Secret `json:"secrets"` // sorted by name
	Version int      `json:"version"` // grows with every change of the App's secrets; 0: there never were any
}

// SecretQuery says how secrets are read.
type SecretQuery struct {
	// MinVersion is the least acceptable version.
	MinVersion int
	// Show asks for the values. This needs the right to change them.
	Show bool
}

// SecretValues are the secrets that a version of a Machine gets, by name.
type SecretValues struct {
	Version int // of the App's secrets; 0: the App has none, or the Machine was to get none
	Values  map[string]Sensitive
}

// The bounds of secrets, in bytes.
const (
	MaxSecretName  = 255
	MaxSecretsSize = 64 << 10 // of the names and values of an App
)

var secretName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// ValidSecretName reports whether a secret can have a name: one that a variable of
// the environment can have.
func ValidSecretName(name string) bool {
	return len(name) <= MaxSecretName && secretName.MatchString(name)
}

// ValidateSecret answers CodeInvalid, naming the secret and never showing its value.
func ValidateSecret(name string, value Sensitive) error {
	text := value.Reveal()
	switch {
	case !ValidSecretName(name):
		return Errorf(CodeInvalid, "", "invalid values: %.100q is not the name of an environment variable: letters, digits and _, no digit first, at most %d", name, MaxSecretName)
	case len(text) > MaxSecretsSize:
		return Errorf(CodeInvalid, "", "invalid values.%s: has %d bytes, more than the %d that all secrets of an app may have", name, len(text), MaxSecretsSize)
	case strings.ContainsRune(text, 0):
		return Errorf(CodeInvalid, "", "invalid values.%s: must not hold the character NUL", name)
	case !utf8.ValidString(text):
		return Errorf(CodeInvalid, "", "invalid values.%s: is not UTF-8", name)
	}
	return nil
}

// SecretService keeps the secrets of Apps. A Machine gets them with each new version, and keeps them
// until the next one. Every method answers CodeNotFound with ReasonAppNotFound, and CodeForbidden.
type SecretService interface {
	// Secrets answers CodeFailedPrecondition with ReasonSecretsVersion while the
	// version is below q.MinVersion.
	Secrets(ctx context.Context, app AppName, q SecretQuery) (Secrets, error)
	// Secret is one of Secrets. It answers CodeNotFound with ReasonSecretNotFound.
	Secret(ctx context.Context, app AppName, name string, q SecretQuery) (Secret, error)
	// SetSecrets sets secrets, all or none of them. The zero Sensitive deletes a secret. A call that
	// changes nothing keeps the version, so it may be repeated. It answers CodeInvalid for a name or
	// value that is not allowed, and beyond MaxSecretsSize.
	SetSecrets(ctx context.Context, app AppName, values map[string]Sensitive) (Secrets, error)
	// DeleteSecret returns the new version. It answers CodeNotFound with
	// ReasonSecretNotFound.
	DeleteSecret(ctx context.Context, app AppName, name string) (version int, err error)
}
