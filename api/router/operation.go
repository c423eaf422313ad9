package router

import (
	"net/http"
	"reflect"
	"regexp"
	"strings"

	"github.com/hangar-platform/hangar/api/input"
)

// Operation is the entry of a route in the OpenAPI document. Body and Answer are examples: their types
// are what the handler decodes and writes, and become the schemas. An Operation does not repeat what
// follows from the pattern of the route: the parameters of its path, and the errors of every such
// route; see errorsOf.
type Operation struct {
	ID      string // unique, a verb and a noun: "createApp"
	Tag     string // one of tags
	Summary string // one line, as an order: "Create an App"
	Text    string // details, in Markdown

	Query   []Param
	Headers []Param
	Body    any  // nil: none. Zero fields of a struct are left out of the example
	MayOmit bool // the body
	// Lenient ignores unknown properties of the body, because clients of the public platform send some.
	// It must not be set for a body that grants rights, where ignoring a misspelt property could grant
	// more.
	Lenient bool

	Status  int    // 0: 200
	Answer  any    // nil: no body
	Answers []any  // further shapes of the body, chosen by a parameter
	Media   string // of the body; "": JSON
	Stream  any    // a line of the answer when it is a stream of JSON values; nil: never one
	Cached  bool   // a client that has the answer may revalidate it

	Errors []int // status codes beyond those that errorsOf has
	Error  any   // a further shape of errors; nil: there is only the API's

	Self bool // a Machine may call it about itself, without a token; see self
}

// TagExisting is the group of the operations that only clients of the public platform use.
const TagExisting = "Existing clients"

// Param is a parameter of a query, or a header. Example gives its type, too: a list
// may be repeated or hold commas.
type Param struct {
	Name    string
	Example any
	Text    string
}

// Route is an operation with its pattern.
type Route struct {
	Method, Path string
	Public       bool // needs no token
	Lasting      bool // lasts as long as the client or a Machine wants; see package latency
	Operation
}

// InBraces matches a parameter in the path of a route.
var InBraces = regexp.MustCompile(`\{([^{}]+)\}`)

// Parameters are the names in the path.
func (r *Route) Parameters() []string {
	var names []string
	for _, m := range InBraces.FindAllStringSubmatch(r.Path, -1) {
		names = append(names, m[1])
	}
	return names
}

// errorsOf lists the status codes of errors that the route answers with.
func (r *Route) errorsOf() []int {
	list := []int{http.StatusInternalServerError, http.StatusServiceUnavailable}
	if !r.Public {
		list = append(list, http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests)
	}
	if len(r.Parameters()) > 0 {
		list = append(list, http.StatusNotFound)
	}
	if r.Body != nil || len(r.Query) > 0 || len(r.Parameters()) > 0 {
		list = append(list, http.StatusBadRequest)
	}
	if r.Body != nil {
		list = append(list, http.StatusRequestTimeout, http.StatusRequestEntityTooLarge)
	}
	return append(list, r.Errors...)
}

// Handle mounts h behind a token.
func (rt *Router) Handle(pattern string, h Handler, op Operation) {
	rt.mount(pattern, rt.authenticate(rt.limit(rt.plain(h))), Route{Operation: op})
}

// Lasting mounts h, which may take long, behind a token that has to stay valid meanwhile.
func (rt *Router) Lasting(pattern string, h Handler, op Operation) {
	rt.mount(pattern, rt.authenticate(rt.limit(rt.attended(rt.plain(h)))), Route{Operation: op, Lasting: true})
}

// Public mounts h without authentication.
func (rt *Router) Public(pattern string, h Handler, op Operation) {
	rt.mount(pattern, rt.plain(h), Route{Operation: op, Public: true})
}

// Stream mounts h behind a token that has to stay valid as long as the stream.
func (rt *Router) Stream(pattern string, h Streamer, op Operation) {
	rt.mount(pattern, rt.streamed(h), Route{Operation: op, Lasting: true})
}

// Written mounts h, which writes its answer itself and is done as soon as it can, behind a token
// that has to stay valid meanwhile.
func (rt *Router) Written(pattern string, h Streamer, op Operation) {
	rt.mount(pattern, rt.streamed(h), Route{Operation: op})
}

func (rt *Router) streamed(h Streamer) http.Handler {
	return rt.authenticate(rt.limit(rt.attended(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := h(w, r); err != nil {
			rt.WriteError(w, r, err)
		}
	}))))
}

func (rt *Router) mount(pattern string, h http.Handler, as Route) {
	if as.Lenient {
		h = input.Lenient(h)
	}
	if !as.Public {
		h = rt.self(as.Operation, h)
	}
	as.Method, as.Path, _ = strings.Cut(pattern, " ")
	as.Path = strings.TrimSuffix(as.Path, "{$}")
	rt.routes = append(rt.routes, as)
	rt.mux.Handle(pattern, h)
}

// ExampleOf returns v without the zero fields of a struct, which a sender leaves out.
func ExampleOf(v any) any {
	value := reflect.ValueOf(v)
	if value.Kind() != reflect.Struct {
		return v
	}
	sparse := map[string]any{}
	addFields(sparse, value)
	return sparse
}

// addFields adds the fields of a struct that are not zero, and those of structs that it embeds.
func addFields(sparse map[string]any, value reflect.Value) {
	for f, at := range value.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "" && at.Kind() == reflect.Struct:
			addFields(sparse, at)
		case name != "" && name != "-" && !at.IsZero():
			sparse[name] = at.Interface()
		}
	}
}
