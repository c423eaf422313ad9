package hangar

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"
)

// MachineTagger manages the metadata of Machines: pairs by which people and programs find them. A write
// changes nothing else: it makes no version, no event and no reboot, and a lease does not prevent it.
// The pairs are part of the config that a Machine shows. Versions keep the metadata that they were
// created with.
//
// Every method answers CodeNotFound with ReasonMachineNotFound. Writes answer
// CodeInvalid with ReasonBadConfig for what ValidateMetadata refuses, and
// CodeFailedPrecondition with ReasonWrongState for a Machine that is being
// destroyed. They may be repeated.
type MachineTagger interface {
	// MachineMetadata returns all pairs.
	MachineMetadata(ctx context.Context, ref MachineRef) (map[string]string, error)
	// SetMachineMetadata adds a pair, or replaces its value.
	SetMachineMetadata(ctx context.Context, ref MachineRef, in MetadataPair) error
	// RemoveMachineMetadata removes a key. A missing one is not an error.
	RemoveMachineMetadata(ctx context.Context, ref MachineRef, key string) error
	// ReplaceMachineMetadata replaces all pairs by in.Pairs. It answers
	// CodeFailedPrecondition with ReasonStaleVersion; see MetadataWrite.Version.
	ReplaceMachineMetadata(ctx context.Context, ref MachineRef, in MetadataWrite) error
	// MergeMachineMetadata writes in.Pairs and leaves other keys alone. It answers
	// CodeFailedPrecondition with ReasonStaleVersion; see MetadataWrite.Version.
	MergeMachineMetadata(ctx context.Context, ref MachineRef, in MetadataWrite) error
}

// MetadataPair is one pair to write.
type MetadataPair struct {
	Key, Value string
	UpdatedAt  time.Time // as in MetadataWrite
}

// MetadataWrite is several pairs to write at once. An empty value removes its key.
type MetadataWrite struct {
	Pairs   map[string]string
	Version InstanceID // when set, must be the Machine's
	// UpdatedAt is when the writer decided on the pairs. Zero, or a time in the future, means now. Of
	// two writes to a key the later decision wins, in either order of arrival.
	UpdatedAt time.Time
}

// MetadataTimes says when the pairs of a Machine were decided on, including removed ones.
type MetadataTimes struct {
	All  int64            `json:"all,omitempty"`  // of every key that is not in Keys; Unix milliseconds
	Keys map[string]int64 `json:"keys,omitempty"` // later than All
}

// maxMetadataTimes bounds the keys for which a time is kept. Beyond it, those of the keys that were
// removed longest ago are dropped.
const maxMetadataTimes = 2 * MaxMetadataKeys

// Set returns the pairs and their times, which were t, with one pair set at now.
func (t MetadataTimes) Set(pairs map[string]string, in MetadataPair, now time.Time) (map[string]string, MetadataTimes) {
	w := t.write(pairs, in.UpdatedAt, now)
	w.put(in.Key, in.Value, true)
	return w.done()
}

// Merge returns the pairs and their times, which were t, with some pairs written at now.
func (t MetadataTimes) Merge(pairs map[string]string, in MetadataWrite, now time.Time) (map[string]string, MetadataTimes) {
	w := t.write(pairs, in.UpdatedAt, now)
	for k, v := range in.Pairs {
		w.put(k, v, v != "")
	}
	return w.done()
}

// Replace returns the pairs and their times, which were t, with all pairs replaced at now.
func (t MetadataTimes) Replace(pairs map[string]string, in MetadataWrite, now time.Time) (map[string]string, MetadataTimes) {
	w := t.write(pairs, in.UpdatedAt, now)
	for k := range pairs {
		if in.Pairs[k] == "" {
			w.put(k, "", false)
		}
	}
	for k, v := range in.Pairs {
		w.put(k, v, v != "")
	}
	w.times.All = max(w.times.All, w.at)
	maps.DeleteFunc(w.times.Keys, func(_ string, at int64) bool { return at <= w.times.All })
	return w.done()
}

// metadataWriting is a write in progress: copies of the pairs and their times, and when the write was
// decided on.
type metadataWriting struct {
	pairs map[string]string
	times MetadataTimes
	at    int64
}

func (t MetadataTimes) write(pairs map[string]string, at, now time.Time) *metadataWriting {
	if at.IsZero() || at.After(now) {
		at = now
	}
	w := &metadataWriting{pairs: maps.Clone(pairs), times: MetadataTimes{All: t.All, Keys: maps.Clone(t.Keys)}, at: at.UnixMilli()}
	if w.pairs == nil {
		w.pairs = map[string]string{}
	}
	if w.times.Keys == nil {
		w.times.Keys = map[string]int64{}
	}
	return w
}

// put writes a key, or removes it, unless a later decision stands.
func (w *metadataWriting) put(key, value string, there bool) {
	if w.at < max(w.times.All, w.times.Keys[key]) {
		return
	}
	w.times.Keys[key] = w.at
	if there {
		w.pairs[key] = value
	} else {
		delete(w.pairs, key)
	}
}

func (w *metadataWriting) done() (map[string]string, MetadataTimes) {
	if excess := len(w.times.Keys) - maxMetadataTimes; excess > 0 {
		var removed []string
		for k := range w.times.Keys {
			if _, there := w.pairs[k]; !there {
				removed = append(removed, k)
			}
		}
		slices.SortFunc(removed, func(a, b string) int { return cmp.Compare(w.times.Keys[a], w.times.Keys[b]) })
		for _, k := range removed[:min(excess, len(removed))] {
			delete(w.times.Keys, k)
		}
	}
	return w.pairs, w.times
}
