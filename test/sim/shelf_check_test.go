package sim

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/test/blocks/blockstest"
	"github.com/hangar-platform/hangar/test/daemon"
)

// settle waits until nothing is under way, and learns what came of what had no answer.
func (s *shelf) settle() {
	s.Helper()
	var waits string
	for deadline := time.Now().Add(settleWithin); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if waits = s.underWayStill(); waits == "" {
			s.learnMachines()
			return
		}
	}
	s.Fatalf("still under way after %s: %s", settleWithin, waits)
}

// underWayStill says what is not in a state that stays; empty: nothing.
func (s *shelf) underWayStill() string {
	s.Helper()
	volumes, err := s.c.Volumes(s.Context(), app)
	if err != nil {
		s.Fatal(err)
	}
	machines, err := s.c.Machines(s.Context(), app, hangar.MachineFilter{})
	if err != nil {
		s.Fatal(err)
	}
	for _, m := range machines {
		switch m.State {
		case hangar.MachineStarted, hangar.MachineStopped, hangar.MachineSuspended, hangar.MachineFailed, hangar.MachineDestroyed:
		default:
			return fmt.Sprintf("machine %s is %s", m.ID, m.State)
		}
	}
	listed := make(map[hangar.VolumeID]bool)
	for _, v := range volumes {
		listed[v.ID] = true
		if !v.State.Gone() && v.State != hangar.VolumeCreated && v.State != hangar.VolumeFailed {
			return fmt.Sprintf("volume %s is %s", v.ID, v.State)
		}
		snapshots, err := s.c.Snapshots(s.Context(), v.Ref())
		if err != nil {
			s.Fatal(err)
		}
		for _, one := range snapshots {
			if one.State == hangar.SnapshotWaiting || one.State == hangar.SnapshotRunning {
				return fmt.Sprintf("snapshot %s of volume %s is %s", one.ID, v.ID, one.State)
			}
		}
		s.learn(v, snapshots)
	}
	for _, v := range s.all() {
		if !listed[v.ref.ID] && !v.gone {
			s.Fatalf("volume %s was acknowledged and is lost", v.ref.ID)
		}
	}
	return ""
}

// learn compares a volume at rest with what is known of it.
func (s *shelf) learn(now *hangar.Volume, snapshots []*hangar.Snapshot) {
	s.Helper()
	s.mu.Lock()
	v := s.volumes[now.ID]
	if v == nil { // whose creation had no answer
		v = &kept{ref: now.Ref(), sizeGB: now.SizeGB, promised: make(map[hangar.SnapshotID][]uint64)}
		s.volumes[now.ID] = v
	}
	s.mu.Unlock()
	switch {
	case now.State.Gone() && !v.gone && !v.mayGo:
		s.Errorf("volume %s is %s, which was not requested", now.ID, now.State)
	case now.State == hangar.VolumeFailed && v.source != nil && v.source.doomed: // before it could be copied
	case now.State == hangar.VolumeFailed && v.cut: // and undeleted
	case now.State == hangar.VolumeFailed && !v.gone:
		s.Errorf("volume %s failed: %s", now.ID, s.history(now.Ref()))
	case !now.State.Gone() && now.SizeGB < v.sizeGB:
		s.Errorf("volume %s has %d GB, and was extended to %d", now.ID, now.SizeGB, v.sizeGB)
	}
	v.partial, v.cut = false, false
	v.gone, v.mayGo = now.State.Gone() || now.State == hangar.VolumeFailed, false
	if !v.gone {
		v.sizeGB = now.SizeGB
	}
	for id := range v.promised {
		at := slices.IndexFunc(snapshots, func(one *hangar.Snapshot) bool { return one.ID == id })
		switch {
		case at < 0:
			s.Errorf("snapshot %s of volume %s was acknowledged and is lost", id, now.ID)
		case snapshots[at].State == hangar.SnapshotFailed:
			delete(v.promised, id)
			if snapshots[at].Fault == "" {
				s.Errorf("snapshot %s failed and does not say why", id)
			}
		case !strings.HasPrefix(snapshots[at].Digest, "sha256:") || snapshots[at].Size <= 0 && snapshots[at].VolumeSize <= 0:
			s.Errorf("snapshot %s is complete: %+v", id, snapshots[at])
		}
	}
}

func (s *shelf) history(ref hangar.VolumeRef) string {
	events, err := s.c.VolumeEvents(s.Context(), ref)
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	for _, e := range slices.Backward(events) {
		fmt.Fprintf(&b, "%s %s %s; ", e.Type, e.Text, e.Fault)
	}
	return b.String()
}

