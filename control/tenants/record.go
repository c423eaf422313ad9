package tenants

import (
	"time"

	"github.com/hangar-platform/hangar"
)

// OrgRecord is an organization as the state keeps it.
type OrgRecord struct {
	hangar.Org
	Deleting bool          `json:"deleting,omitempty"` // it takes no Apps and tokens any more, and goes
	Quotas   hangar.Quotas `json:"quotas,omitempty"`   // that an administrator has set
}

// NetworkRecord binds a name to a number: it outlives the Apps and goes with the
// organization. The number is never given to another network.
type NetworkRecord struct {
	ID hangar.NetworkID `json:"id"`
}

// AppRecord is an App as the state keeps it.
type AppRecord struct {
	ID        hangar.AppID     `json:"id"`
	Name      hangar.AppName   `json:"name"`
	NumericID uint64           `json:"numeric_id"`
	Org       hangar.OrgSlug   `json:"org"`
	OrgID     hangar.OrgID     `json:"org_id"`
	Network   string           `json:"network"`
	NetworkID hangar.NetworkID `json:"network_id"`
	CreatedAt time.Time        `json:"created_at"`
	Deployed  bool             `json:"deployed,omitempty"` // a Machine was created
	Deleting  bool             `json:"deleting,omitempty"` // its destruction was decided and is finished at all events
}

// Ref names a Machine of the App; without an id, all of them in state.ReservationKey.
func (r *AppRecord) Ref(id hangar.MachineID) hangar.MachineRef {
	return hangar.MachineRef{App: r.Name, AppID: r.ID, ID: id}
}

// Target is a Machine of the App or, without an id, the App itself.
func (r *AppRecord) Target(id hangar.MachineID) hangar.Target {
	return hangar.Target{Org: r.Org, OrgID: r.OrgID, App: r.Name, AppID: r.ID, Machine: id}
}

// OrgTarget is an organization as a whole.
func OrgTarget(org hangar.Org) hangar.Target { return hangar.Target{Org: org.Slug, OrgID: org.ID} }
