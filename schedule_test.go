package hangar_test

import (
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

func TestSchedulePeriods(t *testing.T) {
	at := func(text string) time.Time {
		t.Helper()
		parsed, err := time.Parse("2006-01-02 15:04:05", text)
		if err != nil {
			t.Fatal(err)
		}
		return parsed
	}
	for _, test := range []struct {
		schedule hangar.Schedule
		created  string
		n        int
		want     string
	}{
		{hangar.Hourly, "2026-03-01 10:20:30", 0, "2026-03-01 10:20:30"},
		{hangar.Hourly, "2026-03-01 10:20:30", 14, "2026-03-02 00:20:30"},
		{hangar.Daily, "2026-02-27 10:20:30", 2, "2026-03-01 10:20:30"},
		{hangar.Weekly, "2026-12-28 10:20:30", 1, "2027-01-04 10:20:30"},
		{hangar.Monthly, "2026-01-31 10:20:30", 1, "2026-02-28 10:20:30"},
		{hangar.Monthly, "2026-01-31 10:20:30", 2, "2026-03-31 10:20:30"},
		{hangar.Monthly, "2026-01-31 10:20:30", 3, "2026-04-30 10:20:30"},
		{hangar.Monthly, "2027-12-31 23:59:59", 2, "2028-02-29 23:59:59"},
		{hangar.Monthly, "2026-11-15 00:00:00", 14, "2028-01-15 00:00:00"},
	} {
		if got := test.schedule.Start(at(test.created), test.n); !got.Equal(at(test.want)) {
			t.Errorf("%s period %d of %s begins %s, want %s", test.schedule, test.n, test.created, got, test.want)
		}
	}
}

// TestSchedulePeriodsHaveNoGaps checks both ends of every period of some years.
func TestSchedulePeriodsHaveNoGaps(t *testing.T) {
	created := time.Date(2026, 1, 29, 12, 0, 0, 0, time.FixedZone("here", 7*3600))
	for _, s := range []hangar.Schedule{hangar.Hourly, hangar.Daily, hangar.Weekly, hangar.Monthly} {
		for day := range 3 { // the 29th, 30th and 31st
			created := created.AddDate(0, 0, day)
			if got := s.Period(created, created.Add(-1)); got != -1 {
				t.Errorf("%s: period %d before the creation", s, got)
			}
			for n := range 60 {
				begin, end := s.Start(created, n), s.Start(created, n+1)
				if !begin.Before(end) {
					t.Fatalf("%s: period %d goes from %s to %s", s, n, begin, end)
				}
				for _, when := range []time.Time{begin, begin.Add(end.Sub(begin) / 2), end.Add(-1)} {
					if got := s.Period(created, when); got != n {
						t.Errorf("%s: %s is in period %d, want %d", s, when, got, n)
					}
				}
			}
		}
	}
}
