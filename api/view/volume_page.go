package view

import (
	"time"

	"github.com/hangar-platform/hangar"
)

// VolumePage is a page of the listing of an organization.
type VolumePage struct {
	Volumes     []Volume        `json:"volumes"`
	Next        string          `json:"next_cursor"`
	LastID      hangar.VolumeID `json:"last_volume_id"`
	LastUpdated *time.Time      `json:"last_updated_at"`
}

// OfVolumePage returns a page of volumes. next is its cursor, empty on the last page. lastUpdated,
// unless zero, is the latest change on the pages so far.
func OfVolumePage(list []*hangar.Volume, next string, lastUpdated time.Time) VolumePage {
	page := VolumePage{Volumes: make([]Volume, 0, len(list)), Next: next}
	for _, v := range list {
		page.LastID = v.ID
		page.Volumes = append(page.Volumes, OfVolume(v))
	}
	if !lastUpdated.IsZero() {
		page.LastUpdated = new(lastUpdated.UTC())
	}
	return page
}
