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
	u, err := url.Parse(api)
	if err != nil {
		return "", err
	}
	host := u.Host
	if u.Port() == "" {
		// A reference whose first part has neither dot nor port means Docker Hub.
		port, ok := map[string]string{"http": "80", "https": "443"}[u.Scheme]
		if !ok {
			return "", UsageErrorf("images are pushed over HTTP: give the address of the platform as --url http://HOST:PORT")
		}
		host = net.JoinHostPort(u.Hostname(), port)
	}
	if !strings.Contains(name, ":") {
		name += ":latest"
	}
	return strings.Join([]string{host, org, name}, "/"), nil
}

// ImageReference is how Machines refer to an image that is pushed as ref: by the name that
// the platform's registry has, or on the server itself by the address of its API.
func ImageReference(ctx context.Context, at Endpoint, ref string) (string, error) {
	if u, err := url.Parse(at.URL); err != nil || u.Scheme == "http" && IsLoopback(u.Hostname()) {
		return ref, err
	}
	p := at.Connect()
	defer p.Close()
	health, err := p.Health(ctx)
	if err != nil || health.Registry == "" {
		return ref, err
	}
	_, path, _ := strings.Cut(ref, "/")
	return health.Registry + "/" + path, nil
}
