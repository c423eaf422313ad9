package image

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/image/registry"
)

// Resolve returns the image that a reference names now, without transferring layers. It answers from
// memory if the reference has a digest and the held image was pulled for the same organization from
// that repository. Errors are hangar.CodeInvalid with ReasonBadConfig, ReasonImageNotFound,
// ReasonBadImage or ReasonRegistryNotAllowed, or hangar.CodeUnavailable. With hangar.CodeUnavailable,
// Resolve also returns the parts that the reference itself names.
func (s *Store) Resolve(ctx context.Context, who Puller, ref string) (hangar.ImageRef, error) {
	found, err := s.resolve(ctx, who, ref)
	return found.Ref, err
}

// Inspect is Resolve, with the size of the image.
func (s *Store) Inspect(ctx context.Context, who Puller, ref string) (*hangar.ResolvedImage, error) {
	found, err := s.resolve(ctx, who, ref)
	if err != nil {
		return nil, err
	}
	return &found, nil
}

func (s *Store) resolve(ctx context.Context, who Puller, ref string) (hangar.ResolvedImage, error) {
	parsed, err := parseReference(ref)
	if err != nil {
		return hangar.ResolvedImage{}, err
	}
	if parsed, err = s.locate(ctx, who, parsed); err != nil {
		return hangar.ResolvedImage{Ref: parsed.resolved("", nil)}, err
	}
	if img := s.held(who, parsed, parsed.digest); img != nil {
		return hangar.ResolvedImage{Ref: img.Ref, Size: img.Size}, nil
	}
	p, img, err := s.plan(ctx, who, parsed)
	if err != nil {
		return hangar.ResolvedImage{Ref: parsed.resolved("", nil)}, err
	}
	if img != nil {
		return hangar.ResolvedImage{Ref: img.Ref, Size: img.Size}, nil
	}
	found := hangar.ResolvedImage{Ref: parsed.resolved(p.digest, p.config.Config.Labels)}
	for _, l := range p.layers {
		found.Size += l.size
	}
	return found, nil
}

