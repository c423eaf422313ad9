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

// Webhook is where an organization gets the events of its Machines.
type Webhook struct {
	ID  WebhookID `json:"id"`
	URL string    `json:"url"`
	// Events are the types of events that are sent; nil: all.
	Events []EventType `json:"events,omitzero"`
	// Apps are those whose Machines' events are sent; nil: all. One that is destroyed leaves the
	// list, which may then be empty: no events are sent.
	Apps []AppName `json:"apps,omitzero"`
	// OriginalNames has the types of events begin as the public platform's do; see
	// MachineEventTypes.
	OriginalNames bool      `json:"original_names"`
	CreatedAt     time.Time `json:"created_at"`
	UpdatedAt     time.Time `json:"updated_at"`
	// SecretChangesAt is until when requests are signed with the secret before the newest; zero:
	// the newest signs.
	SecretChangesAt time.Time     `json:"secret_changes_at,omitzero"`
	Status          WebhookStatus `json:"status"`
}

// MachineEventTypes begin the types of CloudEvents about Machines; the EventType follows.
var MachineEventTypes = NamePair{"io.platform.machine.", "io.fly.machine."}

// WebhookStatus is how deliveries to a receiver of events go.
type WebhookStatus struct {
	Waiting      int       `json:"waiting"` // events that were not delivered yet
	WaitingBytes int64     `json:"waiting_bytes"`
	WaitingSince time.Time `json:"waiting_since,omitzero"` // when the oldest of them was taken
	Dead         int       `json:"dead"`                   // events that were given up and are kept
	Dropped      uint64    `json:"dropped"`                // events that were given up and are not kept any more
	// Failing says that no delivery succeeds at the moment: one is tried from time to time.
	Failing     bool          `json:"failing"`
	DeliveredAt time.Time     `json:"delivered_at,omitzero"` // of the last delivery since the start of the server
	FailedAt    time.Time     `json:"failed_at,omitzero"`    // of the last attempt that failed since then
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

// WebhookUpdate changes a webhook; nil stays. An empty list stands for all.
type WebhookUpdate struct {
	URL           *string      `json:"url,omitempty"`
	Events        *[]EventType `json:"events,omitempty"`
	Apps          *[]AppName   `json:"apps,omitempty"`
	OriginalNames *bool        `json:"original_names,omitempty"`
}

// WebhookRotate says how the secret changes.
type WebhookRotate struct {
	// Overlap is how long requests are still signed with the secret before, so that the receiver
	// can learn the new one and accept both; nil: DefaultWebhookOverlap.
	Overlap *Duration `json:"overlap,omitempty"`
}

// WebhookSecret is a webhook with its newest secret, which is shown once.
type WebhookSecret struct {
	Webhook
	Secret string `json:"secret"`
}

// WebhookPing is how the delivery of a test event went.
type WebhookPing struct {
	Delivered  bool          `json:"delivered"`
	HTTPStatus int           `json:"http_status,omitempty"`
	Error      DeliveryError `json:"error,omitempty"`
	Took       Duration      `json:"took"`
}

// DeliveryID identifies the delivery of one event to one receiver: a ULID.
type DeliveryID string

// DeliveryState is how far a delivery is.
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

// DeliveryError is why an attempt has failed. What the receiver has answered is never shown.
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
	DeathQueueFull DeathReason = "queue_full" // too much waited that is newer
	DeathBlocked   DeathReason = "blocked"    // it failed while others succeeded that it held up
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
	AttemptedAt time.Time     `json:"attempted_at,omitzero"` // the last time
	Took        Duration      `json:"took,omitzero"`         // the last time
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

// ValidateWebhookURL answers CodeInvalid for what cannot be called. It repeats nothing of the URL,
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

// ValidateWebhookEvents answers CodeInvalid for a type that there is not.
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
	// CreateWebhook makes a webhook that gets every event of the Machines of the organization
	// that is recorded after it has returned. It answers CodeInvalid, and CodeExhausted with
	// ReasonQuota beyond MaxWebhooks.
	CreateWebhook(ctx context.Context, org OrgSlug, in WebhookCreate) (WebhookSecret, error)
	// Webhooks are sorted by when they were made.
	Webhooks(ctx context.Context, org OrgSlug) ([]Webhook, error)
	Webhook(ctx context.Context, org OrgSlug, id WebhookID) (Webhook, error)
	// UpdateWebhook changes a webhook. What waits is sent to where it leads then.
	UpdateWebhook(ctx context.Context, org OrgSlug, id WebhookID, in WebhookUpdate) (Webhook, error)
	// RotateWebhook makes another secret. During an overlap another rotation replaces the newest.
	RotateWebhook(ctx context.Context, org OrgSlug, id WebhookID, in WebhookRotate) (WebhookSecret, error)
	// RemoveWebhook removes a webhook with all that waits and its deliveries.
	RemoveWebhook(ctx context.Context, org OrgSlug, id WebhookID) error
	// WebhookDeliveries lists deliveries, the newest first.
	WebhookDeliveries(ctx context.Context, org OrgSlug, id WebhookID, q DeliveryQuery) ([]WebhookDelivery, error)
	// ResendDelivery sends an event again, as the last in the queue. It answers CodeNotFound
	// with ReasonDeliveryNotFound for a delivery that is not kept or still waits.
	ResendDelivery(ctx context.Context, org OrgSlug, id WebhookID, delivery DeliveryID) (WebhookDelivery, error)
	// PingWebhook sends a test event once, and says how that went.
	PingWebhook(ctx context.Context, org OrgSlug, id WebhookID) (WebhookPing, error)
}

