package api

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/view"
)

// manyVolumes lists volumes of an organization; every third is destroyed, every second in
// another region.
type manyVolumes struct {
	hangar.VolumeService
	list []*hangar.Volume
}

func (m *manyVolumes) OrgVolumes(_ context.Context, _ hangar.OrgSlug, after hangar.VolumeID, limit int) ([]*hangar.Volume, error) {
	var list []*hangar.Volume
	for _, v := range m.list {
		if v.ID > after && len(list) < limit {
			list = append(list, v)
		}
	}
	return list, nil
}

type nobodyElse struct{ hangar.Authenticator }

func (nobodyElse) Authenticate(context.Context, string) (hangar.Principal, error) {
	return hangar.Principal{Admin: true}, nil
}

// TestPagesOfVolumes follows cursors through a listing that shows few of its volumes.
func TestPagesOfVolumes(t *testing.T) {
	many := &manyVolumes{}
	for i := range 2500 {
		v := &hangar.Volume{
			ID: hangar.VolumeID(fmt.Sprintf("vol_%016d", i)), State: hangar.VolumeCreated, Region: hangar.Region([]string{"loc", "eur"}[i%2]),
			UpdatedAt: exampleTime.Add(time.Duration(i) * time.Millisecond),
		}
		if i%3 == 0 {
			v.State, v.DestroyedAt = hangar.VolumePendingDestroy, exampleTime
		}
		many.list = append(many.list, v)
	}
	handler := New(Config{Volumes: many, Auth: nobodyElse{}, Log: slog.New(slog.DiscardHandler)})
	ask := func(query url.Values) (page view.VolumePage) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/orgs/personal/volumes?"+query.Encode(), nil)
		r.Header.Set("Authorization", "Bearer x")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if err := json.Unmarshal(w.Body.Bytes(), &page); err != nil || w.Code != http.StatusOK {
			t.Fatalf("answered %d %s, %v", w.Code, w.Body, err)
		}
		return page
	}
	for name, test := range map[string]struct {
		query url.Values
		shown func(i int) bool
	}{
		"all that are there": {url.Values{"limit": {"100"}}, func(i int) bool { return i%3 != 0 }},
		"all":                {url.Values{"limit": {"999"}, "include_deleted": {"true"}}, func(int) bool { return true }},
		"of a region":        {url.Values{"limit": {"7"}, "region": {"eur"}}, func(i int) bool { return i%3 != 0 && i%2 == 1 }},
		"destroyed":          {url.Values{"limit": {"1000"}, "state": {"pending_destroy,failed"}}, func(i int) bool { return i%3 == 0 }},
		"changed lately": {
			url.Values{"updated_after": {exampleTime.Add(time.Second).Format(time.RFC3339)}}, func(i int) bool { return i%3 != 0 && i > 1000 },
		},
	} {
		t.Run(name, func(t *testing.T) {
			next, last := 0, view.VolumePage{}
			for query := test.query; ; query.Set("cursor", last.Next) {
				last = ask(query)
				for _, v := range last.Volumes {
					for next < len(many.list) && !test.shown(next) {
						next++
					}
					if want := many.list[next].ID; v.ID != want {
						t.Fatalf("%s follows, want %s", v.ID, want)
					}
					next++
				}
				if last.Next == "" {
					break
				}
				if len(last.Volumes) == 0 || last.LastID != last.Volumes[len(last.Volumes)-1].ID {
					t.Fatalf("a page that is not the last has %d volumes, the last one %s", len(last.Volumes), last.LastID)
				}
			}
			for ; next < len(many.list); next++ {
				if test.shown(next) {
					t.Fatalf("%s is on no page", many.list[next].ID)
				}
			}
			if last.LastUpdated == nil {
				t.Error("the last page says nothing of the last update")
			}
		})
	}
}

// TestVolumesChangedSince: a change that was published after a listing, and is older than what that has shown, is listed
// by the next one.
func TestVolumesChangedSince(t *testing.T) {
	began := time.Date(2026, 8, 14, 9, 57, 35, 120e6, time.UTC)
	late := &hangar.Volume{ID: "vol_1", UpdatedAt: began.Add(-20 * time.Millisecond)}
	shown := &hangar.Volume{ID: "vol_2", UpdatedAt: began.Add(-10 * time.Millisecond)}
	page := volumeListing{Began: began.UnixMilli()}.page([]*hangar.Volume{shown}, 1)
	if !(volumeFilter{}).matches(late, page.LastUpdated.UnixMilli()) {
		t.Errorf("a volume that changed at %s is not among those that changed after %s", late.UpdatedAt, page.LastUpdated)
	}
	old := began.Add(-time.Hour)
	page = volumeListing{Began: began.UnixMilli()}.page([]*hangar.Volume{{ID: "vol_3", UpdatedAt: old}}, 1)
	if !page.LastUpdated.Equal(old) {
		t.Errorf("after the only volume, of %s, the next listing begins at %s", old, page.LastUpdated)
	}
}
