package hangar

import (
	"context"
	"iter"
	"net/url"
	"slices"
	"time"
)

// WebhookID identifies a webhook of an organization: "wh_" and 16 characters of a-z and 0-9.
type WebhookID string

// The limits of webhooks.
const (
	MaxWebhooks            = 10 // of one organization
	MaxWebhookURL          = 2 << 10
	MaxWebhookApps         = 100
	MaxWebhookDeliveries   = 1000 // of one answer
	WebhookRetention       = 24 * time.Hour
	DefaultWebhookOverlap  = 24 * time.Hour     // of RotateWebhook
	MaxWebhookOverlap      = 7 * 24 * time.Hour // of RotateWebhook
	defaultDeliveryListing = 100
)

// Webhook is a URL to which an organization has the events of its Machines sent.
type Webhook struct {
	ID  WebhookID `json:"id"`
	URL string    `json:"url"`
	// Events are the types of events that are sent; nil: all.
	Events []EventType `json:"events,omitzero"`
	// Apps limits the events to those of Machines of these Apps; nil: all. A destroyed App leaves the
	// list. Once the list is empty, no events are sent.
	Apps []AppName `json:"apps,omitzero"`
	// OriginalNames makes the types of events begin as on the public platform; see MachineEventTypes.
	OriginalNames bool      `json:"original_names"`
	CreatedAt     time.Time `json:"created_at"`
	UpdatedAt     time.Time `json:"updated_at"`
	// SecretChangesAt is when the newest secret begins to sign requests. The previous one signs until
	// then. Zero: the newest signs already.
	SecretChangesAt time.Time     `json:"secret_changes_at,omitzero"`
	Status          WebhookStatus `json:"status"`
}

// MachineEventTypes begin the types of CloudEvents about Machines, before the EventType.
var MachineEventTypes = NamePair{"io.platform.machine.", "io.fly.machine."}

// WebhookStatus is the state of the deliveries to a receiver of events.
type WebhookStatus struct {
	Waiting      int       `json:"waiting"` // events that are not delivered yet
	WaitingBytes int64     `json:"waiting_bytes"`
	WaitingSince time.Time `json:"waiting_since,omitzero"` // when the oldest of them was queued
	Dead         int       `json:"dead"`                   // events that were given up and are still kept
	Dropped      uint64    `json:"dropped"`                // events that were given up and are no longer kept
	// Failing says that deliveries fail at the moment. One of them is retried from time to time.
	Failing     bool          `json:"failing"`
	DeliveredAt time.Time     `json:"delivered_at,omitzero"` // when the last delivery succeeded since the server started
	FailedAt    time.Time     `json:"failed_at,omitzero"`    // when the last attempt failed since then
	Error       DeliveryError `json:"error,omitempty"`       // of that attempt
	HTTPStatus  int           `json:"http_status,omitempty"` // of its answer
}

// WebhookCreate describes a new webhook.
type WebhookCreate struct {
	URL           string      `json:"url" schema:"required"`
	Events        []EventType `json:"events,omitempty"`
	Apps          []AppName   `json:"apps,omitempty"`
	OriginalNames bool        `json:"original_names,omitempty"`
}

// WebhookUpdate changes the fields that are not nil. An empty list stands for all.
type WebhookUpdate struct {
	URL           *string      `json:"url,omitempty"`
	Events        *[]EventType `json:"events,omitempty"`
	Apps          *[]AppName   `json:"apps,omitempty"`
	OriginalNames *bool        `json:"original_names,omitempty"`
}

// WebhookRotate says how the secret changes.
type WebhookRotate struct {
	// Overlap is how long the previous secret still signs requests, so that the receiver can learn the
	// new one and accept both. Nil: DefaultWebhookOverlap.
	Overlap *Duration `json:"overlap,omitempty"`
}

// WebhookSecret is a webhook with its newest secret, which is shown once.
type WebhookSecret struct {
	Webhook
	Secret string `json:"secret"`
}

