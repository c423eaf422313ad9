package hangar

import "fmt"

// Authorization is the value of an Authorization header, see Credential. It is a secret.
type Authorization string

// Access is what a caller wants to do: actions on one target, and optionally a command
// to execute in it.
type Access struct {
	Actions Action    `json:"action"`               // ActionControl alone, with a Command
	Org     OrgSlug   `json:"org_slug,omitempty"`   // empty: the organization of the App
	App     AppName   `json:"app_name,omitempty"`   // empty: the organization itself
	Machine MachineID `json:"machine_id,omitempty"` // empty: the App itself
	Volume  VolumeID  `json:"volume_id,omitempty"`  // empty: the App itself; not beside a Machine
	Command []string  `json:"command,omitempty"`    // empty: none
}

// Validate checks the shape of an access. It answers CodeInvalid, naming the field.
func (a Access) Validate() error {
	bad := func(field, rule string, args ...any) error {
		return Errorf(CodeInvalid, "", "invalid access.%s: %s", field, fmt.Sprintf(rule, args...))
	}
	switch {
	case a.Actions == 0:
		return bad("action", "is required")
	case a.Actions&^ActionAll != 0:
		return bad("action", "has unknown actions")
	case a.Org == "" && a.App == "":
		return bad("org_slug", "is required without app_name")
	case a.Machine != "" && a.App == "":
		return bad("app_name", "is required with machine_id")
	case a.Machine != "" && !a.Machine.Valid():
		return bad("machine_id", "%.40q is not the id of a machine", a.Machine)
	case a.Volume != "" && a.App == "":
		return bad("app_name", "is required with volume_id")
	case a.Volume != "" && !a.Volume.Valid():
		return bad("volume_id", "%.40q is not the id of a volume", a.Volume)
	case a.Volume != "" && (a.Machine != "" || len(a.Command) > 0):
		return bad("volume_id", "stands beside machine_id or command; give one of them")
	case len(a.Command) > 0 && a.Actions != ActionControl:
		return bad("action", "must be control, and nothing else, with a command")
	case len(a.Command) > 0 && a.Command[0] == "":
		return bad("command", "is empty")
	default:
		return nil
	}
}

// AllowedTo reports whether a principal has this access to target, which is the Machine, App or
// organization that it names. Access to a volume is access to its App.
func (a Access) AllowedTo(p Principal, target Target) bool {
	if len(a.Command) > 0 {
		return p.MayExec(a.Command, target)
	}
	return p.May(a.Actions, target)
}

// NoAccess is the error for an access that is not allowed. It is the same if the target does not exist.
func NoAccess() *Error {
	return &Error{Code: CodeForbidden, Message: "The tokens of the header do not allow this, or there is no such thing"}
}

// NoToken is the error for a request to check an Authorization that is missing or invalid.
func NoToken() *Error {
	return &Error{Code: CodeInvalid, Reason: ReasonTokenInvalid, Message: "invalid header: it has no valid token; it must be the value of an Authorization header"}
}
