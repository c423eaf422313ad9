package notify

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
)

// maxSent is how many alerts a notification contains. The others are only counted.
const maxSent = 200

// message is the content of a notification about a group.
type message struct {
	group            string // its key
	labels           map[string]string
	firing, resolved []hangar.Alert
	all              []hangar.Alert // the alerts that are sent
	mails            *mails         // of the group
}

// changes identifies the alerts of a message with their states, whatever their values are now.
func (m *message) changes() string {
	return strings.Join(fingerprints(m.firing), " ") + "|" + strings.Join(fingerprints(m.resolved), " ")
}

// groupLabels are the labels that identify the group of an alert.
func groupLabels(by []string, labels map[string]string) map[string]string {
	if slices.Equal(by, []string{hangar.AllLabels}) {
		return labels
	}
	of := map[string]string{}
	for _, name := range by {
		if value, ok := labels[name]; ok {
			of[name] = value
		}
	}
	return of
}

// groupKey formats labels as Alertmanager does in the key of a group below its first route.
func groupKey(labels map[string]string) string {
	return "{}:" + matchers(labels)
}

func matchers(labels map[string]string) string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		list = append(list, fmt.Sprintf("%s=%q", name, labels[name]))
	}
	return "{" + strings.Join(list, ", ") + "}"
}

// Payload is the body of a webhook, as
// https://prometheus.io/docs/alerting/latest/configuration/#webhook_config describes it.
type Payload struct {
	Version           string            `json:"version"`
	GroupKey          string            `json:"groupKey"`
	TruncatedAlerts   int               `json:"truncatedAlerts"`
	Status            string            `json:"status"`
	Receiver          string            `json:"receiver"`
	GroupLabels       map[string]string `json:"groupLabels"`
	CommonLabels      map[string]string `json:"commonLabels"`
	CommonAnnotations map[string]string `json:"commonAnnotations"`
	ExternalURL       string            `json:"externalURL"`
	Alerts            []PayloadAlert    `json:"alerts"`
}

// PayloadAlert is an alert in a Payload.
type PayloadAlert struct {
	Status       string            `json:"status"` // "firing" or "resolved"
	Labels       map[string]string `json:"labels"`
	Annotations  map[string]string `json:"annotations"`
	StartsAt     time.Time         `json:"startsAt"` // when it began to fire
	EndsAt       time.Time         `json:"endsAt"`   // zero while it fires
	GeneratorURL string            `json:"generatorURL"`
	Fingerprint  string            `json:"fingerprint"`
}

func (m *message) status() string {
	if len(m.firing) > 0 {
		return string(hangar.AlertFiring)
	}
	return string(hangar.AlertResolved)
}

func (m *message) payload(receiver string, org hangar.Org, external string) Payload {
	p := Payload{
		Version: "4", GroupKey: m.group, Status: m.status(), Receiver: receiver, GroupLabels: m.labels,
		CommonLabels:      shared(m.all, func(a hangar.Alert) map[string]string { return a.Labels }),
		CommonAnnotations: shared(m.all, func(a hangar.Alert) map[string]string { return a.Annotations }),
		ExternalURL:       external, Alerts: []PayloadAlert{},
	}
	sent := m.all
	if len(sent) > maxSent {
		sent, p.TruncatedAlerts = sent[:maxSent], len(sent)-maxSent
	}
	for _, a := range sent {
		one := PayloadAlert{
			Status: string(hangar.AlertFiring), Labels: a.Labels, Annotations: a.Annotations, StartsAt: a.FiredAt.UTC(),
			GeneratorURL: generatorURL(external, org.Slug, a.Expr), Fingerprint: a.Fingerprint,
		}
		if one.Annotations == nil {
			one.Annotations = map[string]string{}
		}
		if a.State != hangar.AlertFiring {
			one.Status, one.EndsAt = string(hangar.AlertResolved), a.ResolvedAt.UTC()
		}
		p.Alerts = append(p.Alerts, one)
	}
	return p
}

// shared returns the pairs that all alerts have in common.
func shared(alerts []hangar.Alert, of func(hangar.Alert) map[string]string) map[string]string {
	all := map[string]string{}
	for i, a := range alerts {
		pairs := of(a)
		if i == 0 {
			maps.Copy(all, pairs)
			continue
		}
		maps.DeleteFunc(all, func(name, value string) bool {
			other, ok := pairs[name]
			return !ok || other != value
		})
	}
	return all
}

// generatorURL is the URL at which the expression of an alert can be queried.
func generatorURL(external string, org hangar.OrgSlug, expr string) string {
	return external + "/prometheus/" + url.PathEscape(string(org)) + "/api/v1/query?" + url.Values{"query": {expr}}.Encode()
}
