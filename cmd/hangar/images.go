package main

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/image"
	"github.com/hangar-platform/hangar/host/image/registry"
)

// openImages opens the images of a data directory, with the built-in registry.
func openImages(ctx context.Context, cfg config, o image.Options, opened *closers) (*image.Store, error) {
	o.Dir, o.DockerConfig = filepath.Join(cfg.Dir, "images"), dockerConfig()
	images := image.New(o)
	if err := images.Open(ctx); err != nil {
		return nil, err
	}
	opened.add(images.Close)
	return images, nil
}

// registryAccess decides who may do what in the built-in registry. Clients send an API
// token, or several, as a bearer token or as the password of any user.
func registryAccess(tokens hangar.Authenticator) registry.Authorize {
	return func(r *http.Request, repository string, action hangar.Action) error {
		credential, ok := hangar.Credential(r.Header.Get("Authorization"))
		if !ok {
			_, credential, _ = r.BasicAuth()
		}
		p, err := tokens.Authenticate(r.Context(), credential)
		if err != nil || action == 0 {
			return err
		}
		target := hangar.RepositoryTarget(repository)
		if p.May(action, target) || action == hangar.ActionRead && target.Org == "" {
			return nil
		}
		return hangar.Errorf(hangar.CodeForbidden, "", "not allowed in repository %s", repository)
	}
}

// registryNames are the hosts under which the built-in registry is reached.
func registryNames(cfg config, served net.Addr) []string {
	names := []string{"registry." + cfg.Domain}
	_, port, err := net.SplitHostPort(served.String())
	if err != nil {
		return names
	}
	for _, name := range []string{"127.0.0.1", "localhost", "[::1]", "registry." + cfg.Domain} {
		names = append(names, name+":"+port)
	}
	return names
}

// dockerConfig is where `docker login` keeps what it was told.
func dockerConfig() string {
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, ".docker", "config.json")
}
