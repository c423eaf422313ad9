package image

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
)

// maxDockerConfig bounds how much of a config.json is read, in bytes.
const maxDockerConfig = 1 << 20

// authenticator returns the credentials for a registry: from the platform's own store, else from
// the Docker client, else none. Each pull reads them again, so that a login takes effect at once.
func (s *Store) authenticator(ctx context.Context, registry string) authn.Authenticator {
	if s.opts.Credentials != nil {
		if user, password, ok := s.opts.Credentials(ctx, registry); ok {
			return authn.FromConfig(authn.AuthConfig{Username: user, Password: password})
		}
	}
	if s.opts.DockerConfig == "" {
		return authn.Anonymous
	}
	config, ok, err := readDockerConfig(s.opts.DockerConfig, registry)
	if err != nil {
		s.log.WarnContext(ctx, "docker config is not usable", slog.Any("error", err))
	}
	if !ok {
		return authn.Anonymous
	}
	return authn.FromConfig(config)
}

// readDockerConfig looks up a registry in a Docker client's config.json. It does not ask credential
// helpers.
func readDockerConfig(file, registry string) (authn.AuthConfig, bool, error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return authn.AuthConfig{}, false, nil
	}
	if err != nil {
		return authn.AuthConfig{}, false, err
	}
	defer func() { _ = f.Close() }()
	var config struct {
		Auths map[string]struct {
			Auth          string `json:"auth"`
			Username      string `json:"username"`
			Password      string `json:"password"`
			IdentityToken string `json:"identitytoken"`
			RegistryToken string `json:"registrytoken"`
		} `json:"auths"`
	}
	if err := json.NewDecoder(io.LimitReader(f, maxDockerConfig)).Decode(&config); err != nil {
		return authn.AuthConfig{}, false, err
	}
	for key, entry := range config.Auths {
		if dockerConfigHost(key) != registry {
			continue
		}
		auth := authn.AuthConfig{
			Username: entry.Username, Password: entry.Password,
			IdentityToken: entry.IdentityToken, RegistryToken: entry.RegistryToken,
		}
		if entry.Auth != "" {
			raw, err := base64.StdEncoding.DecodeString(strings.TrimRight(entry.Auth, "\x00"))
			if err != nil {
				return authn.AuthConfig{}, false, err
			}
			user, password, _ := strings.Cut(strings.TrimRight(string(raw), "\x00"), ":")
			auth.Username, auth.Password = user, password
		}
		if auth != (authn.AuthConfig{}) {
			return auth, true, nil
		}
	}
	return authn.AuthConfig{}, false, nil
}

// dockerConfigHost converts the key of an entry, which may be a URL, to the registry name in an
// ImageRef.
func dockerConfigHost(key string) string {
	key = strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	key, _, _ = strings.Cut(key, "/")
	if key == hubForPeople || key == hubForSettings {
		return hubRegistry
	}
	return key
}
