package guest

import (
	"slices"
	"strings"

	"github.com/hangar-platform/hangar"
)

// RoleToken is the file in hangar.GuestDir with the identity token by which programs
// assume a role at AWS, for RoleAudience.
const (
	RoleToken    = "oidc_token"
	RoleAudience = "sts.amazonaws.com"
)

// The variables by which the SDKs of AWS assume a role with an identity token.
const (
	envRole        = "AWS_ROLE_ARN"
	envRoleToken   = "AWS_WEB_IDENTITY_TOKEN_FILE" //nolint:gosec // the name of a variable
	envRoleSession = "AWS_ROLE_SESSION_NAME"
)

// maxRoleSession is how many characters the name of a session at AWS may have.
const maxRoleSession = 64

// assume adds to the variables of a process that assumes a role what it needs for that, unless it
// is set.
func assume(vars map[string]string, m *hangar.Machine) {
	if vars[envRole] == "" {
		return
	}
	setDefault(vars, envRoleToken, hangar.GuestDir.Original+"/"+RoleToken)
	app := string(m.App)
	app = app[:min(len(app), maxRoleSession-1-len(m.ID))]
	setDefault(vars, envRoleSession, app+"-"+string(m.ID))
}

// AssumesRole reports whether one of the processes needs RoleToken.
func AssumesRole(processes []Process) bool {
	return slices.ContainsFunc(processes, func(p Process) bool {
		return slices.ContainsFunc(p.Env, func(v string) bool {
			value, ok := strings.CutPrefix(v, envRole+"=")
			return ok && value != ""
		})
	})
}
