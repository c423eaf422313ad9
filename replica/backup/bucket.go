package backup

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/hangar-platform/hangar/internal/storeurl"
)

const (
	connectTimeout = 5 * time.Second
	answerTimeout  = 30 * time.Second // until the first byte of the response
	partSize       = 16 << 20         // bytes of a part of a large object; one is in memory
)

// bucket is a Store in a bucket of S3.
type bucket struct {
	storeurl.Place

	client *minio.Client
}

func newBucket(p storeurl.Place, c *credentials.Credentials) (Store, error) {
	client, err := minio.New(p.Endpoint, &minio.Options{
		Creds: c, Secure: p.TLS, Region: p.Region,
		MaxRetries: 1, // the caller retries at its own pace
		Transport: &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: connectTimeout}).DialContext,
			TLSHandshakeTimeout:   connectTimeout,
			ResponseHeaderTimeout: answerTimeout,
			IdleConnTimeout:       time.Minute,
			MaxIdleConnsPerHost:   uploads,
		},
	})
	if err != nil {
		return nil, err
	}
	return bucket{p, client}, nil
}

// List implements Store.
func (b bucket) List(ctx context.Context, prefix string, each func(name string, size int64) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // it ends the lister
	for o := range b.client.ListObjects(ctx, b.Bucket, minio.ListObjectsOptions{Prefix: b.Prefix + prefix, Recursive: true}) {
		if o.Err != nil {
			return o.Err
		}
		if err := each(strings.TrimPrefix(o.Key, b.Prefix), o.Size); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// Put implements Store.
func (b bucket) Put(ctx context.Context, name string, r io.Reader, size int64) error {
	_, err := b.client.PutObject(ctx, b.Bucket, b.Prefix+name, r, size, minio.PutObjectOptions{
		ContentType: "application/octet-stream", PartSize: partSize, NumThreads: 1,
	})
	return err
}

// Get implements Store.
func (b bucket) Get(ctx context.Context, name string) (io.ReadCloser, error) {
	o, err := b.client.GetObject(ctx, b.Bucket, b.Prefix+name, minio.GetObjectOptions{})
	if err != nil {
		return nil, err
	}
	if _, err := o.Stat(); err != nil {
		_ = o.Close() // nothing was read
		if minio.ToErrorResponse(err).Code == minio.NoSuchKey {
			return nil, fmt.Errorf("%s: %w", name, ErrNotFound)
		}
		return nil, err
	}
	return o, nil
}

// Remove implements Store.
func (b bucket) Remove(ctx context.Context, name string) error {
	return b.client.RemoveObject(ctx, b.Bucket, b.Prefix+name, minio.RemoveObjectOptions{})
}
