package registry

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/durable"
)

const (
	typeOCIManifest    = "application/vnd.oci.image.manifest.v1+json"
	typeOCIIndex       = "application/vnd.oci.image.index.v1+json"
	typeDockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	typeDockerList     = "application/vnd.docker.distribution.manifest.list.v2+json"
)

// descriptor is a reference from a manifest to a blob or manifest.
type descriptor struct {
	MediaType    string            `json:"mediaType"`
	Digest       string            `json:"digest"`
	Size         int64             `json:"size"`
	URLs         []string          `json:"urls,omitempty"`
	ArtifactType string            `json:"artifactType,omitempty"`
	Annotations  map[string]string `json:"annotations,omitempty"`
}

// foreign reports whether a layer is not kept in the registry.
func (d descriptor) foreign() bool {
	return len(d.URLs) > 0 || strings.Contains(d.MediaType, "nondistributable") || strings.Contains(d.MediaType, ".foreign.")
}

// document is the part of a manifest or index that the registry reads.
type document struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType"`
	ArtifactType  string            `json:"artifactType"`
	Config        *descriptor       `json:"config"`
	Layers        []descriptor      `json:"layers"`
	Manifests     []descriptor      `json:"manifests"`
	Subject       *descriptor       `json:"subject"`
	Annotations   map[string]string `json:"annotations"`
}

// blobs returns the digests of the blobs that the document needs, without manifests.
func (d document) blobs() []string {
	var digests []string
	if d.Config != nil {
		digests = append(digests, d.Config.Digest)
	}
	for _, l := range d.Layers {
		if !l.foreign() {
			digests = append(digests, l.Digest)
		}
	}
	return digests
}

// readDocument parses a manifest that was verified when it was pushed.
func readDocument(raw []byte) (d document, err error) {
	return d, json.Unmarshal(raw, &d)
}

// parseManifest verifies a manifest from a client.
func parseManifest(raw []byte, contentType string) (document, string, error) {
	var d document
	invalid := func(format string, args ...any) (document, string, error) {
		return document{}, "", refuse(http.StatusBadRequest, "MANIFEST_INVALID", format, args...)
	}
	if err := json.Unmarshal(raw, &d); err != nil {
		return invalid("the manifest is not valid JSON: %v", err)
	}
	mediaType, _, _ := strings.Cut(contentType, ";")
	if mediaType = strings.TrimSpace(mediaType); mediaType == "" || mediaType == "application/json" {
		mediaType = d.MediaType
	}
	if d.MediaType != "" && d.MediaType != mediaType {
		return invalid("the manifest says it is a %.100q, the request that it is a %.100q", d.MediaType, mediaType)
	}
	if d.SchemaVersion != 2 {
		return invalid("manifests of schema version %d are not supported", d.SchemaVersion)
	}
	switch mediaType {
	case typeOCIManifest, typeDockerManifest:
		if d.Config == nil || len(d.Manifests) > 0 {
			return invalid("an image manifest has a config and no manifests")
		}
	case typeOCIIndex, typeDockerList:
		if d.Config != nil || len(d.Layers) > 0 {
			return invalid("an index has neither config nor layers")
		}
	default:
		return invalid("media type %.100q is not supported", mediaType)
	}
	named := append(d.blobs(), digestsOf(d.Manifests)...)
	if d.Subject != nil {
		named = append(named, d.Subject.Digest)
	}
	for _, digest := range named {
		if !validDigest(digest) {
			return invalid("not a sha256 digest: %.100q", digest)
		}
	}
	return d, mediaType, nil
}

func digestsOf(list []descriptor) []string {
	digests := make([]string, len(list))
	for i, d := range list {
		digests[i] = d.Digest
	}
	return digests
}

func (h *handler) getManifest(w http.ResponseWriter, req *http.Request, c call) error {
	known, err := h.r.Lookup(req.Context(), c.kept, c.reference)
	var m Manifest
	if err == nil {
		m, err = h.r.Manifest(req.Context(), c.kept, known.Digest, c.limitKey)
	}
	if req.Method == http.MethodHead && (errors.Is(err, ErrAway) || errors.Is(err, ErrGone)) {
		return manifestUnknown(c) // after a HEAD, the client can push the manifest to this host
	}
	switch {
	case errors.Is(err, ErrNotFound):
		if _, err := os.Stat(h.r.repoPath(c.kept)); err != nil {
			return h.unknown(req, c)
		}
		return manifestUnknown(c)
	case errors.Is(err, ErrGone):
		return refuse(http.StatusNotFound, "MANIFEST_UNKNOWN", "manifest %.128q of %s: %s", c.reference, c.repository, hangar.MessageOf(err))
	case err != nil:
		return c.unavailable(err)
	}
	w.Header().Set(headerDigest, known.Digest)
	w.Header().Set("Etag", strconv.Quote(known.Digest))
	w.Header().Set("Content-Type", known.MediaType)
	w.Header().Set("Content-Length", strconv.Itoa(len(m.Raw)))
	w.WriteHeader(http.StatusOK)
	if req.Method != http.MethodHead {
		_, _ = w.Write(m.Raw) // there is no caller left to report an error to
	}
	return nil
}

