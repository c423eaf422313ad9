package journal

import (
	"encoding/binary"
	"encoding/json"
	"fmt"

	bolt "go.etcd.io/bbolt"

	"github.com/hangar-platform/hangar"
)

// MaxFeed is how many untaken events the feed keeps. It drops the oldest ones first.
const MaxFeed = 100_000

// maxTrim bounds how many events one commit removes from the feed.
const maxTrim = 4096

// AppendEvents appends events to a record's Machine and to the feed. It drops the oldest events of
// the Machine beyond MaxEvents, and the oldest of the feed beyond MaxFeed.
func (t *Tx) AppendEvents(r *Record, events []hangar.Event) error {
	m := &r.Machine
	for _, e := range events {
		if err := t.AppendEvent(m.ID, e); err != nil {
			return err
		}
		if err := t.feed(hangar.MachineEvent{Machine: m.ID, App: m.App, AppID: m.AppID, OrgID: r.OrgID, Event: e}); err != nil {
			return fmt.Errorf("feed event of machine %s: %w", m.ID, err)
		}
	}
	return nil
}

func (t *Tx) feed(e hangar.MachineEvent) error {
	value, err := json.Marshal(&e)
	if err != nil {
		return err
	}
	b := t.tx.Bucket(bucketFeed)
	number, err := b.NextSequence()
	if err != nil {
		return err
	}
	t.call.fed = true
	if err := b.Put(binary.BigEndian.AppendUint64(nil, number), value); err != nil {
		return err
	}
	if number <= MaxFeed {
		return nil
	}
	return t.trimFeed(number - MaxFeed)
}

// trimFeed removes the events up to a number, at most maxTrim of them. It collects the keys first,
// because a cursor loses its place when the bucket changes.
func (t *Tx) trimFeed(upTo uint64) error {
	b := t.tx.Bucket(bucketFeed)
	var keys [][]byte
	c := b.Cursor()
	for k, _ := c.First(); k != nil && binary.BigEndian.Uint64(k) <= upTo && len(keys) < maxTrim; k, _ = c.Next() {
		keys = append(keys, append([]byte(nil), k...))
	}
	for _, k := range keys {
		if err := b.Delete(k); err != nil {
			return err
		}
	}
	return nil
}

// Fed receives a value after events were added to the feed. Pending signals are merged into one. It
// is for a single receiver and is never closed.
func (j *Journal) Fed() <-chan struct{} { return j.fed }

// FeedAfter returns the events of all Machines after a number, in the order of their commits, at most
// limit of them, and the number of the last. A number greater than that of every event comes from
// another journal, and means the beginning. An event that does not parse is logged, counted and
// skipped.
func (j *Journal) FeedAfter(number uint64, limit int) (events []hangar.MachineEvent, last uint64, err error) {
	err = j.view(func(tx *bolt.Tx) error {
		b := tx.Bucket(bucketFeed)
		if number > b.Sequence() {
			number = 0
		}
		events, last = nil, number
		c := b.Cursor()
		for k, v := c.Seek(binary.BigEndian.AppendUint64(nil, number+1)); k != nil && len(events) < limit; k, v = c.Next() {
			last = binary.BigEndian.Uint64(k)
			e := hangar.MachineEvent{}
			if err := json.Unmarshal(v, &e); err != nil {
				j.skipped("fed event", e.Machine, err)
				continue
			}
			e.Seq = last
			events = append(events, e)
		}
		return nil
	})
	return events, last, err
}

// FeedTaken removes the events up to a number from the feed, as many as fit one commit.
func (j *Journal) FeedTaken(upTo uint64) error {
	return j.Commit(func(tx *Tx) error {
		if _, err := tx.begin(); err != nil {
			return err
		}
		return tx.trimFeed(upTo)
	})
}
