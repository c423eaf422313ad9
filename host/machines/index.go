package machines

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
)

// index holds the living Machines by id and by App, and implements reads of all Machines. Only the
// journal has destroyed ones.
type index struct {
	journal *journal.Journal
	revive  func(*journal.Record) *machine // returns the destroyed Machine of a record

	mu       sync.RWMutex
	machines map[hangar.MachineID]*machine                  // guarded by mu
	apps     map[hangar.AppID]map[hangar.MachineID]*machine // the same by App; guarded by mu
	unread   map[hangar.MachineID]bool                      // their records cannot be parsed; set by Open
}

func newIndex(j *journal.Journal, revive func(*journal.Record) *machine) *index {
	return &index{
		journal: j, revive: revive,
		machines: make(map[hangar.MachineID]*machine), apps: make(map[hangar.AppID]map[hangar.MachineID]*machine),
	}
}

// add adds a Machine.
func (x *index) add(m *machine) {
	app := m.rec.Load().Machine.AppID // never changes
	x.mu.Lock()
	defer x.mu.Unlock()
	x.machines[m.id] = m
	if x.apps[app] == nil {
		x.apps[app] = make(map[hangar.MachineID]*machine)
	}
	x.apps[app][m.id] = m
}

// remove is the inverse of add.
func (x *index) remove(m *machine) {
	app := m.rec.Load().Machine.AppID
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.machines, m.id)
	if delete(x.apps[app], m.id); len(x.apps[app]) == 0 {
		delete(x.apps, app)
	}
}

// machine returns the Machine that ref names. A destroyed one is read from the journal and cannot
// be changed.
func (x *index) machine(ref hangar.MachineRef) (*machine, error) {
	x.mu.RLock()
	m := x.machines[ref.ID]
	x.mu.RUnlock()
	if m == nil {
		rec, err := x.journal.Destroyed(ref.ID)
		if errors.Is(err, journal.ErrNotFound) {
			return nil, notFound(ref.ID)
		}
		if err != nil {
			return nil, err
		}
		m = x.revive(rec)
	}
	if m.rec.Load().Machine.AppID != ref.AppID {
		return nil, notFound(ref.ID)
	}
	return m, nil
}

func notFound(id hangar.MachineID) error {
	return hangar.Errorf(hangar.CodeNotFound, hangar.ReasonMachineNotFound, "machine not found: %s", id)
}

// running returns the record of a Machine that is started.
func (x *index) running(ref hangar.MachineRef) (*journal.Record, error) {
	m, err := x.machine(ref)
	if err != nil {
		return nil, err
	}
	rec := m.rec.Load()
	if rec.Machine.State.Answers(hangar.VerbExec) != hangar.Accept {
		return nil, refusal(hangar.VerbExec, rec.Machine.State)
	}
	return rec, nil
}

// find returns a Machine that is not destroyed, or nil.
func (x *index) find(id hangar.MachineID) *machine {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.machines[id]
}

// all returns every Machine that is not destroyed, sorted by id.
func (x *index) all() []*machine { return x.of("") }

// of returns the Machines of an App that are not destroyed, empty: of all, sorted by id.
func (x *index) of(app hangar.AppID) []*machine {
	x.mu.RLock()
	from := x.machines
	if app != "" {
		from = x.apps[app]
	}
	list := slices.AppendSeq(make([]*machine, 0, len(from)), maps.Values(from))
	x.mu.RUnlock()
	slices.SortFunc(list, byID)
	return list
}

func byID(x, y *machine) int { return strings.Compare(string(x.id), string(y.id)) }

// scheduled returns the Machines that have a schedule.
func (x *index) scheduled() []*machine {
	x.mu.RLock()
	defer x.mu.RUnlock()
	var list []*machine
	for _, m := range x.machines {
		if m.rec.Load().Machine.Config.Schedule != "" {
			list = append(list, m)
		}
	}
	return list
}

// loggedAs names the Machine whose log has the lines about ref.
func (x *index) loggedAs(ref hangar.MachineRef) (hangar.MachineRef, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if ref.ID != "" {
		m := x.apps[ref.AppID][ref.ID]
		return ref, m != nil
	}
	for id := range x.apps[ref.AppID] {
		if ref.ID == "" || id < ref.ID {
			ref.ID = id
		}
	}
	return ref, ref.ID != ""
}

// First returns the first Machine of an App; empty: it has none.
func (x *index) First(app hangar.AppID) hangar.MachineID {
	for _, m := range x.of(app) {
		return m.id
	}
	return ""
}

// MountOf says how a Machine mounts a volume; false: there is no such Machine, or it does not.
func (x *index) MountOf(id hangar.MachineID, volume hangar.VolumeID) (hangar.Mount, bool) {
	if m := x.find(id); m != nil {
		for _, mount := range m.rec.Load().Machine.Config.Mounts {
			if mount.Volume == string(volume) {
				return mount, true
			}
		}
	}
	return hangar.Mount{}, false
}

// MayRun reports whether the sandbox of a Machine may still be there and use its volumes.
func (x *index) MayRun(id hangar.MachineID) bool {
	m := x.find(id)
	return x.unread[id] || m != nil && !m.worker.clean
}

