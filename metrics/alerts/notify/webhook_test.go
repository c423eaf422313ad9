package notify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/publicdial"
)

var update = flag.Bool("update", false, "rewrite golden files")

func exampleMessage() *message {
	at := time.Date(2026, 11, 25, 10, 0, 0, 0, time.UTC)
	labels := func(instance string) map[string]string {
		return map[string]string{"alertname": "HighMemory", "app": "web", "instance": instance, "severity": "page"}
	}
	one := hangar.Alert{
		Group: "web", Name: "HighMemory", State: hangar.AlertFiring, Labels: labels("d8912340000002"), Fingerprint: "0f1e2d3c4b5a6978",
		Annotations: map[string]string{"summary": "5% left", "runbook": "https://example.com/memory"},
		Value:       0.05, ActiveAt: at.Add(-5 * time.Minute), FiredAt: at, Expr: `platform_instance_memory_mem_available{app="web"} < 0.1`,
	}
	two := one
	two.State, two.ResolvedAt, two.Labels, two.Fingerprint = hangar.AlertResolved, at.Add(90*time.Second), labels("e8912340000003"), "8796a5b4c3d2e1f0"
	two.Annotations = map[string]string{"summary": "9% left", "runbook": "https://example.com/memory"}
	group := map[string]string{"alertname": "HighMemory", "app": "web"}
	return &message{group: groupKey(group), labels: group, firing: []hangar.Alert{one}, resolved: []hangar.Alert{two}, all: []hangar.Alert{one, two}, mails: &mails{received: map[string]bool{}}}
}

// TestGoldenBody: the body of a webhook has the fields of Alertmanager's documentation, no more
// and no less, with their types.
func TestGoldenBody(t *testing.T) {
	body, err := json.Marshal(exampleMessage().payload("ops", hangar.Org{ID: "o", Slug: "acme"}, "https://api.example.com"))
	if err != nil {
		t.Fatal(err)
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, body, "", "  "); err != nil {
		t.Fatal(err)
	}
	indented.WriteByte('\n')
	const golden = "testdata/webhook.json"
	if *update {
		if err := os.WriteFile(golden, indented.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), indented.String()); diff != "" {
		t.Error(diff)
	}

	// The shape that Alertmanager documents: a string, number, object of strings, or list.
	documented := map[string]any{
		"version": "", "groupKey": "", "truncatedAlerts": 0.0, "status": "", "receiver": "", "groupLabels": map[string]any{},
		"commonLabels": map[string]any{}, "commonAnnotations": map[string]any{}, "externalURL": "", "alerts": []any{},
	}
	documentedAlert := map[string]any{
		"status": "", "labels": map[string]any{}, "annotations": map[string]any{}, "startsAt": "", "endsAt": "", "generatorURL": "", "fingerprint": "",
	}
	var sent map[string]any
	if err := json.Unmarshal(body, &sent); err != nil {
		t.Fatal(err)
	}
	alerts, _ := sent["alerts"].([]any)
	if len(alerts) != 2 {
		t.Fatalf("alerts: %v", sent["alerts"])
	}
	same := func(want, got map[string]any) {
		t.Helper()
		empty := map[string]any{}
		for k, v := range got {
			switch v.(type) {
			case string:
				v = ""
			case float64:
				v = 0.0
			case map[string]any:
				v = map[string]any{}
			case []any:
				v = []any{}
			}
			empty[k] = v
		}
		if diff := cmp.Diff(want, empty); diff != "" {
			t.Error(diff)
		}
	}
	same(documented, sent)
	for _, a := range alerts {
		one, _ := a.(map[string]any)
		same(documentedAlert, one)
		for _, field := range []string{"startsAt", "endsAt"} {
			if _, err := time.Parse(time.RFC3339, one[field].(string)); err != nil { //nolint:forcetypeassert // same has checked it
				t.Error(err)
			}
		}
	}
}

