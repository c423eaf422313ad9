package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/bench/harness"
)

// The steps of what is snapshotted.
const (
	stepFirst     = "first"
	stepRuns      = "1 % changed, in runs of 1 MB"
	stepScattered = "1 % changed, in runs of 64 KB"
	stepRestore   = "restore"
)

func steps() []string { return []string{stepFirst, stepRuns, stepScattered} }

// The names of stores.
const (
	storeHangar    = "hangar"
	storeEncrypted = "hangar, encrypted volume"
	storeCopy      = "cp"
)

// sample is one snapshot or restore.
type sample struct {
	took   time.Duration
	stored int64 // bytes on the disk of the store, and what is there to find them with
	told   int64 // bytes, as hangar says
}

// store keeps snapshots of one volume at a time.
type store struct {
	name string
	// begin makes it empty.
	begin func(ctx context.Context) error
	// save takes a snapshot of what is there now, and restore brings the last one back.
	save    func(ctx context.Context) (*hangar.Snapshot, error)
	restore func(ctx context.Context) error
	end     func(ctx context.Context) error
	holds   string // directory of what is stored
	samples map[string][]sample
}

// subject is a volume whose content is snapshotted.
type subject struct {
	*machine
	store *store // of the platform, for that volume
	last  *hangar.Snapshot
	back  hangar.VolumeRef // what was restored
}

// content is how much of a volume is used: nearly all.
func (b *bench) content() string { return fmt.Sprint(b.mb * 7 / 8) }

func (b *bench) newSubject(ctx context.Context, name string, encrypted bool) (*subject, error) {
	m, err := b.platform.machine(ctx, hangar.VolumeCreate{SizeGB: (b.mb + 1023) >> 10, Encrypted: &encrypted})
	if err != nil {
		return nil, err
	}
	if _, err := m.run(ctx, "write", onVolume, b.content()); err != nil {
		return nil, errors.Join(err, m.remove(context.WithoutCancel(ctx)))
	}
	s := &subject{machine: m}
	s.store = &store{
		name: name, holds: filepath.Join(b.platform.Dir(), "snapshots"),
		begin: func(context.Context) error { return nil },
		save: func(ctx context.Context) (_ *hangar.Snapshot, err error) {
			s.last, err = b.platform.snapshot(ctx, m.volume)
			return s.last, err
		},
		restore: func(ctx context.Context) (err error) {
			s.back, err = b.platform.volume(ctx, hangar.VolumeCreate{Snapshot: s.last.ID, Encrypted: &encrypted})
			return err
		},
		end: func(ctx context.Context) error {
			err := m.remove(ctx)
			if s.back.ID != "" {
				_, destroyed := b.platform.Client.DestroyVolume(ctx, s.back)
				err = errors.Join(err, destroyed)
			}
			return err
		},
	}
	return s, nil
}

// measureSnapshots takes a new volume through all steps in each round, of which every store
// takes a snapshot.
func (b *bench) measureSnapshots(ctx context.Context) ([]*store, error) {
	peers, err := b.peers(ctx)
	if err != nil {
		return nil, err
	}
	samples := map[string]map[string][]sample{}
	var names []string
	for round := range b.rounds {
		all, err := b.snapshotRound(ctx, round, peers)
		if err != nil {
			return nil, err
		}
		names = names[:0]
		for _, s := range all {
			names = append(names, s.name)
			if samples[s.name] == nil {
				samples[s.name] = map[string][]sample{}
			}
			for step, one := range s.samples {
				samples[s.name][step] = append(samples[s.name][step], one...)
			}
		}
		fmt.Fprintf(os.Stderr, "snapshots: round %d of %d\n", round+1, b.rounds)
	}
	stores := make([]*store, len(names))
	for i, name := range names {
		stores[i] = &store{name: name, samples: samples[name]}
	}
	return stores, nil
}

