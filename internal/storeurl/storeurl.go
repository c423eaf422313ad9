// Package storeurl parses the URLs of places for files: file:///directory, and
// s3://bucket/prefix?endpoint=host:port&region=us-east-1&tls=off of a bucket.
//
// A URL contains no credentials: they come from the environment.
package storeurl

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// DefaultRegion is the region of a bucket whose URL names none.
const DefaultRegion = "us-east-1"

// Place is a parsed URL.
type Place struct {
	Dir string // of a file URL, absolute

	// Of an s3 URL. The prefix is empty or ends in a slash.
	Bucket, Prefix, Endpoint, Region string
	TLS                              bool
}

// String is a URL without parameters.
func (p Place) String() string {
	if p.Dir != "" {
		return "file://" + p.Dir
	}
	return "s3://" + p.Bucket + "/" + p.Prefix
}

// Parse parses a URL. The errors do not repeat the URL, which may contain a password.
func Parse(raw string) (Place, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return Place{}, errors.Unwrap(err)
	}
	if u.User != nil {
		return Place{}, errors.New("user and password: credentials of S3 come from the environment")
	}
	if u.Fragment != "" {
		return Place{}, fmt.Errorf("#%s: nothing may follow the parameters", u.Fragment)
	}
	values, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return Place{}, fmt.Errorf("parameters: %w", err)
	}
	switch u.Scheme {
	case "file":
		return file(u, values)
	case "s3":
		return bucket(u, values)
	}
	return Place{}, fmt.Errorf("scheme %q: must be file or s3", u.Scheme)
}

func file(u *url.URL, values url.Values) (Place, error) {
	if len(values) > 0 {
		return Place{}, errors.New("file takes no parameters")
	}
	if u.Host != "" || !filepath.IsAbs(u.Path) || filepath.Clean(u.Path) == "/" {
		return Place{}, errors.New("file must be followed by :/// and the absolute path of a directory")
	}
	return Place{Dir: filepath.Clean(u.Path)}, nil
}

func bucket(u *url.URL, values url.Values) (Place, error) {
	for name, list := range values {
		if !slices.Contains([]string{"endpoint", "region", "tls"}, name) {
			return Place{}, fmt.Errorf("parameter %q is unknown: use endpoint, region or tls", name)
		}
		if len(list) > 1 {
			return Place{}, fmt.Errorf("parameter %q is given twice", name)
		}
	}
	p := Place{Bucket: u.Host, Endpoint: values.Get("endpoint"), Region: values.Get("region")}
	if p.Bucket == "" {
		return Place{}, errors.New("the bucket is missing: s3://bucket/prefix")
	}
	if p.Prefix = strings.Trim(path.Clean("/"+u.Path), "/"); p.Prefix != "" {
		p.Prefix += "/"
	}
	switch tls := values.Get("tls"); tls {
	case "", "on":
		p.TLS = true
	case "off":
	default:
		return Place{}, fmt.Errorf("parameter tls is %q: must be on or off", tls)
	}
	p.Region = cmp.Or(p.Region, DefaultRegion)
	p.Endpoint = cmp.Or(p.Endpoint, "s3."+p.Region+".amazonaws.com")
	if strings.ContainsAny(p.Endpoint, "/@?") {
		return Place{}, fmt.Errorf("parameter endpoint is %q: must be host or host:port", p.Endpoint)
	}
	return p, nil
}
