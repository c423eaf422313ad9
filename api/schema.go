package api

import (
	"net/netip"
	"reflect"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/election"
	"github.com/hangar-platform/hangar/api/extension"
	"github.com/hangar-platform/hangar/api/graphql/execute"
	"github.com/hangar-platform/hangar/api/host"
	"github.com/hangar-platform/hangar/api/openapi"
	"github.com/hangar-platform/hangar/api/view"
	"github.com/hangar-platform/hangar/api/webhook"
)

// newSchemas describes the types that read and write their JSON themselves, and those with only a few
// values.
func newSchemas() *openapi.Schemas {
	s := openapi.NewSchemas()
	s.Echo(reflect.TypeFor[hangar.MachineConfig]())
	s.Echo(reflect.TypeFor[view.OrgConfig]())
	s.KnowAs(reflect.TypeFor[rawConfig](), reflect.TypeFor[hangar.MachineConfig]())
	s.Name(reflect.TypeFor[view.Check](), "CheckResult")
	s.Name(reflect.TypeFor[hangar.HostnameOwnership](), "Ownership")
	s.Name(reflect.TypeFor[hangar.TokenCreate](), "TokenRequest")
	s.Name(reflect.TypeFor[hangar.VolumeUpdate](), "VolumeUpdateRequest")
	s.Name(reflect.TypeFor[orgView](), "ConsoleOrg")
	s.Name(reflect.TypeFor[view.SnapshotAnswer](), "SnapshotBegun")

	describeProperties(s)
	describeAlerts(s)
	describeUsers(s)
	host.Describe(s)
	webhook.Describe(s)
	election.Describe(s)
	extension.DescribeTypes(s)

	know[time.Time](s, openapi.Schema{Type: []string{"string"}, Format: "date-time"})
	know[instant](s, openapi.Schema{Type: []string{"string", "null"}, Format: "date-time"})
	know[netip.Addr](s, openapi.Schema{Type: []string{"string"}, Description: "An IP address."})
	know[hangar.PeerKey](s, openapi.Schema{Type: []string{"string"}, Description: "A WireGuard key: 32 bytes in base64.", Examples: []any{examplePeerKey}})
	know[hangar.Sensitive](s, openapi.Schema{Type: []string{"string", "null"}, Description: "A text that is kept secret."})
	know[encoded](s, openapi.Schema{Type: []string{"string"}, Format: "byte"})
	know[hangar.Duration](s, openapi.Schema{
		Type: []string{"string", "integer"}, Description: `A text such as "15s"; a number is in nanoseconds.`, Examples: []any{"15s"},
	})
	know[stopTimeout](s, openapi.Schema{
		Type: []string{"string", "number", "null"}, Description: `A text such as "10s", or a number of seconds.`, Examples: []any{"10s"},
	})
	know[busyTime](s, openapi.Schema{
		Type: []string{"string", "number", "null"}, Description: `A text such as "5m", or a number of seconds.`, Examples: []any{"5m"},
	})
	know[hangar.Signal](s, openapi.Schema{
		Type: []string{"string", "integer", "null"}, Description: "The name or the number of a signal.", Examples: []any{"SIGTERM", 15},
	})
	know[hangar.PersistRootfs](s, openapi.Schema{Type: []string{"string", "integer"}, Enum: []any{
		hangar.PersistNever, hangar.PersistRestart, hangar.PersistAlways, "", 0, 1, 2, 3,
	}})
	know[hangar.Action](s, openapi.Schema{Type: []string{"array"}, Items: &openapi.Schema{
		Type: []string{"string"}, Enum: openapi.Enum(hangar.ActionAll.Names()),
	}})
	know[accessActions](s, openapi.Schema{
		Type: []string{"string", "array"}, Items: &openapi.Schema{Type: []string{"string"}, Enum: openapi.Enum(hangar.ActionAll.Names())},
		Description: "Letters of `rwcdC`, for read, write, create, delete and control; names with commas between them; or a list of names.",
		Examples:    []any{"rC", "read,control"},
	})
	openapi.KnowEnum(s, append(hangar.TokenKinds(), hangar.TokenLogin, hangar.TokenSession, hangar.TokenOAuth)...)
	openapi.KnowEnum(s, hangar.SecretKeyTypes()...)
	openapi.KnowEnum(s, hangar.MachineStates()...)
	openapi.KnowEnum(s, hangar.VolumeStates()...)
	openapi.KnowEnum(s, hangar.SnapshotStates()...)
	openapi.KnowEnum(s, append(hangar.FSTypes(), "")...)
	openapi.KnowEnum(s, hangar.Codes()...)
	openapi.KnowEnum(s, hangar.AddressKinds()...)
	openapi.KnowEnum(s, hangar.ReleaseStatuses()...)
	openapi.KnowEnum(s, hangar.ReleaseStrategies()...)
	s.Name(reflect.TypeFor[execute.Request](), "GraphQLRequest")
	s.Name(reflect.TypeFor[execute.Answer](), "GraphQLAnswer")
	s.Name(reflect.TypeFor[execute.Fault](), "GraphQLError")
	s.Name(reflect.TypeFor[execute.Details](), "GraphQLErrorDetails")
	openapi.KnowEnum(s, hangar.AppPending, hangar.AppDeployed)
	openapi.KnowEnum(s, hangar.SourceUser, hangar.SourceMachine, hangar.SourceAgent, hangar.SourceProxy)
	openapi.KnowEnum(s, hangar.LogApp, hangar.LogRunner, hangar.LogHealth, hangar.LogProxy)
	return s
}

func know[T any](s *openapi.Schemas, schema openapi.Schema) { s.Know(reflect.TypeFor[T](), schema) }
