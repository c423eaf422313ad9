package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
)

const (
	headerDigest = "Docker-Content-Digest"
	errNotDir    = unix.ENOTDIR
)

// apiError is an error in the words of the OCI distribution API.
type apiError struct {
	status  int
	code    string
	message string
	headers map[string]string
}

func (e *apiError) Error() string { return e.code + ": " + e.message }

func refuse(status int, code, format string, args ...any) *apiError {
	return &apiError{status: status, code: code, message: fmt.Sprintf(format, args...)}
}

func nameUnknown(repository string) error {
	return refuse(http.StatusNotFound, "NAME_UNKNOWN", "repository %s is not known", repository)
}

func manifestUnknown(c call) error {
	return refuse(http.StatusNotFound, "MANIFEST_UNKNOWN", "manifest %.128q is not known to %s", c.reference, c.repository)
}

func blobUnknown(c call) error {
	return refuse(http.StatusNotFound, "BLOB_UNKNOWN", "blob %.128s is not known to %s", c.reference, c.repository)
}

// Authorize decides whether the caller of a request may do action to a repository;
// with an empty repository and no action, whether it is anybody at all. It answers
// hangar.CodeUnauthenticated for a caller who is nobody. It may be called from many
// goroutines.
type Authorize func(req *http.Request, repository string, action hangar.Action) error

// Handler serves the OCI distribution API under /v2/. Each request is answered if
// authorize allows it. To pull is hangar.ActionRead, to push hangar.ActionWrite, to
// delete hangar.ActionDelete; what a request means for a second repository (the
// source of a mount, each line of the catalog) is asked as a read of that one. A
// repository that the caller may not read is answered like one that is not there.
func (r *Registry) Handler(authorize Authorize) http.Handler {
	h := &handler{r: r, authorize: authorize}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Docker-Distribution-Api-Version", "registry/2.0")
		if err := h.serve(w, req); err != nil {
			r.writeError(w, req, err)
		}
	})
}

type handler struct {
	r         *Registry
	authorize Authorize
}

func (h *handler) serve(w http.ResponseWriter, req *http.Request) error {
	rest, ok := strings.CutPrefix(req.URL.Path, "/v2")
	if !ok || (rest != "" && rest[0] != '/') {
		return refuse(http.StatusNotFound, "UNSUPPORTED", "the registry lives under /v2/")
	}
	rest = strings.TrimPrefix(rest, "/")
	c, ok := parse(rest)
	ok = ok && rest != "_catalog"
	if err := h.admit(req, c, ok && validName(c.repository)); err != nil {
		return err
	}
	switch rest {
	case "":
		return writeJSON(w, http.StatusOK, struct{}{})
	case "_catalog":
		return h.catalog(w, req)
	}
	if !ok {
		return refuse(http.StatusNotFound, "UNSUPPORTED", "no such resource")
	}
	if !validName(c.repository) {
		return refuse(http.StatusBadRequest, "NAME_INVALID", "not a repository name: %.255q", c.repository)
	}
	methods := map[string]map[string]func(http.ResponseWriter, *http.Request, call) error{
		"tags":      {http.MethodGet: h.tags},
		"referrers": {http.MethodGet: h.referrers},
		"manifests": {http.MethodGet: h.getManifest, http.MethodHead: h.getManifest, http.MethodPut: h.putManifest, http.MethodDelete: h.deleteManifest},
		"blobs":     {http.MethodGet: h.getBlob, http.MethodHead: h.getBlob, http.MethodDelete: h.deleteBlob},
		"uploads":   {http.MethodPost: h.startUpload},
		"upload":    {http.MethodGet: h.uploadStatus, http.MethodPatch: h.appendUpload, http.MethodPut: h.finishUpload, http.MethodDelete: h.cancelUpload},
	}[c.kind]
	serve, ok := methods[req.Method]
	if !ok {
		return refuse(http.StatusMethodNotAllowed, "UNSUPPORTED", "method %s is not supported here", req.Method)
	}
	return serve(w, req, c)
}

// admit lets a request pass, or says why not. named says that it is about a
// repository.
func (h *handler) admit(req *http.Request, c call, named bool) error {
	repository, action := "", hangar.Action(0)
	if named {
		repository, action = c.repository, c.action(req.Method)
	}
	err := h.authorize(req, repository, action)
	switch {
	case err == nil:
		return nil
	case hangar.CodeOf(err) == hangar.CodeUnauthenticated:
		e := refuse(http.StatusUnauthorized, "UNAUTHORIZED", "authentication required")
		e.headers = map[string]string{"Www-Authenticate": `Basic realm="hangar registry"`}
		return e
	case action != hangar.ActionRead:
		return refuse(http.StatusForbidden, "DENIED", "requested access to the resource is denied")
	case c.kind == "manifests":
		return manifestUnknown(c)
	case c.kind == "blobs":
		return blobUnknown(c)
	default:
		return nameUnknown(repository)
	}
}

