package api

import (
	"net/http"
	"reflect"
	"regexp"
	"strings"

	"github.com/hangar-platform/hangar/api/input"
	"github.com/hangar-platform/hangar/api/openapi"
)

// operation says of a route what the OpenAPI document says of it. Body and Answer
// are examples: their types are what the handler decodes and writes, and become the
// schemas. What follows from the pattern of the route is not repeated here: the
// parameters of its path, and the errors that every such route has; see errorsOf.
type operation struct {
	ID      string // unique, a verb and a noun: "createApp"
	Tag     string // one of tags
	Summary string // one line, as an order: "Create an App"
	Text    string // what else there is to know, in Markdown

	Query   []param
	Headers []param
	Body    any  // nil: none. Zero fields of a struct are left out of the example
	MayOmit bool // the body
	// Lenient has properties of the body ignored that this server does not know, as clients
	// of the public platform send. It is not for a body that allows somebody something: one
	// that lacks what a misspelt property was to say would allow more.
	Lenient bool

	Status  int    // 0: 200
	Answer  any    // nil: no body
	Answers []any  // further shapes of the body, told by a parameter
	Media   string // of the body; "": JSON
	Stream  any    // a line of the answer when it is a stream of JSON values; nil: never one
	Cached  bool   // who has the answer may ask whether it is still the same

	Errors []int // status codes beyond those that errorsOf has
	Error  any   // a further shape of errors; nil: there is only the API's

	Self bool // a Machine may ask it of itself, without a token: see self
}

// param is a parameter of a query, or a header. Example gives its type, too: a list
// may be repeated or hold commas.
type param struct {
	Name    string
	Example any
	Text    string
}

// tags are the groups of operations, in the order in which they are shown.
var tags = []openapi.Tag{
	{Name: "Organizations", Description: "An organization owns Apps, networks, tokens and images. Others learn nothing of it but that it exists, from its issuer of identity tokens."},
	{Name: "Tokens", Description: "A token says who asks, and what that one may do."},
	{Name: "Users", Description: "People who use the platform, and their roles in organizations. A user signs in for a token; what it allows follows the memberships."},
	{Name: "Apps", Description: "An App is a named group of Machines with one owner and one private network."},
	{Name: "Machines", Description: "A Machine runs one image. Its config says how; every change of the config is a version."},
	{Name: "Volumes", Description: "A volume is storage that a Machine mounts, with its own file system on one server. A snapshot is how it was at one moment, and outlives it."},
	{Name: "Addresses", Description: "The addresses at which the edge serves an App. An App without one is closed to everybody outside of its private network."},
	{Name: "Leases", Description: "A lease keeps everybody else from changing a Machine for a while."},
	{Name: "Execution", Description: "Commands, processes and signals inside a Machine that is started."},
	{Name: "Metadata", Description: "Texts by which users tell Machines apart. Changing them makes no new version."},
	{Name: "Secrets", Description: "What the Machines of an App find in their environment, and nobody else sees."},
	{Name: "Keys", Description: "Key material of an App that the platform keeps, works with and shows to nobody, Machines of the App included."},
	{Name: "Logs", Description: "What Machines print, and what the platform says about them."},
	{Name: "Metrics", Description: "Series of Apps and Machines, and what they expose themselves, in the HTTP API of Prometheus and the language MetricsQL."},
	{Name: "Alerts", Description: "Rules that watch the metrics of an organization, and receivers that are notified."},
	{Name: "Images", Description: "The images that this server holds unpacked."},
	{Name: "Registries", Description: "How this server signs in at the registries that images are pulled from."},
	{Name: "Identity", Description: "Tokens by which Machines prove to third parties who they are, and how those verify them."},
	{Name: "WireGuard", Description: "Computers that are on a private network of an organization through WireGuard."},
	{Name: "Certificates", Description: "Hostnames of an App beside the one that the platform gives it, and the certificates that the edge answers them with."},
	{Name: "Platform", Description: "The server itself."},
}

