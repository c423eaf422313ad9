// Package webhook has the operations of the API about webhooks.
package webhook

import (
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
	"github.com/hangar-platform/hangar/api/openapi"
	"github.com/hangar-platform/hangar/api/router"
)

// Tag is the group of the operations.
const Tag = "Webhooks"

// The examples of path parameters.
const (
	ExampleID       = "wh_0f4b8m2xq7k1d9zs"
	ExampleDelivery = "01K2KJQ1M6Y8T9V0B3C4D5E6F7"
)

const exampleURL = "https://example.com/machine-events"

// Describe adds the descriptions of the types of webhooks.
func Describe(s *openapi.Schemas) {
	states := []any{}
	for _, state := range hangar.DeliveryStates() {
		states = append(states, string(state))
	}
	s.Know(reflect.TypeFor[hangar.DeliveryState](), openapi.Schema{Type: []string{"string"}, Enum: states})
	failures := "Why the last attempt has failed: " + words(hangar.DeliveryErrors()) + ". There may be more."
	openapi.Describe[hangar.Webhook](s, map[string]string{ //nolint:gosec // texts about secrets
		"events":            "The types of events that are sent. All when it is missing.",
		"apps":              "The Apps whose Machines' events are sent, without destroyed ones. All when it is missing.",
		"original_names":    "The types of CloudEvents begin with `" + hangar.MachineEventTypes.Original + "` instead of `" + hangar.MachineEventTypes.Neutral + "`.",
		"secret_changes_at": "Until then, the previous secret signs requests.",
	})
	openapi.Describe[hangar.WebhookStatus](s, map[string]string{
		"waiting":      "Events that are not delivered yet.",
		"dead":         "Events that were given up and are still kept: they can be sent again.",
		"dropped":      "Events that were given up and are no longer kept.",
		"failing":      "Deliveries fail at the moment. One of them is retried from time to time.",
		"delivered_at": "The last delivery since the server started.",
		"failed_at":    "The last attempt that failed since then.",
		"error":        failures,
	})
	openapi.Describe[hangar.WebhookCreate](s, map[string]string{
		"url":    "Gets POST requests. It must lead to the public internet, unless the operator of the server allows it.",
		"events": "The types of events to send: all when it is left out.",
		"apps":   "The Apps whose Machines' events to send: all, including future ones, when it is left out.",
	})
	openapi.Describe[hangar.WebhookUpdate](s, map[string]string{"events": "An empty list stands for all.", "apps": "An empty list stands for all."})
	openapi.Describe[hangar.WebhookRotate](s, map[string]string{
		"overlap": "How long the previous secret still signs, so that the receiver can learn to accept both: 24h when it is left out, at most 168h.",
	})
	openapi.Describe[hangar.WebhookDelivery](s, map[string]string{
		"event_id":    "The header Ce-Id.",
		"http_status": "Of the last answer. The rest of the answer is not stored.",
		"error":       failures,
		"reason":      "Why it was given up: " + words(hangar.DeathReasons()) + ".",
	})
	openapi.Describe[hangar.WebhookPing](s, map[string]string{"error": failures})
	s.Name(reflect.TypeFor[hangar.WebhookRotate](), "WebhookRotation")
}

// words lists the values of a text.
func words[T ~string](values []T) string {
	var list []string
	for _, v := range values {
		list = append(list, "`"+string(v)+"`")
	}
	return strings.Join(list, ", ")
}

// area has what the handlers need.
type area struct{ hangar.WebhookService }

// webhookList is a listing of webhooks.
type webhookList struct {
	Webhooks []hangar.Webhook `json:"webhooks"`
}

// deliveryList is a listing of deliveries.
type deliveryList struct {
	Deliveries []hangar.WebhookDelivery `json:"deliveries"`
}

