package hangar

import (
	"slices"
	"strconv"
	"time"
)

// Schedule says how often the platform starts a Machine. Periods are counted from the creation of the
// Machine, in UTC.
type Schedule string

// The schedules. The periods of Monthly begin on the day of the month on which the
// Machine was created, or on the last one of shorter months.
const (
	Hourly  Schedule = "hourly"
	Daily   Schedule = "daily"
	Weekly  Schedule = "weekly"
	Monthly Schedule = "monthly"
)

var schedules = []Schedule{Hourly, Daily, Weekly, Monthly}

// Start returns when the n-th period begins. Period 0 begins with the creation of the Machine.
func (s Schedule) Start(created time.Time, n int) time.Time {
	created = created.UTC()
	if s == Monthly {
		year, month, day := created.Date()
		first := time.Date(year, month+time.Month(n), 1, created.Hour(), created.Minute(), created.Second(), created.Nanosecond(), time.UTC)
		return first.AddDate(0, 0, min(day, first.AddDate(0, 1, -1).Day())-1)
	}
	return created.Add(time.Duration(n) * s.period())
}

// Period returns the number of the period that t is in, -1 before the creation.
func (s Schedule) Period(created, t time.Time) int {
	if t.Before(created) {
		return -1
	}
	if s != Monthly {
		return int(t.Sub(created) / s.period())
	}
	t, created = t.UTC(), created.UTC()
	n := 12*(t.Year()-created.Year()) + int(t.Month()-created.Month())
	if s.Start(created, n).After(t) {
		n--
	}
	return n
}

// period is the length of the periods of all schedules but Monthly.
func (s Schedule) period() time.Duration {
	switch s {
	case Hourly:
		return time.Hour
	case Weekly:
		return 7 * 24 * time.Hour
	default:
		return 24 * time.Hour
	}
}

func (c *MachineConfig) validateSchedule() error {
	if c.Schedule != "" && !slices.Contains(schedules, c.Schedule) {
		return badConfig("config.schedule", "%q is not one of %v", c.Schedule, schedules)
	}
	return nil
}

// maxStandbys bounds the Machines that one stands by for.
const maxStandbys = 64

// StandsBy reports whether the Machine stands by for others: neither the platform nor a
// request starts it; its owner may.
func (c *MachineConfig) StandsBy() bool { return len(c.Standbys) > 0 }

func (c *MachineConfig) validateStandbys() error {
	switch {
	case !c.StandsBy():
		return nil
	case len(c.Standbys) > maxStandbys:
		return badConfig("config.standbys", "has %d entries, more than the %d that are allowed", len(c.Standbys), maxStandbys)
	case len(c.Services) > 0:
		return badConfig("config.standbys", "is only for Machines without services")
	case c.Schedule != "":
		return badConfig("config.standbys", "stands beside config.schedule; give one of the two")
	}
	for i, id := range c.Standbys {
		at := "config.standbys[" + strconv.Itoa(i) + "]"
		if !id.Valid() {
			return badConfig(at, "%q is not the id of a Machine: 14 characters of 0-9 and a-f", id)
		}
		if slices.Contains(c.Standbys[:i], id) {
			return badConfig(at, "%s is there twice", id)
		}
	}
	return nil
}