// pathParams says what stands in the braces of patterns.
var pathParams = map[string]param{
	"token":      {"", "4k7fbw2hxq3s", "The id of a token, or its name."},
	"user":       {"", exampleUserID, "The id of a user, or the e-mail address."},
	"invitation": {"", exampleInvitation, "The id of an invitation."},
	"app":        {"", "web", "The name of an App: at most 63 characters of a-z, 0-9 and dash."},
	"org":        {"", "personal", "The slug of an organization."},
	"label":      {"", "instance", "The name of a label."},
	"machine":    {"", "d8912340000002", "The id of a Machine: 14 lowercase hexadecimal digits."},
	"volume":     {"", string(exampleVolumeID), "The id of a volume: `vol_` and 16 characters of a-z and 0-9."},
	"key":        {"", "role", "A key of the metadata."},
	"secret":     {"", exampleSecret, "The name of a secret."},
	"secretkey":  {"", exampleSecretKey, "The name of a secret key: letters, digits, `_`, `-` and `.`, neither of the last two first."},
	"registry":   {"", exampleRegistry, "The host of a registry, with its port if need be."},
	"hostname":   {"", string(exampleHostname), "A DNS name, or `*.` and one."},
	"peer":       {"", examplePeer, "The name of a WireGuard peer."},
	"ip":         {"", "203.0.113.7", "An address of the App."},
	"digest":     {"", "sha256:83075afea33660ca1911ce1905dee384079ed856397e0e5a9249435b22c35dc8", "The digest of an image."},
}

// route is a path that is served.
type route struct {
	method, path string
	public       bool // needs no token
	lasting      bool // lasts as long as the client or a Machine wants; see package latency
	operation
}

var inBraces = regexp.MustCompile(`\{([^{}]+)\}`)

// parameters are the names in the path.
func (r route) parameters() []string {
	var names []string
	for _, m := range inBraces.FindAllStringSubmatch(r.path, -1) {
		names = append(names, m[1])
	}
	return names
}

// errorsOf lists the status codes of errors that the route answers with.
func (r route) errorsOf() []int {
	list := []int{http.StatusInternalServerError, http.StatusServiceUnavailable}
	if !r.public {
		list = append(list, http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests)
	}
	if len(r.parameters()) > 0 {
		list = append(list, http.StatusNotFound)
	}
	if r.Body != nil || len(r.Query) > 0 || len(r.parameters()) > 0 {
		list = append(list, http.StatusBadRequest)
	}
	if r.Body != nil {
		list = append(list, http.StatusRequestTimeout, http.StatusRequestEntityTooLarge)
	}
	return append(list, r.Errors...)
}

// handle mounts h behind a token.
func (s *server) handle(pattern string, h handler, op operation) {
	s.mount(pattern, s.authenticate(s.limit(s.plain(h))), route{operation: op})
}

// lasting mounts h, which may take long, behind a token that has to stay valid meanwhile.
func (s *server) lasting(pattern string, h handler, op operation) {
	s.mount(pattern, s.authenticate(s.limit(s.attended(s.plain(h)))), route{operation: op, lasting: true})
}

// public mounts h for everybody.
func (s *server) public(pattern string, h handler, op operation) {
	s.mount(pattern, s.plain(h), route{operation: op, public: true})
}

// stream mounts h behind a token that has to stay valid as long as the stream.
func (s *server) stream(pattern string, h streamer, op operation) {
	s.mount(pattern, s.streamed(h), route{operation: op, lasting: true})
}

// written mounts h, which writes its answer itself and is done as soon as it can, behind a token
// that has to stay valid meanwhile.
func (s *server) written(pattern string, h streamer, op operation) {
	s.mount(pattern, s.streamed(h), route{operation: op})
}

func (s *server) streamed(h streamer) http.Handler {
	return s.authenticate(s.limit(s.attended(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := h(w, r); err != nil {
			s.writeError(w, r, err)
		}
	}))))
}

func (s *server) mount(pattern string, h http.Handler, as route) {
	if as.Lenient {
		h = input.Lenient(h)
	}
	if !as.public {
		h = s.self(as.operation, h)
	}
	as.method, as.path, _ = strings.Cut(pattern, " ")
	s.table = append(s.table, as)
	s.mux.Handle(pattern, h)
}

// exampleOf is v without the zero fields of a struct, which a sender leaves out.
func exampleOf(v any) any {
	value := reflect.ValueOf(v)
	if value.Kind() != reflect.Struct {
		return v
	}
	sparse := map[string]any{}
	for f, at := range value.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != "" && name != "-" && !at.IsZero() {
			sparse[name] = at.Interface()
		}
	}
	return sparse
}
