package registry_test

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/image/registry"
)

const uploads = "/v2/a/app/blobs/uploads/"

func (s server) begin(t *testing.T, user, repository string) string {
	t.Helper()
	return s.status(t, http.StatusAccepted, "", user, http.MethodPost, "/v2/"+repository+"/blobs/uploads/", nil).Header.Get("Location")
}

// TestUnfinishedUploads: an organization that never finishes its uploads reaches a limit of their
// number and bytes over all of its repositories. The limit does not affect others, and holds after
// a restart; abandoned uploads expire.
func TestUnfinishedUploads(t *testing.T) {
	opts := registry.Options{OrgUploads: 4, UploadBytes: 1000, Dir: t.TempDir()}
	s := serve(t, opts)
	var at []string
	for _, repository := range []string{"a/app", "a/app", "a/other", "a/deep/er"} {
		at = append(at, s.begin(t, "a", repository))
	}
	s.status(t, http.StatusTooManyRequests, "TOOMANYREQUESTS", "a", http.MethodPost, uploads, nil)
	s.status(t, http.StatusTooManyRequests, "TOOMANYREQUESTS", "a", http.MethodPost, "/v2/a/new/blobs/uploads/", nil)
	s.status(t, http.StatusAccepted, "", "a", http.MethodPatch, at[0], make([]byte, 600))
	s.status(t, http.StatusAccepted, "", "a", http.MethodPatch, at[2], make([]byte, 300))
	// An upload that found no room is removed, so that it does not block the room.
	s.status(t, http.StatusTooManyRequests, "bytes in uploads", "a", http.MethodPatch, at[1], make([]byte, 200))
	s.status(t, http.StatusNotFound, "BLOB_UPLOAD_UNKNOWN", "a", http.MethodGet, at[1], nil)
	other := s.begin(t, "b", "b/app")
	s.status(t, http.StatusAccepted, "", "b", http.MethodPatch, other, make([]byte, 1000))
	usage := func(s server, user string) int64 {
		t.Helper()
		u, err := s.Usage(t.Context(), orgOf(user))
		if err != nil {
			t.Fatal(err)
		}
		return u.Uploads
	}
	if a, b := usage(s, "a"), usage(s, "b"); a != 900 || b != 1000 {
		t.Errorf("a has %d bytes, b %d", a, b)
	}

	s = serve(t, opts)
	if a, b := usage(s, "a"), usage(s, "b"); a != 900 || b != 1000 {
		t.Errorf("after a restart a has %d bytes, b %d", a, b)
	}
	at[1] = s.begin(t, "a", "a/app")
	s.status(t, http.StatusTooManyRequests, "TOOMANYREQUESTS", "a", http.MethodPost, uploads, nil)
	// Uploads that are finished, canceled or of the wrong digest free their room.
	data := make([]byte, 600)
	s.status(t, http.StatusCreated, "", "a", http.MethodPut, at[0]+"?digest="+digestOf(data), nil)
	s.status(t, http.StatusNoContent, "", "a", http.MethodDelete, at[2], nil)
	s.status(t, http.StatusBadRequest, "DIGEST_INVALID", "a", http.MethodPut, at[3]+"?digest="+digestOf(data), []byte("x"))
	if a := usage(s, "a"); a != 0 {
		t.Errorf("a has %d bytes when all but an empty one is done", a)
	}
	at[0] = s.begin(t, "a", "a/app")
	s.status(t, http.StatusAccepted, "", "a", http.MethodPatch, at[0], make([]byte, 900))

	// When room is short, an upload expires after an hour; at a start, after a day.
	old := time.Now().Add(-2 * time.Hour)
	touch(t, s.dir, old)
	if freed, err := s.GC(t.Context(), registry.Policy{}); err != nil || freed != 0 {
		t.Errorf("freed %d bytes, %v", freed, err)
	}
	if freed, err := s.GC(t.Context(), registry.Policy{UploadAge: time.Hour}); err != nil || freed < 1900 {
		t.Errorf("freed %d bytes, %v", freed, err)
	}
	s.status(t, http.StatusNotFound, "BLOB_UPLOAD_UNKNOWN", "a", http.MethodGet, at[0], nil)
	late := s.begin(t, "a", "a/app")
	touch(t, s.dir, time.Now().Add(-25*time.Hour))
	s = serve(t, opts)
	s.status(t, http.StatusNotFound, "BLOB_UPLOAD_UNKNOWN", "a", http.MethodGet, late, nil)
	if files := uploadFiles(t, s.dir); len(files) != 0 {
		t.Errorf("after a start there are %q", files)
	}
}

