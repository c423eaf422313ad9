package archive

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/kopia/kopia/repo/blob/s3"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/hangar-platform/hangar/internal/storeurl"
)

// place is a parsed archive URL.
type place struct{ storeurl.Place }

func (p place) shared() bool { return p.Dir == "" }

// CheckURL returns the errors of Options.URL that can be found without access to the store.
func CheckURL(raw string) error {
	_, err := parse(raw)
	return err
}

// parse parses the URL of an archive.
func parse(raw string) (place, error) {
	p, err := storeurl.Parse(raw)
	if err != nil {
		return place{}, fmt.Errorf("URL of the archive: %w", err)
	}
	return place{p}, nil
}

// open opens the existing store. A missing directory is created.
func (p place) open(ctx context.Context) (*store, error) {
	if p.Dir != "" {
		return openDirectory(ctx, p.Dir)
	}
	values, err := new(credentials.EnvAWS).RetrieveWithCredContext(nil)
	if err != nil {
		return nil, err
	}
	if values.AccessKeyID == "" || values.SecretAccessKey == "" {
		return nil, errors.New("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY must be set in the environment")
	}
	if err := p.dial(ctx); err != nil {
		return nil, err
	}
	st, err := s3.New(ctx, &s3.Options{
		BucketName: p.Bucket, Prefix: p.Prefix, Endpoint: p.Endpoint, Region: p.Region, DoNotUseTLS: !p.TLS,
		AccessKeyID: values.AccessKeyID, SecretAccessKey: values.SecretAccessKey, SessionToken: values.SessionToken,
	}, false)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	return &store{Storage: st, remote: true}, nil
}

// dialing bounds how long Open waits for a server. The library would retry for minutes.
const dialing = 5 * time.Second

// dial checks whether the server accepts connections. The operator has named it, so that the
// guarded dialer is not needed. It connects directly, where the library would use a proxy of the
// environment: an archive behind a proxy is refused.
func (p place) dial(ctx context.Context) error {
	address := p.Endpoint
	if _, _, err := net.SplitHostPort(address); err != nil {
		port := "443"
		if !p.TLS {
			port = "80"
		}
		address = net.JoinHostPort(address, port)
	}
	conn, err := (&net.Dialer{Timeout: dialing}).DialContext(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	return conn.Close()
}
