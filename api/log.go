package api

import (
	"fmt"
	"net/http"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
	"github.com/hangar-platform/hangar/api/router"
)

const maxLogLimit = 1000

func (s *server) logRoutes() {
	query := []router.Param{
		{Name: "instance", Example: exampleID, Text: "Only lines of this Machine."},
		{Name: "region", Example: hangar.Region("loc"), Text: "Only lines from this region."},
		{Name: "limit", Example: hangar.DefaultLogLimit, Text: "The most lines of an answer, from 1 to 1000. The default is 100."},
		{Name: "next_token", Example: "0", Text: "Only lines after this place; see `meta.next_token`."},
	}
	entry := hangar.LogEntry{
		Time: exampleTime, Message: "listening on :8080", Level: "info", Provider: hangar.LogApp, Instance: exampleID, Region: "loc",
	}
	s.Handle("GET /api/v1/apps/{app}/logs", s.pollLogs, router.Operation{
		ID: "pollLogs", Tag: "Logs", Summary: "Get logs",
		Text:  "Ask again with the token of the answer. A page without lines means that nothing is new: wait before you ask again.",
		Query: query, Answer: logPage{[]logView{viewLog(entry, 0)}, logPageMeta{"1"}},
	})
	s.Stream("GET /v1/apps/{app}/logs", s.followLogs, router.Operation{
		ID: "followLogs", Tag: "Logs", Summary: "Stream logs",
		Text: "One JSON value per line. " + textOfStreams,
		Query: append(query, router.Param{Name: "follow", Example: true, Text: "Continue with new lines."},
			router.Param{Name: "edge", Example: true, Text: "Not the log, but what the edge does with requests from now on. Such lines are not stored, so `follow` is required."}),
		Stream: entry,
	})
}

// logPage is a piece of a log as clients decode it.
type logPage struct {
	Data []logView   `json:"data"`
	Meta logPageMeta `json:"meta"`
}

type logPageMeta struct {
	Next string `json:"next_token"`
}

// logView is a log line as clients decode it.
type logView struct {
	ID         string        `json:"id"`
	Type       string        `json:"type"`
	Attributes logAttributes `json:"attributes"`
}

type logAttributes struct {
	Time     string           `json:"timestamp"`
	Message  string           `json:"message"`
	Level    string           `json:"level"`
	Instance hangar.MachineID `json:"instance"`
	Region   hangar.Region    `json:"region"`
	Meta     logMeta          `json:"meta"`
}

type logMeta struct {
	Instance hangar.MachineID `json:"instance"`
	Region   hangar.Region    `json:"region"`
	Event    logEvent         `json:"event"`
}

type logEvent struct {
	Provider hangar.LogProvider `json:"provider"`
}

func viewLog(e hangar.LogEntry, n int) logView {
	return logView{
		ID:   fmt.Sprintf("%s-%d-%d", e.Instance, e.Time.UnixNano(), n),
		Type: "log",
		Attributes: logAttributes{
			Time: e.Time.UTC().Format(time.RFC3339Nano), Message: e.Message, Level: e.Level, Instance: e.Instance, Region: e.Region,
			Meta: logMeta{Instance: e.Instance, Region: e.Region, Event: logEvent{e.Provider}},
		},
	}
}

func logQuery(r *http.Request) (hangar.LogQuery, *input.Query) {
	q := input.QueryOf(r)
	lq := hangar.LogQuery{
		Instance: hangar.MachineID(q.Text("instance")),
		Region:   hangar.Region(q.Text("region")),
		Limit:    q.Int("limit", 1, maxLogLimit),
	}
	// The log makes the tokens. Their length has no bound here.
	lq.Token = q.Values.Get("next_token")
	if lq.Instance != "" && !lq.Instance.Valid() {
		q.Fail("instance", "%q is not the id of a machine", lq.Instance)
	}
	return lq, q
}

// pollLogs answers with a page. Clients wait only after an empty one, so it is
// empty when nothing is new.
func (s *server) pollLogs(r *http.Request) (router.Answer, error) {
	app, err := appName(r)
	if err != nil {
		return router.Answer{}, err
	}
	in, q := logQuery(r)
	if q.Err != nil {
		return router.Answer{}, q.Err
	}
	page, err := s.Logs.Logs(r.Context(), app, in)
	if err != nil {
		return router.Answer{}, err
	}
	views := make([]logView, 0, len(page.Entries))
	for i, e := range page.Entries {
		views = append(views, viewLog(e, i))
	}
	return router.OK(logPage{views, logPageMeta{page.Next}})
}

// followLogs writes one line per entry: the existing ones and, with follow, new ones.
func (s *server) followLogs(w http.ResponseWriter, r *http.Request) error {
	app, err := appName(r)
	if err != nil {
		return err
	}
	in, q := logQuery(r)
	follow := q.Bool("follow")
	if in.Edge = q.Bool("edge"); in.Edge && !follow {
		q.Fail("edge", "it needs follow=true, because these lines are not stored")
	}
	if q.Err != nil {
		return q.Err
	}
	if !follow {
		page, err := s.Logs.Logs(r.Context(), app, in)
		if err != nil {
			return err
		}
		l := router.NewLines(r.Context(), w)
		for _, e := range page.Entries {
			if l.Send(e) != nil {
				break
			}
		}
		return l.End(nil)
	}
	l := router.NewLines(r.Context(), w)
	return l.End(func() error {
		for e, err := range s.Logs.FollowLogs(r.Context(), app, in) {
			if err != nil {
				return err
			}
			if r.Context().Err() != nil {
				break
			}
			if err := l.Send(e); err != nil {
				return nil // there is no reader left for an error
			}
		}
		return r.Context().Err()
	}())
}
