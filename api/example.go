package api

import (
	"net/netip"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/view"
)

// The values in the examples of the document.
const (
	exampleID       hangar.MachineID  = "d8912340000002"
	exampleVersion  hangar.InstanceID = "01KXWWKW9T0000000000000000"
	exampleEvent    hangar.EventID    = "01KXWWKW9T0000000000000001"
	exampleVolumeID hangar.VolumeID   = "vol_2n0l3vl5qy8v635d"
	exampleSnapshot hangar.SnapshotID = "vs_9zvw7ql1kx9h2pp8ykd4"
	exampleTimeout                    = 10 * time.Second
)

var (
	exampleTime  = time.Date(2026, 8, 14, 9, 57, 35, 0, time.UTC)
	exampleImage = hangar.ImageRef{
		Registry: "registry-1.docker.io", Repository: "library/nginx", Tag: "alpine",
		Digest: "sha256:83075afea33660ca1911ce1905dee384079ed856397e0e5a9249435b22c35dc8", Labels: map[string]string{},
	}
)

func exampleApp() appView {
	return viewApp(&hangar.App{
		ID: "web", Name: "web", NumericID: 1, Org: hangar.Org{ID: "9s1k3m7d2xqp40vb", Slug: hangar.OrgPersonal, Name: "Personal", NumericID: 1},
		Network: hangar.DefaultNetwork, NetworkID: 1, Status: hangar.AppDeployed, MachineCount: 1, CreatedAt: exampleTime,
	})
}

func exampleMachine() view.Machine {
	m := &hangar.Machine{
		ID: exampleID, Name: "one", App: "web", State: hangar.MachineStarted, Region: "loc", Host: "0000000a",
		InstanceID: exampleVersion, PrivateIP: netip.MustParseAddr("fdaa:0:1:a7b:1:0:2:2"), ImageRef: exampleImage,
		CreatedAt: exampleTime, UpdatedAt: exampleTime,
		Events: []hangar.Event{{
			ID: exampleEvent, Type: hangar.EventStart, Status: "started", Source: hangar.SourceUser, Timestamp: exampleTime.UnixMilli(),
		}},
	}
	m.Config = hangar.MachineConfig{
		Image: "nginx:alpine", Guest: &hangar.Guest{CPUKind: hangar.CPUShared, CPUs: 1, MemoryMB: 256},
		Metadata: map[string]string{"role": "web"},
	}
	// A complete config is not changed, so this cannot fail.
	v, _ := view.OfMachine(m)
	return v
}

func exampleVolume() *hangar.Volume {
	return &hangar.Volume{
		ID: exampleVolumeID, Name: "data", App: "web", State: hangar.VolumeCreated, SizeGB: 3, Region: "loc", Zone: "a7b1", Host: "0000000a",
		Encrypted: true, CreatedAt: exampleTime, UpdatedAt: exampleTime, SnapshotRetention: hangar.DefaultSnapshotRetain, AutoBackup: true,
		Wanted: hangar.FSExt4,
	}
}
