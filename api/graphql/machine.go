package graphql

import (
	"encoding/json"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/graphql/execute"
)

// machineIP is an address of a Machine.
type machineIP struct{ ip string }

// privateBits is the length of the prefix that belongs to a Machine.
const privateBits = 112

// host is the server that a Machine or a volume is on.
type host struct{ id hangar.HostID }

func defineMachine(s *schema) {
	type machine = *hangar.Machine
	defineWhole(s, "MachineIPConnection", "MachineEventConnection")
	execute.Define(s, "Machine", fields[machine]{
		"id":         field(func(m machine) hangar.MachineID { return m.ID }),
		"name":       field(func(m machine) string { return m.Name }),
		"state":      field(func(m machine) hangar.MachineState { return m.State }),
		"region":     field(func(m machine) hangar.Region { return m.Region }),
		"instanceId": field(func(m machine) hangar.InstanceID { return m.InstanceID }),
		"config": func(_ *query, m machine, _ args) (any, error) {
			return m.Config.Document()
		},
		"createdAt": field(func(m machine) time.Time { return m.CreatedAt }),
		"updatedAt": field(func(m machine) time.Time { return m.UpdatedAt }),
		"app":       func(q *query, m machine, _ args) (any, error) { return app(q, string(m.App)) },
		"ips":       field(func(m machine) whole { return whole{[]machineIP{{m.PrivateIP.String()}}} }),
		"host":      field(func(m machine) host { return host{m.Host} }),
		"events": func(q *query, m machine, _ args) (any, error) {
			list, err := called(q, func() ([]hangar.Event, error) { return q.Services.Machines.MachineEvents(q, m.Ref(), 0) })
			return whole{list}, err
		},
	})
	execute.Define(s, "MachineIP", fields[machineIP]{
		"family":   always[machineIP]("v6"),
		"kind":     always[machineIP]("privatenet"),
		"ip":       field(func(i machineIP) string { return i.ip }),
		"maskSize": always[machineIP](privateBits),
	})
	execute.Define(s, "Host", fields[host]{"id": field(func(h host) hangar.HostID { return h.id })})
	execute.Define(s, "MachineEvent", fields[hangar.Event]{
		"id":        field(func(e hangar.Event) hangar.EventID { return e.ID }),
		"kind":      field(func(e hangar.Event) hangar.EventType { return e.Type }),
		"status":    field(func(e hangar.Event) string { return e.Status }),
		"source":    field(func(e hangar.Event) hangar.EventSource { return e.Source }),
		"timestamp": field(func(e hangar.Event) time.Time { return time.UnixMilli(e.Timestamp) }),
		"body":      field(func(e hangar.Event) *hangar.EventRequest { return e.Request }),
	})
}

func defineVolume(s *schema) {
	type volume = *hangar.Volume
	type snapshot = *hangar.Snapshot
	defineWhole(s, "VolumeSnapshotConnection")
	execute.Define(s, "Volume", fields[volume]{
		"id":        field(func(v volume) hangar.VolumeID { return v.ID }),
		"name":      field(func(v volume) string { return v.Name }),
		"state":     field(func(v volume) hangar.VolumeState { return v.State }),
		"status":    field(func(v volume) hangar.VolumeState { return v.State }),
		"region":    field(func(v volume) hangar.Region { return v.Region }),
		"sizeGb":    field(func(v volume) int { return v.SizeGB }),
		"encrypted": field(func(v volume) bool { return v.Encrypted }),
		"createdAt": field(func(v volume) time.Time { return v.CreatedAt }),
		"app":       func(q *query, v volume, _ args) (any, error) { return app(q, string(v.App)) },
		"host":      field(func(v volume) host { return host{v.Host} }),
		"attachedMachine": func(q *query, v volume, _ args) (any, error) {
			if v.AttachedMachine == "" {
				return nil, nil //nolint:nilnil // null
			}
			return called(q, func() (*hangar.Machine, error) {
				return q.Services.Machines.Machine(q, hangar.MachineRef{App: v.App, ID: v.AttachedMachine})
			})
		},
		"snapshots": func(q *query, v volume, _ args) (any, error) {
			list, err := called(q, func() ([]*hangar.Snapshot, error) { return q.Services.Volumes.Snapshots(q, v.Ref()) })
			return whole{list}, err
		},
	})
	execute.Define(s, "VolumeSnapshot", fields[snapshot]{
		"id":            field(func(v snapshot) hangar.SnapshotID { return v.ID }),
		"size":          field(func(v snapshot) int64 { return v.Size }),
		"digest":        field(func(v snapshot) string { return v.Digest }),
		"status":        field(func(v snapshot) hangar.SnapshotState { return v.State }),
		"retentionDays": field(func(v snapshot) int { return v.RetentionDays }),
		"createdAt":     field(func(v snapshot) time.Time { return v.CreatedAt }),
	})
}

func defineRelease(s *schema) {
	type release = *hangar.Release
	execute.Define(s, "Release", fields[release]{
		"id":                 field(func(r release) hangar.ReleaseID { return r.ID }),
		"version":            field(func(r release) int { return r.Version }),
		"stable":             field(func(r release) bool { return r.Status == hangar.ReleaseComplete }),
		"inProgress":         field(func(r release) bool { return r.Status.InProgress() }),
		"status":             field(func(r release) hangar.ReleaseStatus { return r.Status }),
		"reason":             field(func(r release) string { return r.Reason }),
		"description":        field(func(r release) string { return r.Description }),
		"deploymentStrategy": field(func(r release) hangar.ReleaseStrategy { return r.Strategy }),
		"evaluationId":       null[release],
		"imageRef":           field(func(r release) *string { return orNull(r.Image) }),
		"configDefinition":   field(func(r release) json.RawMessage { return r.Definition }),
		"metadata":           field(func(r release) json.RawMessage { return r.Metadata }),
		"user": field(func(r release) *hangar.User {
			if r.User == "" {
				return nil
			}
			return &hangar.User{ID: r.UserID, Name: r.User, Email: r.User}
		}),
		"createdAt": field(func(r release) time.Time { return r.CreatedAt }),
	})
}
