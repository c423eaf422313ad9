package elections

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
)

// keys are those of an election in the state.
type keys struct {
	prefix   string // of all
	record   string
	sessions string // prefix of sessions
}

// indexKey is the key of the names of an App's elections, and what the keys of these begin with.
func indexKey(app hangar.AppID) string { return state.ElectionsPrefix + string(app) }

func keysOf(app hangar.AppID, name hangar.ElectionName) keys {
	prefix := indexKey(app) + "/" + string(name) + "/"
	return keys{prefix: prefix, record: prefix + "record", sessions: prefix + "sessions/"}
}

func (k keys) session(id hangar.ElectionSessionID) string { return k.sessions + string(id) }

// record is an election as the state keeps it.
type record struct {
	Revision int64                      `json:"revision"`
	Records  map[string]stored          `json:"records"`
	Sessions []hangar.ElectionSessionID `json:"sessions,omitempty"` // all that have not ended, and some that have
}

// stored is a record of an election.
type stored struct {
	Value    string                   `json:"value"`
	Revision int64                    `json:"revision"`
	Session  hangar.ElectionSessionID `json:"session,omitempty"`
}

// session is what the state has of a session, for as long as its lease lasts.
type session struct {
	Lease state.LeaseID `json:"lease"`
}

// snapshot is an election at one revision of the state.
type snapshot struct {
	record

	item     state.Item                              // that has the record; revision 0: there is none
	sessions map[hangar.ElectionSessionID]state.Item // that have not ended
}

// read makes a snapshot of the items of an election.
func read(k keys, items []state.Item) (*snapshot, error) {
	s := &snapshot{item: state.Item{Key: k.record}, sessions: map[hangar.ElectionSessionID]state.Item{}}
	for _, item := range items {
		if id, ok := strings.CutPrefix(item.Key, k.sessions); ok {
			s.sessions[hangar.ElectionSessionID(id)] = item
			continue
		}
		rec, err := state.Decode[record](item)
		if err != nil {
			return s, err
		}
		s.record, s.item = rec, item
	}
	return s, nil
}

// recordOf returns the record of a key, unless its session has ended.
func (s *snapshot) recordOf(key string) (stored, bool) {
	r, ok := s.Records[key]
	if _, alive := s.sessions[r.Session]; !ok || r.Session != "" && !alive {
		return stored{}, false
	}
	return r, true
}

// next returns what the election is after one more change: without what has ended.
func (s *snapshot) next() *record {
	n := &record{Revision: s.Revision + 1, Records: map[string]stored{}}
	for key := range s.Records {
		if r, ok := s.recordOf(key); ok {
			n.Records[key] = r
		}
	}
	for id := range s.sessions {
		n.Sessions = append(n.Sessions, id)
	}
	slices.Sort(n.Sessions)
	return n
}

// fits answers CodeExhausted if an election has too much.
func (r *record) fits() error {
	size := 0
	for key, v := range r.Records {
		size += len(key) + len(v.Value)
	}
	if size > hangar.MaxElectionSize || len(r.Records) > hangar.MaxElectionRecords {
		return hangar.Errorf(hangar.CodeExhausted, hangar.ReasonQuota, "the election would have %d records of %d bytes: at most %d of %d are allowed",
			len(r.Records), size, hangar.MaxElectionRecords, hangar.MaxElectionSize)
	}
	return nil
}

// version says how far an election is: sessions are only opened by changes of the record, so that between two of these
// their number only falls.
func (s *snapshot) version() string { return fmt.Sprintf("%d.%d", s.Revision, len(s.sessions)) }

// awaited reports whether who knows a version waits for more than this one. It may be one that another server of the
// platform told earlier than this one has learned of it.
func (s *snapshot) awaited(known string) bool {
	var revision int64
	var alive int
	if _, err := fmt.Sscanf(known, "%d.%d", &revision, &alive); err != nil {
		return false
	}
	return s.Revision < revision || s.Revision == revision && len(s.sessions) >= alive
}

// view is the election as callers see it.
func (s *snapshot) view(name hangar.ElectionName) *hangar.Election {
	e := &hangar.Election{Name: name, Revision: s.Revision, Version: s.version(), Records: []hangar.ElectionRecord{}}
	for _, key := range slices.Sorted(maps.Keys(s.Records)) {
		if r, ok := s.recordOf(key); ok {
			e.Records = append(e.Records, hangar.ElectionRecord{Key: key, Value: r.Value, Revision: r.Revision, Session: r.Session})
		}
	}
	return e
}

func sessionNotFound(id hangar.ElectionSessionID) error {
	return hangar.Errorf(hangar.CodeNotFound, hangar.ReasonSessionNotFound, "the election has no session %.40q, or it has ended", string(id))
}
