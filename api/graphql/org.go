package graphql

import (
	"maps"
	"slices"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/graphql/execute"
)

// orgKind is a value of OrganizationType.
type orgKind string

func orgType(o *hangar.Org) orgKind {
	if o.Personal() {
		return "PERSONAL"
	}
	return "SHARED"
}

// roleIn is the role of the caller in an organization. A caller that may do everything there counts
// as an admin.
func roleIn(q *query, o *hangar.Org) string {
	who := q.Services.caller
	if who.HasRole(hangar.RoleAdmin, o.ID) || who.May(hangar.ActionAll, hangar.Target{Org: o.Slug, OrgID: o.ID}) {
		return string(hangar.RoleAdmin)
	}
	return string(hangar.RoleMember)
}

func always[T, V any](v V) execute.Resolver[*asking, T] { return field(func(T) V { return v }) }

func defineOrg(s *schema) {
	definePages(s, "OrganizationConnection", "AppConnection", "ReleaseConnection", "IPAddressConnection", "AppCertificateConnection",
		"MachineConnection", "VolumeConnection", "LimitedAccessTokenConnection", "WireGuardPeerConnection")
	defineWhole(s, "AddOnConnection", "IssueConnection", "EgressIPAddressConnection", "LoggedCertificateConnection", "DelegatedWireGuardTokenConnection")
	execute.Define(s, "Organization", fields[*hangar.Org]{
		"id":                       field(func(o *hangar.Org) hangar.OrgID { return o.ID }),
		"internalNumericId":        field(func(o *hangar.Org) uint64 { return o.NumericID }),
		"slug":                     field(func(o *hangar.Org) hangar.OrgSlug { return o.Slug }),
		"rawSlug":                  field(func(o *hangar.Org) hangar.OrgSlug { return o.Slug }),
		"name":                     field(func(o *hangar.Org) string { return o.Name }),
		"type":                     field(orgType),
		"viewerRole":               func(q *query, o *hangar.Org, _ args) (any, error) { return roleIn(q, o), nil },
		"paidPlan":                 always[*hangar.Org](false),
		"billable":                 always[*hangar.Org](false),
		"billingStatus":            always[*hangar.Org]("CURRENT"),
		"addOnSsoLink":             null[*hangar.Org],
		"provisionsBetaExtensions": always[*hangar.Org](false),
		"remoteBuilderImage":       null[*hangar.Org],
		"remoteBuilderApp":         null[*hangar.Org],
		"settings":                 null[*hangar.Org],
		"addOns":                   always[*hangar.Org](whole{[]any{}}),
		"delegatedWireGuardTokens": always[*hangar.Org](whole{[]any{}}),
		"apps": func(q *query, o *hangar.Org, in args) (any, error) {
			list, err := called(q, func() ([]*hangar.App, error) { return q.Services.Apps.Apps(q, hangar.AppFilter{Org: o.Slug}) })
			if err != nil {
				return nil, err
			}
			return page(in, list)
		},
		"members": members,
		"limitedAccessTokens": func(q *query, o *hangar.Org, in args) (any, error) {
			return tokens(q, in, hangar.TokenFilter{Org: o.Slug})
		},
		"wireGuardPeers": func(q *query, o *hangar.Org, in args) (any, error) {
			list, err := peersOf(q, o)
			if err != nil {
				return nil, err
			}
			return page(in, list)
		},
		"wireGuardPeer": func(q *query, o *hangar.Org, in args) (any, error) {
			list, err := peersOf(q, o)
			if err != nil {
				return nil, err
			}
			if i := slices.IndexFunc(list, func(p *hangar.PeerStatus) bool { return strings.EqualFold(p.Name, in.Text("name")) }); i >= 0 {
				return list[i], nil
			}
			return nil, nil //nolint:nilnil // null
		},
		"loggedCertificates": func(q *query, o *hangar.Org, _ args) (any, error) {
			list, err := called(q, func() ([]hangar.SSHAuthority, error) { return q.Services.SSH.SSHAuthorities(q, o.Slug) })
			return whole{list}, err
		},
	})
	membership := maps.Clone(connectionFields())
	membership["edges"] = field(func(c connection) []edge { return c.edges() })
	membership["nodes"] = field(func(c connection) []any {
		users := make([]any, 0, len(c.nodes))
		for _, m := range c.nodes {
			users = append(users, m.(member).user)
		}
		return users
	})
	execute.Define(s, "OrganizationMembershipConnection", membership)
	execute.Define(s, "OrganizationMembershipEdge", fields[edge]{
		"cursor":   field(func(e edge) string { return e.cursor }),
		"node":     field(func(e edge) *hangar.User { return e.node.(member).user }),
		"role":     field(func(e edge) hangar.Role { return e.node.(member).role }),
		"joinedAt": null[edge],
	})
	execute.Define(s, "AddOn", fields[nothing]{"id": null[nothing], "name": null[nothing]})
	execute.Define(s, "DelegatedWireGuardToken", fields[nothing]{"name": null[nothing]})
	execute.Define(s, "LoggedCertificate", fields[hangar.SSHAuthority]{
		"root": always[hangar.SSHAuthority](true),
		"cert": field(func(a hangar.SSHAuthority) string { return a.PublicKey }),
	})
}

// nothing is the Go type of object types without values.
type nothing struct{ _ int }

// member is a user of an organization.
type member struct {
	user *hangar.User
	role hangar.Role
}

func members(q *query, o *hangar.Org, in args) (any, error) {
	users, err := called(q, func() ([]*hangar.User, error) { return q.Services.Users.Users(q, hangar.UserFilter{Org: o.Slug}) })
	if err != nil {
		return nil, err
	}
	list := make([]member, 0, len(users))
	for _, u := range users {
		role, _ := u.Role(o.ID)
		list = append(list, member{u, role})
	}
	return page(in, list)
}

func peersOf(q *query, o *hangar.Org) ([]*hangar.PeerStatus, error) {
	list, err := called(q, func() ([]hangar.PeerStatus, error) { return q.Services.Peers.Peers(q, o.Slug) })
	peers := make([]*hangar.PeerStatus, len(list))
	for i := range list {
		peers[i] = &list[i]
	}
	return peers, err
}
