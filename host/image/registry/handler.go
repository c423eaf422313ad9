package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/connlimit"
	"github.com/hangar-platform/hangar/internal/diskspace"
)

const (
	headerDigest = "Docker-Content-Digest"
	errNotDir    = unix.ENOTDIR
)

// apiError is an error of the OCI distribution API.
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

// Access decides what each caller may do. Its methods may be called from many goroutines.
type Access interface {
	// Repository returns where a repository is stored, by its name in the request, if the caller of
	// the request may do action to it. With an empty name and no action it only authenticates the
	// caller. It returns hangar.CodeUnauthenticated for an anonymous caller.
	Repository(req *http.Request, name string, action hangar.Action) (hangar.Repository, error)
	// Orgs returns the organizations in which the caller of a request may read something.
	Orgs(req *http.Request) ([]*hangar.Org, error)
}

// Handler serves the OCI distribution API under /v2/, as far as access allows each request. A pull
// needs hangar.ActionRead, a push hangar.ActionWrite and a delete hangar.ActionDelete. A second
// repository in a request (the source of a mount, each line of the catalog) needs hangar.ActionRead.
// A repository that the caller may not read looks like a missing one.
func (r *Registry) Handler(access Access) http.Handler {
	h := &handler{r: r, access: access}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Docker-Distribution-Api-Version", "registry/2.0")
		w = &pacedWriter{ResponseWriter: w, rate: r.opts.MinRate, stall: r.opts.MaxStall}
		if err := h.serve(w, req); err != nil {
			r.writeError(w, req, err)
		}
	})
}

type handler struct {
	r      *Registry
	access Access
}

func (h *handler) serve(w http.ResponseWriter, req *http.Request) error {
	rest, ok := strings.CutPrefix(req.URL.Path, "/v2")
	if !ok || (rest != "" && rest[0] != '/') {
		return refuse(http.StatusNotFound, "UNSUPPORTED", "the registry lives under /v2/")
	}
	rest = strings.TrimPrefix(rest, "/")
	c, ok := parse(rest)
	ok = ok && rest != "_catalog"
	at, err := h.admit(req, c, ok && validName(c.repository))
	if err != nil {
		return err
	}
	c.kept, c.org, c.limitKey = at.Path(), at.Org, limitKey(req, at)
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
	if c.action(req.Method) == hangar.ActionWrite && req.Method != http.MethodDelete {
		org := at.Org
		if req.Method == http.MethodGet { // GET returns the progress of an upload
			org = ""
		}
		if err := h.r.admit(req.Context(), org, max(0, req.ContentLength)); err != nil {
			return err
		}
	}
	return serve(w, req, c)
}

// admit authenticates a request and checks its rights. If named is set, the request is for a
// repository, and admit returns where that is stored.
func (h *handler) admit(req *http.Request, c call, named bool) (hangar.Repository, error) {
	repository, action := "", hangar.Action(0)
	if named {
		repository, action = c.repository, c.action(req.Method)
	}
	at, err := h.access.Repository(req, repository, action)
	switch {
	case err == nil:
		return at, nil
	case hangar.CodeOf(err) != hangar.CodeUnauthenticated && hangar.CodeOf(err) != hangar.CodeForbidden && hangar.CodeOf(err) != hangar.CodeNotFound:
		return hangar.Repository{}, err
	case hangar.CodeOf(err) == hangar.CodeUnauthenticated:
		e := refuse(http.StatusUnauthorized, "UNAUTHORIZED", "authentication required")
		e.headers = map[string]string{"Www-Authenticate": `Basic realm="hangar registry"`}
		return hangar.Repository{}, e
	case action != hangar.ActionRead && hangar.CodeOf(err) == hangar.CodeNotFound:
		return hangar.Repository{}, nameUnknown(repository)
	case action != hangar.ActionRead:
		return hangar.Repository{}, refuse(http.StatusForbidden, "DENIED", "requested access to the resource is denied")
	case c.kind == "manifests":
		return hangar.Repository{}, manifestUnknown(c)
	case c.kind == "blobs":
		return hangar.Repository{}, blobUnknown(c)
	default:
		return hangar.Repository{}, nameUnknown(repository)
	}
}

// call is a parsed path.
type call struct {
	kind       string
	repository string // as named in the request
	reference  string // tag, digest or upload id
	kept       string // where the repository is stored, see hangar.Repository
	org        hangar.OrgID
	limitKey   string // see limitKey
}

// limitKey groups the requests whose reads from other hosts share a bound. It groups them by
// organization, or by client for a repository of the server, which everyone may read.
func limitKey(req *http.Request, at hangar.Repository) string {
	if at.Org != "" {
		return at.Root()
	}
	client, _ := netip.ParseAddrPort(req.RemoteAddr)
	return at.Root() + " " + connlimit.ClientOf(client.Addr()).String()
}

