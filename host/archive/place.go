package archive

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kopia/kopia/repo/blob/s3"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// place is what the URL of an archive means.
type place struct {
	dir string // of a file URL

	bucket, prefix, endpoint, region string // of an s3 URL
	tls                              bool
}

// String is a URL without secrets, which there are none of.
func (p place) String() string {
	if p.dir != "" {
		return "file://" + p.dir
	}
	return "s3://" + p.bucket + "/" + p.prefix
}

func (p place) shared() bool { return p.dir == "" }

// CheckURL says what is wrong with Options.URL, as far as that shows without looking.
func CheckURL(raw string) error {
	_, err := parse(raw)
	return err
}

// parse returns what the URL of an archive means.
func parse(raw string) (place, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return place{}, fmt.Errorf("URL of the archive: %w", errors.Unwrap(err)) // without the URL, which may hold a password
	}
	bad := func(format string, args ...any) (place, error) {
		return place{}, fmt.Errorf("URL of the archive: "+format, args...)
	}
	if u.User != nil {
		return bad("user and password: credentials of S3 come from the environment")
	}
	if u.Fragment != "" {
		return bad("#%s: nothing may follow the parameters", u.Fragment)
	}
	values, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return bad("parameters: %w", err)
	}
	switch u.Scheme {
	case "file":
		if len(values) > 0 {
			return bad("file takes no parameters")
		}
		if u.Host != "" || !filepath.IsAbs(u.Path) || filepath.Clean(u.Path) == "/" {
			return bad("file must be followed by :/// and the absolute path of a directory")
		}
		return place{dir: filepath.Clean(u.Path)}, nil
	case "s3":
	default:
		return bad("scheme %q: must be file or s3", u.Scheme)
	}
	for name, list := range values {
		if !slices.Contains([]string{"endpoint", "region", "tls"}, name) {
			return bad("parameter %q is not known: there are endpoint, region and tls", name)
		}
		if len(list) > 1 {
			return bad("parameter %q is given twice", name)
		}
	}
	p := place{bucket: u.Host, endpoint: values.Get("endpoint"), region: values.Get("region")}
	if p.bucket == "" {
		return bad("the bucket is missing: s3://bucket/prefix")
	}
	if p.prefix = strings.Trim(path.Clean("/"+u.Path), "/"); p.prefix != "" {
		p.prefix += "/"
	}
	switch tls := values.Get("tls"); tls {
	case "", "on":
		p.tls = true
	case "off":
	default:
		return bad("parameter tls is %q: must be on or off", tls)
	}
	if p.region == "" {
		p.region = "us-east-1"
	}
	if p.endpoint == "" {
		p.endpoint = "s3." + p.region + ".amazonaws.com"
	}
	if strings.ContainsAny(p.endpoint, "/@?") {
		return bad("parameter endpoint is %q: must be host or host:port", p.endpoint)
	}
	return p, nil
}

// open opens the store that is there. A directory is made if it is missing.
func (p place) open(ctx context.Context) (*store, error) {
	if p.dir != "" {
		return openDirectory(ctx, p.dir)
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
		BucketName: p.bucket, Prefix: p.prefix, Endpoint: p.endpoint, Region: p.region, DoNotUseTLS: !p.tls,
		AccessKeyID: values.AccessKeyID, SecretAccessKey: values.SecretAccessKey, SessionToken: values.SessionToken,
	}, false)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	return &store{Storage: st, remote: true}, nil
}

// dialing bounds how long Open waits for a server, which the library tries for minutes.
const dialing = 5 * time.Second

// dial finds out whether the server that the operator has named takes connections. Tenants have no
// say in that. It is called directly, while the library would use a proxy of the environment: an archive
// behind one is refused.
func (p place) dial(ctx context.Context) error {
	address := p.endpoint
	if _, _, err := net.SplitHostPort(address); err != nil {
		port := "443"
		if !p.tls {
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