// Routes adds the operations.
func Routes(rt *router.Router, service hangar.WebhookService) {
	a := area{service}
	at := time.Date(2026, 8, 14, 9, 57, 35, 0, time.UTC)
	example := hangar.Webhook{
		ID: ExampleID, URL: exampleURL, Events: []hangar.EventType{hangar.EventStart, hangar.EventExit}, CreatedAt: at, UpdatedAt: at,
		Status: hangar.WebhookStatus{DeliveredAt: at},
	}
	secret := hangar.WebhookSecret{Webhook: example, Secret: "hgw_PB3XSL5QXOQM2V5BBR2TWYDGQD"} //nolint:gosec // an example
	delivery := hangar.WebhookDelivery{
		ID: ExampleDelivery, State: hangar.DeliveryDead, EventID: "01K2KJQ1M5H8Z7R6Q5P4N3M2K1", Type: hangar.EventExit, App: "web", Machine: "d8912340000002",
		Attempts: 291, CreatedAt: at, AttemptedAt: at.Add(hangar.WebhookRetention), Took: hangar.Duration(31 * time.Millisecond),
		HTTPStatus: http.StatusInternalServerError, Error: hangar.DeliveryStatus, Reason: hangar.DeathExpired,
	}
	waiting := hangar.WebhookDelivery{
		ID: ExampleDelivery, State: hangar.DeliveryWaiting, EventID: delivery.EventID, Type: delivery.Type, App: delivery.App, Machine: delivery.Machine, CreatedAt: at,
	}
	overlap := hangar.Duration(time.Hour)
	target := exampleURL
	const (
		all        = "/v1/orgs/{org}/webhooks"
		one        = all + "/{webhook}"
		deliveries = one + "/deliveries"
	)
	rt.Handle("POST "+all, a.create, router.Operation{
		ID: "createWebhook", Tag: Tag, Summary: "Create a webhook",
		Text: "It gets every event of the organization's Machines that is recorded from then on, as a CloudEvent in binary mode. Only this answer " +
			"holds the `secret`, which signs requests. An organization has at most 10.",
		Body: hangar.WebhookCreate{URL: exampleURL, Events: example.Events}, Status: http.StatusCreated, Answer: secret,
		Errors: []int{http.StatusUnprocessableEntity},
	})
	rt.Handle("GET "+all, a.list, router.Operation{
		ID: "listWebhooks", Tag: Tag, Summary: "List webhooks",
		Text: "Needs the right to change the organization, because URLs may hold credentials.", Answer: webhookList{[]hangar.Webhook{example}},
	})
	rt.Handle("GET "+one, a.get, router.Operation{ID: "getWebhook", Tag: Tag, Summary: "Get a webhook", Answer: example})
	rt.Handle("PATCH "+one, a.update, router.Operation{
		ID: "updateWebhook", Tag: Tag, Summary: "Update a webhook",
		Text: "What is left out stays. Events that wait are sent to the new URL, and tried at once.", Body: hangar.WebhookUpdate{URL: &target}, Answer: example,
	})
	rt.Handle("DELETE "+one, a.remove, router.Operation{
		ID: "removeWebhook", Tag: Tag, Summary: "Remove a webhook", Text: "With all its waiting events.", Status: http.StatusNoContent,
	})
	rt.Handle("POST "+one+"/rotate", a.rotate, router.Operation{
		ID: "rotateWebhook", Tag: Tag, Summary: "Rotate the secret of a webhook",
		Text: "Only this answer holds the new secret. The previous one signs requests during the overlap: have the receiver accept both before it ends.",
		Body: hangar.WebhookRotate{Overlap: &overlap}, MayOmit: true, Answer: secret,
	})
	rt.Handle("POST "+one+"/ping", a.ping, router.Operation{
		ID: "pingWebhook", Tag: Tag, Summary: "Ping a webhook",
		Text:   "Sends one event of the type `io.platform.webhook.ping`, whose body has only what its signature needs. The answer says how that went.",
		Answer: hangar.WebhookPing{Delivered: true, HTTPStatus: http.StatusNoContent, Took: hangar.Duration(31 * time.Millisecond)},
	})
	rt.Handle("GET "+deliveries, a.deliveries, router.Operation{
		ID: "listWebhookDeliveries", Tag: Tag, Summary: "List the deliveries of a webhook",
		Text: "The newest first: queued ones, failed ones, and the last that succeeded.",
		Query: []router.Param{
			{Name: "state", Example: string(hangar.DeliveryDead), Text: "Only those in this state: `waiting`, `delivered` or `dead`."},
			{Name: "limit", Example: 100, Text: "The most deliveries, from 1 to 1000. The default is 100."},
		},
		Answer: deliveryList{[]hangar.WebhookDelivery{delivery}},
	})
	rt.Handle("POST "+deliveries+"/{delivery}/resend", a.resend, router.Operation{
		ID: "resendWebhookDelivery", Tag: Tag, Summary: "Resend an event",
		Text: "An event that was given up, or was delivered a short time ago. It becomes the last in the queue.", Status: http.StatusAccepted, Answer: waiting,
	})
}

