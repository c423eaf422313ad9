package statics

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
)

// The bounds of a request to a bucket.
const (
	DefaultBucketTimeout = 10 * time.Second // until an answer begins
	bucketIdle           = 30 * time.Second // of a connection that waits for the next request
	maxBucketHeader      = 64 << 10
)

// BucketOptions say where buckets are.
type BucketOptions struct {
	Endpoint    *url.URL // of the S3 service, http or https
	VirtualHost bool     // the bucket's name stands before the host's, not in the path
	Timeout     time.Duration
	Transport   http.RoundTripper // nil: one of its own
}

// Buckets serves objects of public buckets.
type Buckets struct {
	endpoint    url.URL
	virtualHost bool
	timeout     time.Duration
	transport   http.RoundTripper
}

// NewBuckets returns an error for an invalid endpoint.
func NewBuckets(o BucketOptions) (*Buckets, error) {
	if o.Endpoint == nil || o.Endpoint.Scheme != "http" && o.Endpoint.Scheme != "https" || o.Endpoint.Host == "" || o.Endpoint.User != nil ||
		o.Endpoint.RawQuery != "" || o.Endpoint.Fragment != "" {
		return nil, errors.New("the endpoint of buckets is not an http or https URL with nothing but a host and a path")
	}
	if o.Timeout <= 0 {
		o.Timeout = DefaultBucketTimeout
	}
	b := &Buckets{endpoint: *o.Endpoint, virtualHost: o.VirtualHost, timeout: o.Timeout, transport: o.Transport}
	if b.transport == nil {
		b.transport = &http.Transport{
			MaxIdleConnsPerHost: 64, IdleConnTimeout: bucketIdle, MaxResponseHeaderBytes: maxBucketHeader,
			ResponseHeaderTimeout: o.Timeout, DisableCompression: true, ForceAttemptHTTP2: true,
		}
	}
	return b, nil
}

// Close ends idle connections.
func (b *Buckets) Close() {
	if t, ok := b.transport.(*http.Transport); ok {
		t.CloseIdleConnections()
	}
}

// passedOn are the request headers that a bucket gets.
var passedOn = []string{
	"Accept", "If-Match", "If-Modified-Since", "If-None-Match", "If-Range", "If-Unmodified-Since", "Range",
}

// passedBack are the headers of an object that the client gets.
var passedBack = []string{
	"Accept-Ranges", "Cache-Control", "Content-Disposition", "Content-Encoding", "Content-Language", "Content-Length",
	"Content-Range", "Content-Type", "Etag", "Expires", "Last-Modified",
}

// Serve answers a request with an object: rule and rest are what Match found. For a folder it
// is the rule's index document. It returns ErrNoFile, or an EdgeError of EdgeStatics, and has
// then written nothing; once it has, a failure is returned as it is, and the answer is not
// complete.
func (b *Buckets) Serve(w http.ResponseWriter, r *http.Request, rule hangar.Static, rest string) error {
	if !Offered(r.Method) {
		return ErrNoFile
	}
	folder := rest == "" || strings.HasSuffix(rest, "/")
	if folder {
		if rule.IndexDocument == "" {
			return ErrNoFile
		}
		rest += rule.IndexDocument
	}
	err := b.object(w, r, rule, rest)
	if errors.Is(err, ErrNoFile) && !folder && rule.IndexDocument != "" {
		return b.object(w, r, rule, rest+"/"+rule.IndexDocument)
	}
	return err
}

// object answers with one object.
func (b *Buckets) object(w http.ResponseWriter, r *http.Request, rule hangar.Static, name string) error {
	at, err := b.locate(rule, name)
	if err != nil {
		return failure("the bucket of these files has no valid name", err)
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	patience := time.AfterFunc(b.timeout, cancel)
	ask, err := http.NewRequestWithContext(ctx, r.Method, at.String(), nil)
	if err != nil {
		return failure("the bucket of these files could not be asked", err)
	}
	for _, name := range passedOn {
		if v := r.Header[name]; len(v) > 0 {
			ask.Header[name] = v
		}
	}
	// The transport follows no redirects, which is intended: only the endpoint is trusted.
	answer, err := b.transport.RoundTrip(ask)
	if err != nil {
		return failure("the bucket of these files does not answer", err)
	}
	defer answer.Body.Close()
	if !patience.Stop() {
		return failure("the bucket of these files does not answer", context.DeadlineExceeded)
	}
	switch answer.StatusCode {
	case http.StatusOK, http.StatusPartialContent, http.StatusNotModified, http.StatusPreconditionFailed, http.StatusRequestedRangeNotSatisfiable:
	case http.StatusNotFound, http.StatusForbidden: // a store without the right to list answers 403 for a missing file
		return ErrNoFile
	default:
		return failure("the bucket of these files does not serve them", errStatus(answer.StatusCode))
	}
	h := w.Header()
	for _, name := range passedBack {
		if v := answer.Header[name]; len(v) > 0 {
			h[name] = v
		}
	}
	if answer.StatusCode >= http.StatusBadRequest { // the body is the bucket's own XML
		h.Del("Content-Length")
		h.Del("Content-Type")
		w.WriteHeader(answer.StatusCode)
		return nil
	}
	if generic(h.Get("Content-Type")) {
		if kind := contentType(name); kind != "" {
			h.Set("Content-Type", kind)
		}
	}
	w.WriteHeader(answer.StatusCode)
	if r.Method == http.MethodHead || answer.StatusCode == http.StatusNotModified {
		return nil
	}
	_, err = io.Copy(w, answer.Body)
	return err
}

// generic reports whether a type has no meaning: stores assign it to objects that were uploaded
// without one.
func generic(kind string) bool {
	return kind == "" || strings.HasPrefix(kind, "application/octet-stream") || strings.HasPrefix(kind, "binary/octet-stream")
}

// locate is the URL of an object.
func (b *Buckets) locate(rule hangar.Static, name string) (*url.URL, error) {
	bucket := rule.TigrisBucket
	if !hangar.ValidBucket(bucket) {
		return nil, errors.New("invalid name of a bucket: " + bucket)
	}
	at := b.endpoint
	steps := []string{strings.TrimSuffix(at.Path, "/")}
	if b.virtualHost {
		at.Host = bucket + "." + at.Host
	} else {
		steps = append(steps, bucket)
	}
	if folder := strings.Trim(rule.GuestPath, "/"); folder != "" {
		steps = append(steps, folder)
	}
	at.Path = strings.Join(append(steps, name), "/")
	// Sent escaped, because a store may take a plus for a blank.
	at.RawPath = strings.ReplaceAll((&url.URL{Path: at.Path}).EscapedPath(), "+", "%2B")
	return &at, nil
}