func (b *bench) snapshotRound(ctx context.Context, round int, peers []peer) (all []*store, err error) {
	plain, err := b.newSubject(ctx, storeHangar, false)
	if err != nil {
		return nil, err
	}
	all = append(all, plain.store)
	defer func() {
		for _, s := range all {
			err = errors.Join(err, s.end(context.WithoutCancel(ctx)))
		}
	}()
	encrypted, err := b.newSubject(ctx, storeEncrypted, true)
	if err != nil {
		return nil, err
	}
	all = append(all, encrypted.store)
	dir := filepath.Join(b.dir, "peers")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	for _, p := range peers {
		s := p(b.platform.imageOf(plain.volume), dir)
		if err := errors.Join(os.MkdirAll(s.holds, 0o700), s.begin(ctx)); err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		all = append(all, s)
	}
	for _, step := range steps() {
		for _, m := range []*machine{plain.machine, encrypted.machine} {
			kb := map[string]string{stepRuns: "1024", stepScattered: "64"}[step]
			if kb == "" {
				continue
			}
			if _, err := m.run(ctx, "change", onVolume, "1", kb); err != nil {
				return nil, err
			}
		}
		if err := each(ctx, all, round, step, func(s *store) (*hangar.Snapshot, error) { return s.save(ctx) }); err != nil {
			return nil, err
		}
	}
	return all, each(ctx, all, round, stepRestore, func(s *store) (*hangar.Snapshot, error) { return nil, s.restore(ctx) })
}

// each lets all stores do something, in an order that changes with the round, on a server
// that remembers nothing of the disk, until that is on the disk.
func each(ctx context.Context, all []*store, round int, step string, do func(*store) (*hangar.Snapshot, error)) error {
	for i := range all {
		s := all[(i+round)%len(all)]
		before, err := size(s.holds)
		if err == nil {
			err = errors.Join(flush(s.holds), dropCaches(ctx))
		}
		if err == nil {
			_, err = harness.Quiet(ctx)
		}
		if err != nil {
			return err
		}
		began := time.Now()
		snapshot, err := do(s)
		if err == nil {
			err = flush(s.holds)
		}
		if err != nil {
			return fmt.Errorf("%s, %s: %w", s.name, step, err)
		}
		one := sample{took: time.Since(began)}
		if snapshot != nil {
			one.told = snapshot.Size
		}
		after, err := size(s.holds)
		if err != nil {
			return err
		}
		one.stored = after - before
		if s.samples == nil {
			s.samples = map[string][]sample{}
		}
		s.samples[step] = append(s.samples[step], one)
	}
	return nil
}

// size is what all files below a directory take of the disk, in bytes.
func size(dir string) (total int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) { // removed meanwhile
			return nil
		}
		if err == nil {
			total += allocated(info)
		}
		return err
	})
	return total, err
}

// measureFreeze takes snapshots of a volume while a Machine writes to it.
func (b *bench) measureFreeze(ctx context.Context) (frozen freezes, err error) {
	s, err := b.newSubject(ctx, storeEncrypted, true)
	if err != nil {
		return frozen, err
	}
	defer func() { err = errors.Join(err, s.remove(context.WithoutCancel(ctx))) }()
	for n := range b.snapshots {
		written := make(chan error, 1)
		go func() {
			said, err := s.run(ctx, "random-write", onVolume, "2")
			if err == nil {
				var all []float64
				if all, err = numbers(said); err == nil {
					frozen.slowest = append(frozen.slowest, all[len(all)-1])
				}
			}
			written <- err
		}()
		time.Sleep(500 * time.Millisecond) // until it writes
		snapshot, err := b.platform.snapshot(ctx, s.volume)
		if err := errors.Join(err, <-written); err != nil {
			return frozen, err
		}
		frozen.waited = append(frozen.waited, snapshot.Frozen.Seconds())
		fmt.Fprintf(os.Stderr, "snapshot %d of %d: writers waited %s\n", n+1, b.snapshots, snapshot.Frozen)
	}
	return frozen, nil
}
