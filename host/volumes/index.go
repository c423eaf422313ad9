package volumes

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
)

// index is the volumes that are known.
type index struct {
	mu     sync.RWMutex
	known  map[hangar.VolumeID]*volume // guarded by mu
	unread map[hangar.VolumeID]bool    // have a record that does not parse; set by Open
}

// volume returns the volume that ref names.
func (x *index) volume(ref hangar.VolumeRef) (*volume, error) {
	v := x.byID(ref.ID)
	if v == nil || v.rec.Load().Volume.AppID != ref.AppID {
		return nil, hangar.VolumeNotFound(ref.ID)
	}
	return v, nil
}

// byID returns a volume, or nil.
func (x *index) byID(id hangar.VolumeID) *volume {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.known[id]
}

func (x *index) add(v *volume) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.known[v.id] = v
}

// remove is the inverse of add.
func (x *index) remove(v *volume) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.known, v.id)
}

// all returns every volume, sorted by id.
func (x *index) all() []*volume {
	x.mu.RLock()
	list := slices.Collect(maps.Values(x.known))
	x.mu.RUnlock()
	slices.SortFunc(list, func(x, y *volume) int { return strings.Compare(string(x.id), string(y.id)) })
	return list
}

// recordsOf returns the records of the volumes of an App.
func (x *index) recordsOf(of hangar.AppID) []*journal.VolumeRecord {
	var list []*journal.VolumeRecord
	for _, v := range x.all() {
		if rec := v.rec.Load(); rec.Volume.AppID == of {
			list = append(list, rec)
		}
	}
	return list
}

// heldBy returns the volumes that a Machine with a config has, sorted by id.
func (x *index) heldBy(id hangar.MachineID, config *hangar.MachineConfig) (list []*volume) {
	for _, i := range byVolume(config.Mounts) {
		v := x.byID(hangar.VolumeID(config.Mounts[i].Volume))
		if v != nil && v.rec.Load().Volume.AttachedMachine == id {
			list = append(list, v)
		}
	}
	return list
}
