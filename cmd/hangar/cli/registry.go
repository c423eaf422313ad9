package cli

import (
	"context"
	"net"
	"net/url"
	"regexp"
	"strings"

	"github.com/hangar-platform/hangar/internal/ociimage"
)

// Registry is the registry that the API serves, and how to sign in to it.
func (e *Endpoint) Registry() ociimage.Registry {
	return ociimage.Registry{Plain: strings.HasPrefix(e.URL, "http:"), Roots: e.Roots, Token: e.Token}
}

// imageName is what may follow the organization in the built-in registry.
var imageName = regexp.MustCompile(`^[a-z0-9]+([._/-][a-z0-9]+)*(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?$`)

// RegistryReference names an image in the registry that the API serves.
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

// RegistryHost is the host and port of the registry that the API serves.
func RegistryHost(api string) (string, error) {
	u, err := url.Parse(api)
	if err != nil {
		return "", err
	}
	if u.Port() != "" {
		return u.Host, nil
	}
	// A reference whose first part has neither dot nor port means Docker Hub.
	port, ok := map[string]string{"http": "80", "https": "443"}[u.Scheme]
	if !ok {
		return "", UsageErrorf("images are pushed over HTTP: give the address of the platform as --url http://HOST:PORT")
	}
	return net.JoinHostPort(u.Hostname(), port), nil
}

// ImageReference is how Machines refer to an image that is pushed as ref: by the name that
// the platform's registry has.
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
