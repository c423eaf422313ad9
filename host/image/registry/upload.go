package registry

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/diskspace"
	"github.com/hangar-platform/hangar/internal/durable"
)

// upload is a blob that is arriving. Only its file is durable; the hash avoids reading the file again
// at the end.
type upload struct {
	id         string
	repository string // where it is stored

	mu     sync.Mutex // locked by the request that writes
	hash   hash.Hash
	hashed int64 // bytes of the file that the hash covers

	size int64 // of the file; guarded by uploadsMu
}

// uploadSum is the total of an organization's unfinished uploads.
type uploadSum struct {
	count int
	bytes int64
}

var uploadPattern = regexp.MustCompile(`^[0-9a-f]{32}$`)

// rootOf returns the part of a repository's path that names its organization.
func rootOf(repository string) string {
	parts := strings.SplitN(repository, "/", 3)
	if len(parts) == 3 {
		return parts[0] + "/" + parts[1]
	}
	return parts[0]
}

// loadUploads registers the uploads of a repository, except for abandoned ones.
func (r *Registry) loadUploads(repository string) error {
	entries, err := os.ReadDir(r.repoPath(repository, "uploads"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		fi, err := e.Info()
		if err != nil {
			return err
		}
		if older(fi, r.opts.UploadAge) || !uploadPattern.MatchString(e.Name()) {
			if err := os.Remove(r.repoPath(repository, "uploads", e.Name())); err != nil {
				return err
			}
			continue
		}
		u := &upload{id: e.Name(), repository: repository, hash: sha256.New(), size: fi.Size()}
		r.uploadsMu.Lock()
		r.uploads[u.id] = u
		r.count(u, 1, u.size)
		r.uploadsMu.Unlock()
	}
	return nil
}

// count updates the totals of an upload's organization; the caller holds uploadsMu.
func (r *Registry) count(u *upload, uploads int, bytes int64) {
	root := rootOf(u.repository)
	sum := r.byOrg[root]
	sum.count, sum.bytes = sum.count+uploads, sum.bytes+bytes
	if sum == (uploadSum{}) {
		delete(r.byOrg, root)
		return
	}
	r.byOrg[root] = sum
}

// beginUpload makes an empty upload and returns its id.
func (r *Registry) beginUpload(repository string) (string, error) {
	var raw [16]byte
	_, _ = rand.Read(raw[:]) // never fails: crypto/rand.Read aborts the program instead
	u := &upload{id: hex.EncodeToString(raw[:]), repository: repository, hash: sha256.New()}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if err := r.alive(repository); err != nil {
		return "", err
	}
	r.uploadsMu.Lock()
	full := r.byOrg[rootOf(repository)].count >= r.opts.OrgUploads
	if !full {
		r.uploads[u.id] = u
		r.count(u, 1, 0)
	}
	r.uploadsMu.Unlock()
	if full {
		return "", refuse(http.StatusTooManyRequests, "TOOMANYREQUESTS",
			"the organization has %d uploads that are not finished; finish or cancel one, or wait until they expire", r.opts.OrgUploads)
	}
	err := durable.MkdirAll(filepath.Dir(r.uploadPath(u)), 0o700)
	if err == nil {
		var f *os.File
		if f, err = os.OpenFile(r.uploadPath(u), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600); err == nil {
			err = f.Close()
		}
	}
	if err != nil {
		r.forgetUpload(u)
		return "", err
	}
	return u.id, nil
}

// findUpload returns an upload of the repository in the call.
func (r *Registry) findUpload(c call) (*upload, error) {
	r.uploadsMu.Lock()
	defer r.uploadsMu.Unlock()
	u, ok := r.uploads[c.reference]
	if !ok || u.repository != c.kept {
		return nil, uploadUnknown()
	}
	return u, nil
}

func (r *Registry) uploadSize(u *upload) int64 {
	r.uploadsMu.Lock()
	defer r.uploadsMu.Unlock()
	return u.size
}

// lockUpload locks an upload for one request, which must unlock it.
func (r *Registry) lockUpload(c call) (*upload, error) {
	u, err := r.findUpload(c)
	if err != nil {
		return nil, err
	}
	if !u.mu.TryLock() {
		return nil, refuse(http.StatusConflict, "BLOB_UPLOAD_INVALID", "another request writes to this upload")
	}
	if _, err := r.findUpload(c); err != nil { // finished before it was locked
		u.mu.Unlock()
		return nil, err
	}
	return u, nil
}

// removeUpload removes an upload, which the caller has locked.
func (r *Registry) removeUpload(u *upload) error {
	err := os.Remove(r.uploadPath(u))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	r.forgetUpload(u)
	return nil
}

func (r *Registry) forgetUpload(u *upload) {
	r.uploadsMu.Lock()
	defer r.uploadsMu.Unlock()
	if r.uploads[u.id] == u {
		delete(r.uploads, u.id)
		r.count(u, -1, -u.size)
	}
}

func (r *Registry) uploadPath(u *upload) string { return r.repoPath(u.repository, "uploads", u.id) }

// uploadWriter writes to the file of an upload as long as its organization has room.
type uploadWriter struct {
	r *Registry
	u *upload
	f io.Writer
}

func (w uploadWriter) Write(p []byte) (int, error) {
	if !w.grow(int64(len(p))) {
		return 0, refuse(http.StatusTooManyRequests, "TOOMANYREQUESTS",
			"the organization has %d bytes in uploads that are not finished; finish or cancel one, or wait until they expire", w.r.opts.UploadBytes)
	}
	n, err := w.f.Write(p)
	if n < len(p) {
		w.grow(int64(n - len(p)))
	}
	return n, err
}

func (w uploadWriter) grow(n int64) bool {
	w.r.uploadsMu.Lock()
	defer w.r.uploadsMu.Unlock()
	if n > 0 && w.r.byOrg[rootOf(w.u.repository)].bytes+n > w.r.opts.UploadBytes {
		return false
	}
	w.u.size += n
	w.r.count(w.u, 0, n)
	return true
}

// receive appends the body of a request to an upload and returns the upload's size. After a broken
// connection it keeps the received bytes, so that the client can resume. After a full disk or an
// exceeded bound it removes the upload, because the bytes would take room from others.
func (r *Registry) receive(req *http.Request, u *upload) (int64, error) {
	size, err := r.appendTo(u, req)
	var refused *apiError
	tooMuch := errors.As(err, &refused) && refused.status != http.StatusRequestedRangeNotSatisfiable
	if tooMuch || hangar.ReasonOf(diskspace.Explain(err)) == hangar.ReasonDiskFull {
		if rerr := r.removeUpload(u); rerr != nil {
			return 0, rerr
		}
	}
	return size, err
}

func (r *Registry) appendTo(u *upload, req *http.Request) (int64, error) {
	f, err := os.OpenFile(r.uploadPath(u), os.O_RDWR, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, uploadUnknown()
	}
	if err != nil {
		return 0, err
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
	tooLarge := refuse(http.StatusRequestEntityTooLarge, "SIZE_INVALID", "a blob has at most %d bytes", r.opts.BlobBytes)
	if req.ContentLength > room {
		return 0, tooLarge
	}
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
	to := struct{ io.Writer }{io.MultiWriter(uploadWriter{r, u, r.opts.Space.Writer(diskspace.PushImage, f)}, u.hash)}
	n, err := io.CopyBuffer(to, io.LimitReader(req.Body, room+1), make([]byte, 256<<10))
	u.hashed += n
	if err != nil {
		u.hashed = -1 // the hash may not match the file any more
		return 0, err
	}
	if n > room {
		return 0, tooLarge
	}
	return size + n, nil
}

// publish moves a complete upload to its blob path, if it matches its digest.
func (r *Registry) publish(u *upload, digest string) error {
	if got := "sha256:" + hex.EncodeToString(u.hash.Sum(nil)); got != digest {
		if err := r.removeUpload(u); err != nil {
			return err
		}
		return refuse(http.StatusBadRequest, "DIGEST_INVALID", "the blob has the digest %s", got)
	}
	f, err := os.OpenFile(r.uploadPath(u), os.O_RDWR, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return uploadUnknown()
	}
	if err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if err := r.alive(u.repository); err != nil {
		return err
	}
	if err := durable.Rename(r.uploadPath(u), r.blobPath(digest)); err != nil {
		return err
	}
	r.forgetUpload(u)
	return r.linkBlob(u.repository, digest)
}

// collectUploads removes uploads that have been idle for age and have no writer, and forgets those
// without a file, which publish has moved before it failed. It returns the bytes freed; the next run
// repeats what failed. The caller holds mu.
func (r *Registry) collectUploads(ctx context.Context, age time.Duration) int64 {
	r.uploadsMu.Lock()
	all := make([]*upload, 0, len(r.uploads))
	for _, u := range r.uploads {
		all = append(all, u)
	}
	r.uploadsMu.Unlock()
	var freed int64
	for _, u := range all {
		if !u.mu.TryLock() {
			continue
		}
		fi, err := os.Stat(r.uploadPath(u))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			r.forgetUpload(u)
			err = nil
		case err == nil && older(fi, age):
			if err = r.removeUpload(u); err == nil {
				freed += fi.Size()
			}
		}
		u.mu.Unlock()
		if err != nil {
			r.log.WarnContext(ctx, "cannot remove an idle upload", slog.String("repository", u.repository), slog.Any("error", err))
		}
	}
	return freed
}

func uploadUnknown() error {
	return refuse(http.StatusNotFound, "BLOB_UPLOAD_UNKNOWN", "no such upload")
}