// unknown returns the error for a missing manifest or blob in a repository that has no files on
// this host.
func (h *handler) unknown(req *http.Request, c call) error {
	all, err := h.r.catalog.Repository(req.Context(), c.kept)
	if err != nil {
		return err
	}
	if len(all.Manifests) == 0 {
		return nameUnknown(c.repository)
	}
	return manifestUnknown(c)
}

func (h *handler) putManifest(w http.ResponseWriter, req *http.Request, c call) error {
	raw, err := io.ReadAll(io.LimitReader(req.Body, h.r.opts.ManifestBytes+1))
	if err != nil {
		return err
	}
	if int64(len(raw)) > h.r.opts.ManifestBytes {
		return refuse(http.StatusRequestEntityTooLarge, "SIZE_INVALID", "a manifest has at most %d bytes", h.r.opts.ManifestBytes)
	}
	d, mediaType, err := parseManifest(raw, req.Header.Get("Content-Type"))
	if err != nil {
		return err
	}
	digest := Digest(raw)
	tag := ""
	switch {
	case c.reference == digest:
	case validDigest(c.reference):
		return refuse(http.StatusBadRequest, "DIGEST_INVALID", "the manifest has the digest %s", digest)
	case tagPattern.MatchString(c.reference):
		tag = c.reference
	default:
		return refuse(http.StatusBadRequest, "TAG_INVALID", "not a tag: %.128q", c.reference)
	}
	a := h.r.newAdoption(c)
	defer a.end()
	if err := a.adopt(req.Context(), d, 0); err != nil {
		return c.unavailable(err)
	}
	if err := h.r.keepManifest(req.Context(), c, tag, digest, mediaType, raw, d); err != nil {
		return err
	}
	if d.Subject != nil {
		w.Header().Set("Oci-Subject", d.Subject.Digest)
	}
	return created(w, c.repository, "manifests", digest)
}

// keepManifest stores a manifest, and tags it unless tag is empty.
func (r *Registry) keepManifest(ctx context.Context, c call, tag, digest, mediaType string, raw []byte, d document) error {
	m := hangar.PushedManifest{Digest: digest, MediaType: mediaType, Size: int64(len(raw)), ArtifactType: d.ArtifactType, Annotations: d.Annotations}
	if d.Subject != nil {
		m.Subject = d.Subject.Digest
	}
	if m.ArtifactType == "" && d.Config != nil {
		m.ArtifactType = d.Config.MediaType
	}
	defer r.pushes.begin(c.kept, digest)()
	if err := r.writeManifest(c, m, raw, d); err != nil {
		return err
	}
	return r.catalog.Push(ctx, c.kept, m, tag)
}

// writeManifest writes a manifest whose blobs are on this host.
func (r *Registry) writeManifest(c call, m hangar.PushedManifest, raw []byte, d document) error {
	r.mu.RLock()
	defer r.mu.RUnlock()
	repository := c.kept
	if err := r.alive(repository); err != nil {
		return err
	}
	for _, b := range d.blobs() {
		if _, err := os.Stat(r.repoPath(repository, "blobs", hexOf(b))); err != nil {
			return refuse(http.StatusBadRequest, "MANIFEST_BLOB_UNKNOWN", "the manifest names %s, which %s does not have", b, c.repository)
		}
	}
	for _, m := range digestsOf(d.Manifests) {
		if _, err := os.Stat(r.repoPath(repository, "manifests", hexOf(m))); err != nil {
			return refuse(http.StatusBadRequest, "MANIFEST_BLOB_UNKNOWN", "the index names %s, which %s does not have", m, c.repository)
		}
	}
	if err := durable.WriteFileVia(r.path("tmp"), r.blobPath(m.Digest), raw, 0o600); err != nil {
		return err
	}
	return r.writeLink(repository, m)
}

func (h *handler) deleteManifest(w http.ResponseWriter, req *http.Request, c call) error {
	err := h.r.catalog.Delete(req.Context(), c.kept, c.reference)
	if hangar.CodeOf(err) == hangar.CodeNotFound {
		return manifestUnknown(c)
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}

func (r *Registry) remove(name string) error {
	if err := os.Remove(name); err != nil {
		return notFound(err)
	}
	return durable.SyncDir(filepath.Dir(name))
}

func (h *handler) referrers(w http.ResponseWriter, req *http.Request, c call) error {
	if !validDigest(c.reference) {
		return refuse(http.StatusBadRequest, "DIGEST_INVALID", "not a sha256 digest: %.100q", c.reference)
	}
	want := req.URL.Query().Get("artifactType")
	all, err := h.r.catalog.Repository(req.Context(), c.kept)
	if err != nil {
		return err
	}
	found := []descriptor{}
	for _, digest := range slices.Sorted(maps.Keys(all.Manifests)) {
		m := all.Manifests[digest]
		if m.Subject == c.reference && (want == "" || want == m.ArtifactType) {
			found = append(found, descriptor{MediaType: m.MediaType, Digest: digest, Size: m.Size, ArtifactType: m.ArtifactType, Annotations: m.Annotations})
		}
	}
	if want != "" {
		w.Header().Set("Oci-Filters-Applied", "artifactType")
	}
	w.Header().Set("Content-Type", typeOCIIndex)
	return writeJSON(w, http.StatusOK, map[string]any{"schemaVersion": 2, "mediaType": typeOCIIndex, "manifests": found})
}

// older reports whether a file was last modified at least age ago.
func older(fi fs.FileInfo, age time.Duration) bool { return time.Since(fi.ModTime()) > age }
