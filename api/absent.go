package api

import "strings"

// absentPaths are paths of the public platform that this server does not have, with everything below
// them, and what to do instead. A star is any one segment.
var absentPaths = []struct{ path, instead string }{ //nolint:gochecknoglobals // a constant
	{"v1/postgres", noDatabases},
	{"api/v1/postgres", noDatabases},
	{"api/v1/organizations/*/postgres", noDatabases},
	{"api/v1/builds/depot_builder", noBuilders},
	{"api/v1/organizations/*/builders", noBuilders},
	{"api/v1/apps/*/deploy", "this server does not deploy by itself; use hangar deploy, or another client that deploys from where it runs"},
	{"api/v1/apps/*/egress_ips", "this server gives Machines no egress addresses: they share the address of their server"},
	{"api/v1/organizations/*/cost-estimates", "nothing costs anything here; quotas limit what an organization may have: GET /v1/orgs/{org}/quotas"},
	{"api/v1/cli_sessions", "clients sign in here with a token: create one with hangar login and hangar tokens create, and set it as the client's access token"},
}

const (
	noDatabases = "this server offers no managed databases; run the database in Machines with a volume, or create an extension: POST /v1/apps/{app}/extensions"
	noBuilders  = "this server builds images only for hangar deploy --remote-only; or build the image yourself, push it to the registry of this server or another one, and deploy it with --image"
)

// absent says why a path is not served, and what to do; empty: it is unknown.
func absent(path string) string {
	segments := strings.Split(strings.TrimPrefix(path, "/"), "/")
	for _, row := range absentPaths {
		if begins(segments, strings.Split(row.path, "/")) {
			return row.instead
		}
	}
	return ""
}

func begins(segments, pattern []string) bool {
	if len(segments) < len(pattern) {
		return false
	}
	for i, want := range pattern {
		if want != "*" && want != segments[i] {
			return false
		}
	}
	return true
}
