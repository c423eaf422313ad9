package delivery

import (
	"encoding/json"
	"time"

	"github.com/hangar-platform/hangar"
)

// entry is the stored form of the delivery of one event to one receiver.
type entry struct {
	ID       hangar.DeliveryID    `json:"id"`
	At       time.Time            `json:"at"` // when it was put into the queue, the first time or again
	Event    hangar.MachineEvent  `json:"event"`
	Attempts int                  `json:"attempts,omitempty"`
	Tried    time.Time            `json:"tried,omitzero"` // last attempt
	Took     time.Duration        `json:"took,omitempty"`
	Status   int                  `json:"status,omitempty"`
	Error    hangar.DeliveryError `json:"error,omitempty"`
	Reason   hangar.DeathReason   `json:"reason,omitempty"`
}

// maxText bounds what an event says about an error, in bytes.
const maxText = 8 << 10

func newEntry(e hangar.MachineEvent, now time.Time) entry {
	if r := e.Event.Request; r != nil && (len(r.Error) > maxText || len(r.ColdBoot) > maxText) {
		cut := *r
		cut.Error, cut.ColdBoot = cut.Error[:min(len(cut.Error), maxText)], cut.ColdBoot[:min(len(cut.ColdBoot), maxText)]
		e.Event.Request = &cut
	}
	return entry{ID: hangar.DeliveryID(hangar.NewEventID(now)), At: now.UTC(), Event: e}
}

func (e *entry) encode() ([]byte, error) { return json.Marshal(e) }

func decodeEntry(raw []byte) (e entry, err error) {
	err = json.Unmarshal(raw, &e)
	return e, err
}

// view returns the delivery as the API shows it.
func (e *entry) view(state hangar.DeliveryState) hangar.WebhookDelivery {
	return hangar.WebhookDelivery{
		ID: e.ID, State: state, EventID: e.Event.Event.ID, Type: e.Event.Event.Type, App: e.Event.App, Machine: e.Event.Machine,
		Attempts: e.Attempts, CreatedAt: e.At, AttemptedAt: e.Tried, Took: hangar.Duration(e.Took), HTTPStatus: e.Status, Error: e.Error, Reason: e.Reason,
	}
}
