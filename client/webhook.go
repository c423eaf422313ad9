package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/hangar-platform/hangar"
)

var _ hangar.WebhookService = (*Client)(nil)

func webhooksPath(org hangar.OrgSlug, rest ...string) string {
	return pathOf(append([]string{"v1", "orgs", string(org), "webhooks"}, rest...)...)
}

// answered makes a call and returns its answer.
func answered[T any](ctx context.Context, c *Client, in call) (out T, err error) {
	err = c.do(ctx, in, &out)
	return out, err
}

// CreateWebhook implements hangar.WebhookService.
func (c *Client) CreateWebhook(ctx context.Context, org hangar.OrgSlug, in hangar.WebhookCreate) (hangar.WebhookSecret, error) {
	return answered[hangar.WebhookSecret](ctx, c, call{method: http.MethodPost, path: webhooksPath(org), in: in})
}

// Webhooks implements hangar.WebhookService.
func (c *Client) Webhooks(ctx context.Context, org hangar.OrgSlug) ([]hangar.Webhook, error) {
	list, err := answered[struct {
		Webhooks []hangar.Webhook `json:"webhooks"`
	}](ctx, c, get(webhooksPath(org)))
	return list.Webhooks, err
}

// Webhook implements hangar.WebhookService.
func (c *Client) Webhook(ctx context.Context, org hangar.OrgSlug, id hangar.WebhookID) (hangar.Webhook, error) {
	return answered[hangar.Webhook](ctx, c, get(webhooksPath(org, string(id))))
}

// UpdateWebhook implements hangar.WebhookService.
func (c *Client) UpdateWebhook(ctx context.Context, org hangar.OrgSlug, id hangar.WebhookID, in hangar.WebhookUpdate) (hangar.Webhook, error) {
	return answered[hangar.Webhook](ctx, c, call{method: http.MethodPatch, path: webhooksPath(org, string(id)), in: in})
}

// RotateWebhook implements hangar.WebhookService.
func (c *Client) RotateWebhook(ctx context.Context, org hangar.OrgSlug, id hangar.WebhookID, in hangar.WebhookRotate) (hangar.WebhookSecret, error) {
	return answered[hangar.WebhookSecret](ctx, c, call{method: http.MethodPost, path: webhooksPath(org, string(id), "rotate"), in: in})
}

// RemoveWebhook implements hangar.WebhookService.
func (c *Client) RemoveWebhook(ctx context.Context, org hangar.OrgSlug, id hangar.WebhookID) error {
	return c.do(ctx, call{method: http.MethodDelete, path: webhooksPath(org, string(id))}, nil)
}

// PingWebhook implements hangar.WebhookService.
func (c *Client) PingWebhook(ctx context.Context, org hangar.OrgSlug, id hangar.WebhookID) (hangar.WebhookPing, error) {
	return answered[hangar.WebhookPing](ctx, c, post(webhooksPath(org, string(id), "ping")))
}

// WebhookDeliveries implements hangar.WebhookService.
func (c *Client) WebhookDeliveries(ctx context.Context, org hangar.OrgSlug, id hangar.WebhookID, q hangar.DeliveryQuery) ([]hangar.WebhookDelivery, error) {
	to := get(webhooksPath(org, string(id), "deliveries"))
	to.query = url.Values{}
	if q.State != "" {
		to.query.Set("state", string(q.State))
	}
	if q.Limit != 0 {
		to.query.Set("limit", strconv.Itoa(q.Limit))
	}
	list, err := answered[struct {
		Deliveries []hangar.WebhookDelivery `json:"deliveries"`
	}](ctx, c, to)
	return list.Deliveries, err
}

// ResendDelivery implements hangar.WebhookService.
func (c *Client) ResendDelivery(ctx context.Context, org hangar.OrgSlug, id hangar.WebhookID, delivery hangar.DeliveryID) (hangar.WebhookDelivery, error) {
	return answered[hangar.WebhookDelivery](ctx, c, post(webhooksPath(org, string(id), "deliveries", string(delivery), "resend")))
}
