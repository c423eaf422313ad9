package daemon

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control"
	"github.com/hangar-platform/hangar/host/image"
	"github.com/hangar-platform/hangar/internal/publicdial"
)

// The bounds of what an operator may say of images.
const (
	maxImageSizeGB = 1 << 20
	maxImageRatio  = 1 << 20
	maxPullRate    = 1 << 30 // bytes a second
	minPullTimeout = 10 * time.Second
)

func (c *Config) validateImages() error {
	if _, err := c.registries(); err != nil {
		return err
	}
	for _, f := range []struct {
		flag     string
		n, atMax int
	}{{"--image-size-gb", c.ImageSizeGB, maxImageSizeGB}, {"--image-ratio", c.ImageRatio, maxImageRatio}, {"--pull-min-rate", c.PullRate, maxPullRate}} {
		if f.n < 0 || f.n > f.atMax {
			return fmt.Errorf("%s %d: must be from 1 to %d", f.flag, f.n, f.atMax)
		}
	}
	if c.PullTimeout != 0 && (c.PullTimeout < minPullTimeout || c.PullTimeout > image.DefaultPullTime) {
		return fmt.Errorf("--pull-timeout %s: must be from %s to %s", c.PullTimeout, minPullTimeout, image.DefaultPullTime)
	}
	return nil
}

// registries reads --allow-registry.
func (c *Config) registries() ([]publicdial.Allowed, error) {
	var allowed []publicdial.Allowed
	for _, text := range c.AllowRegistry {
		a, err := publicdial.ParseAllowed(text)
		if err != nil {
			return nil, fmt.Errorf("--allow-registry: %w", err)
		}
		allowed = append(allowed, a)
	}
	return allowed, nil
}

// openImages opens the images of a data directory, with the built-in registry.
func openImages(ctx context.Context, cfg Config, dockerConfig string, own func(netip.Addr) bool, o image.Options, opened *closers) (*image.Store, error) {
	o.Dir = filepath.Join(cfg.Dir, "images")
	if cfg.HostRegistryAuth {
		o.DockerConfig = dockerConfig
	}
	o.Limits = image.Limits{
		UnpackedBytes: int64(cfg.ImageSizeGB) << 30, Ratio: cfg.ImageRatio, PullTime: cfg.PullTimeout, MinRate: cfg.PullRate,
	}
	allowed, err := cfg.registries()
	if err != nil {
		return nil, err
	}
	o.Dialer = publicdial.New(publicdial.Options{Allow: allowed, Own: own})
	images := image.New(o)
	if err := images.Open(ctx); err != nil {
		return nil, err
	}
	opened.add(images.Close)
	return images, nil
}

// registryAccess finds out who calls the built-in registry. Clients send an API token, or
// several, as a bearer token or as the password of any user.
type registryAccess struct {
	tokens       hangar.Authenticator
	repositories hangar.RepositoryService
	orgs         hangar.OrgService
}

func (a registryAccess) principal(r *http.Request) (context.Context, error) {
	credential, ok := hangar.Credential(r.Header.Get("Authorization"))
	if !ok {
		_, credential, _ = r.BasicAuth()
	}
	p, err := a.tokens.Authenticate(r.Context(), credential)
	return hangar.WithPrincipal(r.Context(), p), err
}

// Repository implements registry.Access.
func (a registryAccess) Repository(r *http.Request, name string, action hangar.Action) (hangar.Repository, error) {
	ctx, err := a.principal(r)
	if err != nil || action == 0 {
		return hangar.Repository{}, err
	}
	return a.repositories.Repository(ctx, hangar.RepositoryName(name), action)
}

// Orgs implements registry.Access.
func (a registryAccess) Orgs(r *http.Request) ([]*hangar.Org, error) {
	ctx, err := a.principal(r)
	if err != nil {
		return nil, err
	}
	return a.orgs.Orgs(ctx)
}

// registryNames are the hosts under which the built-in registry is reached.
func registryNames(cfg Config, served net.Addr) []string {
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

// ownAddresses reports which public addresses are the platform's own: those that the server
// has, and those that Apps get.
func ownAddresses(pools control.AddressPools) func(netip.Addr) bool {
	return func(a netip.Addr) bool {
		if a == pools.Shared || pools.V4.Contains(a) || pools.V6.Contains(a) {
			return true
		}
		interfaces, err := net.InterfaceAddrs()
		return err != nil || slices.ContainsFunc(interfaces, func(i net.Addr) bool {
			n, ok := i.(*net.IPNet)
			return ok && n.IP.Equal(a.AsSlice())
		})
	}
}
