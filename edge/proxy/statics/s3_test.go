package statics

import (
	"bytes"
	"errors"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/freeport"
)

// realStore starts an S3 server for one test. `make s3-server` builds it.
func realStore(t *testing.T) (address string, store *minio.Client) {
	t.Helper()
	server, err := filepath.Abs("../../../.tools/versitygw-v1.7.0")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(server); err != nil {
		t.Skip("there is no S3 server: run make s3-server")
	}
	dir := t.TempDir()
	for _, d := range []string{"/s3", "/meta"} {
		if err := os.Mkdir(dir+d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	address, err = freeport.Address(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), server, "--quiet", "--port", address, "--access", "tester", "--secret", "topsecret", "posix", "--sidecar", dir+"/meta", dir+"/s3")
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
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
			t.Fatalf("the S3 server does not listen: %v\n%s", err, said.String())
		}
		<-time.After(20 * time.Millisecond)
	}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	store, err = minio.New(address, &minio.Options{Creds: credentials.NewStaticV4("tester", "topsecret", ""), Region: "us-east-1", Transport: transport})
	if err != nil {
		t.Fatal(err)
	}
	return address, store
}

func TestRealBucket(t *testing.T) {
	address, store := realStore(t)
	ctx := t.Context()
	for _, bucket := range []string{"site", "private"} {
		if err := store.MakeBucket(ctx, bucket, minio.MakeBucketOptions{}); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{
			"www/index.html": "home", "www/docs/index.html": "docs", "www/a b+ä&c.txt": "0123456789", "www/style.css": "body {}",
		} {
			if _, err := store.PutObject(ctx, bucket, name, strings.NewReader(text), int64(len(text)), minio.PutObjectOptions{CacheControl: "max-age=60"}); err != nil {
				t.Fatal(err)
			}
		}
	}
	policy := `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":"*","Action":["s3:GetObject"],"Resource":["arn:aws:s3:::site/*"]}]}`
	if err := store.SetBucketPolicy(ctx, "site", policy); err != nil {
		t.Fatal(err)
	}
	b, err := NewBuckets(BucketOptions{Endpoint: &url.URL{Scheme: "http", Host: address}})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	rule := hangar.Static{GuestPath: "/www", URLPrefix: "/", TigrisBucket: "site", IndexDocument: "index.html"}
	for rest, want := range map[string]string{"": "home", "docs/": "docs", "docs": "docs", "a b+ä&c.txt": "0123456789", "style.css": "body {}"} {
		res, body, err := fromBucket(t, b, rule, http.MethodGet, rest)
		if err != nil || body != want {
			t.Errorf("%q: %q, %v", rest, body, err)
			continue
		}
		tag := res.Header.Get("Etag")
		if tag == "" || res.Header.Get("Cache-Control") != "max-age=60" || res.Header.Get("X-Amz-Request-Id") != "" {
			t.Errorf("%q: headers %v", rest, res.Header)
		}
		if again, body, err := fromBucket(t, b, rule, http.MethodGet, rest, "If-None-Match", tag); err != nil || again.StatusCode != http.StatusNotModified || body != "" {
			t.Errorf("%q again: %v, %q, %v", rest, again.StatusCode, body, err)
		}
		if head, body, err := fromBucket(t, b, rule, http.MethodHead, rest); err != nil || body != "" || head.ContentLength != int64(len(want)) {
			t.Errorf("HEAD %q: %v, %q, %v", rest, head.Header, body, err)
		}
	}
	if res, body, err := fromBucket(t, b, rule, http.MethodGet, "a b+ä&c.txt", "Range", "bytes=3-5"); err != nil || res.StatusCode != http.StatusPartialContent || body != "345" {
		t.Errorf("a part: %d, %q, %v", res.StatusCode, body, err)
	}
	if _, _, err := fromBucket(t, b, rule, http.MethodGet, "none"); !errors.Is(err, ErrNoFile) {
		t.Errorf("a missing file: %v", err)
	}
	closed := rule
	closed.TigrisBucket = "private"
	if _, _, err := fromBucket(t, b, closed, http.MethodGet, "style.css"); !errors.Is(err, ErrNoFile) {
		t.Errorf("of a bucket that is not public: %v", err)
	}
}