// WebhookPing is the result of the delivery of a test event.
type WebhookPing struct {
	Delivered  bool          `json:"delivered"`
	HTTPStatus int           `json:"http_status,omitempty"`
	Error      DeliveryError `json:"error,omitempty"`
	Took       Duration      `json:"took"`
}

// DeliveryID identifies the delivery of one event to one receiver: a ULID.
type DeliveryID string

// DeliveryState is the state of a delivery.
type DeliveryState string

// The states of deliveries.
const (
	DeliveryWaiting   DeliveryState = "waiting"
	DeliveryDelivered DeliveryState = "delivered" // kept for a while
	DeliveryDead      DeliveryState = "dead"      // given up; kept for a while, and may be sent again
)

// DeliveryStates lists every state.
func DeliveryStates() []DeliveryState {
	return []DeliveryState{DeliveryWaiting, DeliveryDelivered, DeliveryDead}
}

// DeliveryError is why an attempt failed. The answer of the receiver is never shown.
type DeliveryError string

// The errors of attempts.
const (
	DeliveryNotAllowed DeliveryError = "address_not_allowed" // the name leads to an address that must not be called
	DeliveryNoName     DeliveryError = "name_not_found"
	DeliveryNoConnect  DeliveryError = "connection_failed"
	DeliveryBadTLS     DeliveryError = "tls_failed"
	DeliveryTimeout    DeliveryError = "timeout"
	DeliveryBadAnswer  DeliveryError = "no_valid_answer"
	DeliveryRedirect   DeliveryError = "redirect" // which is not followed
	DeliveryStatus     DeliveryError = "status"   // neither 2xx nor 3xx
)

// DeliveryErrors lists every error.
func DeliveryErrors() []DeliveryError {
	return []DeliveryError{
		DeliveryNotAllowed, DeliveryNoName, DeliveryNoConnect, DeliveryBadTLS, DeliveryTimeout, DeliveryBadAnswer, DeliveryRedirect, DeliveryStatus,
	}
}

// DeathReason is why a delivery was given up.
type DeathReason string

// The reasons.
const (
	DeathExpired   DeathReason = "expired"    // it has failed for WebhookRetention
	DeathQueueFull DeathReason = "queue_full" // newer events filled the queue
	DeathBlocked   DeathReason = "blocked"    // it failed and held up others that succeed
)

// DeathReasons lists every reason.
func DeathReasons() []DeathReason { return []DeathReason{DeathExpired, DeathQueueFull, DeathBlocked} }

// WebhookDelivery is the delivery of one event.
type WebhookDelivery struct {
	ID          DeliveryID    `json:"id"`
	State       DeliveryState `json:"state"`
	EventID     EventID       `json:"event_id"`
	Type        EventType     `json:"type"`
	App         AppName       `json:"app"`
	Machine     MachineID     `json:"machine_id"`
	Attempts    int           `json:"attempts"`
	CreatedAt   time.Time     `json:"created_at"`
	AttemptedAt time.Time     `json:"attempted_at,omitzero"` // of the last attempt
	Took        Duration      `json:"took,omitzero"`         // of the last attempt
	HTTPStatus  int           `json:"http_status,omitempty"` // of the last answer
	Error       DeliveryError `json:"error,omitempty"`       // of the last attempt, if it has failed
	Reason      DeathReason   `json:"reason,omitempty"`      // of one that is dead
}

// DeliveryQuery selects deliveries.
type DeliveryQuery struct {
	State DeliveryState // empty: every one
	Limit int           // 0: 100
}

// Validate answers CodeInvalid.
func (q DeliveryQuery) Validate() error {
	if q.State != "" && !slices.Contains(DeliveryStates(), q.State) {
		return Errorf(CodeInvalid, "", "invalid state: %.40q is none of %v", string(q.State), DeliveryStates())
	}
	if q.Limit < 0 || q.Limit > MaxWebhookDeliveries {
		return Errorf(CodeInvalid, "", "invalid limit: %d is not between 1 and %d", q.Limit, MaxWebhookDeliveries)
	}
	return nil
}

