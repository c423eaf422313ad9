package cli

import (
	"context"
	"net"
	"net/url"
	"regexp"
	"strings"

	"github.com/hangar-platform/hangar/internal/ociimage"
)

// Registry returns the registry that the API serves, with its credentials.
func (e *Endpoint) Registry() ociimage.Registry {
	return ociimage.Registry{Plain: strings.HasPrefix(e.URL, "http:"), Roots: e.Roots, Token: e.Token}
}

// imageName matches what follows the organization in a reference of the built-in registry.
var imageName = regexp.MustCompile(`^[a-z0-9]+([._/-][a-z0-9]+)*(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?$`)

// RegistryReference returns the reference of an image in the registry that the API serves.
func RegistryReference(api, org, name string) (string, error) {
	if !imageName.MatchString(name) {
		return "", UsageErrorf("invalid image name %q: must be like hello, team/hello or hello:v2, in lowercase", name)
	}
	host, err := RegistryHost(api)
	if err != nil {
		return "", err
	}
	if !strings.Contains(name, ":") {
		name += ":latest"
	}
	return strings.Join([]string{host, org, name}, "/"), nil
}

// RegistryHost returns the host and port of the registry that the API serves.
func RegistryHost(api string) (string, error) {
	u, err := url.Parse(api)
	if err != nil {
		return "", err
	}
	if u.Port() != "" {
		return u.Host, nil
	}
	// With a port, because a reference whose first part has neither a dot nor a port means Docker Hub.
	port, ok := map[string]string{"http": "80", "https": "443"}[u.Scheme]
	if !ok {
		return "", UsageErrorf("images are pushed over HTTP: give the address of the platform as --url http://HOST:PORT")
	}
	return net.JoinHostPort(u.Hostname(), port), nil
}

// ImageReference returns the reference by which Machines use an image that was pushed as ref. It has the
// platform's own name of its registry.
func ImageReference(ctx context.Context, at Endpoint, ref string) (string, error) {
	p := at.Connect()
	defer p.Close()
	health, err := p.Health(ctx)
	if err != nil || health.Registry == "" {
		return ref, err
	}
	_, path, _ := strings.Cut(ref, "/")
	return health.Registry + "/" + path, nil
}