// TestUploadWithoutAFile: an upload whose file was moved before its publication failed does not count
// until the next start.
func TestUploadWithoutAFile(t *testing.T) {
	s := serve(t, registry.Options{OrgUploads: 1, UploadBytes: 1000})
	at := s.begin(t, "a", "a/app")
	s.status(t, http.StatusAccepted, "", "a", http.MethodPatch, at, make([]byte, 600))
	for _, name := range uploadFiles(t, s.dir) {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.GC(t.Context(), registry.Policy{}); err != nil {
		t.Fatal(err)
	}
	if u, err := s.Usage(t.Context(), orgOf("a")); err != nil || u.Uploads != 0 {
		t.Errorf("%d bytes count, %v", u.Uploads, err)
	}
	s.begin(t, "a", "a/app")
}

func uploadFiles(t *testing.T, dir string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(filepath.Join(dir, "repositories"), func(name string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() && filepath.Base(filepath.Dir(name)) == "uploads" {
			found = append(found, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// touch sets the modification time of all uploads.
func touch(t *testing.T, dir string, at time.Time) {
	t.Helper()
	for _, name := range uploadFiles(t, dir) {
		if err := os.Chtimes(name, at, at); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPushToAFullDisk: a push to a full disk reports that and leaves nothing, so that the next
// push, by another organization, finds the room.
func TestPushToAFullDisk(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "small")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=2m"); err != nil {
		t.Skipf("mount a small file system: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	s := serve(t, registry.Options{Dir: dir})
	at := s.begin(t, "a", "a/app")
	s.status(t, http.StatusAccepted, "", "a", http.MethodPatch, at, make([]byte, 1<<20))
	s.status(t, http.StatusInsufficientStorage, "the disk of the server is full", "a", http.MethodPatch, at, make([]byte, 3<<20))
	s.status(t, http.StatusNotFound, "BLOB_UPLOAD_UNKNOWN", "a", http.MethodGet, at, nil)
	if files := uploadFiles(t, s.dir); len(files) != 0 {
		t.Errorf("there are %q", files)
	}
	data := bytes.Repeat([]byte{7}, 1<<20)
	s.status(t, http.StatusCreated, "", "b", http.MethodPost, "/v2/b/app/blobs/uploads/?digest="+digestOf(data), data)
}

// TestPushesToNoOrganization: only existing organizations can be pushed to, and every caller may
// read blobs of the server's own repositories.
func TestPushesToNoOrganization(t *testing.T) {
	s := serve(t, registry.Options{})
	s.status(t, http.StatusNotFound, "NAME_UNKNOWN", "root", http.MethodPost, "/v2/nowhere/app/blobs/uploads/", nil)
	data := []byte("for all")
	s.status(t, http.StatusCreated, "", "root", http.MethodPost, "/v2/base/blobs/uploads/?digest="+digestOf(data), data)
	s.status(t, http.StatusForbidden, "DENIED", "a", http.MethodPost, "/v2/base/blobs/uploads/", nil)
	if _, body := s.do(t, "a", http.MethodGet, "/v2/base/blobs/"+digestOf(data), nil); body != string(data) {
		t.Errorf("read %q", body)
	}
}

// TestPushesStayWithinTheQuota: an organization at its quota cannot push more, can remove and pull
// its images, and others are not affected.
func TestPushesStayWithinTheQuota(t *testing.T) {
	var full atomic.Bool
	s := serve(t, registry.Options{Dir: t.TempDir(), Quota: func(_ context.Context, org hangar.OrgID) error {
		if org == orgOf("a") && full.Load() {
			return hangar.QuotaExceeded("a", hangar.QuotaImageMB, 1, 1, 1)
		}
		return nil
	}})
	at := s.begin(t, "a", "a/app")
	full.Store(true)
	s.status(t, http.StatusForbidden, "image_mb", "a", http.MethodPost, "/v2/a/app/blobs/uploads/", nil)
	s.status(t, http.StatusForbidden, "DENIED", "a", http.MethodPatch, at, []byte("more"))
	s.status(t, http.StatusNoContent, "", "a", http.MethodGet, at, nil)
	s.status(t, http.StatusNoContent, "", "a", http.MethodDelete, at, nil)
	s.begin(t, "b", "b/app")
	full.Store(false)
	s.begin(t, "a", "a/app")
}
