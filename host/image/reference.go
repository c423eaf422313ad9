package image

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/hangar-platform/hangar"
)

// Docker Hub has one name for users, one in the Docker client's settings and one for its registry.
const (
	hubForPeople   = "docker.io"
	hubForSettings = "index.docker.io"
	hubRegistry    = "registry-1.docker.io"
)

// reference is a parsed image reference.
type reference struct {
	text       string // as given
	repository name.Repository
	tag        string // "latest" if the reference has neither tag nor digest; may be empty if it has a digest
	digest     string // empty if not pinned
	short      string // the repository as given, if the reference has no registry
}

// The parts of a reference become parts of a URL, so only what the distribution specification allows
// is accepted.
var (
	digestPattern     = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	registryPattern   = regexp.MustCompile(`^(?:[a-zA-Z0-9](?:[a-zA-Z0-9._-]*[a-zA-Z0-9])?|\[[0-9a-fA-F:.]+\])(?::[0-9]{1,5})?$`)
	repositoryPattern = regexp.MustCompile(`^[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*$`)
)

// maxReference bounds the length of a reference, and maxRepository the full name of a repository, in
// bytes. For Docker Hub, package name checks the name as given, without "library/".
const (
	maxReference  = 1024
	maxRepository = 255
)

// parseReference parses [registry/]repository[:tag][@digest].
func parseReference(text string) (reference, error) {
	invalid := func(why string) (reference, error) {
		return reference{}, hangar.Errorf(hangar.CodeInvalid, hangar.ReasonBadConfig, "invalid image reference %.200q: %s", text, why)
	}
	if text == "" {
		return invalid("it is empty")
	}
	if len(text) > maxReference {
		return invalid("it is too long")
	}
	ref := reference{text: text}
	rest, digest, pinned := strings.Cut(text, "@")
	if pinned {
		if !digestPattern.MatchString(digest) {
			return invalid("the digest must be sha256 and 64 hexadecimal digits")
		}
		ref.digest = digest
	}
	if i := strings.LastIndexByte(rest, ':'); i > strings.LastIndexByte(rest, '/') {
		ref.tag = rest[i+1:]
		if _, err := name.NewTag(rest); err != nil {
			return invalid("the tag or the repository is not valid")
		}
		rest = rest[:i]
	} else if !pinned {
		ref.tag = name.DefaultTag
	}
	short := rest
	if host, path, ok := strings.Cut(rest, "/"); ok && (host == hubForPeople || host == hubRegistry) {
		rest, short = path, ""
	}
	repository, err := name.NewRepository(rest)
	if err != nil || !repositoryPattern.MatchString(repository.RepositoryStr()) || !registryPattern.MatchString(repository.RegistryStr()) {
		return invalid("the registry or the repository is not valid")
	}
	if len(repository.RepositoryStr()) > maxRepository {
		return invalid(fmt.Sprintf("the repository, at Docker Hub with library/ before it, must not be longer than %d bytes", maxRepository))
	}
	ref.repository = repository
	if repository.RegistryStr() == hubForSettings && !strings.HasPrefix(rest, hubForSettings+"/") {
		ref.short = short
	}
	return ref, nil
}

// registryName is the name of the registry in an ImageRef.
func (r reference) registryName() string {
	if n := r.repository.RegistryStr(); n != hubForSettings {
		return n
	}
	return hubRegistry
}

// source is the repository of the image with its registry, without tag and digest.
func (r reference) source() string { return r.registryName() + "/" + r.repository.RepositoryStr() }

func (r reference) resolved(digest string, labels map[string]string) hangar.ImageRef {
	return hangar.ImageRef{
		Registry: r.registryName(), Repository: r.repository.RepositoryStr(), Tag: r.tag, Digest: digest, Labels: labels,
	}
}

// identifier is the digest or tag in requests to the registry.
func (r reference) identifier() string {
	if r.digest != "" {
		return r.digest
	}
	return r.tag
}

// named reports whether names contains a registry, as host or host:port.
func named(registry string, names []string) bool {
	return slices.Contains(names, registry) || slices.Contains(names, hostOf(registry))
}

// plainAllowed reports whether a registry may be used without TLS, because the connection does not
// leave this host.
func plainAllowed(registry string) bool {
	host := hostOf(registry)
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && addr.IsLoopback()
}

func hostOf(registry string) string {
	if host, _, err := net.SplitHostPort(registry); err == nil {
		return host
	}
	return registry
}
