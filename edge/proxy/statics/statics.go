// Package statics serves files of Machines and of buckets below paths of an App, without the
// App.
//
// Only GET and HEAD are served, and only existing files: for everything else Serve answers
// ErrNoFile and has written nothing, so that the App may have the request. A path that was sent
// with an escape for a slash, with a NUL or with steps that lead upwards is no file's. Ranges,
// conditions and HEAD work as RFC 9110 has them.
//
// Everything may be used by any number of goroutines.
//
// The package finds no Machine: its caller opens the files. It caches nothing.
package statics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/hangar-platform/hangar"
)

// ErrNoFile says that a request is for no file, and that nothing has been answered.
var ErrNoFile = errors.New("no such file")

// Source opens files of a Machine by their absolute path. It answers hangar.CodeNotFound for
// anything but a regular file.
type Source func(ctx context.Context, name string) (hangar.MachineFile, error)

// Offered reports whether requests with a method can be for a file.
func Offered(method string) bool { return method == http.MethodGet || method == http.MethodHead }

// Match finds the rule for a path as it was sent (url.URL.EscapedPath): the one with the
// longest prefix, which ends where a step of the path does. Rest is what comes after the
// prefix, unescaped, without a slash at its front; it stays below any directory that it is
// joined to.
func Match(rules []hangar.Static, escaped string) (rule hangar.Static, rest string, ok bool) {
	if len(rules) == 0 {
		return hangar.Static{}, "", false
	}
	sent, ok := clean(escaped)
	if !ok {
		return hangar.Static{}, "", false
	}
	longest := -1
	for _, r := range rules {
		prefix := strings.TrimSuffix(r.URLPrefix, "/")
		after, found := strings.CutPrefix(sent, prefix)
		if found && (after == "" || after[0] == '/') && len(prefix) > longest {
			longest, rule, rest = len(prefix), r, strings.TrimPrefix(after, "/")
		}
	}
	return rule, rest, longest >= 0
}

// clean unescapes a path, unless another program could read it as another file.
func clean(escaped string) (string, bool) {
	if !strings.HasPrefix(escaped, "/") {
		return "", false
	}
	for i := 0; i+2 < len(escaped); i++ {
		if escaped[i] == '%' {
			switch strings.ToLower(escaped[i+1 : i+3]) {
			case "2f", "5c", "00":
				return "", false
			}
		}
	}
	sent, err := url.PathUnescape(escaped)
	if err != nil || strings.ContainsAny(sent, "\x00\\") || strings.Contains(sent, "//") {
		return "", false
	}
	for step := range strings.SplitSeq(sent, "/") {
		if step == "." || step == ".." {
			return "", false
		}
	}
	return sent, true
}

// Serve answers a request with a file of a Machine: rule and rest are what Match found. It
// returns ErrNoFile, or an EdgeError of EdgeStatics, and has then written nothing; once it has, a
// failure is returned as it is, and the answer is not complete.
func Serve(w http.ResponseWriter, r *http.Request, files Source, rule hangar.Static, rest string) error {
	if !Offered(r.Method) || rest == "" || strings.HasSuffix(rest, "/") {
		return ErrNoFile // files of Machines have no index document
	}
	name := path.Join("/", rule.GuestPath, rest)
	f, err := files(r.Context(), name)
	switch {
	case hangar.CodeOf(err) == hangar.CodeNotFound:
		return ErrNoFile
	case err != nil:
		return failure("a file could not be read from the machine", err)
	}
	defer f.Close()
	h := w.Header()
	modified := f.ModTime()
	h.Set("Etag", `"`+strconv.FormatInt(modified.UnixNano(), 36)+"-"+strconv.FormatInt(f.Size(), 36)+`"`)
	if kind := contentType(name); kind != "" {
		h.Set("Content-Type", kind)
	}
	content := &reader{f: f}
	http.ServeContent(w, ranged(r), "", modified, content)
	if failed := content.failed.Load(); failed != nil {
		return *failed
	}
	return nil
}

// maxRanges is how many ranges a request may ask for. Each is read from its own place, maybe on another host.
const maxRanges = 16

// ranged returns a request without its ranges if they are too many, which a server may ignore (RFC 9110, section 14.2).
func ranged(r *http.Request) *http.Request {
	if strings.Count(r.Header.Get("Range"), ",") < maxRanges {
		return r
	}
	whole := *r
	whole.Header = r.Header.Clone()
	whole.Header.Del("Range")
	return &whole
}

// reader reads a file for http.ServeContent, which does not tell that it could not be read to its end.
type reader struct {
	f      hangar.MachineFile
	at     int64
	failed atomic.Pointer[error] // since the last Seek; for several ranges, another goroutine reads
}

func (r *reader) Read(p []byte) (int, error) {
	n, err := r.f.Read(p)
	r.at += int64(n)
	if errors.Is(err, io.EOF) && r.at < r.f.Size() {
		err = io.ErrUnexpectedEOF
	}
	if err != nil && !errors.Is(err, io.EOF) {
		failed := err
		r.failed.Store(&failed)
	}
	return n, err
}

func (r *reader) Seek(offset int64, whence int) (_ int64, err error) {
	r.failed.Store(nil)
	r.at, err = r.f.Seek(offset, whence)
	return r.at, err
}

// failure is the error that the client gets for an unavailable file.
func failure(message string, err error) error {
	return &hangar.EdgeError{Code: hangar.EdgeStatics, Status: http.StatusBadGateway, Message: message, Err: err}
}

// contentType is the type of a file by its name's extension; empty: its first bytes decide.
func contentType(name string) string { return types[strings.ToLower(path.Ext(name))] }

// A table of the server's own types would make answers depend on the server.
var types = map[string]string{
	".avif": "image/avif", ".css": "text/css; charset=utf-8", ".csv": "text/csv; charset=utf-8", ".gif": "image/gif",
	".htm": "text/html; charset=utf-8", ".html": "text/html; charset=utf-8", ".ico": "image/x-icon", ".ics": "text/calendar; charset=utf-8",
	".jpeg": "image/jpeg", ".jpg": "image/jpeg", ".js": "text/javascript; charset=utf-8", ".json": "application/json",
	".jsonld": "application/ld+json", ".m4a": "audio/mp4", ".map": "application/json", ".md": "text/markdown; charset=utf-8",
	".mjs": "text/javascript; charset=utf-8", ".mov": "video/quicktime", ".mp3": "audio/mpeg", ".mp4": "video/mp4",
	".oga": "audio/ogg", ".ogg": "audio/ogg", ".ogv": "video/ogg", ".otf": "font/otf", ".pdf": "application/pdf", ".png": "image/png",
	".rss": "application/rss+xml", ".atom": "application/atom+xml", ".svg": "image/svg+xml", ".tar": "application/x-tar",
	".ttf": "font/ttf", ".txt": "text/plain; charset=utf-8", ".wasm": "application/wasm", ".wav": "audio/wav", ".webm": "video/webm",
	".webmanifest": "application/manifest+json", ".webp": "image/webp", ".woff": "font/woff", ".woff2": "font/woff2",
	".xhtml": "application/xhtml+xml", ".xml": "text/xml; charset=utf-8", ".gz": "application/gzip", ".zip": "application/zip",
	".zst": "application/zstd",
}

// errStatus is an unusable answer of a bucket.
func errStatus(status int) error { return fmt.Errorf("the bucket answered with status %d", status) }
