package machines

import (
	"context"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
)

// annotate commits a change of the record outside of the config. It does not wake the worker: a
// step in progress continues and adds its result to the changed record. m.mu is held.
func (m *machine) annotate(alter change) error {
	if state := m.rec.Load().Machine.State; state.Answers(hangar.VerbAnnotate) != hangar.Accept {
		return refusal(hangar.VerbAnnotate, state)
	}
	began := m.began
	_, err := m.commit(func(next *journal.Record) []hangar.Event {
		next.Machine.UpdatedAt = wholeSecond(m.store.o.Now())
		return alter(next)
	})
	m.began = began
	return err
}

// CordonMachine implements hangar.MachineOps.
func (s *Store) CordonMachine(ctx context.Context, ref hangar.MachineRef) error {
	return s.setCordon(ctx, ref, true)
}

// UncordonMachine implements hangar.MachineOps.
func (s *Store) UncordonMachine(ctx context.Context, ref hangar.MachineRef) error {
	err := s.setCordon(ctx, ref, false)
	if err == nil {
		s.awaitView(ctx, ref)
	}
	return err
}

// setCordon cordons or uncordons a Machine. During an update, this includes the version that it may
// return to.
func (s *Store) setCordon(ctx context.Context, ref hangar.MachineRef, cordoned bool) error {
	event := hangar.Event{Type: hangar.EventUncordon, Source: hangar.EventSourceFrom(ctx)}
	if cordoned {
		event.Type = hangar.EventCordon
	}
	return s.guarded(ctx, ref, func(m *machine) error {
		rec := m.rec.Load()
		previous := rec.Previous
		if previous != nil && previous.Cordoned != cordoned {
			before := *previous
			before.Cordoned = cordoned
			previous = &before
		}
		isSo := rec.Machine.Cordoned == cordoned
		if isSo && previous == rec.Previous && rec.Machine.State.Answers(hangar.VerbAnnotate) == hangar.Accept {
			return nil
		}
		return m.annotate(func(next *journal.Record) []hangar.Event {
			next.Machine.Cordoned, next.Previous = cordoned, previous
			if isSo {
				return nil
			}
			return []hangar.Event{event}
		})
	})
}

// SetMachineMetadata implements hangar.MachineTagger.
func (s *Store) SetMachineMetadata(ctx context.Context, ref hangar.MachineRef, in hangar.MetadataPair) error {
	return s.tag(ref, "", func(t hangar.MetadataTimes, pairs map[string]string, now time.Time) (map[string]string, hangar.MetadataTimes) {
		return t.Set(pairs, in, now)
	})
}

// RemoveMachineMetadata implements hangar.MachineTagger.
func (s *Store) RemoveMachineMetadata(ctx context.Context, ref hangar.MachineRef, key string) error {
	return s.MergeMachineMetadata(ctx, ref, hangar.MetadataWrite{Pairs: map[string]string{key: ""}})
}

// ReplaceMachineMetadata implements hangar.MachineTagger.
func (s *Store) ReplaceMachineMetadata(ctx context.Context, ref hangar.MachineRef, in hangar.MetadataWrite) error {
	return s.tag(ref, in.Version, func(t hangar.MetadataTimes, pairs map[string]string, now time.Time) (map[string]string, hangar.MetadataTimes) {
		return t.Replace(pairs, in, now)
	})
}

// MergeMachineMetadata implements hangar.MachineTagger.
func (s *Store) MergeMachineMetadata(ctx context.Context, ref hangar.MachineRef, in hangar.MetadataWrite) error {
	return s.tag(ref, in.Version, func(t hangar.MetadataTimes, pairs map[string]string, now time.Time) (map[string]string, hangar.MetadataTimes) {
		return t.Merge(pairs, in, now)
	})
}

// retag returns the new pairs, decided at t.
type retag func(t hangar.MetadataTimes, pairs map[string]string, now time.Time) (map[string]string, hangar.MetadataTimes)

// tag changes the metadata of a Machine. During an update, this includes the version that it may
// return to.
func (s *Store) tag(ref hangar.MachineRef, version hangar.InstanceID, write retag) error {
	m, err := s.machine(ref)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	rec := m.rec.Load()
	if version != "" && version != rec.Machine.InstanceID {
		return hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonStaleVersion,
			"machine_version is stale: %s, the machine is at %s", version, rec.Machine.InstanceID)
	}
	now := s.o.Now()
	pairs, times := write(rec.MetadataTimes, rec.Machine.Config.Metadata, now)
	if err := hangar.ValidateMetadata("metadata", pairs); err != nil {
		return err
	}
	previous := rec.Previous
	if previous != nil {
		tagged := *previous
		before, _ := write(rec.MetadataTimes, previous.Config.Metadata, now)
		tagged.Config.SetMetadata(before)
		previous = &tagged
	}
	return m.annotate(func(next *journal.Record) []hangar.Event {
		next.Machine.Config.SetMetadata(pairs)
		next.MetadataTimes = times
		next.Previous = previous
		return nil
	})
}
