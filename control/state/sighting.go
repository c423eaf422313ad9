package state

import "time"

// Sightings are when records were first seen as they are, by their keys and by the clock of who looks:
// for records that have no time, or one of another's clock. Each round of looking makes new ones of those
// of the round before.
type Sightings map[string]Sighting

// Sighting is when a record was first seen at a revision.
type Sighting struct {
	Revision Revision
	At       time.Time
}

// First returns when an item was first seen as it is, which is now unless an earlier round has.
func (s Sightings) First(item Item, now time.Time) Sighting {
	if before, ok := s[item.Key]; ok && before.Revision == item.Revision {
		return before
	}
	return Sighting{item.Revision, now}
}
