package view

import (
	"time"

	"github.com/hangar-platform/hangar"
)

// orgMachine is a Machine in the listing of an organization.
type orgMachine struct {
	ID         hangar.MachineID    `json:"id"`
	App        hangar.AppName      `json:"app_name"`
	Name       string              `json:"name"`
	State      hangar.MachineState `json:"state"`
	Region     hangar.Region       `json:"region"`
	InstanceID hangar.InstanceID   `json:"instance_id"`
	Version    hangar.InstanceID   `json:"version"`
	PrivateIP  hangar.PrivateIP    `json:"private_ip"`
	CreatedAt  string              `json:"created_at"`
	UpdatedAt  string              `json:"updated_at"`
	Cordoned   bool                `json:"cordoned"`
	HostStatus string              `json:"host_status,omitempty"`
	Config     *OrgConfig          `json:"config,omitempty"`
}

// OrgConfig is what is listed of a config.
type OrgConfig struct {
	Guest    *hangar.Guest     `json:"guest"`
	Image    string            `json:"image"`
	Metadata map[string]string `json:"metadata"`
}

// MachinePage is a page of the listing of an organization.
type MachinePage struct {
	Machines     []orgMachine     `json:"machines"`
	Next         string           `json:"next_cursor"`
	LastID       hangar.MachineID `json:"last_machine_id"`
	LastUpdated  *time.Time       `json:"last_updated_at"`
	ErrorRegions []hangar.Region  `json:"error_regions"`
}

// OfMachinePage is a page of Machines; a summary leaves their configs out.
func OfMachinePage(page hangar.MachinePage, summary bool) MachinePage {
	v := MachinePage{Machines: make([]orgMachine, 0, len(page.Machines)), Next: page.Next, ErrorRegions: OrEmpty(page.ErrorRegions)}
	for _, m := range page.Machines {
		v.LastID = m.ID
		v.Machines = append(v.Machines, viewOrgMachine(m, summary))
	}
	if !page.LastUpdated.IsZero() {
		v.LastUpdated = new(page.LastUpdated.UTC())
	}
	return v
}

func viewOrgMachine(m *hangar.Machine, summary bool) orgMachine {
	v := orgMachine{
		ID: m.ID, App: m.App, Name: m.Name, State: m.State, Region: m.Region, InstanceID: m.InstanceID, Version: m.InstanceID,
		PrivateIP: m.PrivateIP, CreatedAt: Time(m.CreatedAt), UpdatedAt: Time(m.UpdatedAt),
		Cordoned: m.Cordoned,
	}
	if summary {
		return v
	}
	v.HostStatus = HostStatus(m)
	v.Config = &OrgConfig{Guest: m.Config.Guest, Image: m.Config.Image, Metadata: m.Config.Metadata}
	if v.Config.Metadata == nil {
		v.Config.Metadata = map[string]string{}
	}
	return v
}