// learnMachines finds the Machine of each volume, of which there is one at most.
func (s *shelf) learnMachines() {
	s.Helper()
	machines, err := s.c.Machines(s.Context(), app, hangar.MachineFilter{})
	if err != nil {
		s.Fatal(err)
	}
	has := make(map[hangar.VolumeID]*hangar.Machine)
	for _, m := range machines {
		if m.State == hangar.MachineDestroyed || len(m.Config.Mounts) == 0 {
			continue
		}
		id := hangar.VolumeID(m.Config.Mounts[0].Volume)
		if other := has[id]; other != nil {
			s.Errorf("volume %s is attached to the Machines %s and %s", id, other.ID, m.ID)
		}
		has[id] = m
	}
	for _, v := range s.all() {
		m := has[v.ref.ID]
		switch {
		case m == nil && v.machine != nil && !v.unsure:
			s.Errorf("volume %s has lost its Machine %s", v.ref.ID, v.machine.ID)
		case m != nil && v.machine == nil && !v.unsure:
			s.Errorf("volume %s has got a Machine %s", v.ref.ID, m.ID)
		}
		s.note(v)
		if v.unsure = false; m == nil {
			v.machine, v.writer = nil, nil
		} else if v.machine == nil {
			s.use(v, m)
		}
		if v.gone {
			continue
		}
		now, err := s.c.Volume(s.Context(), v.ref)
		if err != nil {
			s.Fatal(err)
		}
		want := hangar.MachineID("")
		if m != nil {
			want = m.ID
		}
		if now.AttachedMachine != want {
			s.Errorf("volume %s says that it is attached to %q, and it is to %q", v.ref.ID, now.AttachedMachine, want)
		}
	}
}

// check lets every program look for what it acknowledged, and compares what is open on the
// host with what runs.
func (s *shelf) check() {
	s.Helper()
	for _, v := range s.all() {
		if v.machine == nil || s.Failed() {
			continue
		}
		s.verify(v)
	}
	var complaints []string
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if complaints = s.complaints(); len(complaints) == 0 {
			return
		}
	}
	for _, c := range complaints {
		s.Error(c)
	}
}

// verify starts the Machine of a volume and lets its program check everything. A Machine
// whose volume was lost may end while it is asked.
func (s *shelf) verify(v *kept) {
	s.Helper()
	acked := s.note(v)
	var err error
	for range 3 {
		var found blockstest.State
		if found, err = s.found(v); err != nil {
			continue
		}
		if lost := found.Lost(acked); lost != "" {
			s.Errorf("volume %s, of %v acknowledged: %s; %s", v.ref.ID, acked, lost, s.history(v.ref))
		}
		return
	}
	s.Errorf("volume %s: %v; %s", v.ref.ID, err, s.history(v.ref))
}

// found is what the program of a volume finds on it.
func (s *shelf) found(v *kept) (blockstest.State, error) {
	ctx, cancel := context.WithTimeout(s.Context(), settleWithin)
	defer cancel()
	state, err := s.c.WaitMachine(ctx, *v.machine, hangar.MachineWait{States: []hangar.MachineState{hangar.WaitSettled}, Timeout: time.Minute})
	if err == nil && state.State != hangar.MachineStarted {
		if _, err = s.c.StartMachine(ctx, *v.machine); err == nil {
			_, err = s.c.WaitMachine(ctx, *v.machine, hangar.MachineWait{})
		}
	}
	if err != nil {
		return blockstest.State{}, fmt.Errorf("its Machine does not start: %w", err)
	}
	if found, err := v.writer.Ready(ctx); err != nil {
		return found, err
	}
	return v.writer.Check(ctx)
}

// complaints compares the host with the records. Released resources may take a moment longer.
func (s *shelf) complaints() (list []string) {
	s.Helper()
	running := make(map[hangar.VolumeID]bool)
	known := make(map[hangar.VolumeID]bool)
	for _, v := range s.all() {
		known[v.ref.ID] = true
		running[v.ref.ID] = v.machine != nil
	}
	open, err := daemon.StorageDaemons(s.d.Dir())
	if err != nil {
		s.Fatal(err)
	}
	for id, pids := range open {
		if !running[id] {
			list = append(list, fmt.Sprintf("volume %s is at rest and has the processes %v", id, pids))
		}
	}
	for _, v := range s.all() {
		mounts, loops, daemons := mentions("/proc/self/mounts", v.ref.ID), loops(v.ref.ID), len(open[v.ref.ID])
		if loops > 1 || daemons > 1 {
			list = append(list, fmt.Sprintf("volume %s is open more than once: %d loop devices, %d processes", v.ref.ID, loops, daemons))
		}
		if !running[v.ref.ID] && (len(mounts) > 0 || loops > 0) {
			list = append(list, fmt.Sprintf("volume %s is at rest and has %d loop devices and the mounts %q", v.ref.ID, loops, mounts))
		}
	}
	dirs, err := os.ReadDir(filepath.Join(s.d.Dir(), "volumes"))
	if err != nil {
		return append(list, err.Error())
	}
	for _, dir := range dirs {
		if id := hangar.VolumeID(dir.Name()); id.Valid() && !known[id] {
			list = append(list, fmt.Sprintf("volume %s has a directory and no record", id))
		}
	}
	return list
}