func orgOf(r *http.Request) hangar.OrgSlug  { return hangar.OrgSlug(r.PathValue("org")) }
func idOf(r *http.Request) hangar.WebhookID { return hangar.WebhookID(r.PathValue("webhook")) }
func shown(w hangar.WebhookSecret) router.Answer {
	return router.Answer{Body: w, Header: router.SecretHeader()}
}

func (a area) create(r *http.Request) (router.Answer, error) {
	in, err := input.Decode[hangar.WebhookCreate](r)
	if err != nil {
		return router.Answer{}, err
	}
	made, err := a.CreateWebhook(r.Context(), orgOf(r), in)
	if err != nil {
		return router.Answer{}, err
	}
	answer := shown(made)
	answer.Status = http.StatusCreated
	return answer, nil
}

func (a area) list(r *http.Request) (router.Answer, error) {
	list, err := a.Webhooks(r.Context(), orgOf(r))
	return router.AnswerOf(webhookList{list}, err)
}

func (a area) get(r *http.Request) (router.Answer, error) {
	return router.AnswerOf(a.Webhook(r.Context(), orgOf(r), idOf(r)))
}

func (a area) update(r *http.Request) (router.Answer, error) {
	in, err := input.Decode[hangar.WebhookUpdate](r)
	if err != nil {
		return router.Answer{}, err
	}
	return router.AnswerOf(a.UpdateWebhook(r.Context(), orgOf(r), idOf(r), in))
}

func (a area) remove(r *http.Request) (router.Answer, error) {
	return router.NoContent(a.RemoveWebhook(r.Context(), orgOf(r), idOf(r)))
}

func (a area) rotate(r *http.Request) (router.Answer, error) {
	in, err := input.DecodeOptional[hangar.WebhookRotate](r)
	if err != nil {
		return router.Answer{}, err
	}
	made, err := a.RotateWebhook(r.Context(), orgOf(r), idOf(r), in)
	if err != nil {
		return router.Answer{}, err
	}
	return shown(made), nil
}

func (a area) ping(r *http.Request) (router.Answer, error) {
	return router.AnswerOf(a.PingWebhook(r.Context(), orgOf(r), idOf(r)))
}

func (a area) deliveries(r *http.Request) (router.Answer, error) {
	query := input.QueryOf(r)
	q := hangar.DeliveryQuery{State: hangar.DeliveryState(query.Text("state")), Limit: query.Int("limit", 1, hangar.MaxWebhookDeliveries)}
	if query.Err != nil {
		return router.Answer{}, query.Err
	}
	list, err := a.WebhookDeliveries(r.Context(), orgOf(r), idOf(r), q)
	return router.AnswerOf(deliveryList{list}, err)
}

func (a area) resend(r *http.Request) (router.Answer, error) {
	made, err := a.ResendDelivery(r.Context(), orgOf(r), idOf(r), hangar.DeliveryID(r.PathValue("delivery")))
	if err != nil {
		return router.Answer{}, err
	}
	return router.Answer{Status: http.StatusAccepted, Body: made}, nil
}
