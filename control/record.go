package control

import (
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
)

func rowsPrefix(host hangar.HostID) string { return state.HostsPrefix + string(host) + "/machines/" }

func rowKey(host hangar.HostID, id hangar.MachineID) string { return rowsPrefix(host) + string(id) }

// parseRowKey is the inverse of rowKey.
func parseRowKey(key string) (hangar.HostID, hangar.MachineID, bool) {
	host, id, ok := strings.Cut(strings.TrimPrefix(key, state.HostsPrefix), "/machines/")
	return hangar.HostID(host), hangar.MachineID(id), ok && hangar.MachineID(id).Valid()
}

// reservation says which host owns a Machine. It lives from before the Machine is
// made until it is destroyed.
type reservation struct {
	ID   hangar.MachineID `json:"id"`
	Name string           `json:"name"`
	Host hangar.HostID    `json:"host"`
	// Confirmed is set once the host has recorded the Machine. A reservation without it may be left
	// by a crash. If it is released while its creator is still alive, the creator undoes its work.
	Confirmed bool `json:"confirmed,omitempty"`
	// Unanswered is set when the answer of the host was lost: see undecided.
	Unanswered bool      `json:"unanswered,omitempty"`
	CreatedAt  time.Time `json:"created_at"`
	// OrgID is the organization whose usage includes Counts until the Machine is destroyed.
	OrgID  hangar.OrgID  `json:"org_id,omitempty"`
	Counts hangar.Quotas `json:"counts,omitempty"`
	// Version is the version that Counts belongs to, once an update has changed the size: rows of
	// earlier versions do not change Counts. See updating.
	Version hangar.InstanceID `json:"version,omitempty"`
	// Updates are the updates that may still be in progress, by a random id of each.
	Updates map[string]pendingUpdate `json:"updates,omitempty"`
}

// undecided reports whether the host of a reservation may still record the Machine, although it has none and
// no creator awaits it.
func (r *reservation) undecided(now time.Time) bool {
	return r.Unanswered && !r.Confirmed && now.Sub(r.CreatedAt) < outcomeTimeout
}

// pendingUpdate is an update of a Machine whose host has not answered.
type pendingUpdate struct {
	Counts hangar.Quotas `json:"counts"` // of the size that the Machine may get
	At     time.Time     `json:"at"`
}

// nameRecord says which Machine has a name.
type nameRecord struct {
	ID hangar.MachineID `json:"id"`
}
