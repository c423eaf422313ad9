package registry

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hangar-platform/hangar/host/image/durable"
)

func (h *handler) getBlob(w http.ResponseWriter, req *http.Request, c call) error {
	if !validDigest(c.reference) {
		return refuse(http.StatusBadRequest, "DIGEST_INVALID", "not a sha256 digest: %.100q", c.reference)
	}
	f, err := h.r.OpenBlob(c.repository, c.reference)
	if errors.Is(err, ErrNotFound) {
		return blobUnknown(c)
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if req.Method == http.MethodHead {
		// A client that asks is about to push a manifest that counts on the answer.
		h.r.mu.RLock()
		err := h.r.linkBlob(c.repository, c.reference)
		h.r.mu.RUnlock()
		if err != nil {
			return err
		}
	}
	w.Header().Set(headerDigest, c.reference)
	w.Header().Set("Etag", strconv.Quote(c.reference))
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, req, "", time.Time{}, f)
	return nil
}

func (h *handler) deleteBlob(w http.ResponseWriter, _ *http.Request, c call) error {
	if !validDigest(c.reference) {
		return refuse(http.StatusBadRequest, "DIGEST_INVALID", "not a sha256 digest: %.100q", c.reference)
	}
	h.r.mu.Lock()
	defer h.r.mu.Unlock()
	name := h.r.repoPath(c.repository, "blobs", hexOf(c.reference))
	err := os.Remove(name)
	if errors.Is(err, fs.ErrNotExist) {
		return blobUnknown(c)
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// upload is a blob that is arriving. Its file is what is durable of it; the hash
// saves reading the file again at the end.
type upload struct {
	mu     sync.Mutex
	hash   hash.Hash
	hashed int64 // how much of the file the hash has seen
}

func (h *handler) startUpload(w http.ResponseWriter, req *http.Request, c call) error {
	q := req.URL.Query()
	if digest, from := q.Get("mount"), q.Get("from"); validDigest(digest) && validName(from) && h.mayRead(req, from) {
		mounted, err := h.mount(c.repository, from, digest)
		if err != nil {
			return err
		}
		if mounted {
			return created(w, c.repository, "blobs", digest)
		}
	}
	var raw [16]byte
	_, _ = rand.Read(raw[:]) // never fails: crypto/rand.Read aborts the program instead
	c.reference = hex.EncodeToString(raw[:])
	if err := durable.MkdirAll(filepath.Dir(h.r.uploadPath(c)), 0o700); err != nil {
		return err
	}
	f, err := h.r.openUpload(c, os.O_CREATE|os.O_EXCL|os.O_WRONLY)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
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
		return false, nil // what cannot be mounted is uploaded
	}
	err := h.r.linkBlob(repository, digest)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

func (h *handler) uploadStatus(w http.ResponseWriter, _ *http.Request, c call) error {
	if !uploadPattern.MatchString(c.reference) {
		return uploadUnknown()
	}
	fi, err := h.r.statUpload(c)
	if err != nil {
		return uploadError(err)
	}
	h.uploadHeaders(w, c, fi.Size())
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (h *handler) cancelUpload(w http.ResponseWriter, _ *http.Request, c call) error {
	done, err := h.r.lockUpload(c)
	if err != nil {
		return err
	}
	defer done()
	if err := h.r.removeUpload(c); err != nil {
		return uploadError(err)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (h *handler) appendUpload(w http.ResponseWriter, req *http.Request, c call) error {
	done, err := h.r.lockUpload(c)
	if err != nil {
		return err
	}
	defer done()
	size, err := h.r.receive(req, c)
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
	done, err := h.r.lockUpload(c)
	if err != nil {
		return err
	}
	defer done()
	if _, err := h.r.receive(req, c); err != nil {
		return err
	}
	if err := h.r.publish(c, digest); err != nil {
		return err
	}
	return created(w, c.repository, "blobs", digest)
}

// receive appends the body of a request to an upload and answers its size. What
// arrived before a connection broke is kept: the client may continue there.
func (r *Registry) receive(req *http.Request, c call) (int64, error) {
	f, err := r.openUpload(c, os.O_RDWR)
	if err != nil {
		return 0, uploadError(err)
	}
	defer func() { _ = f.Close() }()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, err
	}
	if s := req.Header.Get("Content-Range"); s != "" {
		first, _, ok := strings.Cut(strings.TrimPrefix(s, "bytes "), "-")
		start, err := strconv.ParseInt(first, 10, 64)
		if !ok || err != nil || start != size {
			e := refuse(http.StatusRequestedRangeNotSatisfiable, "BLOB_UPLOAD_INVALID", "the upload continues at byte %d", size)
			e.headers = map[string]string{"Range": rangeOf(size)}
			return 0, e
		}
	}
	room := r.opts.BlobBytes - size
	if req.ContentLength > room {
		return 0, refuse(http.StatusRequestEntityTooLarge, "SIZE_INVALID", "a blob has at most %d bytes", r.opts.BlobBytes)
	}
	u := r.upload(c.reference)
	if u.hashed != size {
		u.hash, u.hashed = sha256.New(), 0
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return 0, err
		}
		if _, err := io.CopyN(u.hash, f, size); err != nil {
			return 0, err
		}
		u.hashed = size
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{io.MultiWriter(f, u.hash)}, io.LimitReader(req.Body, room+1), make([]byte, 256<<10))
	u.hashed += n
	if err != nil {
		u.hashed = -1 // what the file has of the last write is not known
		return 0, err
	}
	if n > room {
		if err := r.removeUpload(c); err != nil {
			return 0, err
		}
		return 0, refuse(http.StatusRequestEntityTooLarge, "SIZE_INVALID", "a blob has at most %d bytes", r.opts.BlobBytes)
	}
	return size + n, nil
}

// publish gives a complete upload its name, if it is what its digest says.
func (r *Registry) publish(c call, digest string) error {
	u := r.upload(c.reference)
	if got := "sha256:" + hex.EncodeToString(u.hash.Sum(nil)); got != digest {
		if err := r.removeUpload(c); err != nil {
			return err
		}
		return refuse(http.StatusBadRequest, "DIGEST_INVALID", "the blob has the digest %s", got)
	}
	f, err := r.openUpload(c, os.O_RDWR)
	if err != nil {
		return uploadError(err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if err := durable.Rename(r.uploadPath(c), r.blobPath(digest)); err != nil {
		return err
	}
	r.forgetUpload(c.reference)
	return r.linkBlob(c.repository, digest)
}

// lockUpload gives one request at a time an upload.
func (r *Registry) lockUpload(c call) (unlock func(), err error) {
	if !uploadPattern.MatchString(c.reference) {
		return nil, uploadUnknown()
	}
	if _, err := r.statUpload(c); err != nil {
		return nil, uploadError(err)
	}
	u := r.upload(c.reference)
	if !u.mu.TryLock() {
		return nil, refuse(http.StatusConflict, "BLOB_UPLOAD_INVALID", "another request writes to this upload")
	}
	return u.mu.Unlock, nil
}

func (r *Registry) upload(id string) *upload {
	r.uploadsMu.Lock()
	defer r.uploadsMu.Unlock()
	u, ok := r.uploads[id]
	if !ok {
		u = &upload{hash: sha256.New()}
		r.uploads[id] = u
	}
	return u
}

func (r *Registry) forgetUpload(id string) {
	r.uploadsMu.Lock()
	defer r.uploadsMu.Unlock()
	delete(r.uploads, id)
}

// The three that follow are given names that serve, and ids that lockUpload or
// uploadStatus, have matched against their patterns.

func (r *Registry) openUpload(c call, flags int) (*os.File, error) {
	return os.OpenFile(r.uploadPath(c), flags, 0o600) //nolint:gosec // see above
}

func (r *Registry) statUpload(c call) (fs.FileInfo, error) {
	return os.Stat(r.uploadPath(c)) //nolint:gosec // see above
}

func (r *Registry) removeUpload(c call) error {
	if err := os.Remove(r.uploadPath(c)); err != nil { //nolint:gosec // see above
		return err
	}
	r.forgetUpload(c.reference)
	return nil
}

func (r *Registry) uploadPath(c call) string { return r.repoPath(c.repository, "uploads", c.reference) }

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

func uploadUnknown() error {
	return refuse(http.StatusNotFound, "BLOB_UPLOAD_UNKNOWN", "no such upload")
}

func uploadError(err error) error {
	if errors.Is(notFound(err), ErrNotFound) {
		return uploadUnknown()
	}
	return err
}
