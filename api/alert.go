package api

import (
	"net/http"
	"reflect"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
	"github.com/hangar-platform/hangar/api/openapi"
	"github.com/hangar-platform/hangar/api/router"
)

// describeAlerts registers the types of alerts.
func describeAlerts(s *openapi.Schemas) {
	know[hangar.AlertValue](s, openapi.Schema{Type: []string{"string"}, Description: "A number as a text, as in Prometheus.", Examples: []any{"0.05"}})
	openapi.KnowEnum(s, hangar.AlertPending, hangar.AlertFiring, hangar.AlertResolved)
	openapi.KnowEnum(s, hangar.AlertHealthUnknown, hangar.AlertHealthOK, hangar.AlertHealthError)
	s.Name(reflect.TypeFor[hangar.AlertReceiverStatus](), "AlertReceiverStatus")
	openapi.Describe[hangar.AlertConfig](s, texts{
		"rules":      "A rule file, YAML as Prometheus and vmalert read it, without recording rules.",
		"receivers":  "They get the alerts that they match.",
		"updated_at": "When it was set. Ignored when it is sent.",
	})
	openapi.Describe[hangar.AlertReceiver](s, texts{
		"name":          "Unique in the organization.",
		"match":         "Labels with the values that an alert must have; empty: every alert is sent.",
		"send_resolved": "Whether the end of an alert is sent, too: the default is true.",
		"webhook":       "Either this or `email`.",
	})
	openapi.Describe[hangar.AlertWebhook](s, texts{
		"url":    "Gets POST requests with the JSON of Alertmanager's webhooks, version 4.",
		"secret": "16 to 256 bytes, the key of the header " + hangar.AlertSignatureHeader + ". Never shown. When it is left out, the secret of the receiver with this name and URL stays.",
	})
	openapi.Describe[hangar.AlertGrouping](s, texts{
		"group_by":        "The labels whose values alerts of one notification share; `...` alone stands for all. The default is `alertname`.",
		"group_wait":      "How long the first notification of a group waits for further alerts. The default is 30s.",
		"group_interval":  "The least time between two notifications of a group that changes. The default is 5m.",
		"repeat_interval": "The time after which a group that still fires is sent again. The default is 4h.",
	})
	openapi.Describe[hangar.AlertGroup](s, texts{
		"took":   "How long the last evaluation took.",
		"missed": "Evaluations skipped because one took longer than the interval.",
	})
	openapi.Describe[hangar.AlertReceiverStatus](s, texts{
		"waiting": "Alerts whose change is not sent yet.",
		"dropped": "Notifications given up since the server started.",
	})
}

func exampleAlerts() hangar.AlertReport {
	return hangar.AlertReport{
		Groups: []hangar.AlertGroup{{
			Name: "web", Interval: hangar.Duration(30e9), EvaluatedAt: exampleTime, Took: hangar.Duration(12e6),
			Rules: []hangar.AlertRule{{Name: "HighMemory", Expr: "platform_instance_memory_mem_available < 1e7", Health: hangar.AlertHealthOK, EvaluatedAt: exampleTime, Alerts: 1}},
		}},
		Alerts: []hangar.Alert{{
			Group: "web", Name: "HighMemory", State: hangar.AlertFiring, Labels: map[string]string{"alertname": "HighMemory", "app": "web"},
			Annotations: map[string]string{"summary": "web runs out of memory"}, Value: 9e6, ActiveAt: exampleTime, FiredAt: exampleTime,
			Fingerprint: "0f1e2d3c4b5a6978", Expr: "platform_instance_memory_mem_available < 1e7",
		}},
		Receivers: []hangar.AlertReceiverStatus{{Name: "ops", SentAt: exampleTime}},
	}
}

func (s *server) alertRoutes() {
	if s.Alerts == nil {
		return
	}
	const all = "/v1/orgs/{org}/alerts"
	const rules = all + "/rules"
	config := hangar.AlertConfig{
		Rules:     "groups:\n- name: web\n  rules:\n  - alert: HighMemory\n    expr: platform_instance_memory_mem_available < 1e7\n    for: 5m\n",
		Receivers: []hangar.AlertReceiver{{Name: "ops", Webhook: &hangar.AlertWebhook{URL: "https://example.com/alerts"}}},
		Grouping:  hangar.AlertGrouping{By: []string{"alertname", "app"}},
	}
	shown := config
	shown.UpdatedAt = exampleTime
	s.Handle("GET "+rules, s.getAlertConfig, router.Operation{
		ID: "getAlertConfig", Tag: "Alerts", Summary: "Get alert rules and receivers",
		Text:   "Without secrets. Needs the right to change the organization, because URLs may hold credentials.",
		Answer: shown,
	})
	s.Handle("PUT "+rules, s.setAlerts, router.Operation{
		ID: "setAlerts", Tag: "Alerts", Summary: "Set alert rules and receivers",
		Text: "Replaces all of them. Alerts of rules with the same group, name and labels keep their state. Needs the rights to change the " +
			"organization and to query its metrics.",
		Body: config, Answer: shown,
	})
	s.Handle("DELETE "+rules, s.deleteAlerts, router.Operation{
		ID: "deleteAlerts", Tag: "Alerts", Summary: "Remove alert rules and receivers",
		Text: "Receivers are not notified that alerts end.", Status: http.StatusNoContent,
	})
	s.Handle("GET "+all, s.listAlerts, router.Operation{
		ID: "listAlerts", Tag: "Alerts", Summary: "List alerts",
		Text:   "Pending and firing alerts, and those resolved within 15 minutes, with the health of rules and receivers.",
		Answer: exampleAlerts(),
	})
	tested := exampleAlerts()
	tested.Receivers = []hangar.AlertReceiverStatus{}
	s.Handle("POST "+all+"/test", s.testAlerts, router.Operation{
		ID: "testAlerts", Tag: "Alerts", Summary: "Test a rule file",
		Text: "Evaluates it once, within 25 seconds. Nothing is stored and no notification is sent. An organization can run one test at a time.",
		Body: alertRules{Rules: config.Rules}, Answer: tested,
	})
}

// alertRules is the body of a test.
type alertRules struct {
	Rules string `json:"rules" schema:"required"`
}

func (s *server) getAlertConfig(r *http.Request) (router.Answer, error) {
	return router.AnswerOf(s.Alerts.AlertConfig(r.Context(), hangar.OrgSlug(r.PathValue("org"))))
}

func (s *server) setAlerts(r *http.Request) (router.Answer, error) {
	in, err := input.Decode[hangar.AlertConfig](r)
	if err != nil {
		return router.Answer{}, err
	}
	return router.AnswerOf(s.Alerts.SetAlerts(r.Context(), hangar.OrgSlug(r.PathValue("org")), in))
}

func (s *server) deleteAlerts(r *http.Request) (router.Answer, error) {
	return router.NoContent(s.Alerts.DeleteAlerts(r.Context(), hangar.OrgSlug(r.PathValue("org"))))
}

func (s *server) listAlerts(r *http.Request) (router.Answer, error) {
	return router.AnswerOf(s.Alerts.Alerts(r.Context(), hangar.OrgSlug(r.PathValue("org"))))
}

func (s *server) testAlerts(r *http.Request) (router.Answer, error) {
	in, err := input.Decode[alertRules](r)
	if err != nil {
		return router.Answer{}, err
	}
	return router.AnswerOf(s.Alerts.TestAlerts(r.Context(), hangar.OrgSlug(r.PathValue("org")), in.Rules))
}
