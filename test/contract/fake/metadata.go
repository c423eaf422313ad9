package fake

import (
	"context"
	"maps"
	"time"

	"github.com/hangar-platform/hangar"
)

// MachineMetadata implements hangar.MachineTagger.
func (s *Service) MachineMetadata(ctx context.Context, ref hangar.MachineRef) (map[string]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	return maps.Clone(m.Config.Metadata), nil
}

// SetMachineMetadata implements hangar.MachineTagger.
func (s *Service) SetMachineMetadata(ctx context.Context, ref hangar.MachineRef, in hangar.MetadataPair) error {
	return s.tag(ctx, ref, "", func(m *machine, now time.Time) (map[string]string, hangar.MetadataTimes) {
		return m.tagged.Set(m.Config.Metadata, in, now)
	})
}

// RemoveMachineMetadata implements hangar.MachineTagger.
func (s *Service) RemoveMachineMetadata(ctx context.Context, ref hangar.MachineRef, key string) error {
	return s.MergeMachineMetadata(ctx, ref, hangar.MetadataWrite{Pairs: map[string]string{key: ""}})
}

// ReplaceMachineMetadata implements hangar.MachineTagger.
func (s *Service) ReplaceMachineMetadata(ctx context.Context, ref hangar.MachineRef, in hangar.MetadataWrite) error {
	return s.tag(ctx, ref, in.Version, func(m *machine, now time.Time) (map[string]string, hangar.MetadataTimes) {
		return m.tagged.Replace(m.Config.Metadata, in, now)
	})
}

// MergeMachineMetadata implements hangar.MachineTagger.
func (s *Service) MergeMachineMetadata(ctx context.Context, ref hangar.MachineRef, in hangar.MetadataWrite) error {
	return s.tag(ctx, ref, in.Version, func(m *machine, now time.Time) (map[string]string, hangar.MetadataTimes) {
		return m.tagged.Merge(m.Config.Metadata, in, now)
	})
}

func (s *Service) tag(
	ctx context.Context, ref hangar.MachineRef, version hangar.InstanceID,
	write func(m *machine, now time.Time) (map[string]string, hangar.MetadataTimes),
) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, _, err := s.ask(ctx, ref, hangar.VerbAnnotate)
	if err != nil {
		return err
	}
	if version != "" && version != m.InstanceID {
		return hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonStaleVersion, "machine_version %s is stale, machine has %s", version, m.InstanceID)
	}
	pairs, times := write(m, s.now())
	if err := hangar.ValidateMetadata("metadata", pairs); err != nil {
		return err
	}
	m.Config.SetMetadata(pairs)
	m.tagged = times
	m.UpdatedAt = s.now().UTC().Truncate(time.Second)
	return nil
}

// CordonMachine implements hangar.MachineOps.
func (s *Service) CordonMachine(ctx context.Context, ref hangar.MachineRef) error {
	return s.setCordon(ctx, ref, true, hangar.EventCordon)
}

// UncordonMachine implements hangar.MachineOps.
func (s *Service) UncordonMachine(ctx context.Context, ref hangar.MachineRef) error {
	return s.setCordon(ctx, ref, false, hangar.EventUncordon)
}

func (s *Service) setCordon(ctx context.Context, ref hangar.MachineRef, cordoned bool, t hangar.EventType) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, _, err := s.order(ctx, ref, hangar.VerbAnnotate)
	if err != nil || m.Cordoned == cordoned {
		return err
	}
	m.Cordoned = cordoned
	s.record(m, t, string(m.State), hangar.SourceUser, nil)
	return nil
}
