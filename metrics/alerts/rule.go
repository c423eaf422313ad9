package alerts

import (
	"maps"
	"time"

	"github.com/prometheus/common/model"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/metrics/alerts/rulefile"
)

// rule is a rule with its alerts.
type rule struct {
	*rulefile.Rule
	key string // begins the keys of records, see ruleKey

	// Guarded by mu of the group.
	records map[string]*record // by fingerprint
	unsaved map[string]bool    // fingerprints of records that have changed or gone since they were saved
	health  hangar.AlertRule
}

// record is the state of an alert, as it is stored.
type record struct {
	hangar.Alert
	// KeptSince is the time since which the alert only fires because of its rule's keep_firing_for,
	// while the expression does not hold; zero otherwise.
	KeptSince time.Time `json:"kept_since,omitzero"`
}

func fingerprint(labels map[string]string) string {
	set := make(model.LabelSet, len(labels))
	for name, value := range labels {
		set[model.LabelName(name)] = model.LabelValue(value)
	}
	return set.Fingerprint().String()
}

// active is the number of alerts that are pending or firing.
func (r *rule) active() int {
	n := 0
	for _, rec := range r.records {
		if rec.State != hangar.AlertResolved {
			n++
		}
	}
	return n
}

// room limits the alerts of an organization.
type room interface {
	reserve(n int) bool
	release(n int)
}

// update advances the states; found are the alerts for which the expression holds at a time. It
// returns the alerts to notify about. On an error it changes nothing.
func (r *rule) update(at time.Time, found []hangar.Alert, room room) ([]hangar.Alert, error) {
	holds := make(map[string]bool, len(found))
	begin := 0
	for _, a := range found {
		holds[a.Fingerprint] = true
		if rec := r.records[a.Fingerprint]; rec == nil || rec.State == hangar.AlertResolved {
			begin++
		}
	}
	if !room.reserve(begin) {
		return nil, invalidf("the organization has more than the %d alerts that are allowed at once", hangar.MaxAlerts)
	}
	var tell []hangar.Alert
	for _, a := range found {
		if rec := r.hold(a, at); rec != nil {
			tell = append(tell, rec.Alert)
		}
	}
	for id, rec := range r.records {
		if holds[id] {
			continue
		}
		switch rec.State {
		case hangar.AlertPending:
			delete(r.records, id)
			r.unsaved[id] = true
			room.release(1)
		case hangar.AlertFiring:
			if r.keep(rec, at) {
				continue
			}
			rec.State, rec.ResolvedAt, rec.KeptSince = hangar.AlertResolved, at, time.Time{}
			r.unsaved[id] = true
			room.release(1)
			tell = append(tell, rec.Alert)
		case hangar.AlertResolved:
			if at.Sub(rec.ResolvedAt) > hangar.AlertResolvedRetention {
				delete(r.records, id)
				r.unsaved[id] = true
			}
		}
	}
	return tell, nil
}

// hold advances an alert for which the expression holds. It returns the record if receivers must be
// notified.
func (r *rule) hold(a hangar.Alert, at time.Time) *record {
	id := a.Fingerprint
	rec := r.records[id]
	changed := false
	if rec == nil || rec.State == hangar.AlertResolved {
		a.State, a.ActiveAt = hangar.AlertPending, at
		rec = &record{Alert: a}
		r.records[id] = rec
		r.unsaved[id] = true
	} else {
		changed = !maps.Equal(rec.Annotations, a.Annotations)
		rec.Annotations, rec.Value, rec.Expr = a.Annotations, a.Value, a.Expr
	}
	if !rec.KeptSince.IsZero() {
		rec.KeptSince = time.Time{}
		r.unsaved[id] = true
	}
	if rec.State == hangar.AlertPending && at.Sub(rec.ActiveAt) >= r.For {
		rec.State, rec.FiredAt = hangar.AlertFiring, at
		r.unsaved[id] = true
		return rec
	}
	if rec.State == hangar.AlertFiring && changed {
		return rec
	}
	return nil
}

// keep reports whether an alert continues to fire although its expression does not hold.
func (r *rule) keep(rec *record, at time.Time) bool {
	if r.KeepFiringFor <= 0 {
		return false
	}
	if rec.KeptSince.IsZero() {
		rec.KeptSince = at
		r.unsaved[rec.Fingerprint] = true
	}
	return at.Sub(rec.KeptSince) < r.KeepFiringFor
}

// save returns the values to save, by key.
func (r *rule) save() map[string][]byte {
	if len(r.unsaved) == 0 {
		return nil
	}
	values := make(map[string][]byte, len(r.unsaved))
	for id := range r.unsaved {
		values[r.key+id] = encode(r.records[id])
	}
	return values
}