// Most is how many deliveries are selected at most.
func (q DeliveryQuery) Most() int {
	if q.Limit == 0 {
		return defaultDeliveryListing
	}
	return q.Limit
}

// ValidateWebhookURL answers CodeInvalid for a URL that cannot be called. It does not quote the URL,
// which may hold a credential.
func ValidateWebhookURL(target string) error {
	problem := ""
	u, err := url.Parse(target)
	switch {
	case len(target) > MaxWebhookURL:
		problem = "it is too long"
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.Opaque != "":
		problem = "it must be like https://example.com/path"
	case u.Fragment != "" || u.User != nil:
		problem = "it must have neither a fragment nor a user"
	case slices.ContainsFunc([]byte(target), func(c byte) bool { return c <= ' ' || c > '~' }):
		problem = "it must be percent-encoded"
	default:
		return nil
	}
	return Errorf(CodeInvalid, "", "invalid url: %s", problem)
}

// ValidateWebhookEvents answers CodeInvalid for an unknown or repeated type.
func ValidateWebhookEvents(events []EventType) error {
	for i, e := range events {
		if !slices.Contains(EventTypes(), e) {
			return Errorf(CodeInvalid, "", "invalid events: %.40q is none of %v", string(e), EventTypes())
		}
		if slices.Contains(events[:i], e) {
			return Errorf(CodeInvalid, "", "invalid events: %q is there twice", string(e))
		}
	}
	return nil
}

// WebhookService keeps the webhooks of organizations, and shows their deliveries. All methods need
// ActionWrite in the organization, because URLs may hold credentials. An organization in which the
// caller is allowed nothing is CodeNotFound with ReasonOrgNotFound, like one that does not exist; a
// missing webhook is CodeNotFound with ReasonWebhookNotFound.
type WebhookService interface {
	// CreateWebhook makes a webhook. It gets every event of the organization's Machines that is
	// recorded after CreateWebhook has returned. It answers CodeInvalid, and CodeExhausted with
	// ReasonQuota beyond MaxWebhooks.
	CreateWebhook(ctx context.Context, org OrgSlug, in WebhookCreate) (WebhookSecret, error)
	// Webhooks are sorted by the time of their creation.
	Webhooks(ctx context.Context, org OrgSlug) ([]Webhook, error)
	Webhook(ctx context.Context, org OrgSlug, id WebhookID) (Webhook, error)
	// UpdateWebhook changes a webhook. Waiting events go to the new URL.
	UpdateWebhook(ctx context.Context, org OrgSlug, id WebhookID, in WebhookUpdate) (Webhook, error)
	// RotateWebhook makes another secret. During an overlap, another rotation replaces the newest
	// secret.
	RotateWebhook(ctx context.Context, org OrgSlug, id WebhookID, in WebhookRotate) (WebhookSecret, error)
	// RemoveWebhook removes a webhook with its waiting events and its deliveries.
	RemoveWebhook(ctx context.Context, org OrgSlug, id WebhookID) error
	// WebhookDeliveries lists deliveries, the newest first.
	WebhookDeliveries(ctx context.Context, org OrgSlug, id WebhookID, q DeliveryQuery) ([]WebhookDelivery, error)
	// ResendDelivery sends an event again, as the last in the queue. It answers CodeNotFound
	// with ReasonDeliveryNotFound for a delivery that is not kept or still waits.
	ResendDelivery(ctx context.Context, org OrgSlug, id WebhookID, delivery DeliveryID) (WebhookDelivery, error)
	// PingWebhook sends a test event once, and returns the result.
	PingWebhook(ctx context.Context, org OrgSlug, id WebhookID) (WebhookPing, error)
}