// unavailable turns the error of an unreachable or busy host into one that names the content.
func (c call) unavailable(err error) error {
	switch {
	case errors.Is(err, errTooMany):
		return refuse(http.StatusTooManyRequests, "TOOMANYREQUESTS", "%s: %s", c.repository, hangar.MessageOf(err))
	case hangar.ReasonOf(err) == reasonAway:
		return refuse(http.StatusServiceUnavailable, "UNAVAILABLE", "%s of %s: %s", c.reference, c.repository, hangar.MessageOf(err))
	default:
		return err
	}
}

// action is the action that a call needs on its repository.
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

// parse reads a path from its end, because repository names contain slashes.
func parse(path string) (call, bool) {
	p := strings.Split(path, "/")
	n := len(p)
	name := func(tail int) string { return strings.Join(p[:n-tail], "/") }
	switch {
	case n >= 4 && p[n-3] == "blobs" && p[n-2] == "uploads" && p[n-1] == "":
		return call{kind: "uploads", repository: name(3), reference: ""}, true
	case n >= 4 && p[n-3] == "blobs" && p[n-2] == "uploads":
		return call{kind: "upload", repository: name(3), reference: p[n-1]}, true
	case n >= 3 && p[n-2] == "blobs" && p[n-1] == "uploads":
		return call{kind: "uploads", repository: name(2), reference: ""}, true
	case n >= 3 && p[n-2] == "tags" && p[n-1] == "list":
		return call{kind: "tags", repository: name(2), reference: ""}, true
	case n >= 3 && (p[n-2] == "blobs" || p[n-2] == "manifests" || p[n-2] == "referrers"):
		return call{kind: p[n-2], repository: name(2), reference: p[n-1]}, true
	}
	return call{}, false
}

// readable returns where another repository is stored, if the caller of req may read it.
func (h *handler) readable(req *http.Request, name string) (string, bool) {
	at, err := h.access.Repository(req, name, hangar.ActionRead)
	return at.Path(), err == nil
}

func (h *handler) catalog(w http.ResponseWriter, req *http.Request) error {
	if req.Method != http.MethodGet {
		return refuse(http.StatusMethodNotAllowed, "UNSUPPORTED", "method %s is not supported here", req.Method)
	}
	names, err := h.r.Repositories(req.Context(), hangar.Repository{})
	if err != nil {
		return err
	}
	orgs, err := h.access.Orgs(req)
	if err != nil {
		return err
	}
	for _, org := range orgs {
		own, err := h.r.Repositories(req.Context(), hangar.Repository{Org: org.ID})
		if err != nil {
			return err
		}
		for _, name := range own {
			names = append(names, string(org.Slug)+"/"+name)
		}
	}
	names = slices.DeleteFunc(names, func(n string) bool {
		_, ok := h.readable(req, n)
		return !ok
	})
	names, err = page(w, req, "/v2/_catalog", names)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, map[string][]string{"repositories": names})
}

func (h *handler) tags(w http.ResponseWriter, req *http.Request, c call) error {
	all, err := h.r.catalog.Repository(req.Context(), c.kept)
	if err != nil {
		return err
	}
	if _, err := os.Stat(h.r.repoPath(c.kept)); err != nil && len(all.Manifests) == 0 {
		return nameUnknown(c.repository)
	}
	names, err := page(w, req, "/v2/"+c.repository+"/tags/list", slices.Collect(maps.Keys(all.Tags)))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, map[string]any{"name": c.repository, "tags": names})
}

// page returns the page of the sorted names that the query requests, and adds a link to the next
// page.
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
	_, _ = w.Write(raw) // the client is gone
	return nil
}

func (r *Registry) writeError(w http.ResponseWriter, req *http.Request, err error) {
	var e *apiError
	err = diskspace.Explain(err)
	switch {
	case errors.As(err, &e):
	case req.Context().Err() != nil:
		return // the client is gone
	case hangar.ReasonOf(err) == hangar.ReasonDiskFull:
		told, _ := errors.AsType[*hangar.Error](err)
		e = refuse(http.StatusInsufficientStorage, "DENIED", "%s", told.Message)
	case hangar.ReasonOf(err) == hangar.ReasonQuota:
		told, _ := errors.AsType[*hangar.Error](err)
		e = refuse(http.StatusForbidden, "DENIED", "%s", told.Message)
	case hangar.CodeOf(err) == hangar.CodeUnavailable || hangar.CodeOf(err) == hangar.CodeTimeout:
		e = refuse(http.StatusServiceUnavailable, "UNAVAILABLE", "try again later")
	case errors.Is(err, errOrgRemoved):
		e = refuse(http.StatusNotFound, "NAME_UNKNOWN", "the organization is not known any more")
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