// call is what a path asks for.
type call struct {
	kind       string
	repository string
	reference  string // tag, digest or upload id
}

// action is what a call does to its repository.
func (c call) action(method string) hangar.Action {
	switch {
	case c.kind == "uploads", c.kind == "upload":
		return hangar.ActionWrite
	case method == http.MethodDelete:
		return hangar.ActionDelete
	case method == http.MethodGet, method == http.MethodHead:
		return hangar.ActionRead
	default:
		return hangar.ActionWrite
	}
}

// parse reads a path from its end, because repository names have slashes.
func parse(path string) (call, bool) {
	p := strings.Split(path, "/")
	n := len(p)
	name := func(tail int) string { return strings.Join(p[:n-tail], "/") }
	switch {
	case n >= 4 && p[n-3] == "blobs" && p[n-2] == "uploads" && p[n-1] == "":
		return call{"uploads", name(3), ""}, true
	case n >= 4 && p[n-3] == "blobs" && p[n-2] == "uploads":
		return call{"upload", name(3), p[n-1]}, true
	case n >= 3 && p[n-2] == "blobs" && p[n-1] == "uploads":
		return call{"uploads", name(2), ""}, true
	case n >= 3 && p[n-2] == "tags" && p[n-1] == "list":
		return call{"tags", name(2), ""}, true
	case n >= 3 && (p[n-2] == "blobs" || p[n-2] == "manifests" || p[n-2] == "referrers"):
		return call{p[n-2], name(2), p[n-1]}, true
	}
	return call{}, false
}

// mayRead asks whether the caller of req may read another repository.
func (h *handler) mayRead(req *http.Request, repository string) bool {
	return h.authorize(req, repository, hangar.ActionRead) == nil
}

func (h *handler) catalog(w http.ResponseWriter, req *http.Request) error {
	if req.Method != http.MethodGet {
		return refuse(http.StatusMethodNotAllowed, "UNSUPPORTED", "method %s is not supported here", req.Method)
	}
	names, err := h.r.Repositories()
	if err != nil {
		return err
	}
	names = slices.DeleteFunc(names, func(n string) bool { return !h.mayRead(req, n) })
	names, err = page(w, req, "/v2/_catalog", names)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, map[string][]string{"repositories": names})
}

func (h *handler) tags(w http.ResponseWriter, req *http.Request, c call) error {
	if _, err := os.Stat(h.r.repoPath(c.repository)); err != nil {
		return nameUnknown(c.repository)
	}
	entries, err := os.ReadDir(h.r.repoPath(c.repository, "tags"))
	if err != nil && !errors.Is(notFound(err), ErrNotFound) {
		return err
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	names, err = page(w, req, "/v2/"+c.repository+"/tags/list", names)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, map[string]any{"name": c.repository, "tags": names})
}

// page cuts the part of the sorted names that the query wants, and tells the
// client where the next one is.
func page(w http.ResponseWriter, req *http.Request, path string, names []string) ([]string, error) {
	slices.Sort(names)
	q := req.URL.Query()
	if last := q.Get("last"); last != "" {
		i, found := slices.BinarySearch(names, last)
		if found {
			i++
		}
		names = names[i:]
	}
	if s := q.Get("n"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 0 {
			return nil, refuse(http.StatusBadRequest, "PAGINATION_NUMBER_INVALID", "n must be a number that is not negative")
		}
		if n < len(names) {
			names = names[:n]
			if n > 0 {
				next := url.Values{"n": {s}, "last": {names[n-1]}}
				w.Header().Set("Link", fmt.Sprintf(`<%s?%s>; rel="next"`, path, next.Encode()))
			}
		}
	}
	if names == nil {
		names = []string{}
	}
	return names, nil
}

func writeJSON(w http.ResponseWriter, status int, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if w.Header().Get("Content-Type") == "" {
		w.Header().Set("Content-Type", "application/json")
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(raw)))
	w.WriteHeader(status)
	_, _ = w.Write(raw) // the caller went away: nobody is left to tell
	return nil
}

func (r *Registry) writeError(w http.ResponseWriter, req *http.Request, err error) {
	var e *apiError
	switch {
	case errors.As(err, &e):
	case req.Context().Err() != nil:
		return // the caller went away
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		e = refuse(http.StatusInsufficientStorage, "DENIED", "no space left")
	default:
		r.log.ErrorContext(req.Context(), "registry request", slog.String("method", req.Method), slog.String("path", req.URL.Path), slog.Any("error", err))
		e = refuse(http.StatusInternalServerError, "UNKNOWN", "internal error")
	}
	for k, v := range e.headers {
		w.Header().Set(k, v)
	}
	type item struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	_ = writeJSON(w, e.status, map[string][]item{"errors": {{e.code, e.message}}})
}
