package api

import "strings"

// absentPaths are paths of the public platform, with all below them, that this server does not have, and what to do
// instead. A star is any one segment.
var absentPaths = []struct{ path, instead string }{ //nolint:gochecknoglobals // a constant
	{"v1/postgres", noDatabases},
	{"api/v1/postgres", noDatabases},
	{"api/v1/organizations/*/postgres", noDatabases},
	{"api/v1/builds/depot_builder", noBuilders},
	{"api/v1/organizations/*/builders", noBuilders},
	{"api/v1/apps/*/deploy", "this server deploys nothing by itself: hangar deploy, or any client that does so from where it is"},
	{"api/v1/apps/*/egress_ips", "this server gives Machines no addresses of their own for what they send: they share that of their server"},
	{"api/v1/organizations/*/cost-estimates", "nothing costs anything here; what an organization may have are its quotas: GET /v1/orgs/{org}/quotas"},
	{"api/v1/cli_sessions", "clients sign in here by a token: make one with hangar login and hangar tokens create, and set it as the client's access token"},
}

const (
	noDatabases = "this server offers no managed databases; run the database in Machines with a volume, or get one by an extension: POST /v1/apps/{app}/extensions"
	noBuilders  = "this server builds images by hangar deploy --remote-only alone; or build the image where you are, push it to the registry of this server or another one, and deploy it by --image"
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
