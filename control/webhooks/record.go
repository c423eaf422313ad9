package webhooks

import (
	"crypto/rand"
	"slices"
	"time"

	"github.com/hangar-platform/hangar"
)

// record has the webhooks of an organization, as the state keeps them, encrypted.
type record struct {
	Webhooks []webhook `json:"webhooks"` // sorted by when they were made
}

// webhook is one webhook of a record.
type webhook struct {
	ID            hangar.WebhookID   `json:"id"`
	Version       uint64             `json:"version"` // grows with every change
	URL           string             `json:"url"`
	Events        []hangar.EventType `json:"events,omitempty"` // none: all
	Apps          []hangar.AppID     `json:"apps,omitempty"`   // none: all
	OriginalNames bool               `json:"original_names,omitempty"`
	Secret        string             `json:"secret"`
	Next          string             `json:"next,omitempty"` // signs instead from NextAt on
	NextAt        time.Time          `json:"next_at,omitzero"`
	CreatedAt     time.Time          `json:"created_at"`
	UpdatedAt     time.Time          `json:"updated_at"`
}

// find returns the webhook with an id, or nil.
func (r *record) find(id hangar.WebhookID) *webhook {
	i := slices.IndexFunc(r.Webhooks, func(w webhook) bool { return w.ID == id })
	if i < 0 {
		return nil
	}
	return &r.Webhooks[i]
}

// newSecret returns a key of 128 random bits or more.
func newSecret() string { return "hgw_" + rand.Text() }

// rotate returns a new secret, which signs once overlap has passed.
func (w *webhook) rotate(now time.Time, overlap time.Duration) string {
	if w.Next != "" && !now.Before(w.NextAt) {
		w.Secret = w.Next
	}
	w.Next, w.NextAt = newSecret(), now.Add(overlap)
	secret := w.Next
	if overlap == 0 {
		w.Secret, w.Next, w.NextAt = w.Next, "", time.Time{}
	}
	return secret
}

// receiverID is the id of a webhook as a receiver of events.
func receiverID(org hangar.OrgID, id hangar.WebhookID) string {
	return "webhooks/" + string(org) + "/" + string(id)
}

// receiver converts the webhook for delivery.
func (w *webhook) receiver(org hangar.OrgID) hangar.EventReceiver {
	r := hangar.EventReceiver{
		ID: receiverID(org, w.ID), Version: w.Version, Org: org, URL: w.URL, Secret: hangar.NewSensitive(w.Secret), NextAt: w.NextAt,
		OriginalNames: w.OriginalNames, AllOf: org, Events: w.Events,
	}
	if w.Next != "" {
		r.Next = hangar.NewSensitive(w.Next)
	}
	if len(w.Apps) > 0 {
		r.Apps = w.Apps
	}
	return r
}

// view returns the webhook as the API shows it. Apps that no longer exist are left out.
func (w *webhook) view(now time.Time, names map[hangar.AppID]hangar.AppName) hangar.Webhook {
	v := hangar.Webhook{
		ID: w.ID, URL: w.URL, OriginalNames: w.OriginalNames, CreatedAt: w.CreatedAt, UpdatedAt: w.UpdatedAt,
	}
	if len(w.Events) > 0 {
		v.Events = w.Events
	}
	if w.Next != "" && now.Before(w.NextAt) {
		v.SecretChangesAt = w.NextAt
	}
	if len(w.Apps) > 0 {
		v.Apps = []hangar.AppName{}
		for _, id := range w.Apps {
			if name, ok := names[id]; ok {
				v.Apps = append(v.Apps, name)
			}
		}
	}
	return v
}
