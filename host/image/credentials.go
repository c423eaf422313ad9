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

// authenticator returns the credentials for a registry: the platform's own, then those of the
// Docker client, else none. They are read for each pull, so that a login counts at once.
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

// readDockerConfig looks a registry up in a Docker client's config.json. What the
// client keeps in a credential helper is not found.
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

// dockerConfigHost brings the key of an entry, which may be a URL, to the name that
// an ImageRef has for the registry.
func dockerConfigHost(key string) string {
	key = strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	key, _, _ = strings.Cut(key, "/")
	if key == hubForPeople || key == hubForSettings {
		return hubRegistry
	}
	return key
}
