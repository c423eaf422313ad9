// Package host has the operations of the API about the servers of the platform.
package host

import (
	"net/http"
	"reflect"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
	"github.com/hangar-platform/hangar/api/openapi"
	"github.com/hangar-platform/hangar/api/router"
)

// Tag is the group of the operations.
const Tag = "Hosts"

// The examples of path parameters.
const (
	ExampleID    = "4f1c09ae"
	ExampleToken = "k3vq7mzp2xwd" //nolint:gosec // the id of a token
)

// Describe adds the descriptions of the types of hosts.
func Describe(s *openapi.Schemas) {
	states := []any{string(hangar.HostAlive), string(hangar.HostSuspect), string(hangar.HostDead)}
	s.Know(reflect.TypeFor[hangar.HostState](), openapi.Schema{Type: []string{"string"}, Enum: states})
	openapi.Describe[hangar.Host](s, map[string]string{
		"memory":         "In bytes.",
		"address":        "Where other hosts reach it. Missing when it is alone.",
		"mesh_key":       "The public WireGuard key by which other hosts know it in the private network between servers.",
		"mesh_address":   "Where it listens for them, by UDP.",
		"mesh_handshake": "When the answering host last heard from it in that network. Missing before the first time.",
		"cordoned":       "It takes no new Machines.",
		"state":          "`suspect` once its lease has ended: it may still run its Machines. `dead` after five minutes as suspect.",
	})
	openapi.Describe[hangar.HostUsage](s, map[string]string{
		"machines":         "How many it has, including stopped ones.",
		"reached":          "Whether the host has answered. Otherwise its promises are not known.",
		"memory_promised":  "In bytes, to Machines.",
		"volumes_promised": "In bytes.",
		"volumes_free":     "In bytes: what it would promise to new volumes.",
	})
	openapi.Describe[hangar.HostUpdate](s, map[string]string{"labels": "All of them: missing ones are removed."})
	openapi.Describe[hangar.HostRemoval](s, map[string]string{"force": "Also remove a host that has Machines or volumes, which are lost."})
	openapi.Describe[hangar.JoinToken](s, map[string]string{
		"reusable": "It lets in any number of servers until it expires. Otherwise it lets in one.",
		"used_by":  "The server that has used a token which is not reusable.",
	})
	openapi.Describe[hangar.JoinTokenCreate](s, map[string]string{"ttl": "How long it is valid: 1h when it is left out, at most 168h."})
	openapi.Describe[hangar.StateBackup](s, map[string]string{"host": "On whose disk it is.", "size": "In bytes."})
}

// area has what the handlers need.
type area struct{ hangar.HostService }

// hostList is a listing of hosts.
type hostList struct {
	Hosts []hangar.Host `json:"hosts"`
}

// usageList is how much of each host is used.
type usageList struct {
	Hosts []hangar.HostUsage `json:"hosts"`
}

// joinTokenList is a listing of tokens for joining.
type joinTokenList struct {
	Tokens []hangar.JoinToken `json:"tokens"`
}

