package router

import (
	"cmp"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
	"github.com/hangar-platform/hangar/api/openapi"
)

// Media types of answers.
const (
	MediaJSON  = "application/json"
	mediaLines = "application/x-ndjson"
	MediaHTML  = "text/html"
	MediaText  = "text/plain"
)

// Document adds the operations of all routes, with their answers and errors, to d. d has the rest of
// the document, and schemas describes the types. The routes must have been added.
func (rt *Router) Document(d *openapi.Document, schemas *openapi.Schemas) *openapi.Document {
	schemas.Name(reflect.TypeFor[Error](), "Error")
	schemas.Name(reflect.TypeFor[DoneAnswer](), "Done")
	d.OpenAPI = openapi.Version
	d.Security = []map[string][]string{{"token": {}}}
	d.Paths = map[string]map[string]*openapi.Operation{}
	d.Components = openapi.Components{
		Responses: errorResponses(schemas),
		Headers:   map[string]openapi.Header{},
		SecuritySchemes: map[string]*openapi.SecurityScheme{
			"token": {Type: "http", Scheme: "bearer", Description: "A token, after Bearer, PlatformV1 or FlyV1."},
		},
	}
	for _, name := range []string{hangar.HeaderRequestID.Neutral, hangar.HeaderRequestID.Original} {
		d.Components.Headers[name] = openapi.Header{
			Description: "The id of the request: a ULID, a dash and the region.", Schema: &openapi.Schema{Type: []string{"string"}},
		}
	}
	// Answers come first, so that a type that is both answered and sent is named after its answer.
	operations := make([]*openapi.Operation, len(rt.routes))
	for i := range rt.routes {
		operations[i] = rt.routes[i].answers(schemas)
	}
	for i := range rt.routes {
		r := &rt.routes[i]
		r.request(schemas, rt.Params, operations[i])
		if line := rt.Commands[r.ID]; line != "" {
			operations[i].Samples = []openapi.Sample{{Lang: "Shell", Label: "hangar", Source: line}}
		}
		if d.Paths[r.Path] == nil {
			d.Paths[r.Path] = map[string]*openapi.Operation{}
		}
		d.Paths[r.Path][strings.ToLower(r.Method)] = operations[i]
	}
	d.Components.Schemas = schemas.Named()
	return d
}

// answers describes the answers of the route.
func (r *Route) answers(schemas *openapi.Schemas) *openapi.Operation {
	status := cmp.Or(r.Status, http.StatusOK)
	success := &openapi.Response{Description: http.StatusText(status), Headers: requestIDHeaders()}
	if r.Answer != nil {
		schema := schemas.Of(reflect.TypeOf(r.Answer), openapi.Answered)
		if len(r.Answers) > 0 {
			schema = &openapi.Schema{AnyOf: []*openapi.Schema{schema}}
			for _, other := range r.Answers {
				schema.AnyOf = append(schema.AnyOf, schemas.Of(reflect.TypeOf(other), openapi.Answered))
			}
		}
		success.Content = map[string]openapi.Media{cmp.Or(r.Media, MediaJSON): {Schema: schema, Example: r.Answer}}
	}
	if r.Stream != nil {
		if success.Content == nil {
			success.Content = map[string]openapi.Media{}
		}
		success.Content[mediaLines] = openapi.Media{Schema: schemas.Of(reflect.TypeOf(r.Stream), openapi.Answered), Example: r.Stream}
	}
	op := &openapi.Operation{
		ID: r.ID, Tags: []string{r.Tag}, Summary: r.Summary, Description: r.Text,
		Responses: map[string]*openapi.Response{strconv.Itoa(status): success},
	}
	if r.Public {
		op.Security = []map[string][]string{{}}
	}
	if r.Cached {
		op.Responses[strconv.Itoa(http.StatusNotModified)] = &openapi.Response{
			Description: http.StatusText(http.StatusNotModified), Headers: requestIDHeaders(),
		}
	}
	if r.Self {
		op.Description = strings.TrimSpace(op.Description + " " + textOfSelf)
	}
	for _, status := range r.errorsOf() {
		op.Responses[strconv.Itoa(status)] = &openapi.Response{Ref: "#/components/responses/" + errorName(status)}
		if r.Error != nil {
			op.Responses[strconv.Itoa(status)] = errorResponse(schemas, status, r.Error)
		}
	}
	return op
}

// request describes the requests to the route.
func (r *Route) request(schemas *openapi.Schemas, params map[string]Param, op *openapi.Operation) {
	for _, name := range r.Parameters() {
		p := params[name]
		op.Parameters = append(op.Parameters, openapi.Parameter{
			Name: name, In: "path", Required: true, Description: p.Text, Schema: &openapi.Schema{Type: []string{"string"}}, Example: p.Example,
		})
	}
	for _, p := range r.Query {
		op.Parameters = append(op.Parameters, p.parameter("query", schemas))
	}
	for _, p := range r.Headers {
		op.Parameters = append(op.Parameters, p.parameter("header", schemas))
	}
	if r.Body != nil {
		op.RequestBody = &openapi.RequestBody{Required: !r.MayOmit, Description: textOfStrict, Content: map[string]openapi.Media{
			MediaJSON: {Schema: schemas.Of(reflect.TypeOf(r.Body), openapi.Sent), Example: ExampleOf(r.Body)},
		}}
		if r.Lenient {
			op.RequestBody.Description = ""
		}
	}
}

