package hangar

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// MaxMachinePage is the most Machines on a page, and the default.
const MaxMachinePage = 1000

// ListingMargin is how long before a listing began the next one begins at the latest, which lists what changed since:
// the clocks of servers may differ, and it may take a moment until a change can be listed. What changed in that time
// is listed again.
const ListingMargin = 10 * time.Second

// MachinePageQuery asks for one page of a listing of Machines.
type MachinePageQuery struct {
	MachineFilter        // the same for every page of a listing; Events has no effect
	Cursor        string // MachinePage.Next of the page before; empty: the first page
	Limit         int    // 0: MaxMachinePage, which is the most
}

// StartAt makes the page begin with a Machine or, if it is not listed, with the next one by id.
func (q *MachinePageQuery) StartAt(id MachineID) {
	q.Cursor = ""
	if n, err := strconv.ParseUint(string(id), 16, 64); err == nil && n > 0 {
		q.Cursor = MachineListing{After: MachineID(fmt.Sprintf("%014x", n-1))}.cursor()
	}
}

// MachinePage is a part of a listing of Machines, sorted by id. As an id never changes,
// no Machine is on two pages of a listing, and each Machine that exists throughout is
// on one, even if others come and go meanwhile.
type MachinePage struct {
	// Machines come without events. Of their configs, callers may rely only on guest,
	// image and metadata.
	Machines []*Machine
	Next     string // the cursor of the next page; empty: there is none
	// LastUpdated is set on the last page. As MachineFilter.UpdatedAfter it makes a later listing
	// return every Machine that changed after this listing began, and maybe others; see ListingMargin. Zero means that no Machine was ever
	// listed.
	LastUpdated time.Time
	// ErrorRegions have hosts that cannot be reached. Their Machines are listed as
	// they were published, with the host status "unreachable".
	ErrorRegions []Region
}

// MachineListing is the state of a listing, which a cursor holds.
type MachineListing struct {
	After        MachineID // the last Machine that was listed
	UpdatedAfter time.Time
	Began        time.Time
	Newest       time.Time // the last change of a Machine that was listed
}

// cursor is the JSON of a MachineListing. Times are in seconds since 1970, as exact as those of
// Machines.
type cursor struct {
	After        MachineID `json:"a"`
	UpdatedAfter int64     `json:"u"`
	Began        int64     `json:"b"`
	Newest       int64     `json:"n"`
}

// Listing returns the listing that q begins or continues. A page after the first keeps the UpdatedAfter
// of the first and ignores that of q. Listing answers CodeInvalid for a cursor that no page returned
// and for a limit that is out of bounds.
func (q *MachinePageQuery) Listing(now time.Time) (MachineListing, error) {
	if q.Limit < 0 || q.Limit > MaxMachinePage {
		return MachineListing{}, Errorf(CodeInvalid, "", "invalid limit: %d is not from 1 to %d", q.Limit, MaxMachinePage)
	}
	if q.Limit == 0 {
		q.Limit = MaxMachinePage
	}
	if q.Cursor == "" {
		return MachineListing{UpdatedAfter: q.UpdatedAfter, Began: now, Newest: q.UpdatedAfter}, nil
	}
	var c cursor
	text, err := base64.RawURLEncoding.DecodeString(q.Cursor)
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err != nil || !c.After.Valid() {
		return MachineListing{}, Errorf(CodeInvalid, "", "invalid cursor: is not the next_cursor of a page of machines")
	}
	q.UpdatedAfter = instant(c.UpdatedAfter)
	return MachineListing{
		After: c.After, UpdatedAfter: q.UpdatedAfter, Began: instant(c.Began), Newest: instant(c.Newest),
	}, nil
}

// Page returns the next page, which has the first limit Machines of list. list holds the Machines after
// l.After, sorted by id. If there are more than limit, it holds at least one more.
func (l MachineListing) Page(list []*Machine, limit int) MachinePage {
	page := MachinePage{Machines: list[:min(limit, len(list))]}
	for _, m := range page.Machines {
		l.After = m.ID
		if m.UpdatedAt.After(l.Newest) {
			l.Newest = m.UpdatedAt
		}
	}
	page.LastUpdated = l.Newest
	if before := l.Began.Truncate(time.Second).Add(-ListingMargin); page.LastUpdated.After(before) {
		page.LastUpdated = before
	}
	if len(list) > limit {
		page.Next = l.cursor()
	}
	return page
}

func (l MachineListing) cursor() string {
	text, _ := json.Marshal(cursor{ // has nothing that JSON cannot hold
		After: l.After, UpdatedAfter: seconds(l.UpdatedAfter), Began: seconds(l.Began), Newest: seconds(l.Newest),
	})
	return base64.RawURLEncoding.EncodeToString(text)
}

// seconds and instant are each other's inverse; the zero time is 0.
func seconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Unix()
}

func instant(seconds int64) time.Time {
	if seconds == 0 {
		return time.Time{}
	}
	return time.Unix(seconds, 0).UTC()
}