// Routes adds the operations.
func Routes(rt *router.Router, service hangar.HostService) {
	a := area{service}
	at := time.Date(2026, 8, 14, 9, 57, 35, 0, time.UTC)
	example := hangar.Host{
		ID: ExampleID, Name: "server-1", Region: "ams", Zone: "ams-a", Labels: map[string]string{"disk": "nvme"}, CPUs: 16, Memory: 64 << 30,
		Address: "10.0.0.1:4281", State: hangar.HostAlive,
		MeshKey: "uGwZb3VwKp2nQnS1E8m0yEw4c0vQy0kq3yq8hYt6m3I=", MeshAddress: "10.0.0.1:51821", MeshHandshake: at,
	}
	token := hangar.JoinToken{ID: ExampleToken, Note: "rack 3", CreatedAt: at, ExpiresAt: at.Add(hangar.DefaultJoinTTL)}
	cordoned := true
	const (
		all, one       = "/v1/hosts", "/v1/hosts/{host}"
		tokens, single = "/v1/join-tokens", "/v1/join-tokens/{jointoken}" //nolint:gosec // paths
	)
	rt.Handle("GET "+all, a.list, router.Operation{
		ID: "listHosts", Tag: Tag, Summary: "List hosts", Text: "The servers of the platform. For administrators, like all operations on hosts.", Answer: hostList{[]hangar.Host{example}},
	})
	rt.Handle("GET /v1/host-usage", a.usage, router.Operation{
		ID: "listHostUsage", Tag: Tag, Summary: "List what hosts have left",
		Text:   "Asks each host, and waits at most two seconds.",
		Answer: usageList{[]hangar.HostUsage{{Host: example, Machines: 12, Volumes: 3, Reached: true, MemoryPromised: 24 << 30, VolumesPromised: 30 << 30, VolumesFree: 400 << 30}}},
	})
	rt.Handle("GET "+one, a.get, router.Operation{ID: "getHost", Tag: Tag, Summary: "Get a host", Answer: example})
	rt.Handle("PATCH "+one, a.update, router.Operation{
		ID: "updateHost", Tag: Tag, Summary: "Update a host", Text: "What is left out stays.", Body: hangar.HostUpdate{Cordoned: &cordoned}, Answer: example,
	})
	rt.Handle("DELETE "+one, a.remove, router.Operation{
		ID: "removeHost", Tag: Tag, Summary: "Remove a host",
		Text: "The host must not be alive. Its member of the cluster state is removed, too, and another host takes its place.",
		Body: hangar.HostRemoval{Force: true}, MayOmit: true, Status: http.StatusNoContent, Errors: []int{http.StatusConflict},
	})
	rt.Handle("POST "+tokens, a.createToken, router.Operation{
		ID: "createJoinToken", Tag: Tag, Summary: "Create a join token",
		Text: "With it, a server becomes a host of the platform. Only this answer holds the `token`.",
		Body: hangar.JoinTokenCreate{Note: token.Note}, MayOmit: true, Status: http.StatusCreated,
		Answer: hangar.NewJoinToken{JoinToken: token, Token: "hgj_" + ExampleToken + "_…", URL: "https://10.0.0.1:4281"}, Errors: []int{http.StatusPreconditionFailed},
	})
	rt.Handle("GET "+tokens, a.listTokens, router.Operation{
		ID: "listJoinTokens", Tag: Tag, Summary: "List join tokens", Text: "Those that have not expired.", Answer: joinTokenList{[]hangar.JoinToken{token}},
	})
	rt.Handle("DELETE "+single, a.revokeToken, router.Operation{
		ID: "revokeJoinToken", Tag: Tag, Summary: "Revoke a join token", Status: http.StatusNoContent,
	})
	rt.Handle("POST /v1/state/backup", a.backup, router.Operation{
		ID: "backUpState", Tag: Tag, Summary: "Back up the cluster state",
		Text:   "To a file on the disk of the answering server, beside its daily backups. `hangar state restore` reads it.",
		Answer: hangar.StateBackup{Host: ExampleID, Path: "/var/lib/hangar/backups/state-20260814T095735.000Z.snapshot", Size: 1 << 20, At: at},
		Errors: []int{http.StatusPreconditionFailed},
	})
}

func idOf(r *http.Request) hangar.HostID { return hangar.HostID(r.PathValue("host")) }

func (a area) list(r *http.Request) (router.Answer, error) {
	list, err := a.Hosts(r.Context())
	return router.AnswerOf(hostList{list}, err)
}

func (a area) usage(r *http.Request) (router.Answer, error) {
	list, err := a.HostUsage(r.Context())
	return router.AnswerOf(usageList{list}, err)
}

func (a area) get(r *http.Request) (router.Answer, error) {
	return router.AnswerOf(a.Host(r.Context(), idOf(r)))
}

func (a area) update(r *http.Request) (router.Answer, error) {
	in, err := input.Decode[hangar.HostUpdate](r)
	if err != nil {
		return router.Answer{}, err
	}
	return router.AnswerOf(a.UpdateHost(r.Context(), idOf(r), in))
}

func (a area) remove(r *http.Request) (router.Answer, error) {
	in, err := input.DecodeOptional[hangar.HostRemoval](r)
	if err != nil {
		return router.Answer{}, err
	}
	return router.NoContent(a.RemoveHost(r.Context(), idOf(r), in))
}

func (a area) createToken(r *http.Request) (router.Answer, error) {
	in, err := input.DecodeOptional[hangar.JoinTokenCreate](r)
	if err != nil {
		return router.Answer{}, err
	}
	made, err := a.CreateJoinToken(r.Context(), in)
	if err != nil {
		return router.Answer{}, err
	}
	return router.Answer{Status: http.StatusCreated, Body: made, Header: router.SecretHeader()}, nil
}

func (a area) listTokens(r *http.Request) (router.Answer, error) {
	list, err := a.JoinTokens(r.Context())
	return router.AnswerOf(joinTokenList{list}, err)
}

func (a area) revokeToken(r *http.Request) (router.Answer, error) {
	return router.NoContent(a.RevokeJoinToken(r.Context(), hangar.JoinTokenID(r.PathValue("jointoken"))))
}

func (a area) backup(r *http.Request) (router.Answer, error) {
	return router.AnswerOf(a.BackupState(r.Context()))
}
