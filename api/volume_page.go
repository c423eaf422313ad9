package api

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
	"github.com/hangar-platform/hangar/api/router"
	"github.com/hangar-platform/hangar/api/view"
)

const (
	maxVolumePage = 1000 // volumes on a page at most, and by default
	volumesAtOnce = 1000 // volumes that are read at once to fill a page
)

// volumeListing is the state of a listing, which a cursor holds. Times are in milliseconds since 1970,
// as exact as those of volumes; 0 is none.
type volumeListing struct {
	After        hangar.VolumeID `json:"a"`
	UpdatedAfter int64           `json:"u"`
	Began        int64           `json:"b"`
	Newest       int64           `json:"n"`
}

func (l volumeListing) cursor() string {
	text, _ := json.Marshal(l) // has nothing that JSON cannot hold
	return base64.RawURLEncoding.EncodeToString(text)
}

// volumeListingOf reads where a listing continues, or begins a new one.
func volumeListingOf(q *input.Query, now time.Time) volumeListing {
	if cursor := q.Text("cursor"); cursor != "" {
		var l volumeListing
		text, err := base64.RawURLEncoding.DecodeString(cursor)
		if err == nil {
			err = json.Unmarshal(text, &l)
		}
		if err != nil || !l.After.Valid() {
			q.Fail("cursor", "is not the next_cursor of a page of volumes")
		}
		return l
	}
	l := volumeListing{After: hangar.VolumeID(q.Text("after")), Began: now.UnixMilli()}
	if l.After != "" && !l.After.Valid() {
		q.Fail("after", "%q is not the id of a volume", input.Clip(string(l.After)))
	}
	if t := q.Time("updated_after"); !t.IsZero() {
		l.UpdatedAfter = t.UnixMilli()
	}
	l.Newest = l.UpdatedAfter
	return l
}

// volumeFilter says which volumes of an organization are listed.
type volumeFilter struct {
	deleted bool
	regions []hangar.Region
	states  []hangar.VolumeState
}

func volumeFilterOf(q *input.Query) volumeFilter {
	f := volumeFilter{deleted: q.Bool("include_deleted"), regions: q.Regions("region")}
	for _, word := range q.Words("state") {
		state := hangar.VolumeState(word)
		if !state.Valid() {
			q.Fail("state", "%q is not a state of a volume", input.Clip(word))
		}
		f.states = append(f.states, state)
	}
	return f
}

func (f volumeFilter) matches(v *hangar.Volume, updatedAfter int64) bool {
	return (f.deleted || !v.State.Gone() || slices.Contains(f.states, v.State)) &&
		(len(f.regions) == 0 || slices.Contains(f.regions, v.Region)) &&
		(len(f.states) == 0 || slices.Contains(f.states, v.State)) &&
		(updatedAfter == 0 || v.UpdatedAt.UnixMilli() > updatedAfter)
}

func (s *server) listOrgVolumes(r *http.Request) (router.Answer, error) {
	q := input.QueryOf(r)
	listing, filter := volumeListingOf(q, time.Now()), volumeFilterOf(q)
	limit := q.Int("limit", 1, maxVolumePage)
	q.Bool("summary")
	if q.Err != nil {
		return router.Answer{}, q.Err
	}
	if limit == 0 {
		limit = maxVolumePage
	}
	// One volume more than a page has shows that there is another page.
	var found []*hangar.Volume
	for after := listing.After; len(found) <= limit; {
		list, err := s.Volumes.OrgVolumes(r.Context(), hangar.OrgSlug(r.PathValue("org")), after, volumesAtOnce)
		if err != nil {
			return router.Answer{}, err
		}
		for _, v := range list {
			after = v.ID
			if filter.matches(v, listing.UpdatedAfter) {
				found = append(found, v)
			}
		}
		if len(list) < volumesAtOnce {
			break
		}
	}
	return router.OK(listing.page(found, limit))
}

// page returns the next page, which has the first limit volumes of list. If there are more, list holds
// at least one more.
func (l volumeListing) page(list []*hangar.Volume, limit int) view.VolumePage {
	shown := list[:min(limit, len(list))]
	for _, v := range shown {
		l.After, l.Newest = v.ID, max(l.Newest, v.UpdatedAt.UnixMilli())
	}
	next := ""
	if len(list) > limit {
		next = l.cursor()
	}
	var lastUpdated time.Time
	if newest := min(l.Newest, l.Began-hangar.ListingMargin.Milliseconds()); newest > 0 {
		lastUpdated = time.UnixMilli(newest)
	}
	return view.OfVolumePage(shown, next, lastUpdated)
}
