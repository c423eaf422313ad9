package hangar

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Action is something that a caller wants to do with a target; several are a mask.
type Action uint8

// The actions.
const (
	ActionRead    Action = 1 << iota // see it
	ActionWrite                      // change its config, metadata, lease or cordon, its secrets
	ActionCreate                     // make a thing in it
	ActionDelete                     // destroy it
	ActionControl                    // start, stop, suspend, restart, signal, execute in it
	ActionMetrics                    // query its metrics

	ActionAll = ActionRead | ActionWrite | ActionCreate | ActionDelete | ActionControl | ActionMetrics
)

// actionNames are in the order of the bits.
var actionNames = []string{"read", "write", "create", "delete", "control", "metrics"}

// Names are the names of the actions in a mask.
func (a Action) Names() []string {
	names := []string{}
	for i, name := range actionNames {
		if a&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}

// String returns the names with commas between them.
func (a Action) String() string { return strings.Join(a.Names(), ",") }

// MarshalJSON writes a list of names.
func (a Action) MarshalJSON() ([]byte, error) { return json.Marshal(a.Names()) }

// UnmarshalJSON reads a list of names. It answers CodeInvalid for an unknown name.
func (a *Action) UnmarshalJSON(b []byte) error {
	var names []string
	if err := json.Unmarshal(b, &names); err != nil {
		return Errorf(CodeInvalid, "", "invalid actions: must be a list with some of %s", strings.Join(actionNames, ", "))
	}
	mask, err := ParseActions(names)
	if err == nil {
		*a = mask
	}
	return err
}

// ParseActions returns the mask of the named actions, or CodeInvalid.
func ParseActions(names []string) (Action, error) {
	var mask Action
	for _, name := range names {
		i := slices.Index(actionNames, name)
		if i < 0 {
			return 0, Errorf(CodeInvalid, "", "invalid actions: %.40q is none of %s", name, strings.Join(actionNames, ", "))
		}
		mask |= 1 << i
	}
	return mask, nil
}

// Target is what an action is about: a Machine, an App (Machine is empty) or an
// organization (App is empty, too). The ids say which organization and App have the names
// now.
type Target struct {
	Org     OrgSlug
	OrgID   OrgID
	App     AppName
	AppID   AppID
	Machine MachineID
}

// Grant is what one token allows: actions on an organization and all that is in it,
// or on some of its Apps or Machines alone. The zero Grant allows nothing.
type Grant struct {
	Org OrgSlug `json:"org"`
	// Apps limits the grant to some Apps, if there are any. The organization itself is then out of
	// reach, so that no App can be created.
	Apps []AppName `json:"apps,omitempty"`
	// OrgID and AppIDs, in the order of Apps, identify the owners of the names when the token was made.
	// The grant does not apply to later owners of the names. The grant of every token has them; without
	// OrgID, only the names count.
	OrgID  OrgID   `json:"-"`
	AppIDs []AppID `json:"-"`
	// Machines limits the grant to some Machines, if there are any. Their Apps are then out of reach.
	Machines []MachineID `json:"machines,omitempty"`
	Actions  Action      `json:"actions"`
	// Commands limits ActionControl to the execution of some commands, if there are any.
	Commands []CommandRule `json:"commands,omitempty"`
	Until    time.Time     `json:"until,omitzero"` // zero: it does not expire
	// Role is the role of the user who has the grant. RoleMember reduces what the grant allows on the
	// organization itself. Empty: not a user's grant.
	Role Role `json:"-"`
}

// CommandRule allows a command: the one with exactly these arguments or, as a prefix,
// every one that begins with them.
type CommandRule struct {
	Args  []string `json:"args"`
	Exact bool     `json:"exact"`
}

// Allows reports whether the rule allows a command.
func (r CommandRule) Allows(command []string) bool {
	if len(r.Args) == 0 || len(command) < len(r.Args) || r.Exact && len(command) != len(r.Args) {
		return false
	}
	return slices.Equal(command[:len(r.Args)], r.Args)
}

// May reports whether the grant allows action on the target. The caller has checked
// that Until has not passed.
func (g Grant) May(action Action, target Target) bool {
	if action&ActionControl != 0 && len(g.Commands) > 0 {
		return false
	}
	return action != 0 && action&^g.on(target) == 0 && g.includes(target)
}

// on returns the actions that the grant allows on a target in its scope.
func (g Grant) on(t Target) Action {
	if g.Role == RoleMember && t.App == "" {
		return g.Actions & roleMemberActions
	}
	return g.Actions
}

// MayExec reports whether the grant allows to execute a command in the target.
func (g Grant) MayExec(command []string, target Target) bool {
	if len(g.Commands) == 0 {
		return g.May(ActionControl, target)
	}
	return g.on(target)&ActionControl != 0 && g.includes(target) &&
		slices.ContainsFunc(g.Commands, func(r CommandRule) bool { return r.Allows(command) })
}

// includes reports whether the target is in the scope of the grant.
func (g Grant) includes(t Target) bool {
	return g.ofOrg(t) && (len(g.Apps) == 0 || g.ofApp(t)) && (len(g.Machines) == 0 || slices.Contains(g.Machines, t.Machine))
}

// ofOrg reports whether the target is in the organization of the grant.
func (g Grant) ofOrg(t Target) bool {
	return g.Org != "" && g.Org == t.Org && (g.OrgID == "" || g.OrgID == t.OrgID)
}

// ofApp reports whether the target is in one of the grant's Apps.
func (g Grant) ofApp(t Target) bool {
	return slices.Contains(g.Apps, t.App) && (g.OrgID == "" || slices.Contains(g.AppIDs, t.AppID))
}

// Reaches reports whether the grant allows any of actions on the target or on
// something in it.
func (g Grant) Reaches(actions Action, t Target) bool {
	return g.Actions&actions != 0 && g.ofOrg(t) &&
		(t.App == "" || len(g.Apps) == 0 || g.ofApp(t)) &&
		(t.Machine == "" || len(g.Machines) == 0 || slices.Contains(g.Machines, t.Machine))
}

// Targets are the things that the grant is about: Machines, or else Apps, or else
// the organization.
func (g Grant) Targets() []Target {
	apps := []Target{{Org: g.Org, OrgID: g.OrgID}}
	if len(g.Apps) > 0 {
		apps = nil
		for i, app := range g.Apps {
			t := Target{Org: g.Org, OrgID: g.OrgID, App: app}
			if i < len(g.AppIDs) {
				t.AppID = g.AppIDs[i]
			}
			apps = append(apps, t)
		}
	}
	if len(g.Machines) == 0 {
		return apps
	}
	var targets []Target
	for _, t := range apps {
		for _, id := range g.Machines {
			t.Machine = id
			targets = append(targets, t)
		}
	}
	return targets
}

// covers reports whether the grant allows all that another one allows.
func (g Grant) covers(o Grant) bool {
	if o.Actions&^g.Actions != 0 || !g.Until.IsZero() && (o.Until.IsZero() || o.Until.After(g.Until)) {
		return false
	}
	for _, t := range o.Targets() {
		if !g.includes(t) || o.on(t)&^g.on(t) != 0 {
			return false
		}
	}
	if len(g.Commands) == 0 || o.Actions&ActionControl == 0 {
		return true
	}
	return len(o.Commands) > 0 && !slices.ContainsFunc(o.Commands, func(theirs CommandRule) bool {
		return !slices.ContainsFunc(g.Commands, func(own CommandRule) bool {
			return own.Allows(theirs.Args) && (theirs.Exact || !own.Exact)
		})
	})
}

// The bounds of a grant, which keep checks fast and tokens small.
const (
	MaxGrantScope   = 100 // Apps, Machines or commands
	maxCommandArgs  = 64
	maxCommandBytes = 4096 // of all arguments of one command
)

// Validate checks the shape of a grant. It answers CodeInvalid, naming the field.
func (g Grant) Validate() error {
	bad := func(field, rule string, args ...any) error {
		return Errorf(CodeInvalid, "", "invalid %s: %s", field, fmt.Sprintf(rule, args...))
	}
	switch {
	case g.Org == "":
		return bad("org_slug", "is required")
	case g.Actions == 0:
		return bad("actions", "is required: a token that allows nothing is useless")
	case g.Actions&^ActionAll != 0:
		return bad("actions", "has unknown actions")
	case len(g.Apps) > MaxGrantScope:
		return bad("apps", "has %d entries, more than %d", len(g.Apps), MaxGrantScope)
	case len(g.Machines) > MaxGrantScope:
		return bad("machines", "has %d entries, more than %d", len(g.Machines), MaxGrantScope)
	case len(g.Machines) > 0 && len(g.Apps) != 1:
		return bad("apps", "must name the one App of the machines")
	case len(g.Commands) > MaxGrantScope:
		return bad("commands", "has %d entries, more than %d", len(g.Commands), MaxGrantScope)
	case len(g.Commands) > 0 && g.Actions&ActionControl == 0:
		return bad("commands", "need the action control")
	}
	for i, id := range g.Machines {
		if !id.Valid() {
			return bad(fmt.Sprintf("machines[%d]", i), "%.40q is not the id of a machine", id)
		}
	}
	for i, c := range g.Commands {
		size := 0
		for _, arg := range c.Args {
			size += len(arg)
		}
		switch {
		case len(c.Args) == 0 || c.Args[0] == "":
			return bad(fmt.Sprintf("commands[%d].args", i), "is empty")
		case len(c.Args) > maxCommandArgs || size > maxCommandBytes:
			return bad(fmt.Sprintf("commands[%d].args", i), "has more than %d arguments or %d bytes", maxCommandArgs, maxCommandBytes)
		}
	}
	return nil
}