// MachineEvent is an event with whose it is.
type MachineEvent struct {
	Seq     uint64    `json:"-"` // its number in the feed of its host
	Machine MachineID `json:"machine"`
	App     AppName   `json:"app"`
	AppID   AppID     `json:"app_id"`
	OrgID   OrgID     `json:"org_id"`
	Event   Event     `json:"event"`
}

// MachineEventFeed has the events of all Machines of a host, in the order in which they were
// recorded. Each has a number that is greater than those before it.
type MachineEventFeed interface {
	// NextMachineEvents returns events after a number, at most limit of them, and the number up to
	// which that is everything. It waits for one. A number that no event can have had yet means
	// the beginning, as after a host lost its records.
	NextMachineEvents(ctx context.Context, after uint64, limit int) (events []MachineEvent, upTo uint64, err error)
	// TookMachineEvents acknowledges the events up to a number. Unacknowledged events are
	// kept up to a bound.
	TookMachineEvents(upTo uint64) error
}

// EventReceiver is who gets events of Machines: a webhook of an organization, or a provider of
// extensions.
type EventReceiver struct {
	// ID identifies the receiver permanently, in at most 128 bytes. All ids of one EventReceiverFeed
	// share a prefix, which no other feed uses.
	ID string
	// Version grows with every change.
	Version uint64
	// Org is whose bounds the receiver counts for; empty: it has bounds of its own.
	Org OrgID
	URL string
	// Secret signs. Next does from NextAt on, unless it is zero.
	Secret, Next Sensitive
	NextAt       time.Time
	// AllowPrivate lets URL lead to addresses that are not of the public internet.
	AllowPrivate bool
	// OriginalNames is that of Webhook.
	OriginalNames bool

	// What is sent: the events of all Machines of an organization, or with Apps only of these,
	// which without AllOf may be of any organization; of these the types in Events, or all.
	AllOf  OrgID
	Apps   []AppID // nil: all; empty: none
	Events []EventType

	// Unreadable says that there are receivers of Org that cannot be read at the moment: what waits for
	// them stays. The other fields are empty.
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

// SecretAt is what signs at a time.
func (r *EventReceiver) SecretAt(now time.Time) Sensitive {
	if !r.Next.IsZero() && !now.Before(r.NextAt) {
		return r.Next
	}
	return r.Secret
}

// EventReceiverFeed says who gets events.
type EventReceiverFeed interface {
	// WatchEventReceivers yields all receivers, and again after every change, until ctx ends. After
	// an error the caller starts again.
	WatchEventReceivers(ctx context.Context) iter.Seq2[[]EventReceiver, error]
}

// EventDelivery delivers events to receivers.
type EventDelivery interface {
	// AwaitReceiver returns when a receiver is known in a version or a later one, or the error of ctx.
	AwaitReceiver(ctx context.Context, id string, version uint64) error
	// ReceiverStatus is that of a receiver; of one that is not known, the zero value.
	ReceiverStatus(id string) WebhookStatus
	// ReceiverDeliveries is WebhookService.WebhookDeliveries.
	ReceiverDeliveries(id string, q DeliveryQuery) ([]WebhookDelivery, error)
	// Resend is WebhookService.ResendDelivery.
	Resend(id string, delivery DeliveryID) (WebhookDelivery, error)
	// Ping is WebhookService.PingWebhook. It answers CodeNotFound for a receiver that is not known.
	Ping(ctx context.Context, id string) (WebhookPing, error)
}
