package machines

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/admission"
	"github.com/hangar-platform/hangar/host/image"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/host/network"
	"github.com/hangar-platform/hangar/internal/diskspace"
	"github.com/hangar-platform/hangar/internal/flight"
)

// resolveTimeout bounds how long a request waits for a registry to resolve an image. If that is too
// short, the preparation of the Machine reports the failure.
const resolveTimeout = 10 * time.Second

// CreateMachine implements hangar.Agent. Repeated with a known id, it returns the Machine as it
// is.
func (s *Store) CreateMachine(ctx context.Context, spec hangar.MachineSpec) (*hangar.Machine, error) {
	m, err := flight.Do(ctx, &s.creates, string(spec.ID), func() (*machine, error) { return s.create(ctx, spec) })
	if err != nil {
		return nil, err
	}
	got, err := s.Machine(ctx, m.rec.Load().Machine.Ref())
	if err != nil {
		return nil, err
	}
	if spec.LeaseTTL > 0 {
		got.Nonce = m.nonce()
	}
	return got, nil
}

func (s *Store) create(ctx context.Context, spec hangar.MachineSpec) (*machine, error) {
	if known, err := s.machine(hangar.MachineRef{App: spec.App, AppID: spec.AppID, ID: spec.ID}); err == nil {
		return known, nil
	}
	if err := errors.Join(s.room.Fits(loadOfGuest(spec.Config.Guest)), s.o.Space.Admit(diskspace.CreateMachine, 0)); err != nil {
		return nil, err
	}
	ref, err := resolve(ctx, s.o.Images, image.Puller{Org: spec.OrgID, Slug: spec.Org, AnyRegistry: spec.AnyRegistry}, spec.Config.ImageName())
	if err != nil {
		return nil, err
	}
	for _, m := range spec.Config.Mounts {
		s.o.Volumes.AwaitRelease(ctx, hangar.VolumeRef{App: spec.App, AppID: spec.AppID, ID: hangar.VolumeID(m.Volume)})
	}
	claims, err := s.o.Volumes.Claim(&spec)
	if err != nil {
		return nil, err
	}
	unlock := sync.OnceFunc(claims.Done)
	defer unlock()
	now := s.o.Now()
	rec := s.newRecord(&spec, ref, now)
	if err := s.o.Journal.Pool().Seal(&rec.Machine.Config); err != nil {
		return nil, notRecorded(spec.ID, err)
	}
	launched := []hangar.Event{{Type: hangar.EventLaunch, Source: hangar.EventSourceFrom(ctx)}}
	stamp(launched, rec.Machine.State, now)
	var lease *hangar.Lease
	if spec.LeaseTTL > 0 {
		lease, err = lease.Acquire(ctx, spec.ID, hangar.LeaseAcquire{TTL: spec.LeaseTTL}, now)
		if err != nil {
			return nil, err
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err // the caller, who is gone, takes the Machine for one that will never be
	}
	if _, err := s.room.Admit(spec.ID, loadOf(rec)); err != nil {
		return nil, err
	}
	if err := s.commitNew(rec, &spec, lease, launched, claims); err != nil {
		s.room.Set(spec.ID, admission.Load{})
		return nil, notRecorded(spec.ID, err)
	}
	claims.Settle()
	// Unlocked before others can find the Machine: its lock is taken before those of volumes.
	unlock()
	m := s.newMachine(rec, lease, true)
	m.recent.Store(&launched)
	s.add(m)
	if rec.Machine.Config.Schedule != "" {
		s.schedules.look()
	}
	m.mu.Lock()
	m.wake()
	m.mu.Unlock()
	return m, nil
}

// newRecord returns the first record of a Machine, whose number and private address commitNew sets.
func (s *Store) newRecord(spec *hangar.MachineSpec, ref hangar.ImageRef, now time.Time) *journal.Record {
	return &journal.Record{
		Org: spec.Org, OrgID: spec.OrgID, AnyRegistry: spec.AnyRegistry, Network: spec.Network, SkipLaunch: spec.SkipLaunch || spec.Config.StandsBy(), FreshVersion: true,
		Since: now, Scheduled: wholeSecond(now),
		Machine: hangar.Machine{
			ID: spec.ID, Name: spec.Name, App: spec.App, AppID: spec.AppID, State: hangar.MachineCreated, Region: spec.Region,
			Host: s.o.Host.ID, InstanceID: hangar.NewInstanceID(now), ImageRef: ref, Config: spec.Config,
			CreatedAt: wholeSecond(now), UpdatedAt: wholeSecond(now), Cordoned: spec.Cordoned, HostStatus: "ok",
			SecretsVersion: spec.Secrets.Version,
		},
	}
}

// commitNew journals a new Machine with its version, secrets, lease, first events and volumes.
func (s *Store) commitNew(rec *journal.Record, spec *hangar.MachineSpec, lease *hangar.Lease, events []hangar.Event, claims Claims) error {
	version := hangar.MachineVersion{Version: rec.Machine.InstanceID, Config: rec.Machine.Config}
	return s.secrets.sealing(spec.ID, version.Version, spec.Secrets, func(secrets *journal.SealedSecrets) error {
		return s.o.Journal.Commit(func(tx *journal.Tx) error {
			number, err := tx.NextNumber()
			if err != nil {
				return err
			}
			rec.Number = number
			rec.Machine.PrivateIP = network.Address(spec.Network, s.o.Host.ID, number)
			return errors.Join(tx.PutMachine(rec), tx.PutVersion(spec.ID, version), putSecrets(tx, secrets), tx.PutLease(spec.ID, lease),
				tx.AppendEvents(rec, events), claims.Put(tx))
		})
	})
}

// resolve resolves the image of a config. An unreachable registry is not an error here: the host
// may hold the image.
func resolve(ctx context.Context, images Images, who image.Puller, ref string) (hangar.ImageRef, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	resolved, err := images.Resolve(ctx, who, ref)
	switch code := hangar.CodeOf(err); {
	case err == nil, code == hangar.CodeUnavailable, code == hangar.CodeTimeout:
		return resolved, nil
	default:
		return hangar.ImageRef{}, err
	}
}

// prepareDeadline bounds the pull of an image.
const prepareDeadline = 30 * time.Minute

// prepare pulls the image of a created Machine, which then boots, or stays at rest with SkipLaunch.
func (w *worker) prepare(ctx context.Context, rec *journal.Record) error {
	if err := w.makeDirs(); err != nil {
		return err
	}
	img, err := w.pull(ctx, rec)
	if ctx.Err() != nil {
		return errOvertaken
	}
	if err != nil {
		w.note("error", "Failed to prepare image %s: %v", rec.Machine.Config.ImageName(), err)
		return w.advance(rec, func(next *journal.Record) []hangar.Event {
			next.Machine.State = hangar.MachineFailed
			return []hangar.Event{failure(hangar.EventLaunch, err)}
		})
	}
	return w.advance(rec, func(next *journal.Record) []hangar.Event {
		next.Prepared = true
		next.Machine.ImageRef = img.Ref
		if next.SkipLaunch {
			next.Machine.State = hangar.MachineStopped
			return []hangar.Event{{Type: hangar.EventLaunch, Source: hangar.SourceAgent}}
		}
		next.Machine.State = hangar.MachineStarting
		return []hangar.Event{{Type: hangar.EventStart, Source: hangar.SourceAgent}}
	})
}

// makeDirs makes the directories of the Machine.
func (w *worker) makeDirs() error {
	for _, dir := range []string{"", sandboxDir} {
		if err := os.MkdirAll(w.path(dir), 0o711); err != nil { //nolint:gosec // the Machine's user must be able to traverse it
			return err
		}
	}
	return nil
}

// failure is an event with the reason of a failure.
func failure(typ hangar.EventType, err error) hangar.Event {
	return hangar.Event{Type: typ, Source: hangar.SourceAgent, Request: &hangar.EventRequest{Error: hangar.MessageOf(err)}}
}

// pull returns the image of the record's current version. Once a version has its image, that is
// used as long as the host holds it.
func (w *worker) pull(ctx context.Context, rec *journal.Record) (*image.Image, error) {
	ref := rec.Machine.Config.ImageName()
	if digest := rec.Machine.ImageRef.Digest; digest != "" {
		if rec.Prepared && rec.Previous == nil {
			if img, err := w.store.o.Images.Get(digest); err == nil {
				found := *img
				found.Ref = rec.Machine.ImageRef
				return &found, nil
			}
		}
		ref = rec.Machine.ImageRef.String()
	}
	ctx, cancel := context.WithTimeout(ctx, prepareDeadline)
	defer cancel()
	w.note("info", "Pulling container image %s", ref)
	began := w.store.o.Now()
	img, err := w.store.o.Images.Pull(ctx, image.Puller{Org: rec.OrgID, Slug: rec.Org, AnyRegistry: rec.AnyRegistry}, ref, func(p hangar.PullProgress) { w.watchers.report(&p) })
	w.watchers.report(nil)
	if err != nil {
		return nil, err
	}
	w.note("info", "Successfully prepared image %s (%s)", ref, w.store.o.Now().Sub(began).Round(time.Millisecond))
	return img, nil
}