// TestSignatureVector: the value is what openssl computes:
//
//	printf %s '{"version":"4","status":"firing"}' | openssl dgst -sha256 -hmac 'correct horse battery staple'
func TestSignatureVector(t *testing.T) {
	const want = "sha256=125e62964d6a31fb04c4ec2bce9c5379882ae6a19be06b0ce3558bea15427484"
	if got := Signature("correct horse battery staple", []byte(`{"version":"4","status":"firing"}`)); got != want {
		t.Errorf("the signature is %s, not %s", got, want)
	}
}

// TestWebhookSend: against real HTTP on loopback, through the dialer that guards addresses.
func TestWebhookSend(t *testing.T) {
	var body []byte
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/redirect":
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		case "/elsewhere":
			t.Error("a redirect is followed")
		case "/endless":
			w.WriteHeader(http.StatusOK)
			for {
				if _, err := w.Write(make([]byte, 1<<10)); err != nil {
					return
				}
			}
		case "/secret":
			http.Error(w, "secret of the webhook", http.StatusInternalServerError)
		default:
			body, _ = io.ReadAll(r.Body)
			if r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" || r.Header.Get(hangar.AlertSignatureHeader) != Signature("0123456789abcdef", body) {
				t.Errorf("%s with %v", r.Method, r.Header)
			}
		}
	}))
	defer server.Close()
	allowed, err := publicdial.ParseAllowed(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	open := newWebhooks(publicdial.New(publicdial.Options{Allow: []publicdial.Allowed{allowed}}).DialContext)
	guarded := newWebhooks(publicdial.New(publicdial.Options{}).DialContext)
	payload := exampleMessage().payload("ops", hangar.Org{Slug: "acme"}, "")
	send := func(w *webhooks, url string) error {
		return w.send(t.Context(), hangar.AlertWebhook{URL: url, Secret: hangar.NewSensitive("0123456789abcdef")}, payload)
	}
	if err := send(open, server.URL+"/good"); err != nil || !json.Valid(body) {
		t.Errorf("send: %v", err)
	}
	if err := send(open, server.URL+"/endless"); err != nil {
		t.Errorf("an answer without end: %v", err)
	}
	for _, c := range []struct {
		w       *webhooks
		path    string
		want    string
		refused bool
	}{
		{open, "/redirect", "redirects are not followed", true},
		{open, "/secret", "status 500", false},
		{guarded, "/good", "leads to a loopback address, which is not allowed", false},
	} {
		err := send(c.w, server.URL+c.path)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "secret of") || strings.Contains(err.Error(), "127.0.0.1") {
			t.Errorf("%s: %v", c.path, err)
		}
		if _, refused := errors.AsType[refusal](err); refused != c.refused {
			t.Errorf("%s: refused is %t", c.path, refused)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := open.send(ended, hangar.AlertWebhook{URL: server.URL}, payload); err == nil {
		t.Error("sent after the end")
	}
	none := newWebhooks(func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("dial tcp 10.1.2.3:80: no")
	})
	if err := send(newWebhooks(nil), server.URL+"/good"); err == nil {
		t.Error("a webhook is called without a dialer")
	}
	if err := send(none, "http://x"); err == nil || strings.Contains(err.Error(), "10.1.2.3") {
		t.Errorf("a dialer's error: %v", err)
	}
}

func TestGroupKeys(t *testing.T) {
	labels := map[string]string{"alertname": "A", "app": `we"b`, "x": "y"}
	for want, by := range map[string][]string{
		`{}:{alertname="A"}`:                     {"alertname"},
		`{}:{alertname="A", app="we\"b"}`:        {"app", "alertname", "nothing"},
		`{}:{}`:                                  {"nothing"},
		`{}:{alertname="A", app="we\"b", x="y"}`: {hangar.AllLabels},
	} {
		if got := groupKey(groupLabels(by, labels)); got != want {
			t.Errorf("%v: %s, not %s", by, got, want)
		}
	}
}
