package hangar

import (
	"cmp"
	"context"
	"encoding/json"
	"iter"
	"strconv"
	"time"
)

// The limits of an AlertConfig and of its alerts, per organization.
const (
	MaxAlertRulesBytes  = 256 << 10 // bytes of the rule file
	MaxAlertGroups      = 100
	MaxAlertRules       = 1000 // of all groups together
	MaxAlertExprBytes   = 8 << 10
	MaxAlertReceivers   = 10
	MaxAlertRecipients  = 10   // of one AlertEmail
	MaxAlertMatchLabels = 16   // of one AlertReceiver
	MaxAlertGroupLabels = 16   // of an AlertGrouping
	MaxAlerts           = 2000 // pending and firing at once
)

// AlertConfig holds the alert rules of an organization, and the receivers of its alerts.
type AlertConfig struct {
	// Rules is the text of a rule file, YAML as Prometheus and vmalert read it.
	Rules string `json:"rules"`
	// Receivers get the alerts that they match. Their names are unique.
	Receivers []AlertReceiver `json:"receivers"`
	Grouping  AlertGrouping   `json:"grouping"`
	UpdatedAt time.Time       `json:"updated_at,omitzero"` // set by the server
}

// AlertReceiver is a destination of alerts. Exactly one of Webhook and Email is set.
type AlertReceiver struct {
	Name string `json:"name"` // at most 63 characters of a-z, A-Z, 0-9, dash and underscore
	// Match holds the labels and values that an alert must have to be sent here. Empty: every alert is
	// sent.
	Match map[string]string `json:"match,omitempty"`
	// SendResolved says whether the end of an alert is sent, too. Nil means true.
	SendResolved *bool         `json:"send_resolved,omitempty"`
	Webhook      *AlertWebhook `json:"webhook,omitempty"`
	Email        *AlertEmail   `json:"email,omitempty"`
}

// WantsResolved reports whether the end of an alert is sent, too.
func (r AlertReceiver) WantsResolved() bool { return r.SendResolved == nil || *r.SendResolved }

// Matches reports whether alerts with these labels are sent to the receiver.
func (r AlertReceiver) Matches(labels map[string]string) bool {
	for name, value := range r.Match {
		if labels[name] != value {
			return false
		}
	}
	return true
}

// AlertWebhook gets alerts by POST requests with the JSON of Alertmanager's webhooks, version 4
// (https://prometheus.io/docs/alerting/latest/configuration/#webhook_config). The header
// AlertSignatureHeader of each holds "sha256=" and the HMAC-SHA-256 of the body in hexadecimal,
// keyed with Secret.
type AlertWebhook struct {
	URL string `json:"url"` // http or https
	// Secret has 16 to 256 bytes. It is never shown. In SetAlerts, an empty secret keeps the one that
	// the receiver with this name and URL has.
	Secret Sensitive `json:"secret,omitzero"`
}

// AlertSignatureHeader holds the signature of a webhook's body.
const AlertSignatureHeader = "Hangar-Signature"

// AlertEmail gets alerts by e-mail.
type AlertEmail struct {
	To []string `json:"to"` // addresses without names, such as ops@example.com
}

// AlertGrouping says how alerts are combined into notifications. A zero duration means its default.
type AlertGrouping struct {
	// By are the labels whose values alerts of one notification share; "..." alone stands for
	// all labels. Empty: alertname.
	By []string `json:"group_by,omitempty"`
	// Wait is how long the first notification of a group waits for further alerts.
	Wait Duration `json:"group_wait,omitzero"`
	// Interval is the least time between two notifications of a group whose alerts change.
	Interval Duration `json:"group_interval,omitzero"`
	// Repeat is the time after which a group whose alerts still fire is sent again.
	Repeat Duration `json:"repeat_interval,omitzero"`
}

// The defaults of an AlertGrouping.
const (
	DefaultAlertWait     = 30 * time.Second
	DefaultAlertInterval = 5 * time.Minute
	DefaultAlertRepeat   = 4 * time.Hour
)

