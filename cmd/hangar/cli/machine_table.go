package cli

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
)

// checksText formats how many of a Machine's checks pass.
func checksText(checks []hangar.MachineCheck) string {
	if len(checks) == 0 {
		return ""
	}
	passing := 0
	for _, k := range checks {
		if k.Status == hangar.CheckPassing {
			passing++
		}
	}
	return fmt.Sprintf("%d/%d passing", passing, len(checks))
}

// MachineRows returns the table of Machines, with or without their checks.
func MachineRows(machines []*hangar.Machine, checks bool) [][]string {
	const checksColumn = 4
	now := time.Now()
	rows := [][]string{{"ID", "NAME", "APP", "STATE", "CHECKS", "REGION", "IMAGE", "ADDRESS", "CHANGED"}}
	for _, m := range machines {
		rows = append(rows, []string{
			string(m.ID), m.Name, string(m.App), StateText(m), checksText(m.Checks), string(m.Region), ImageText(m.ImageRef, m.Config.ImageName()),
			AddressText(m), Ago(now, m.UpdatedAt),
		})
	}
	if !checks {
		for i := range rows {
			rows[i] = slices.Delete(rows[i], checksColumn, checksColumn+1)
		}
	}
	return rows
}

// StateText formats the state of a Machine, and whether it is cordoned or its host has a problem.
func StateText(m *hangar.Machine) string {
	text := string(m.State)
	if m.Cordoned {
		text += " (cordoned)"
	}
	if m.HostStatus != "" && m.HostStatus != "ok" {
		text += " (host " + m.HostStatus + ")"
	}
	return text
}

// AddressText returns the private address of a Machine, or "".
func AddressText(m *hangar.Machine) string {
	if !m.PrivateIP.IsValid() {
		return ""
	}
	return m.PrivateIP.String()
}

// ImageText returns a short name of an image.
func ImageText(ref hangar.ImageRef, asked string) string {
	if ref.Repository == "" {
		return Short(asked, 40)
	}
	name := ref.Repository
	if strings.HasSuffix(ref.Registry, "docker.io") {
		name = strings.TrimPrefix(name, "library/")
	}
	if ref.Tag != "" {
		return Short(name+":"+ref.Tag, 40)
	}
	return Short(name+"@"+strings.TrimPrefix(ref.Digest, "sha256:"), 40)
}
