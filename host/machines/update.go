package machines

import (
	"context"
	"errors"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/image"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/internal/diskspace"
)

// UpdateMachine implements hangar.MachineOps. The old version keeps running until
// the image of the new one is on the host.
func (s *Store) UpdateMachine(ctx context.Context, ref hangar.MachineRef, in hangar.MachineUpdate) (*hangar.Machine, error) {
	// A refused update need not wait for a registry. The second check is the one that counts.
	who := image.Puller{AnyRegistry: in.AnyRegistry}
	err := s.guarded(ctx, ref, func(m *machine) error {
		rec := m.rec.Load()
		who.Org, who.Slug = rec.OrgID, rec.Org
		if err := m.updatable(in); err != nil {
			return err
		}
		return s.o.Volumes.Keep(m.id, &rec.Machine.Config, &in.Config)
	})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(s.room.Fits(loadOfGuest(in.Config.Guest)), s.o.Space.Admit(diskspace.UpdateMachine, 0)); err != nil {
		return nil, err
	}
	img, err := resolve(ctx, s.o.Images, who, in.Config.ImageName())
	if err != nil {
		return nil, err
	}
	var updated *hangar.Machine
	err = s.guarded(ctx, ref, func(m *machine) (err error) {
		if err := m.updatable(in); err != nil {
			return err
		}
		if err := s.o.Volumes.Keep(m.id, &m.rec.Load().Machine.Config, &in.Config); err != nil {
			return err
		}
		updated, err = m.update(ctx, in, img)
		return err
	})
	return updated, err
}

// updatable refuses an update that changes immutable fields, names an outdated version, or comes in
// the wrong state. m.mu is held.
func (m *machine) updatable(in hangar.MachineUpdate) error {
	current := &m.rec.Load().Machine
	switch {
	case in.Name != "" && in.Name != current.Name:
		return hangar.Errorf(hangar.CodeInvalid, hangar.ReasonBadConfig, "invalid name: %q cannot be changed, the machine is called %q", in.Name, current.Name)
	case in.Region != "" && in.Region != current.Region:
		return hangar.Errorf(hangar.CodeInvalid, hangar.ReasonBadConfig, "invalid region: %q cannot be changed, the machine is in %q", in.Region, current.Region)
	case current.State.Answers(hangar.VerbUpdate) != hangar.Accept:
		return refusal(hangar.VerbUpdate, current.State)
	case in.CurrentVersion != "" && in.CurrentVersion != current.InstanceID:
		return hangar.Errorf(hangar.CodeConflict, hangar.ReasonStaleVersion,
			"machine version is stale: current_version is %s, the machine is at %s", in.CurrentVersion, current.InstanceID)
	default:
		return nil
	}
}

// update commits a new version, with the requested lease, and returns the Machine as of that
// commit, because another change may happen before a second read. m.mu is held.
func (m *machine) update(ctx context.Context, in hangar.MachineUpdate, img hangar.ImageRef) (*hangar.Machine, error) {
	lease := m.lease
	if in.LeaseTTL > 0 {
		var err error
		if lease, err = m.lease.Acquire(ctx, m.id, hangar.LeaseAcquire{TTL: in.LeaseTTL}, m.store.o.Now()); err != nil {
			return nil, err
		}
	}
	version := hangar.NewInstanceID(m.store.o.Now())
	alter := func(next *journal.Record) []hangar.Event {
		state := next.Machine.State
		if state == hangar.MachineRestarting {
			state = hangar.MachineStarted
		}
		next.Previous = &journal.Previous{
			Config: next.Machine.Config, InstanceID: next.Machine.InstanceID, ImageRef: next.Machine.ImageRef, State: state,
			Cordoned: next.Machine.Cordoned, SecretsVersion: next.Machine.SecretsVersion, AnyRegistry: next.AnyRegistry,
		}
		next.AnyRegistry = in.AnyRegistry
		next.Machine.State = hangar.MachineReplacing
		next.Machine.Config = in.Config
		next.Machine.InstanceID = version
		next.Machine.SecretsVersion = in.Secrets.Version
		next.Machine.ImageRef = img
		next.MetadataTimes = hangar.MetadataTimes{All: m.store.o.Now().UnixMilli()}
		next.SkipLaunch = in.SkipLaunch || in.Config.StandsBy()
		next.Restarts = nil
		next.Machine.Cordoned = next.Machine.Cordoned || in.SkipServiceRegistration
		return []hangar.Event{{Type: hangar.EventUpdate, Source: hangar.EventSourceFrom(ctx)}}
	}
	var rec *journal.Record
	err := m.store.secrets.sealing(m.id, version, in.Secrets, func(secrets *journal.SealedSecrets) (err error) {
		rec, err = m.commitWith(lease, secrets, alter)
		return err
	})
	if err != nil {
		return nil, err
	}
	m.wake()
	updated := m.shown(rec)
	if in.LeaseTTL > 0 {
		updated.Nonce = lease.Nonce
	}
	updated.Events, err = m.newestLocked()
	return &updated, err
}
