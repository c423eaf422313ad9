package txlog

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"github.com/superfly/ltx"

	"github.com/hangar-platform/hangar/internal/durable"
)

// Start is the first transaction of a database that was committed in an epoch.
type Start struct {
	Epoch uint64   `json:"epoch"`
	First ltx.TXID `json:"first"`
}

// History lists the epochs of a database, oldest first. An epoch has only one primary, so two copies of a
// database have the same transaction with an ID if their histories have the same epoch for it. A history
// outlives the records of its log.
type History []Start

// Epoch returns the epoch in which a transaction was committed, 0 if that is not known.
func (h History) Epoch(id ltx.TXID) uint64 {
	epoch := uint64(0)
	for _, s := range h {
		if s.First > id {
			break
		}
		epoch = s.Epoch
	}
	return epoch
}

// until returns the part of a history up to a transaction.
func (h History) until(id ltx.TXID) History {
	return slices.DeleteFunc(slices.Clone(h), func(s Start) bool { return s.First > id })
}

const historyName = "history"

// loadHistory reads the history, and adds missing epochs from the segments.
func (l *Log) loadHistory() error {
	b, err := os.ReadFile(filepath.Join(l.dir, historyName))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err != nil || json.Unmarshal(b, &l.history) != nil {
		l.history = nil // it is rebuilt from the segments
	}
	l.history = l.history.until(l.pos.TXID)
	for _, s := range l.segments {
		if s.n > 0 && l.history.Epoch(s.base.TXID+1) != s.epoch {
			l.history = append(l.history.until(s.base.TXID), Start{s.epoch, s.base.TXID + 1})
		}
	}
	return nil
}

// remember records that transactions from an ID on belong to an epoch. The caller holds l.mu.
func (l *Log) remember(epoch uint64, first ltx.TXID) error {
	if first == 0 || l.history.Epoch(first) == epoch {
		return nil
	}
	return l.writeHistory(append(l.history.until(first-1), Start{epoch, first}))
}

func (l *Log) writeHistory(h History) error {
	b, err := json.Marshal(h)
	if err != nil {
		return err
	}
	if err := durable.WriteFile(filepath.Join(l.dir, historyName), append(b, '\n'), 0o600); err != nil {
		return err
	}
	l.history = h
	return nil
}

// History returns the history of the database.
func (l *Log) History() History {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.history)
}

// SetHistory replaces the history up to the present position with that of another log with the same content.
func (l *Log) SetHistory(h History) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.writeHistory(h.until(l.pos.TXID))
}

// Epoch returns the epoch in which the last transaction was committed.
func (l *Log) Epoch() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.history.Epoch(l.pos.TXID)
}