// AllLabels as the only label of AlertGrouping.By puts each alert into a group of its own.
const AllLabels = "..."

// WithDefaults returns the grouping with defaults in its empty fields.
func (g AlertGrouping) WithDefaults() AlertGrouping {
	if len(g.By) == 0 {
		g.By = []string{AlertNameLabel}
	}
	g.Wait = cmp.Or(g.Wait, Duration(DefaultAlertWait))
	g.Interval = cmp.Or(g.Interval, Duration(DefaultAlertInterval))
	g.Repeat = cmp.Or(g.Repeat, Duration(DefaultAlertRepeat))
	return g
}

// AlertNameLabel is the label that holds the name of an alert's rule.
const AlertNameLabel = "alertname"

// AlertState is the state of an Alert.
type AlertState string

// The states of an alert. A pending alert becomes firing or disappears. A firing alert becomes
// resolved.
const (
	AlertPending  AlertState = "pending"  // its expression holds, but not yet for the duration that the rule demands
	AlertFiring   AlertState = "firing"   // receivers are notified
	AlertResolved AlertState = "resolved" // it no longer fires; kept for AlertResolvedRetention
)

// AlertResolvedRetention is how long a resolved alert can be seen.
const AlertResolvedRetention = 15 * time.Minute

// Alert is one series for which the expression of a rule holds, or did.
type Alert struct {
	Group       string            `json:"group"`
	Name        string            `json:"name"`
	State       AlertState        `json:"state"`
	Labels      map[string]string `json:"labels"` // AlertNameLabel included
	Annotations map[string]string `json:"annotations"`
	Value       AlertValue        `json:"value"`
	ActiveAt    time.Time         `json:"active_at"` // since when the expression holds
	FiredAt     time.Time         `json:"fired_at,omitzero"`
	ResolvedAt  time.Time         `json:"resolved_at,omitzero"`
	// Fingerprint is a hash of the labels, 16 hexadecimal characters as Alertmanager computes it.
	Fingerprint string `json:"fingerprint"`
	// Expr is the expression of the rule.
	Expr string `json:"expr"`
}

// AlertValue is a sample's value. In JSON it is a string, as in the HTTP API of Prometheus,
// because JSON has no infinity and no NaN.
type AlertValue float64

// String returns the shortest text that ParseFloat reads as the same value.
func (v AlertValue) String() string { return strconv.FormatFloat(float64(v), 'g', -1, 64) }

// MarshalJSON writes a string such as "0.5" or "+Inf".
func (v AlertValue) MarshalJSON() ([]byte, error) { return json.Marshal(v.String()) }

// UnmarshalJSON reads what MarshalJSON writes. It answers CodeInvalid.
func (v *AlertValue) UnmarshalJSON(b []byte) error {
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return Errorf(CodeInvalid, "", "invalid value: must be a string with a number")
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return Errorf(CodeInvalid, "", "invalid value: %.40q is no number", text)
	}
	*v = AlertValue(f)
	return nil
}

// AlertHealth is whether a rule can be evaluated.
type AlertHealth string

// The health of a rule.
const (
	AlertHealthUnknown AlertHealth = "unknown" // not evaluated yet
	AlertHealthOK      AlertHealth = "ok"
	AlertHealthError   AlertHealth = "err" // the evaluation failed, and its alerts keep their states
)

// AlertRule is a rule and the result of its last evaluation.
type AlertRule struct {
	Name        string      `json:"name"`
	Expr        string      `json:"expr"`
	Health      AlertHealth `json:"health"`
	Error       string      `json:"error,omitempty"`
	EvaluatedAt time.Time   `json:"evaluated_at,omitzero"`
	Alerts      int         `json:"alerts"` // pending and firing
}

