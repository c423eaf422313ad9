package client

import (
	"context"
	"net/http"

	"github.com/hangar-platform/hangar"
)

var _ hangar.AlertService = (*Client)(nil)

func alertsPath(org hangar.OrgSlug, rest ...string) string {
	return pathOf(append([]string{"v1", "orgs", string(org), "alerts"}, rest...)...)
}

// sentReceiver is a receiver with its secret in clear text, which only the server receives.
type sentReceiver struct {
	hangar.AlertReceiver
	Webhook *sentWebhook `json:"webhook,omitempty"`
}

type sentWebhook struct {
	URL    string `json:"url"`
	Secret string `json:"secret,omitempty"`
}

// AlertConfig implements hangar.AlertService.
func (c *Client) AlertConfig(ctx context.Context, org hangar.OrgSlug) (hangar.AlertConfig, error) {
	var out hangar.AlertConfig
	err := c.do(ctx, get(alertsPath(org, "rules")), &out)
	return out, err
}

// SetAlerts implements hangar.AlertService.
func (c *Client) SetAlerts(ctx context.Context, org hangar.OrgSlug, in hangar.AlertConfig) (hangar.AlertConfig, error) {
	receivers := []sentReceiver{}
	for _, r := range in.Receivers {
		one := sentReceiver{AlertReceiver: r}
		if r.Webhook != nil {
			one.Webhook = &sentWebhook{URL: r.Webhook.URL, Secret: r.Webhook.Secret.Reveal()}
		}
		receivers = append(receivers, one)
	}
	body := map[string]any{"rules": in.Rules, "receivers": receivers, "grouping": in.Grouping}
	var out hangar.AlertConfig
	err := c.do(ctx, call{method: http.MethodPut, path: alertsPath(org, "rules"), in: body}, &out)
	return out, err
}

// DeleteAlerts implements hangar.AlertService.
func (c *Client) DeleteAlerts(ctx context.Context, org hangar.OrgSlug) error {
	return c.do(ctx, call{method: http.MethodDelete, path: alertsPath(org, "rules")}, nil)
}

// Alerts implements hangar.AlertService.
func (c *Client) Alerts(ctx context.Context, org hangar.OrgSlug) (hangar.AlertReport, error) {
	var out hangar.AlertReport
	err := c.do(ctx, get(alertsPath(org)), &out)
	return out, err
}

// TestAlerts implements hangar.AlertService.
func (c *Client) TestAlerts(ctx context.Context, org hangar.OrgSlug, rules string) (hangar.AlertReport, error) {
	to := post(alertsPath(org, "test"))
	to.in = map[string]string{"rules": rules}
	var out hangar.AlertReport
	err := c.do(ctx, to, &out)
	return out, err
}
