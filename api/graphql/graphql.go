// Package graphql serves the GraphQL requests of the public platform's clients: POST /graphql.
//
// # What it promises
//
// The operations are those that the command line of the public platform and its Go client use, with the
// types that these decode. Each calls the service that answers the same in the REST API, for the same
// principal. So there are no separate rules of access, and a refusal has the same code and reason. The
// file schema.graphql has all operations, and package execute has the bounds of a request.
//
// An answer has the status 200 even when it has errors. Only a request without a valid token, or one
// whose body is not JSON, is refused as elsewhere in the API. Operations that this server lacks answer
// with an error that says what to do instead.
//
// # Names
//
// The id of an App is its name. The id of an organization is its OrgID, but its slug is accepted, too. A
// cursor is an index into a list, which may change between pages, as on the public platform.
//
// It is not a place for rules: those are in the services.
package graphql

import (
	_ "embed"
	"net/http"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/graphql/execute"
	"github.com/hangar-platform/hangar/api/input"
	"github.com/hangar-platform/hangar/api/router"
)

// Services answer the operations. Every field is required but AppURL.
type Services struct {
	Orgs         hangar.OrgService
	Tokens       hangar.TokenService
	Users        hangar.UserService
	Apps         hangar.AppService
	Machines     hangar.MachineService
	Images       hangar.ImageResolver
	Platform     hangar.PlatformService
	Secrets      hangar.SecretService
	Peers        hangar.PeerService
	Volumes      hangar.VolumeService
	Addresses    hangar.AddressService
	Certificates hangar.CertificateService
	Releases     hangar.ReleaseService
	SSH          hangar.SSHService
	// AppURL is where the edge serves an App under its name. Nil: there is no edge.
	AppURL func(hangar.AppName) string
	Region hangar.Region
}

//go:embed schema.graphql
var schemaText string

// area is the GraphQL API over its services.
type area struct {
	Services
	*router.Router
	schema *schema
}

// asking is one request. Its resolvers read it.
type asking struct {
	*area
	host   string // by which the caller knows this server
	caller hangar.Principal
	// current has the current releases of Apps that were read. It needs no lock, because fields are
	// resolved one after another.
	current map[hangar.AppID]*hangar.Release
}

// Names of generic types, for this API.
type (
	schema = execute.Schema[*asking]
	query  = execute.Query[*asking]
	args   = execute.Input
	// root is the object whose fields are queries and mutations.
	root = execute.Root
	// fields are the resolvers of an object type.
	fields[T any] = map[string]execute.Resolver[*asking, T]
)

// Routes adds the operation of the GraphQL API.
func Routes(rt *router.Router, s Services) {
	a := &area{Services: s, Router: rt, schema: newSchema()}
	rt.Handle("POST /graphql", a.answer, router.Operation{
		ID: "queryGraphQL", Tag: router.TagExisting, Summary: "Query by GraphQL",
		Text: "What the command line and libraries of the public platform ask for. Fields that this server does not know are null; " +
			"operations, arguments and properties of inputs that it does not know are errors. Errors are a part of the answer, whose status is 200: " +
			"`extensions.code` is the code of the same error of the REST API, in capitals, and `extensions.status` its reason.",
		Body: execute.Request{
			Query: "query($app: String!) { app(name: $app) { id status organization { slug } } }", Variables: map[string]any{"app": "web"},
		},
		Answer: execute.Answer{Data: map[string]any{"app": map[string]any{
			"id": "web", "status": "deployed", "organization": map[string]any{"slug": "personal"},
		}}},
	})
}

// newSchema returns the schema with all resolvers. It panics on a fault of the schema, which every
// process would have.
func newSchema() *schema {
	s, err := execute.New[*asking](schemaText, instead)
	if err != nil {
		panic(err)
	}
	for _, define := range []func(*schema){
		defineRoot, defineApp, defineImage, defineOrg, defineMachine, defineVolume, defineRelease, defineToken, defineAddress,
		defineCertificate, definePeer, defineMutation, definePayloads,
	} {
		define(s)
	}
	if err := s.Check(); err != nil {
		panic(err)
	}
	return s
}

func (a *area) answer(r *http.Request) (router.Answer, error) {
	in, err := input.Decode[execute.Request](r)
	if err != nil {
		return router.Answer{}, err
	}
	caller, err := hangar.PrincipalFrom(r.Context())
	if err != nil {
		return router.Answer{}, err
	}
	response := a.schema.Execute(r.Context(), &asking{area: a, host: router.CalledHost(r), caller: caller, current: map[hangar.AppID]*hangar.Release{}}, in, func(err error) {
		a.Log.ErrorContext(r.Context(), "GraphQL request failed", router.KeyRequest, router.RequestID(r), router.KeyError, err)
	})
	// The answer may hold a new token.
	return router.Answer{Body: response, Header: router.SecretHeader()}, nil
}

// called counts a call of a service and makes it.
func called[T any](q *query, call func() (T, error)) (T, error) {
	if err := q.Call(); err != nil {
		var none T
		return none, err
	}
	return call()
}

// field is a resolver that only reads.
func field[T, V any](read func(T) V) execute.Resolver[*asking, T] {
	return execute.Field[*asking](read)
}

// null resolves fields that never have a value.
func null[T any](*query, T, args) (any, error) { return nil, nil } //nolint:nilnil // null
