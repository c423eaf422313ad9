package view

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/hangar-platform/hangar"
)

// Machine is a Machine as clients decode it. Its fields hide those of the
// same name in the Machine.
type Machine struct {
	*hangar.Machine
	inside
	Version    hangar.InstanceID     `json:"version"` // the older name of instance_id
	Config     hangar.MachineConfig  `json:"config"`
	Incomplete *hangar.MachineConfig `json:"incomplete_config"` // always null
	HostStatus string                `json:"host_status"`
	CreatedAt  string                `json:"created_at"`
	UpdatedAt  string                `json:"updated_at"`
	Checks     []Check               `json:"checks"`
	Events     []hangar.Event        `json:"events"`
}

// inside has the fields of a Machine that only the planes of the platform use. It is embedded as deep
// as the Machine, so encoding/json leaves out a field that both have.
type inside struct {
	AppID hangar.AppID `json:"app_id,omitempty"`
}

// Check is a health check as clients decode it.
type Check struct {
	Name      string             `json:"name"`
	Status    hangar.CheckStatus `json:"status"`
	Output    string             `json:"output"`
	UpdatedAt string             `json:"updated_at"` // clients dereference it without a check
}

// MachineSummary is a Machine in a listing with summary=true.
type MachineSummary struct {
	ID         hangar.MachineID    `json:"id"`
	Name       string              `json:"name"`
	App        hangar.AppName      `json:"app_name"`
	State      hangar.MachineState `json:"state"`
	Region     hangar.Region       `json:"region"`
	Host       hangar.HostID       `json:"host_id"`
	InstanceID hangar.InstanceID   `json:"instance_id"`
	Version    hangar.InstanceID   `json:"version"`
	ImageRef   hangar.ImageRef     `json:"image_ref"`
	PrivateIP  hangar.PrivateIP    `json:"private_ip"`
	CreatedAt  string              `json:"created_at"`
	UpdatedAt  string              `json:"updated_at"`
	Cordoned   bool                `json:"cordoned"`
}

// hostOK is the status of hosts that can be reached. Clients refuse to manage a
// Machine with any other.
const hostOK = "ok"

// HostStatus is the status of the host of a Machine.
func HostStatus(m *hangar.Machine) string { return cmp.Or(m.HostStatus, hostOK) }

// OfMachine returns a single Machine with a complete config. It fails for an invalid config.
func OfMachine(m *hangar.Machine) (Machine, error) {
	v := Machine{
		Machine: m, Version: m.InstanceID, Config: m.Config, HostStatus: HostStatus(m),
		CreatedAt: Time(m.CreatedAt), UpdatedAt: Time(m.UpdatedAt), Events: m.Events,
		Checks: viewChecks(m.Checks),
	}
	if v.Events == nil {
		v.Events = []hangar.Event{}
	}
	if m.ImageRef.Labels == nil {
		labelled := *m // the caller's Machine must not change
		labelled.ImageRef = OfImageRef(m.ImageRef)
		v.Machine = &labelled
	}
	// Clients dereference the guest without a check.
	if err := v.Config.Normalize(); err != nil {
		return v, fmt.Errorf("config of machine %s: %w", m.ID, err)
	}
	return v, nil
}

// viewChecks is never nil, because clients decode a list.
func viewChecks(checks []hangar.MachineCheck) []Check {
	views := make([]Check, 0, len(checks))
	for _, k := range checks {
		views = append(views, Check{k.Name, k.Status, k.Output, Time(k.UpdatedAt)})
	}
	return views
}

// OfImageRef makes missing labels {} on the wire instead of null.
func OfImageRef(ref hangar.ImageRef) hangar.ImageRef {
	if ref.Labels == nil {
		ref.Labels = map[string]string{}
	}
	return ref
}

// Start answers a start.
type Start struct {
	hangar.StartResult
	Migrated bool   `json:"migrated"` // always false: a Machine stays on its host
	NewHost  string `json:"new_host"`
}

// Reached answers a wait.
type Reached struct {
	OK bool `json:"ok"`
	hangar.MachineReached
}

// Change is one step of a Machine's life, as a watcher sees it.
type Change struct {
	Machine  *Machine             `json:"machine"`
	Event    *hangar.Event        `json:"event,omitempty"`
	Progress *hangar.PullProgress `json:"progress,omitempty"` // while its image is being fetched
}

// MetadataValue is the value of a key of the metadata.
type MetadataValue struct {
	Value string `json:"value"`
}

// Process is a process as clients decode it.
type Process struct {
	hangar.Process
	CPU int `json:"cpu"` // percent of a core: clients read a whole number
}

// OfProcess is a process as it is listed.
func OfProcess(p hangar.Process) Process {
	p.ListenSockets = OrEmpty(p.ListenSockets)
	return Process{Process: p, CPU: int(math.Round(max(p.CPU, 0) * 100))}
}

// Time writes a time as clients expect it: UTC, whole seconds.
func Time(t time.Time) string { return t.UTC().Format(time.RFC3339) }
