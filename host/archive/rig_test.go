package archive_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/archive"
	"github.com/hangar-platform/hangar/internal/extent"
	"github.com/hangar-platform/hangar/internal/freeport"
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(envChild); dir != "" {
		child(dir)
	}
	// The library leaks its workers when the removal of files is interrupted.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/kopia/kopia/repo/maintenance.DeleteUnreferencedPacks.func1"))
}

// place is where a test keeps an archive.
type place struct {
	url   string
	blobs string // the directory in which the blobs lie as files
	dir   string // for caches
}

// everywhere runs a test of the suite on every kind of store.
func everywhere(t *testing.T, test func(t *testing.T, p place)) {
	t.Run("directory", func(t *testing.T) { test(t, inDirectory(t)) })
	t.Run("bucket", func(t *testing.T) { test(t, inBucket(t)) })
}

func inDirectory(tb testing.TB) place {
	tb.Helper()
	dir := tb.TempDir()
	return place{url: "file://" + dir + "/archive", blobs: dir + "/archive", dir: dir}
}

// inBucket starts an S3 server for one test. `make test` builds it.
func inBucket(tb testing.TB) place {
	tb.Helper()
	server, err := filepath.Abs("../../.tools/versitygw-v1.7.0")
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := os.Stat(server); err != nil {
		tb.Skip("there is no S3 server: run make s3-server")
	}
	dir := tb.TempDir()
	if err := os.MkdirAll(dir+"/s3/bucket", 0o700); err != nil {
		tb.Fatal(err)
	}
	address, err := freeport.Address(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	cmd := exec.CommandContext(tb.Context(), server, "--quiet", "--port", address, "--access", "tester", "--secret", "topsecret", "posix", "--sidecar", dir+"/meta", dir+"/s3")
	if err := os.Mkdir(dir+"/meta", 0o700); err != nil {
		tb.Fatal(err)
	}
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for deadline := time.Now().Add(time.Minute); ; {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
			break
		}
		if time.Now().After(deadline) {
			tb.Fatalf("the S3 server does not listen: %v\n%s", err, said.String())
		}
		<-time.After(20 * time.Millisecond)
	}
	tb.Setenv("AWS_ACCESS_KEY_ID", "tester")
	tb.Setenv("AWS_SECRET_ACCESS_KEY", "topsecret")
	tb.Setenv("AWS_SESSION_TOKEN", "")
	return place{url: "s3://bucket/some/prefix?tls=off&endpoint=" + address, blobs: dir + "/s3/bucket", dir: dir}
}

func password(context.Context) ([]byte, error) {
	return bytes.Repeat([]byte{42}, archive.PasswordSize), nil
}

var caches struct {
	sync.Mutex
	n int
}

// options are those of another process that uses the archive.
func (p place) options() archive.Options {
	caches.Lock()
	defer caches.Unlock()
	caches.n++
	return archive.Options{URL: p.url, Cache: filepath.Join(p.dir, fmt.Sprint("cache", caches.n)), Password: password}
}

func (p place) open(tb testing.TB) *archive.Archive {
	tb.Helper()
	return open(tb, p.options())
}

func open(tb testing.TB, opts archive.Options) *archive.Archive {
	tb.Helper()
	a := archive.New(opts)
	if err := a.Open(context.Background()); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := a.Close(); err != nil {
			tb.Error(err)
		}
	})
	return a
}

// size is the total size of the blobs, in bytes.
func (p place) size(tb testing.TB) (n int64) {
	tb.Helper()
	for _, f := range p.files(tb, "") {
		info, err := os.Stat(f)
		if err != nil {
			tb.Fatal(err)
		}
		n += info.Size()
	}
	return n
}

// files are the blobs with a prefix.
func (p place) files(tb testing.TB, prefix string) (files []string) {
	tb.Helper()
	err := filepath.WalkDir(p.blobs, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(p.blobs, name)
		rel = filepath.ToSlash(rel)
		if p.url[:2] == "s3" {
			rel = filepath.Base(rel)
		}
		if len(rel) >= len(prefix) && rel[:len(prefix)] == prefix {
			files = append(files, name)
		}
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	return files
}

// device is a volume in memory that records its reads.
type device struct {
	b []byte

	mu   sync.Mutex
	read []extent.Extent
}

func (d *device) Size() int64 { return int64(len(d.b)) }

func (d *device) ReadAt(p []byte, off int64) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.read = append(d.read, extent.Extent{Offset: off, Length: int64(len(p))})
	return copy(p, d.b[off:]), nil
}

func (d *device) WriteAt(p []byte, off int64) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.read = append(d.read, extent.Extent{Offset: off, Length: int64(len(p))})
	return copy(d.b[off:], p), nil
}

// touched returns what was read or written since the last call.
func (d *device) touched() extent.List {
	defer func() { d.read = nil }()
	return extent.Of(d.read...)
}

// plainDigest calculates a digest as its documentation says.
func plainDigest(b []byte) string {
	h := sha256.New()
	h.Write([]byte("hangar volume 1\n"))
	var size [8]byte
	binary.BigEndian.PutUint64(size[:], uint64(len(b)))
	h.Write(size[:])
	for len(b) > 0 {
		group := b[:min(len(b), 64*mib)]
		b = b[len(group):]
		g := sha256.New()
		for len(group) > 0 {
			n := min(len(group), 64*kib)
			one := sha256.Sum256(group[:n])
			g.Write(one[:])
			group = group[n:]
		}
		h.Write(g.Sum(nil))
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

func newMeta(volume hangar.VolumeID) archive.Meta {
	return archive.Meta{
		ID: hangar.NewSnapshotID(), Volume: volume, App: "web", Org: "personal", OrgID: "0b1c5f7e",
		CreatedAt: time.Now().UTC(), FSType: hangar.FSExt4, Encrypted: true,
	}
}

func whole(d *device) extent.List { return extent.Of(extent.Extent{Length: d.Size()}) }
