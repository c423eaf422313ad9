package delivery

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/provider"
)

// FuzzEntry: for any content of the file, an entry that is read can be written, shown and sent.
func FuzzEntry(f *testing.F) {
	e := newEntry(hangar.MachineEvent{Machine: "d8912340000002", App: "web", OrgID: "acme", Event: hangar.Event{
		ID: "01K2KJQ1M5H8Z7R6Q5P4N3M2K1", Type: hangar.EventExit, Status: "failed", Timestamp: 1786708800000,
		Request: &hangar.EventRequest{Error: "out of memory\x00\xff", ExitEvent: &hangar.ExitEvent{ExitCode: 137}},
	}}, time.Unix(1786708800, 0))
	raw, err := e.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add([]byte(`{"event":{"app":"../\r\nx: y","event":{"type":"start","timestamp":-1}}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		e, err := decodeEntry(raw)
		if err != nil {
			return
		}
		if _, err := e.encode(); err != nil && !strings.Contains(err.Error(), "year") {
			t.Fatal(err)
		}
		e.view(hangar.DeliveryWaiting)
		event := CloudEvent(&e.Event, false)
		r, err := event.NewRequest(t.Context(), "https://example.com/x?y=1")
		if err != nil {
			return // it is incomplete
		}
		if err := (provider.Signer{Secret: "secret"}).Sign(r); err != nil {
			t.Fatal(err)
		}
		for name, values := range r.Header {
			for _, v := range values {
				if strings.ContainsFunc(v, func(c rune) bool { return c < ' ' || c > '~' }) {
					t.Errorf("%s: %q", name, v)
				}
			}
		}
		got, err := provider.ReadMachineEvent(r)
		if err != nil || got.ID != event.ID || got.MachineID != strings.ToValidUTF8(event.MachineID, "\ufffd") {
			t.Errorf("%+v is read as %+v, %v", event, got, err)
		}
	})
}

// FuzzRetryAfter: a receiver cannot ask for more than the bound, nor for less than nothing.
func FuzzRetryAfter(f *testing.F) {
	for _, text := range []string{"", "5", "-1", "99999999999999999999", "Wed, 21 Oct 2026 07:28:00 GMT", "1e3"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if d := retryAfter(http.Header{"Retry-After": {text}}); d < 0 || d > maxRetryAfter {
			t.Errorf("%q is %s", text, d)
		}
	})
}
