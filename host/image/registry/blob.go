package registry

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/hangar-platform/hangar"
)

func (h *handler) getBlob(w http.ResponseWriter, req *http.Request, c call) error {
	if !validDigest(c.reference) {
		return refuse(http.StatusBadRequest, "DIGEST_INVALID", "not a sha256 digest: %.100q", c.reference)
	}
	blob, err := h.r.Blob(req.Context(), c.kept, c.reference, c.limitKey)
	away := errors.Is(err, ErrAway) && req.Method == http.MethodHead // after a HEAD, the client can push the blob to this host
	if errors.Is(err, ErrNotFound) || away {
		return blobUnknown(c)
	}
	if err != nil {
		return c.unavailable(err)
	}
	defer func() { _ = blob.Close() }()
	w.Header().Set(headerDigest, c.reference)
	w.Header().Set("Etag", strconv.Quote(c.reference))
	w.Header().Set("Content-Type", "application/octet-stream")
	if !blob.Local() {
		return h.sendRemote(w, req, blob)
	}
	if req.Method == http.MethodHead {
		// After a HEAD, a client may push a manifest that relies on the blob.
		h.r.mu.RLock()
		err := h.r.linkBlob(c.kept, c.reference)
		h.r.mu.RUnlock()
		if err != nil {
			return err
		}
	}
	http.ServeContent(w, req, "", time.Time{}, blob.file)
	return nil
}

// sendRemote forwards a blob from another host. If the transfer breaks, the response breaks.
func (h *handler) sendRemote(w http.ResponseWriter, req *http.Request, blob *Blob) error {
	w.Header().Set("Content-Length", strconv.FormatInt(blob.Size, 10))
	w.WriteHeader(http.StatusOK)
	if req.Method == http.MethodHead {
		return nil
	}
	if _, err := io.CopyBuffer(struct{ io.Writer }{w}, blob, make([]byte, 64<<10)); err != nil {
		panic(http.ErrAbortHandler)
	}
	return nil
}

func (h *handler) deleteBlob(w http.ResponseWriter, req *http.Request, c call) error {
	if !validDigest(c.reference) {
		return refuse(http.StatusBadRequest, "DIGEST_INVALID", "not a sha256 digest: %.100q", c.reference)
	}
	holders, err := h.r.catalog.Holders(req.Context(), c.kept)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(holders, func(host hangar.HostID) bool { return host != h.r.opts.Host }) {
		return refuse(http.StatusMethodNotAllowed, "UNSUPPORTED", "several servers have blobs of %s; delete its manifests, and the blobs go with them", c.repository)
	}
	h.r.mu.Lock()
	defer h.r.mu.Unlock()
	err = os.Remove(h.r.repoPath(c.kept, "blobs", hexOf(c.reference)))
	if errors.Is(err, fs.ErrNotExist) {
		return blobUnknown(c)
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}

func (h *handler) startUpload(w http.ResponseWriter, req *http.Request, c call) error {
	q := req.URL.Query()
	if digest, from := q.Get("mount"), q.Get("from"); validDigest(digest) && validName(from) {
		if at, ok := h.readable(req, from); ok {
			mounted, err := h.mount(c.kept, at, digest)
			if err != nil {
				return err
			}
			if mounted {
				return created(w, c.repository, "blobs", digest)
			}
		}
	}
	id, err := h.r.beginUpload(c.kept)
	if err != nil {
		return err
	}
	c.reference = id
	if q.Get("digest") != "" {
		return h.finishUpload(w, req, c)
	}
	h.uploadHeaders(w, c, 0)
	w.WriteHeader(http.StatusAccepted)
	return nil
}

func (h *handler) mount(repository, from, digest string) (bool, error) {
	h.r.mu.RLock()
	defer h.r.mu.RUnlock()
	if _, err := os.Stat(h.r.repoPath(from, "blobs", hexOf(digest))); err != nil {
		return false, nil // a blob that cannot be mounted is uploaded
	}
	err := h.r.linkBlob(repository, digest)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

func (h *handler) uploadStatus(w http.ResponseWriter, _ *http.Request, c call) error {
	u, err := h.r.findUpload(c)
	if err != nil {
		return err
	}
	h.uploadHeaders(w, c, h.r.uploadSize(u))
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (h *handler) cancelUpload(w http.ResponseWriter, _ *http.Request, c call) error {
	u, err := h.r.lockUpload(c)
	if err != nil {
		return err
	}
	defer u.mu.Unlock()
	if err := h.r.removeUpload(u); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (h *handler) appendUpload(w http.ResponseWriter, req *http.Request, c call) error {
	u, err := h.r.lockUpload(c)
	if err != nil {
		return err
	}
	defer u.mu.Unlock()
	size, err := h.r.receive(req, u)
	if err != nil {
		return err
	}
	h.uploadHeaders(w, c, size)
	w.WriteHeader(http.StatusAccepted)
	return nil
}

func (h *handler) finishUpload(w http.ResponseWriter, req *http.Request, c call) error {
	digest := req.URL.Query().Get("digest")
	if !validDigest(digest) {
		return refuse(http.StatusBadRequest, "DIGEST_INVALID", "not a sha256 digest: %.100q", digest)
	}
	u, err := h.r.lockUpload(c)
	if err != nil {
		return err
	}
	defer u.mu.Unlock()
	if _, err := h.r.receive(req, u); err != nil {
		return err
	}
	if err := h.r.publish(u, digest); err != nil {
		return err
	}
	return created(w, c.repository, "blobs", digest)
}

func (h *handler) uploadHeaders(w http.ResponseWriter, c call, size int64) {
	w.Header().Set("Location", fmt.Sprintf("/v2/%s/blobs/uploads/%s", c.repository, c.reference))
	w.Header().Set("Range", rangeOf(size))
	w.Header().Set("Docker-Upload-Uuid", c.reference)
	w.Header().Set("Content-Length", "0")
}

func rangeOf(size int64) string { return fmt.Sprintf("0-%d", max(size-1, 0)) }

func created(w http.ResponseWriter, repository, kind, digest string) error {
	w.Header().Set("Location", fmt.Sprintf("/v2/%s/%s/%s", repository, kind, digest))
	w.Header().Set(headerDigest, digest)
	w.Header().Set("Content-Length", "0")
	w.WriteHeader(http.StatusCreated)
	return nil
}