// mentions returns the lines of a file that name a volume.
func mentions(file string, id hangar.VolumeID) (found []string) {
	b, err := os.ReadFile(file)
	if err != nil {
		return []string{err.Error()}
	}
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, string(id)) {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found
}

// loops counts the loop devices of a volume.
func loops(id hangar.VolumeID) (n int) {
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file") // the pattern is good
	for _, file := range files {
		n += len(mentions(file, id)) // gone again: it is none
	}
	return n
}

// restore makes a volume of a snapshot, whose program must find what the snapshot promises,
// and lets the platform try another one.
func (s *shelf) restore() {
	s.Helper()
	all := s.all()
	s.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, from := range all {
		id, acked := s.complete(s.Context(), from, s.rng)
		if id == "" {
			continue
		}
		v := s.make(s.Context(), hangar.VolumeCreate{Name: "checked", Snapshot: id}, acked)
		if v == nil {
			s.Errorf("snapshot %s of volume %s cannot be restored: %v; %s", id, from.ref.ID, s.refused["restore"], s.history(from.ref))
			return
		}
		s.settle()
		s.attach(s.Context(), v)
		if v.machine == nil {
			s.Errorf("what was restored of snapshot %s cannot be attached: %v; %s", id, s.refused["attach"], s.history(v.ref))
			return
		}
		s.verify(v)
		s.detach(s.Context(), v)
		s.settle()
		v.mayGo = true
		if _, err := s.c.DestroyVolume(s.Context(), v.ref); err != nil {
			s.Errorf("destroy what was restored: %v", err)
		}
		s.restored++
		break
	}
	if s.restored > 0 && s.rng.IntN(4) == 0 {
		s.drill()
	}
}

// purge removes some destroyed volumes for good, so that long runs have room for others.
func (s *shelf) purge() {
	s.Helper()
	for _, v := range s.all() {
		if !v.gone || v.purged || s.rng.IntN(4) > 0 {
			continue
		}
		switch _, err := s.c.PurgeVolume(s.Context(), hangar.OrgPersonal, v.ref.ID); hangar.CodeOf(err) {
		case "":
			v.purged = true
			clear(v.promised)
			s.ever--
		case hangar.CodeFailedPrecondition: // it failed and was never destroyed, or is being read
		default:
			s.Errorf("purge volume %s: %v", v.ref.ID, err)
		}
	}
}

// drill lets the platform check a snapshot.
func (s *shelf) drill() {
	s.Helper()
	begun, err := s.c.DrillVolumes(s.Context(), app)
	if hangar.CodeOf(err) == hangar.CodeFailedPrecondition { // none is left, or one is under way
		return
	}
	if err != nil {
		s.Errorf("drill: %v", err)
		return
	}
	ctx, cancel := context.WithTimeout(s.Context(), settleWithin)
	defer cancel()
	for at := begun; ; time.Sleep(20 * time.Millisecond) {
		if !at.FinishedAt.IsZero() {
			if !at.Passed {
				s.Errorf("the drill of snapshot %s failed: %s", at.Snapshot, at.Fault)
			}
			return
		}
		if at, err = s.c.VolumeDrill(ctx, app); err != nil {
			s.Errorf("drill: %v", err)
			return
		}
	}
}

// checkRows compares the journal of the host with the cluster state, once the daemon has ended:
// they agree, except for rows that wait to be published.
func (s *shelf) checkRows() {
	s.Helper()
	log := slog.New(slog.DiscardHandler)
	records, err := journal.Open(filepath.Join(s.d.Dir(), "journal.db"), journal.Options{})
	if err != nil {
		s.Fatal(err)
	}
	defer records.Close()
	store, err := state.OpenEtcd(s.Context(), state.EtcdConfig{Dir: filepath.Join(s.d.Dir(), "state"), Log: log})
	if err != nil {
		s.Fatal(err)
	}
	defer store.Close()
	pending, err := records.UnpublishedVolumes(0)
	if err != nil {
		s.Fatal(err)
	}
	var published map[hangar.VolumeRef]uint64
	err = records.Volumes(func(rec *journal.VolumeRecord) (err error) {
		if published == nil {
			if published, err = control.NewRows(store, log).PublishedVolumes(s.Context(), rec.Volume.Host); err != nil {
				return err
			}
		}
		ref := rec.Volume.Ref()
		waits := slices.ContainsFunc(pending, func(p journal.PendingVolume) bool { return p.Ref == ref })
		if seq, ok := published[ref]; !waits && (!ok || seq != rec.Seq) {
			s.Errorf("volume %s is at %d in the journal and at %d in the cluster state", ref.ID, rec.Seq, seq)
		}
		delete(published, ref)
		return nil
	})
	if err != nil {
		s.Fatal(err)
	}
	for ref := range published {
		s.Errorf("volume %s has a row and no record", ref.ID)
	}
}
