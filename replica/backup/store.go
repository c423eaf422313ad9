package backup

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/hangar-platform/hangar/internal/storeurl"
)

// Store has the objects of a backup. Names are paths with slashes.
type Store interface {
	// List calls each for the objects below a prefix, in no particular order, until each returns an error.
	List(ctx context.Context, prefix string, each func(name string, size int64) error) error
	// Put stores size bytes of r. A reader sees all of an object or none of it.
	Put(ctx context.Context, name string, r io.Reader, size int64) error
	// Get opens an object. The error is ErrNotFound if there is none.
	Get(ctx context.Context, name string) (io.ReadCloser, error)
	// Remove removes an object. A missing object is not an error.
	Remove(ctx context.Context, name string) error
	// String names the store without secrets.
	String() string
}

// ErrNotFound is returned for a missing object.
var ErrNotFound = errors.New("not in the backup")

// Credentials are those of an S3 bucket.
type Credentials struct{ AccessKey, SecretKey, SessionToken string }

// CheckURL returns the errors of a backup's URL that can be found without access to the store.
func CheckURL(raw string) error {
	_, err := storeurl.Parse(raw)
	return err
}

// OpenStore opens the store at a URL: file:///directory, which is created if it is missing, or
// s3://bucket/prefix in the format of package storeurl. It does not connect.
func OpenStore(raw string, c Credentials) (Store, error) {
	p, err := storeurl.Parse(raw)
	if err != nil {
		return nil, err
	}
	if p.Dir != "" {
		if err := os.MkdirAll(p.Dir, 0o700); err != nil {
			return nil, err
		}
		return directory{p.Dir}, nil
	}
	if c.AccessKey == "" || c.SecretKey == "" {
		return nil, errors.New("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY must be set in the environment")
	}
	return newBucket(p, credentials.NewStaticV4(c.AccessKey, c.SecretKey, c.SessionToken))
}