// textOfStrict describes the treatment of unknown properties.
const textOfStrict = "A property that is not described here is refused, at any depth."

// prefixed ends the name of a parameter that stands for all parameters with this prefix.
const prefixed = ".*"

func (p Param) parameter(in string, schemas *openapi.Schemas) openapi.Parameter {
	t := reflect.TypeOf(p.Example)
	out := openapi.Parameter{Name: p.Name, In: in, Description: p.Text, Schema: schemas.Of(t, openapi.Answered), Example: p.Example}
	if prefix, ok := strings.CutSuffix(p.Name, prefixed); ok {
		// The members of an exploded object are parameters of their own.
		out.Name, out.Style, out.Explode = prefix, "form", new(true)
		out.Schema = &openapi.Schema{
			Type:                 []string{"object"},
			PatternProperties:    map[string]*openapi.Schema{"^" + prefix + `\.`: {Type: []string{"string"}}},
			AdditionalProperties: false,
		}
	}
	return out
}

func requestIDHeaders() map[string]openapi.Header {
	headers := map[string]openapi.Header{}
	for _, name := range []string{hangar.HeaderRequestID.Neutral, hangar.HeaderRequestID.Original} {
		headers[name] = openapi.Header{Ref: "#/components/headers/" + name}
	}
	return headers
}

// errorExamples is an error of every status that the API answers with.
var errorExamples = map[int]error{
	http.StatusBadRequest: hangar.Errorf(hangar.CodeInvalid, hangar.ReasonBadConfig,
		"invalid config.guest.memory_mb: 100 is not from %d to %d", hangar.MemoryStepMB, hangar.MaxMemoryMB),
	http.StatusUnauthorized:          hangar.Errorf(hangar.CodeUnauthenticated, "", "Authenticate: token validation error"),
	http.StatusForbidden:             hangar.Errorf(hangar.CodeForbidden, "", "You are not allowed to do this to app \"web\""),
	http.StatusNotFound:              hangar.Errorf(hangar.CodeNotFound, hangar.ReasonMachineNotFound, "machine not found: d8912340000002"),
	http.StatusMethodNotAllowed:      hangar.Errorf(hangar.CodeInvalid, reasonMethodNotAllowed, "method PUT is not allowed here; allowed: GET, HEAD, POST"),
	http.StatusRequestTimeout:        hangar.Errorf(hangar.CodeTimeout, hangar.ReasonWaitTimeout, "machine failed to reach desired state, started, currently starting"),
	http.StatusConflict:              hangar.Errorf(hangar.CodeConflict, hangar.ReasonInsufficientCapacity, "insufficient memory available to fulfill request"),
	http.StatusPreconditionFailed:    hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonWrongState, "machine not running"),
	http.StatusRequestEntityTooLarge: hangar.Errorf(hangar.CodeInvalid, input.ReasonBodyTooLarge, "the body is larger than the %d bytes that are allowed", MaxBodyBytes),
	http.StatusUnprocessableEntity:   hangar.Errorf(hangar.CodeInvalid, hangar.ReasonNameTaken, "Validation failed: Name has already been taken"),
	http.StatusTooManyRequests:       hangar.Errorf(hangar.CodeExhausted, hangar.ReasonRateLimited, "rate limit exceeded"),
	http.StatusInternalServerError:   hangar.Errorf(hangar.CodeInternal, "", internalText),
	http.StatusNotImplemented:        hangar.Errorf(hangar.CodeUnimplemented, "", "this server does not offer it"),
	http.StatusServiceUnavailable:    hangar.Errorf(hangar.CodeUnavailable, "", "the server is shutting down"),
}

func errorName(status int) string { return strings.ReplaceAll(http.StatusText(status), " ", "") }

// errorResponses describes every error once; operations refer to them.
func errorResponses(schemas *openapi.Schemas) map[string]*openapi.Response {
	responses := map[string]*openapi.Response{}
	for _, status := range slices.Sorted(maps.Keys(errorExamples)) {
		responses[errorName(status)] = errorResponse(schemas, status, nil)
	}
	return responses
}

// errorResponse describes an error, which may have another shape than the API's.
func errorResponse(schemas *openapi.Schemas, status int, other any) *openapi.Response {
	media := openapi.Media{Schema: schemas.Of(reflect.TypeFor[Error](), openapi.Answered), Example: Describe(errorExamples[status])}
	if other != nil {
		media.Example = other
		media.Schema = &openapi.Schema{AnyOf: []*openapi.Schema{media.Schema, schemas.Of(reflect.TypeOf(other), openapi.Answered)}}
	}
	return &openapi.Response{
		Description: http.StatusText(status), Headers: requestIDHeaders(), Content: map[string]openapi.Media{MediaJSON: media},
	}
}
