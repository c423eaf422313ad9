// Package election has the operations of the API with which the Machines of an App elect a leader.
package election

import (
	"net/http"
	"reflect"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
	"github.com/hangar-platform/hangar/api/openapi"
	"github.com/hangar-platform/hangar/api/router"
)

// Tag is the group of the operations.
const Tag = "Elections"

// The examples of path parameters.
const (
	ExampleName    = "databases"
	ExampleSession = "7c4qk2m0x9w1d5zt"
)

// Describe adds the descriptions of the types of elections.
func Describe(s *openapi.Schemas) {
	openapi.Describe[hangar.Election](s, map[string]string{
		"revision": "The number of the last change. 0: there was none.",
		"version":  "Differs when a record has changed or has ended with its session. For the parameter `after`.",
		"records":  "Sorted by key.",
	})
	openapi.Describe[hangar.ElectionRecord](s, map[string]string{
		"revision": "The number of the change that wrote the record.",
		"session":  "The record ends with this session. Without one, it stays.",
	})
	openapi.Describe[hangar.ElectionCondition](s, map[string]string{"revision": "The revision that the record must have. 0: the key must have no record."})
	openapi.Describe[hangar.ElectionPut](s, map[string]string{
		"key": "1 to 128 letters, digits and `.`, `_`, `/` and `-`.", "session": "The session with which the record ends.",
	})
	openapi.Describe[hangar.ElectionChange](s, map[string]string{
		"if": "All must hold, or nothing is changed.", "delete": "Keys. A missing one is not an error.",
	})
	openapi.Describe[hangar.ElectionChanged](s, map[string]string{
		"changed":  "False: a condition did not hold.",
		"revision": "The number of the change or, if there was none, of the last one before.",
	})
	openapi.Describe[hangar.ElectionSessionOpen](s, map[string]string{"ttl": "How long the session lasts without renewal: 1s to 60s."})
	openapi.Describe[hangar.ElectionSession](s, map[string]string{
		"ttl": "How long the session lasts from the request on, at least.",
	})
	s.Name(reflect.TypeFor[hangar.ElectionSessionOpen](), "ElectionSessionRequest")
}

// area has what the handlers need.
type area struct{ hangar.ElectionService }

// Routes adds the operations.
func Routes(rt *router.Router, service hangar.ElectionService) {
	a := area{service}
	const (
		one      = "/v1/apps/{app}/elections/{election}"
		sessions = one + "/sessions"
		session  = sessions + "/{session}"
		who      = " For the Machines of the App, and for tokens that may control it."
	)
	example := hangar.Election{Name: ExampleName, Revision: 12, Version: "12.3", Records: []hangar.ElectionRecord{
		{Key: "primary", Value: `{"hostname":"d8912340000002"}`, Revision: 12, Session: ExampleSession},
	}}
	change := hangar.ElectionChange{
		If: []hangar.ElectionCondition{{Key: "primary"}}, Put: []hangar.ElectionPut{{Key: "primary", Value: `{"hostname":"d8912340000002"}`, Session: ExampleSession}},
	}
	ttl := hangar.Duration(5 * time.Second)
	begun := hangar.ElectionSession{ID: ExampleSession, TTL: ttl}
	rt.Lasting("GET "+one, a.get, router.Operation{
		ID: "getElection", Self: true, Tag: Tag, Summary: "Get or watch an election",
		Text: "All its records. An election that was never changed is empty.",
		Query: []router.Param{
			{Name: "after", Example: "12.3", Text: "Wait while the election has this version, for at most `wait`. The answer has another version, unless the time has passed."},
			{Name: "wait", Example: "10s", Text: "Seconds, or a duration such as `10s`: 30s at most."},
		},
		Answer: example,
	})
	rt.Handle("POST "+one, a.change, router.Operation{
		ID: "changeElection", Self: true, Tag: Tag, Summary: "Update an election",
		Text: "Makes all changes, or none if a condition does not hold or a session has ended. Each change has a greater number than those before it." + who +
			" An App has at most 4 elections, each with 64 records of 64 KiB together. They are removed with the App.",
		Body: change, Answer: hangar.ElectionChanged{Changed: true, Revision: 12},
	})
	rt.Handle("DELETE "+one, a.remove, router.Operation{
		ID: "removeElection", Tag: Tag, Summary: "Remove an election", Text: "With its records and sessions. A later election of the same name numbers its changes from the beginning.",
		Status: http.StatusNoContent,
	})
	rt.Handle("POST "+sessions, a.open, router.Operation{
		ID: "openElectionSession", Self: true, Tag: Tag, Summary: "Create an election session",
		Text: "It ends when it is not renewed in time. Its records end with it." + who,
		Body: hangar.ElectionSessionOpen{TTL: ttl}, Status: http.StatusCreated, Answer: begun,
	})
	rt.Handle("POST "+session+"/renew", a.renew, router.Operation{
		ID: "renewElectionSession", Self: true, Tag: Tag, Summary: "Renew an election session", Text: "The answer is 404 if it has ended." + who, Answer: begun,
	})
	rt.Handle("DELETE "+session, a.end, router.Operation{
		ID: "endElectionSession", Self: true, Tag: Tag, Summary: "End an election session", Text: "Its records end with it." + who, Status: http.StatusNoContent,
	})
}

func appOf(r *http.Request) hangar.AppName       { return hangar.AppName(r.PathValue("app")) }
func nameOf(r *http.Request) hangar.ElectionName { return hangar.ElectionName(r.PathValue("election")) }

func sessionOf(r *http.Request) hangar.ElectionSessionID {
	return hangar.ElectionSessionID(r.PathValue("session"))
}

func (a area) get(r *http.Request) (router.Answer, error) {
	query := input.QueryOf(r)
	q := hangar.ElectionQuery{After: query.Text("after"), Wait: query.Duration("wait", hangar.MaxElectionWait)}
	if query.Err != nil {
		return router.Answer{}, query.Err
	}
	return router.AnswerOf(a.Election(r.Context(), appOf(r), nameOf(r), q))
}

func (a area) change(r *http.Request) (router.Answer, error) {
	in, err := input.Decode[hangar.ElectionChange](r)
	if err != nil {
		return router.Answer{}, err
	}
	return router.AnswerOf(a.ChangeElection(r.Context(), appOf(r), nameOf(r), in))
}

func (a area) remove(r *http.Request) (router.Answer, error) {
	return router.NoContent(a.RemoveElection(r.Context(), appOf(r), nameOf(r)))
}

func (a area) open(r *http.Request) (router.Answer, error) {
	in, err := input.Decode[hangar.ElectionSessionOpen](r)
	if err != nil {
		return router.Answer{}, err
	}
	return router.Created(a.OpenElectionSession(r.Context(), appOf(r), nameOf(r), in))
}

func (a area) renew(r *http.Request) (router.Answer, error) {
	return router.AnswerOf(a.RenewElectionSession(r.Context(), appOf(r), nameOf(r), sessionOf(r)))
}

func (a area) end(r *http.Request) (router.Answer, error) {
	return router.NoContent(a.EndElectionSession(r.Context(), appOf(r), nameOf(r), sessionOf(r)))
}
