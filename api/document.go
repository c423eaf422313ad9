package api

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

const (
	mediaJSON  = "application/json"
	mediaLines = "application/x-ndjson"
	mediaHTML  = "text/html"
	mediaText  = "text/plain"
)

const documentText = `The API of a hangar server. Every request but those for this document, for what
verifies identity tokens and for the health of the server carries a token: ` + "`Authorization: Bearer TOKEN`" + `.

An error is a JSON object; its ` + "`code`" + ` and its ` + "`status`" + ` are stable, its text is for people.
Every answer has the id of its request in a header, under which the log of the server has more.

Properties are added over time: ignore those that you do not know.
The registry of images under ` + "`/v2/`" + ` is that of the OCI distribution specification and not described here.`

// describe writes the document of every route. They must have been mounted.
func (s *server) describe() *openapi.Document {
	schemas := newSchemas()
	d := &openapi.Document{
		OpenAPI: openapi.Version,
		Info: openapi.Info{
			Title: "hangar", Version: s.Version, Summary: "Machines behind a REST API", Description: documentText,
			License: &openapi.License{Name: "Apache-2.0", Identifier: "Apache-2.0"},
		},
		Servers:  []openapi.Server{{URL: "/", Description: "The server that this document comes from."}},
		Security: []map[string][]string{{"token": {}}},
		Tags:     tags,
		Paths:    map[string]map[string]*openapi.Operation{},
		Components: openapi.Components{
			Responses: errorResponses(schemas),
			Headers:   map[string]openapi.Header{},
			SecuritySchemes: map[string]*openapi.SecurityScheme{
				"token": {Type: "http", Scheme: "bearer", Description: "A token, after Bearer, PlatformV1 or FlyV1."},
			},
		},
	}
	for _, name := range []string{hangar.HeaderRequestID.Neutral, hangar.HeaderRequestID.Original} {
		d.Components.Headers[name] = openapi.Header{
			Description: "The id of the request: a ULID, a dash and the region.", Schema: &openapi.Schema{Type: []string{"string"}},
		}
	}
	// Answers first, so that what is both answered and sent has its name from the answer.
	operations := make([]*openapi.Operation, len(s.table))
	for i, r := range s.table {
		operations[i] = r.answers(schemas)
	}
	for i, r := range s.table {
		r.request(schemas, operations[i])
		if d.Paths[r.path] == nil {
			d.Paths[r.path] = map[string]*openapi.Operation{}
		}
		d.Paths[r.path][strings.ToLower(r.method)] = operations[i]
	}
	d.Components.Schemas = schemas.Named()
	return d
}

// answers describes what the route answers with.
func (r route) answers(schemas *openapi.Schemas) *openapi.Operation {
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
		success.Content = map[string]openapi.Media{cmp.Or(r.Media, mediaJSON): {Schema: schema, Example: r.Answer}}
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
	if r.public {
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

// request describes what is sent to the route.
func (r route) request(schemas *openapi.Schemas, op *openapi.Operation) {
	for _, name := range r.parameters() {
		p := pathParams[name]
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
			mediaJSON: {Schema: schemas.Of(reflect.TypeOf(r.Body), openapi.Sent), Example: exampleOf(r.Body)},
		}}
		if r.Lenient {
			op.RequestBody.Description = ""
		}
	}
}

// textOfStrict says what becomes of properties that are not described.
const textOfStrict = "A property that is not described here is refused, at any depth."

// prefixed ends the name of a parameter that stands for all that begin so.
const prefixed = ".*"

func (p param) parameter(in string, schemas *openapi.Schemas) openapi.Parameter {
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
	media := openapi.Media{Schema: schemas.Of(reflect.TypeFor[errorBody](), openapi.Answered), Example: describe(errorExamples[status])}
	if other != nil {
		media.Example = other
		media.Schema = &openapi.Schema{AnyOf: []*openapi.Schema{media.Schema, schemas.Of(reflect.TypeOf(other), openapi.Answered)}}
	}
	return &openapi.Response{
		Description: http.StatusText(status), Headers: requestIDHeaders(), Content: map[string]openapi.Media{mediaJSON: media},
	}
}

// getDocument answers with the document, which is made when it is first asked for.
func (s *server) getDocument(*http.Request) (answer, error) { return ok(s.document()) }

// getReference answers with the document as a page for people.
func (s *server) getReference(*http.Request) (answer, error) {
	html, err := s.reference()
	return answer{page: html}, err
}
