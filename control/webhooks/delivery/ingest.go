package delivery

import (
	"context"
	"slices"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/pause"
)

const (
	ingestBatch = 512  // events that are taken at a time
	trimAfter   = 4096 // events between two acknowledgements to the host
)

// ingest takes the events of the host, from the stored cursor on.
func (d *Dispatcher) ingest(ctx context.Context) {
	if d.allKnown(ctx) != nil {
		return
	}
	cursor, told := d.store.begin, uint64(0)
	_ = pause.Between(ctx, pause.Feeds, func(ctx context.Context) error {
		for {
			next, err := d.ingestSome(ctx, cursor)
			if err != nil {
				return err
			}
			cursor = next
			if cursor < told || cursor >= told+trimAfter {
				if err := d.o.Feed.TookMachineEvents(cursor); err != nil && ctx.Err() == nil {
					d.o.Log.Warn("host does not forget events that were taken", keyError, err)
				}
				told = cursor
			}
		}
	}, func(err error) {
		d.o.Log.Warn("events of Machines wait with their host", keyError, err)
	})
}

// ingestSome takes some events and returns the next cursor.
func (d *Dispatcher) ingestSome(ctx context.Context, cursor uint64) (uint64, error) {
	events, upTo, err := d.o.Feed.NextMachineEvents(ctx, cursor, ingestBatch)
	if err != nil {
		return cursor, err
	}
	if lost := d.gap(cursor, upTo, events); lost > 0 {
		d.counts.lost.Add(float64(lost))
		d.o.Log.Error("events of Machines were recorded and not taken in time: they are lost for webhooks", "events", lost)
	}
	in := ingestion{cursor: upTo}
	var woken []*receiver
	now := d.o.Now()
	d.mu.Lock()
	for i := range events {
		e := &events[i]
		for _, r := range slices.Concat(d.byOrg[e.OrgID], d.byApp[e.AppID]) {
			spec := r.spec.Load()
			if !spec.Wants(e) {
				continue
			}
			in.inserts = append(in.inserts, insert{receiver: r.id, org: spec.Org, entry: newEntry(*e, now)})
			if !slices.Contains(woken, r) {
				woken = append(woken, r)
			}
		}
	}
	d.mu.Unlock()
	if err := d.store.ingest(in); err != nil {
		return cursor, err
	}
	d.counts.events.Add(float64(len(events)))
	for _, r := range woken {
		r.signal()
	}
	return upTo, nil
}

// gap returns how many events the host discarded before they were taken. A cursor beyond the host's
// events means that the host has lost its records.
func (d *Dispatcher) gap(cursor, upTo uint64, events []hangar.MachineEvent) uint64 {
	if cursor == 0 || upTo <= cursor || len(events) == 0 || events[0].Seq <= cursor+1 {
		return 0
	}
	return events[0].Seq - cursor - 1
}