// Owns reports whether a Machine with that id may own things on the host. One
// whose record cannot be read keeps what it has until the record is repaired.
func (x *index) Owns(id hangar.MachineID) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.unread[id] || x.machines[id] != nil
}

// findUnread finds the records that the journal could not parse.
func (x *index) findUnread() error {
	ids, err := x.journal.IDs()
	if err != nil {
		return err
	}
	x.unread = make(map[hangar.MachineID]bool)
	for _, id := range ids {
		if x.machines[id] == nil {
			x.unread[id] = true
		}
	}
	return nil
}

// AllRead reports whether the records of all Machines could be read.
func (x *index) AllRead() bool { return len(x.unread) == 0 }

// ImagesInUse returns the digests that Machines need to start again.
func (x *index) ImagesInUse() map[string]bool {
	used := make(map[string]bool)
	for _, m := range x.all() {
		rec := m.rec.Load()
		used[rec.Machine.ImageRef.Digest] = true
		if rec.Previous != nil {
			used[rec.Previous.ImageRef.Digest] = true
		}
	}
	return used
}

// Machine implements hangar.MachineOps.
func (x *index) Machine(_ context.Context, ref hangar.MachineRef) (*hangar.Machine, error) {
	m, err := x.machine(ref)
	if err != nil {
		return nil, err
	}
	events, err := m.newest()
	if err != nil {
		return nil, err
	}
	got := m.shown(m.rec.Load())
	got.Events = events
	return &got, nil
}

// shownEvents is how many events are returned with a Machine, and the default length of a listing
// of events; maxEvents is its maximum.
const (
	shownEvents = 20
	maxEvents   = 50
)

// MachineEvents implements hangar.MachineReader.
func (x *index) MachineEvents(_ context.Context, ref hangar.MachineRef, limit int) ([]hangar.Event, error) {
	m, err := x.machine(ref)
	if err != nil {
		return nil, err
	}
	if limit <= 0 {
		limit = shownEvents
	}
	return x.journal.Events(m.id, min(limit, maxEvents))
}

// MachineVersions implements hangar.MachineReader.
func (x *index) MachineVersions(_ context.Context, ref hangar.MachineRef) ([]hangar.MachineVersion, error) {
	m, err := x.machine(ref)
	if err != nil {
		return nil, err
	}
	return x.journal.Versions(m.id)
}

// MachineMetadata implements hangar.MachineTagger.
func (x *index) MachineMetadata(_ context.Context, ref hangar.MachineRef) (map[string]string, error) {
	m, err := x.machine(ref)
	if err != nil {
		return nil, err
	}
	return m.rec.Load().Machine.Config.Metadata, nil
}

// listedDestroyed bounds the destroyed Machines of an App in a list, newest first: a whole list is
// in memory.
const listedDestroyed = 1000

// Machines implements hangar.Agent.
func (x *index) Machines(_ context.Context, app hangar.AppID, filter hangar.MachineFilter) ([]*hangar.Machine, error) {
	from := x.of(app)
	if filter.IncludeDestroyed {
		destroyed, err := x.journal.DestroyedOfApp(app, listedDestroyed)
		if err != nil {
			return nil, err
		}
		from = x.withDestroyed(from, destroyed)
	}
	list := []*hangar.Machine{}
	for _, m := range from {
		rec := m.rec.Load()
		if !filter.Matches(&rec.Machine) {
			continue
		}
		got := m.shown(rec)
		if filter.Events {
			var err error
			if got.Events, err = m.newest(); err != nil {
				return nil, err
			}
		}
		list = append(list, &got)
	}
	return list, nil
}

// OrgMachines implements hangar.Agent.
func (x *index) OrgMachines(
	_ context.Context, org hangar.OrgID, after hangar.MachineID, limit int, filter hangar.MachineFilter,
) ([]*hangar.Machine, error) {
	from := slices.DeleteFunc(x.all(), func(m *machine) bool { return m.id <= after || m.rec.Load().OrgID != org })
	if filter.IncludeDestroyed {
		var destroyed []*journal.Record
		for rec, err := range x.journal.DestroyedOfOrg(org, after) {
			if err != nil {
				return nil, err
			}
			if len(destroyed) == limit {
				break
			}
			if filter.Matches(&rec.Machine) {
				destroyed = append(destroyed, rec)
			}
		}
		from = x.withDestroyed(from, destroyed)
	}
	list := []*hangar.Machine{}
	for _, m := range from {
		if rec := m.rec.Load(); len(list) < limit && filter.Matches(&rec.Machine) {
			got := rec.Machine
			list = append(list, &got)
		}
	}
	return list, nil
}

// withDestroyed merges living and destroyed Machines, sorted by id. The living ones were listed
// first, so a Machine that was destroyed meanwhile is in both.
func (x *index) withDestroyed(living []*machine, destroyed []*journal.Record) []*machine {
	list := make([]*machine, 0, len(destroyed)+len(living))
	for _, rec := range destroyed {
		list = append(list, x.revive(rec))
	}
	list = append(list, living...)
	slices.SortStableFunc(list, byID)
	return slices.CompactFunc(list, func(x, y *machine) bool { return x.id == y.id })
}