// AlertGroup is a group of rules that are evaluated one after another.
type AlertGroup struct {
	Name        string    `json:"name"`
	Interval    Duration  `json:"interval"`
	EvaluatedAt time.Time `json:"evaluated_at,omitzero"`
	Took        Duration  `json:"took"`   // of the last evaluation
	Missed      int       `json:"missed"` // evaluations skipped because one took longer than Interval
	Error       string    `json:"error,omitempty"`
	// Rules are in the order of the file.
	Rules []AlertRule `json:"rules"`
}

// AlertReceiverStatus says how the notifications to a receiver fared.
type AlertReceiverStatus struct {
	Name     string    `json:"name"`
	SentAt   time.Time `json:"sent_at,omitzero"`   // of the last notification that the receiver accepted
	FailedAt time.Time `json:"failed_at,omitzero"` // of the last notification that failed
	Error    string    `json:"error,omitempty"`    // why; empty after a success
	Waiting  int       `json:"waiting"`            // alerts whose change is not sent yet
	Dropped  int       `json:"dropped"`            // notifications given up since the server started
}

// AlertReport describes the rules, alerts and receivers of an organization.
type AlertReport struct {
	Groups []AlertGroup `json:"groups"` // in the order of the file
	// Alerts are sorted by group, name and labels.
	Alerts    []Alert               `json:"alerts"`
	Receivers []AlertReceiverStatus `json:"receivers"`
}

// AlertService manages the alerts of organizations. An organization in which the caller may do nothing
// answers CodeNotFound with ReasonOrgNotFound, as one that does not exist.
type AlertService interface {
	// AlertConfig needs ActionWrite, because URLs of webhooks may hold credentials. It shows no
	// secrets. It answers CodeNotFound with ReasonAlertsNotFound if there is no config.
	AlertConfig(ctx context.Context, slug OrgSlug) (AlertConfig, error)
	// SetAlerts creates or replaces the config, which needs ActionWrite and ActionMetrics. An alert
	// keeps its state if its group, name and labels stay. SetAlerts answers CodeInvalid, naming the
	// group, rule and field. It may be repeated.
	SetAlerts(ctx context.Context, slug OrgSlug, in AlertConfig) (AlertConfig, error)
	// DeleteAlerts removes the config, which needs ActionWrite. It answers CodeNotFound with
	// ReasonAlertsNotFound if there is none.
	DeleteAlerts(ctx context.Context, slug OrgSlug) error
	// Alerts needs ActionMetrics. It answers CodeUnavailable while no host evaluates the rules.
	Alerts(ctx context.Context, slug OrgSlug) (AlertReport, error)
	// TestAlerts evaluates a rule file once, which needs ActionMetrics. It keeps nothing and sends no
	// notification. Alerts are pending if their rule has a duration, and firing otherwise. It answers
	// CodeInvalid for a file that SetAlerts would refuse, CodeExhausted while another test of the
	// organization runs, and CodeUnavailable. The report names each rule whose query fails.
	TestAlerts(ctx context.Context, slug OrgSlug, rules string) (AlertReport, error)
}

// AlertFeed yields the alert configs to evaluate.
type AlertFeed interface {
	// WatchAlerts yields the configs of all organizations that have one, with the secrets, and
	// again after every change, until ctx ends. After an error the caller starts again.
	WatchAlerts(ctx context.Context) iter.Seq2[[]OrgAlerts, error]
}

// OrgAlerts is the config of one organization.
type OrgAlerts struct {
	Org    Org
	Config AlertConfig
	// Unreadable says that the organization has a config that cannot be read now. The last known one
	// stays in force.
	Unreadable bool
}

// AlertHost evaluates rules.
type AlertHost interface {
	// CheckAlertRules answers CodeInvalid, naming the group, rule and field.
	CheckAlertRules(ctx context.Context, org Org, rules string) error
	// AlertReport is about the config last received from an AlertFeed. It answers CodeUnavailable while
	// the host that evaluates the rules cannot be reached.
	AlertReport(ctx context.Context, org OrgID) (AlertReport, error)
	// TestAlertRules is AlertService.TestAlerts.
	TestAlertRules(ctx context.Context, org Org, rules string) (AlertReport, error)
}
