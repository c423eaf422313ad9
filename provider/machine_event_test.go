package provider_test

import (
	"maps"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/provider"
)

// cloudEvents is testdata/cloudevents.json, which the SDK of CloudEvents for Go wrote.
type cloudEvents struct {
	Events []struct {
		Name, ID, Source, Type string
		Time                   time.Time
		Headers                map[string]string
		Body                   string
	}
}

func header(values map[string]string) http.Header {
	h := http.Header{}
	for name, value := range values {
		h.Set(name, value)
	}
	return h
}

func TestMachineEventsOfTheOfficialSDK(t *testing.T) {
	for _, v := range readJSON[cloudEvents](t, "testdata/cloudevents.json").Events {
		t.Run(v.Name, func(t *testing.T) {
			e, err := provider.ParseMachineEvent(header(v.Headers), []byte(v.Body))
			if err != nil {
				t.Fatal(err)
			}
			if e.ID != v.ID || e.Source != v.Source || e.Type != v.Type || !e.Time.Equal(v.Time) {
				t.Errorf("it is read as %+v", e)
			}
			r, err := e.NewRequest(t.Context(), "https://logs.example.com/extensions/events")
			if err != nil {
				t.Fatal(err)
			}
			for name, want := range v.Headers {
				if got := r.Header.Get(name); got != want {
					t.Errorf("header %s is written as %q, want %q", name, got, want)
				}
			}
		})
	}
}

func TestMachineEventIsSignedAndReadAgain(t *testing.T) {
	sent := provider.MachineEvent{
		ID: `a "quoted" 100% größe €😀`, Source: "/hosts/1", Type: provider.MachineEventType + "exit", Time: epoch.Add(time.Nanosecond).UTC(),
		MachineID: "5683977ad31768", Status: "failed", Data: []byte(`{"Error":"image not found","Transition":"prepareImage"}`),
	}
	r, err := sent.NewRequest(t.Context(), "https://logs.example.com/extensions/events")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := r.Header.Get("ce-id"), "a%20%22quoted%22%20100%25%20gr%C3%B6%C3%9Fe%20%E2%82%AC%F0%9F%98%80"; got != want {
		t.Errorf("the id is written as %s, want %s", got, want)
	}
	if err := (provider.Signer{Secret: secret, Now: clock(0)}).Sign(r); err != nil {
		t.Fatal(err)
	}
	r = received(r)
	if err := newVerifier(t, nil).Verify(r); err != nil {
		t.Fatal(err)
	}
	got, err := provider.ReadMachineEvent(r)
	if err != nil || !reflect.DeepEqual(got, sent) {
		t.Errorf("it is read as\n%+v, %v, want\n%+v", got, err, sent)
	}
	if got.Name() != "exit" {
		t.Errorf("the name is %q", got.Name())
	}
}

func TestParseMachineEvent(t *testing.T) {
	const body = `{"machine_id":"m","status":"started","data":{}}`
	headers := map[string]string{
		"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "io.platform.machine.start",
		"ce-time": "2026-08-14T12:00:00Z", "content-type": "application/json",
	}
	for name, c := range map[string]struct {
		header, value string
		body          string
		ok            bool
	}{
		"as it is":           {ok: true},
		"charset":            {header: "content-type", value: "application/json; charset=utf-8", ok: true},
		"quoted":             {header: "ce-id", value: `"1\""`, ok: true},
		"unknown members":    {body: `{"machine_id":"m","url":"x","nonce":"y","timestamp":1}`, ok: true},
		"null data":          {body: `{"machine_id":"m","data":null}`, ok: true},
		"structured mode":    {header: "content-type", value: "application/cloudevents+json"},
		"batched mode":       {header: "content-type", value: "application/cloudevents-batch+json"},
		"no content type":    {header: "content-type"},
		"version":            {header: "ce-specversion", value: "0.3"},
		"no version":         {header: "ce-specversion"},
		"no id":              {header: "ce-id"},
		"empty id":           {header: "ce-id", value: `""`},
		"no source":          {header: "ce-source"},
		"no type":            {header: "ce-type"},
		"type of another":    {header: "ce-type", value: "io.platform.app.start"},
		"type without name":  {header: "ce-type", value: "io.platform.machine."},
		"no time":            {header: "ce-time"},
		"time in seconds":    {header: "ce-time", value: "1685641159"},
		"zero time":          {header: "ce-time", value: "0001-01-01T00:00:00Z"},
		"malformed escape":   {header: "ce-id", value: "100%"},
		"not UTF-8":          {header: "ce-id", value: "%FF"},
		"empty body":         {body: " "},
		"null":               {body: "null"},
		"no machine":         {body: `{"status":"started"}`},
		"machine number":     {body: `{"machine_id":1}`},
		"data is an array":   {body: `{"machine_id":"m","data":[]}`},
		"data is not there ": {body: `{"machine_id":"m","data":}`},
	} {
		t.Run(name, func(t *testing.T) {
			h := header(headers)
			if c.header != "" {
				h.Del(c.header)
				if c.value != "" {
					h.Set(c.header, c.value)
				}
			}
			if c.body == "" {
				c.body = body
			}
			e, err := provider.ParseMachineEvent(h, []byte(c.body))
			if (err == nil) != c.ok {
				t.Errorf("it is read as %+v, %v", e, err)
			}
		})
	}
	h := header(maps.Clone(headers))
	h.Set("ce-id", `"a\"b\\%20c"`)
	if e, err := provider.ParseMachineEvent(h, []byte(body)); err != nil || e.ID != `a"b\ c` {
		t.Errorf("a quoted string is read as %q, %v", e.ID, err)
	}
	h.Set("ce-id", "1")
	h.Add("ce-id", "2")
	if _, err := provider.ParseMachineEvent(h, []byte(body)); err == nil || !strings.Contains(err.Error(), "Ce-Id") {
		t.Errorf("two ids: %v", err)
	}
	if _, err := (&provider.MachineEvent{}).NewRequest(t.Context(), "https://h"); err == nil {
		t.Error("an empty event is sent")
	}
}