// MachineEvent is an event with its Machine, App and organization.
type MachineEvent struct {
	Seq     uint64    `json:"-"` // its number in the feed of its host
	Machine MachineID `json:"machine"`
	App     AppName   `json:"app"`
	AppID   AppID     `json:"app_id"`
	OrgID   OrgID     `json:"org_id"`
	Event   Event     `json:"event"`
}

// MachineEventFeed has the events of all Machines of a host, in the order in which they were recorded.
// Their numbers increase.
type MachineEventFeed interface {
	// NextMachineEvents waits for events after a number. It returns at most limit of them, and the
	// number up to which they are complete. If after is greater than every number so far, it starts
	// from the beginning, because the host has lost its records.
	NextMachineEvents(ctx context.Context, after uint64, limit int) (events []MachineEvent, upTo uint64, err error)
	// TookMachineEvents acknowledges the events up to a number. Unacknowledged events are
	// kept up to a bound.
	TookMachineEvents(upTo uint64) error
}

// EventReceiver receives events of Machines. It is a webhook of an organization, or a provider of
// extensions.
type EventReceiver struct {
	// ID identifies the receiver permanently, in at most 128 bytes. All ids of one EventReceiverFeed
	// share a prefix, which no other feed uses.
	ID string
	// Version grows with every change.
	Version uint64
	// Org is the organization whose bounds the receiver counts against; empty: it has its own bounds.
	Org OrgID
	URL string
	// Secret signs requests. From NextAt on, Next does, unless it is zero.
	Secret, Next Sensitive
	NextAt       time.Time
	// AllowPrivate lets URL lead to addresses that are not of the public internet.
	AllowPrivate bool
	// OriginalNames is as in Webhook.
	OriginalNames bool

	// AllOf, Apps and Events select the events. AllOf selects all Machines of an organization, and Apps
	// only those of these Apps. Without AllOf, the Apps may be in any organization. Events selects
	// types; none: all.
	AllOf  OrgID
	Apps   []AppID // nil: all; empty: none
	Events []EventType

	// Unreadable says that some receivers of Org cannot be read at the moment. Their waiting events
	// stay. The other fields are empty.
	Unreadable bool
}

// Wants reports whether the receiver gets an event.
func (r *EventReceiver) Wants(e *MachineEvent) bool {
	switch {
	case r.AllOf != "" && r.AllOf != e.OrgID, r.AllOf == "" && r.Apps == nil:
		return false
	case r.Apps != nil && !slices.Contains(r.Apps, e.AppID):
		return false
	}
	return len(r.Events) == 0 || slices.Contains(r.Events, e.Event.Type)
}

// SecretAt returns the secret that signs at a time.
func (r *EventReceiver) SecretAt(now time.Time) Sensitive {
	if !r.Next.IsZero() && !now.Before(r.NextAt) {
		return r.Next
	}
	return r.Secret
}

// EventReceiverFeed yields the receivers of events.
type EventReceiverFeed interface {
	// WatchEventReceivers yields all receivers, and again after every change, until ctx ends. After
	// an error the caller starts again.
	WatchEventReceivers(ctx context.Context) iter.Seq2[[]EventReceiver, error]
}

// EventDelivery delivers events to receivers.
type EventDelivery interface {
	// AwaitReceiver returns when a receiver is known in a version or a later one, or with the error of
	// ctx.
	AwaitReceiver(ctx context.Context, id string, version uint64) error
	// ReceiverStatus is the status of a receiver, or zero for an unknown one.
	ReceiverStatus(id string) WebhookStatus
	// ReceiverDeliveries is WebhookService.WebhookDeliveries.
	ReceiverDeliveries(id string, q DeliveryQuery) ([]WebhookDelivery, error)
	// Resend is WebhookService.ResendDelivery.
	Resend(id string, delivery DeliveryID) (WebhookDelivery, error)
	// Ping is WebhookService.PingWebhook. It answers CodeNotFound for a receiver that is not known.
	Ping(ctx context.Context, id string) (WebhookPing, error)
}