// held returns the held image with a digest, if the same organization pulled it from the repository
// of ref: knowing a digest does not replace a login or a transfer.
func (s *Store) held(who Puller, ref reference, digest string) *Image {
	if digest == "" {
		return nil
	}
	source, ok := s.sourceOf(who, ref)
	if !ok {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.records[digest]
	if !ok || !slices.Contains(r.Sources, source) {
		return nil
	}
	s.touch(r)
	return s.image(r, ref.resolved(digest, nil))
}

// plan is an image as its registry describes it: checked, but not transferred yet.
type plan struct {
	who    Puller
	ref    reference
	origin string // see Store.origin
	source source
	digest string // what the reference resolved to: the digest of the index, if there is one
	config v1.ConfigFile
	layers []plannedLayer // lowest first
}

type plannedLayer struct {
	digest string // of the compressed blob
	diffID string // of the unpacked layer
	size   int64  // of the compressed blob
}

// plan requests an image from the registry. If the host holds it already, plan returns the image
// instead.
func (s *Store) plan(ctx context.Context, who Puller, ref reference) (*plan, *Image, error) {
	release, err := s.resolves.take(ctx, who.Org)
	if err != nil {
		return nil, nil, err
	}
	defer release()
	bounded, cancel := context.WithTimeout(who.context(ctx), s.opts.Limits.ResolveTime)
	defer cancel()
	p, img, err := s.describe(bounded, who, ref)
	switch {
	case err == nil:
		return p, img, nil
	case ctx.Err() != nil:
		return nil, nil, ctx.Err()
	default:
		return nil, nil, about("failed to get manifest", ref, err)
	}
}

// about adds the failed step and the reference to an error. Clients know the text "failed to get
// manifest <ref>".
func about(failed string, ref reference, err error) error {
	var e *hangar.Error
	if !errors.As(err, &e) {
		return hangar.Errorf(hangar.CodeInternal, "", "%s %s: %w", failed, ref.text, err)
	}
	return hangar.Errorf(e.Code, e.Reason, "%s %s: %w", failed, ref.text, err)
}

func (s *Store) describe(ctx context.Context, who Puller, ref reference) (*plan, *Image, error) {
	src, err := s.open(ctx, who, ref)
	if err != nil {
		return nil, nil, err
	}
	origin, _ := s.origin(who, ref) // cannot fail: open has checked it
	p := &plan{who: who, ref: ref, origin: origin, source: src, digest: ref.digest}
	if p.digest == "" {
		// Not every registry supports this; the request for the manifest then decides.
		if p.digest, err = src.digest(ctx, ref.tag); err != nil && hangar.ReasonOf(err) == hangar.ReasonImageNotFound {
			return nil, nil, err
		}
		if img := s.held(who, ref, p.digest); img != nil {
			return nil, img, nil
		}
	}
	raw, err := s.manifest(ctx, src, cmp.Or(p.digest, ref.identifier()))
	if err != nil {
		return nil, nil, err
	}
	p.digest = registry.Digest(raw)
	m, err := s.choose(ctx, src, raw)
	if err != nil {
		return nil, nil, err
	}
	if err := s.readConfig(ctx, p, m); err != nil {
		return nil, nil, err
	}
	return p, nil, nil
}

// manifest reads a manifest, and verifies it if identifier is a digest.
func (s *Store) manifest(ctx context.Context, src source, identifier string) ([]byte, error) {
	raw, err := src.manifest(ctx, identifier, s.opts.Limits.ManifestBytes)
	if err != nil {
		return nil, err
	}
	if digestPattern.MatchString(identifier) && registry.Digest(raw) != identifier {
		return nil, badImage("manifest has the digest %s, not %s", registry.Digest(raw), identifier)
	}
	return raw, nil
}

// manifest is an image manifest or an index. Its fields decide which one, because media types are
// optional in one format and wrong in many registries.
type manifest struct {
	SchemaVersion int             `json:"schemaVersion"`
	MediaType     string          `json:"mediaType"`
	Config        *v1.Descriptor  `json:"config"`
	Layers        []v1.Descriptor `json:"layers"`
	Manifests     []v1.Descriptor `json:"manifests"`
}

func parseManifest(raw []byte) (manifest, error) {
	var m manifest
	if err := json.Unmarshal(raw, &m); err != nil {
		return m, badImage("manifest is damaged")
	}
	if m.SchemaVersion != 2 {
		return m, badImage("manifests of schema version %d are not supported", m.SchemaVersion)
	}
	if (m.Config == nil) == (m.Manifests == nil) {
		return m, badImage("manifest is neither that of an image nor an index")
	}
	descriptors := slices.Concat(m.Layers, m.Manifests)
	if m.Config != nil {
		descriptors = append(descriptors, *m.Config)
	}
	for _, d := range descriptors {
		if !digestPattern.MatchString(d.Digest.String()) || d.Size < 0 {
			return m, badImage("manifest names something by %.100q", d.Digest)
		}
	}
	return m, nil
}

// maxIndexDepth bounds the nesting of indexes.
const maxIndexDepth = 3

// choose follows indexes to the manifest for this host's platform.
func (s *Store) choose(ctx context.Context, src source, raw []byte) (manifest, error) {
	for range maxIndexDepth {
		m, err := parseManifest(raw)
		if err != nil || m.Config != nil {
			return m, err
		}
		digest, err := s.pick(m.Manifests)
		if err != nil {
			return m, err
		}
		if raw, err = s.manifest(ctx, src, digest); err != nil {
			return m, err
		}
	}
	return manifest{}, badImage("more than %d indexes lie in one another", maxIndexDepth)
}

func (s *Store) pick(list []v1.Descriptor) (string, error) {
	var offered []string
	for _, d := range list {
		switch {
		case d.Platform == nil && len(list) == 1:
			return d.Digest.String(), nil
		case d.Platform == nil:
		case d.Platform.Satisfies(s.opts.Platform):
			return d.Digest.String(), nil
		case d.Platform.OS != "unknown":
			offered = append(offered, d.Platform.String())
		}
	}
	if len(offered) > 20 {
		offered = append(offered[:20], "…")
	}
	return "", badImage("image is not made for %s, only for: %s", s.opts.Platform, strings.Join(offered, ", "))
}

// maxConfigBytes bounds a config, of which the host keeps a part in memory as long as it holds the image.
const maxConfigBytes = 1 << 20

// readConfig reads the config and completes the plan.
func (s *Store) readConfig(ctx context.Context, p *plan, m manifest) error {
	switch m.Config.MediaType {
	case "application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json", "":
	default:
		return badImage("it is not an image but a %.100q", m.Config.MediaType)
	}
	if len(m.Layers) > s.opts.Limits.Layers {
		return badImage("image has %d layers; at most %d are allowed", len(m.Layers), s.opts.Limits.Layers)
	}
	raw, err := readBlob(ctx, p.source, m.Config.Digest.String(), m.Config.Size, min(maxConfigBytes, s.opts.Limits.ManifestBytes))
	if err != nil {
		return err
	}
	config, err := v1.ParseConfigFile(bytes.NewReader(raw))
	if err != nil {
		return badImage("config is damaged")
	}
	p.config = *config
	have := v1.Platform{OS: cmp.Or(config.OS, s.opts.Platform.OS), Architecture: cmp.Or(config.Architecture, s.opts.Platform.Architecture)}
	if have.OS != s.opts.Platform.OS || have.Architecture != s.opts.Platform.Architecture {
		return badImage("image is made for %.100s, not for %s", have, s.opts.Platform)
	}
	if len(config.RootFS.DiffIDs) != len(m.Layers) {
		return badImage("image has %d layers, its config %d", len(m.Layers), len(config.RootFS.DiffIDs))
	}
	for i, l := range m.Layers {
		diffID := config.RootFS.DiffIDs[i].String()
		if !digestPattern.MatchString(diffID) {
			return badImage("config names a layer by %.100q", diffID)
		}
		if l.Size > s.opts.Limits.BlobBytes {
			return badImage("layer %s has %d bytes; at most %d are allowed", l.Digest, l.Size, s.opts.Limits.BlobBytes)
		}
		if t := string(l.MediaType); t != "" && !strings.Contains(t, "tar") || strings.Contains(t, "encrypted") {
			return badImage("layers of the type %.100q are not supported", t)
		}
		p.layers = append(p.layers, plannedLayer{l.Digest.String(), diffID, l.Size})
	}
	return nil
}
