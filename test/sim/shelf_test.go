package sim

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/test/blocks/blockstest"
	"github.com/hangar-platform/hangar/test/daemon"
)

const (
	volumesMost  = 4   // that are in use at once
	volumesEver  = 300 // that are made and not purged, because each keeps its image for a day
	volumeUsers  = 3
	volumeGBMost = 8
	settleWithin = 4 * time.Minute // on a server that is busy with other things
)

// What is killed, as SIM_KILL names it.
const (
	killedDaemon  = "daemon"
	killedSandbox = "sandbox"
	killedStorage = "storage"
)

// TestVolumesUnderKills plays users of volumes while programs write to them, and kills the daemon,
// the process behind a volume or a sandbox in the middle of that. Writes that were acknowledged as
// durable must be there in the end, on the volumes and in every snapshot that is complete; nothing
// may be open twice, and nothing without need. SIM_TIME bounds it, and SIM_KILL says what is killed
// wherever there is one, and not one of the three by chance.
func TestVolumesUnderKills(t *testing.T) {
	if only := os.Getenv("SIM_DRIVER"); only != "" && only != "gvisor" {
		t.Skip("programs write only where they really run")
	}
	seed := fromEnv(t, "SIM_SEED", uint64(time.Now().UnixNano())>>1)
	lasts, err := time.ParseDuration(cmpOr(os.Getenv("SIM_TIME"), "25s"))
	if err != nil {
		t.Fatalf("SIM_TIME: %v", err)
	}
	only := os.Getenv("SIM_KILL")
	if !slices.Contains([]string{"", killedDaemon, killedSandbox, killedStorage}, only) {
		t.Fatalf("SIM_KILL: there is no %s to kill", only)
	}
	t.Logf("SIM_SEED=%d SIM_TIME=%s SIM_KILL=%s", seed, lasts, only)
	// Destroyed volumes are kept for a day, and count.
	d := daemon.Start(t, daemon.Options{Args: []string{"--volume-overcommit", "100"}})
	s := &shelf{
		T: t, d: d, c: d.Client(), rng: rand.New(rand.NewPCG(seed, 2)), volumes: make(map[hangar.VolumeID]*kept),
		only: only, done: make(map[string]int), caught: make(map[string]int), kills: make(map[string]int), refused: make(map[string]error),
	}
	if _, err := s.c.CreateApp(t.Context(), hangar.AppCreate{Name: app, Org: hangar.OrgPersonal}); err != nil {
		t.Fatal(err)
	}
	s.image = d.Push(blockstest.Build(t), "blocks:1")
	for range 2 {
		s.create(t.Context(), hangar.VolumeCreate{Name: "data", SizeGB: 1}, nil)
	}
	s.settle()
	for _, v := range s.all() {
		s.attach(t.Context(), v)
	}
	rounds := 0
	for began := time.Now(); time.Since(began) < lasts && !t.Failed(); rounds++ {
		s.round(rounds)
	}
	t.Logf("%d rounds; killed: %v; under way at a kill: %v; acknowledged: %v; %d snapshots restored and right", rounds, s.kills, s.caught, s.done, s.restored)
	if t.Failed() {
		t.Logf("run again with SIM_SEED=%d SIM_TIME=%s SIM_KILL=%s", seed, lasts, only)
		return
	}
	d.Term()
	s.checkRows()
}

func cmpOr(value, otherwise string) string {
	if value == "" {
		return otherwise
	}
	return value
}

// kept is what is known of a volume.
type kept struct {
	ref     hangar.VolumeRef
	busy    bool
	gone    bool               // destroyed
	purged  bool               // and removed before its day was over
	mayGo   bool               // its destruction was asked for
	source  *kept              // that it is a fork of; nil: none
	partial bool               // it was made of something, and not seen complete since
	cut     bool               // its destruction was asked for while it may have been partial
	doomed  bool               // its destruction was asked for once, and it may be back
	machine *hangar.MachineRef // that has it; nil: none
	unsure  bool               // a verb for its Machine had no answer
	writer  *blockstest.Writer // of machine
	writing bool
	acked   []uint64 // at least this is on it
	sizeGB  int      // at least
	// promised is what each snapshot that was acknowledged has at least.
	promised map[hangar.SnapshotID][]uint64
}

// shelf is what the users believe of the volumes.
type shelf struct {
	*testing.T
	d     *daemon.Daemon
	c     *client.Client
	rng   *rand.Rand // of the coordinating goroutine
	image string
	only  string // what is killed; empty: any of the three

	mu       sync.Mutex
	volumes  map[hangar.VolumeID]*kept
	ever     int
	underWay []string
	done     map[string]int // verbs that were acknowledged
	caught   map[string]int // verbs that were under way when something was killed
	kills    map[string]int
	refused  map[string]error // the last one of each verb
	restored int
}

func (s *shelf) all() []*kept {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.volumes), func(a, b *kept) int { return strings.Compare(string(a.ref.ID), string(b.ref.ID)) })
}

// round lets users act, kills something in the middle of it, and checks.
func (s *shelf) round(n int) {
	s.Helper()
	ctx, stop := context.WithCancel(s.Context())
	defer stop()
	var group sync.WaitGroup
	for _, v := range s.all() {
		s.write(ctx, &group, v)
	}
	for range volumeUsers {
		rng := rand.New(rand.NewPCG(s.rng.Uint64(), s.rng.Uint64()))
		group.Go(func() {
			for ctx.Err() == nil {
				s.act(ctx, &group, rng)
			}
		})
	}
	life := 100*time.Millisecond + time.Duration(s.rng.Int64N(int64(2500*time.Millisecond)))
	time.Sleep(life)
	s.mu.Lock()
	for _, verb := range s.underWay {
		s.caught[verb]++
	}
	s.mu.Unlock()
	what := s.kill()
	s.kills[what]++
	if what != killedDaemon {
		time.Sleep(time.Duration(s.rng.Int64N(int64(500 * time.Millisecond))))
	}
	stop()
	group.Wait()
	if what == killedDaemon {
		for s.rng.IntN(3) == 0 {
			s.d.UpAndKill(time.Duration(s.rng.Int64N(int64(700 * time.Millisecond))))
		}
		s.d.Up()
	}
	began := time.Now()
	s.settle()
	s.check()
	if s.rng.IntN(3) == 0 && !s.Failed() {
		s.restore()
	}
	s.purge()
	s.Logf("round %d: %s killed after %s, right after %s", n, what, life.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
}

// kill ends one process, and says which.
func (s *shelf) kill() string {
	s.Helper()
	what := []string{killedSandbox, killedStorage, killedDaemon, killedDaemon}[s.rng.IntN(4)]
	switch cmpOr(s.only, what) {
	case killedSandbox:
		pids, err := daemon.SandboxPIDs(s.d.Dir())
		if err != nil {
			s.Fatal(err)
		}
		if len(pids) > 0 {
			all := slices.Sorted(maps.Values(pids))
			_ = syscall.Kill(all[s.rng.IntN(len(all))], syscall.SIGKILL) // it may end by itself
			return killedSandbox
		}
	case killedStorage:
		pids, err := daemon.StorageDaemons(s.d.Dir())
		if err != nil {
			s.Fatal(err)
		}
		if len(pids) > 0 {
			all := slices.Sorted(slices.Values(slices.Concat(slices.Collect(maps.Values(pids))...)))
			_ = syscall.Kill(all[s.rng.IntN(len(all))], syscall.SIGKILL)
			return killedStorage
		}
	}
	s.d.Kill()
	return killedDaemon
}

// write lets the program on a volume write until ctx ends.
func (s *shelf) write(ctx context.Context, group *sync.WaitGroup, v *kept) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v.machine == nil || v.writing {
		return
	}
	v.writing = true
	w := v.writer
	group.Go(func() {
		err := w.Write(ctx)
		if err != nil && strings.Contains(err.Error(), "the program says") {
			s.Errorf("volume %s: %v", v.ref.ID, err)
		}
		s.mu.Lock()
		v.writing = false
		s.mu.Unlock()
	})
}

// note returns what must be on the volume.
func (s *shelf) note(v *kept) []uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v.writer != nil {
		if acked := v.writer.Acked(); len(acked) > 0 && (len(v.acked) == 0 || acked[0] > v.acked[0]) {
			v.acked = acked
		}
	}
	return slices.Clone(v.acked)
}

// act does one random thing to a volume that is not in use otherwise.
func (s *shelf) act(ctx context.Context, group *sync.WaitGroup, rng *rand.Rand) {
	if rng.IntN(30) == 0 {
		s.create(ctx, hangar.VolumeCreate{Name: "data", SizeGB: 1}, nil)
		return
	}
	v := s.pick(rng)
	if v == nil {
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
		return
	}
	defer func() {
		s.mu.Lock()
		v.busy = false
		s.mu.Unlock()
	}()
	switch verb := rng.IntN(16); {
	case verb < 4:
		s.snapshot(ctx, v)
	case verb < 6:
		s.extend(ctx, v)
	case verb < 7:
		acked := s.note(v)
		s.create(ctx, hangar.VolumeCreate{Name: "fork", Source: v.ref.ID}, acked)
	case verb < 8:
		s.restoreOne(ctx, v, rng)
	case v.machine == nil && verb < 13:
		s.attach(ctx, v)
		s.write(ctx, group, v)
	case v.machine == nil:
		s.destroy(ctx, v, rng)
	case verb < 10:
		s.do("suspend", func() error { return s.c.SuspendMachine(ctx, *v.machine) })
		s.start(ctx, group, v)
	case verb < 12:
		s.do("stop", func() error { return s.c.StopMachine(ctx, *v.machine, hangar.MachineStop{Timeout: time.Second}) })
		s.start(ctx, group, v)
	case verb < 13:
		s.detach(ctx, v)
	default:
		s.start(ctx, group, v)
	}
}

// pick reserves a volume that is there.
func (s *shelf) pick(rng *rand.Rand) *kept {
	all := s.all()
	s.mu.Lock()
	defer s.mu.Unlock()
	all = slices.DeleteFunc(all, func(v *kept) bool { return v.busy || v.gone || v.mayGo })
	if len(all) == 0 {
		return nil
	}
	v := all[rng.IntN(len(all))]
	v.busy = true
	return v
}

// do asks for something, and reports whether it was acknowledged.
func (s *shelf) do(verb string, ask func() error) bool {
	s.mu.Lock()
	s.underWay = append(s.underWay, verb)
	s.mu.Unlock()
	err := ask()
	s.mu.Lock()
	defer s.mu.Unlock()
	at := slices.Index(s.underWay, verb)
	s.underWay = slices.Delete(s.underWay, at, at+1)
	if err == nil {
		s.done[verb]++
		return true
	}
	s.refused[verb] = err
	switch hangar.CodeOf(err) {
	case hangar.CodeFailedPrecondition, hangar.CodeConflict, hangar.CodeTimeout, hangar.CodeUnavailable, hangar.CodeExhausted:
	case hangar.CodeInternal:
		if _, said := errors.AsType[*hangar.Error](err); said {
			s.Errorf("%s: the platform failed: %v", verb, err)
		}
	default:
		s.Errorf("%s: %v", verb, err)
	}
	return false
}

func (s *shelf) snapshot(ctx context.Context, v *kept) {
	acked := s.note(v)
	var made *hangar.Snapshot
	if s.do("snapshot", func() (err error) {
		made, err = s.c.CreateSnapshot(ctx, v.ref)
		return err
	}) {
		s.mu.Lock()
		v.promised[made.ID] = acked
		s.mu.Unlock()
	}
}

func (s *shelf) extend(ctx context.Context, v *kept) {
	size := v.sizeGB + 1
	if size <= volumeGBMost && s.do("extend", func() error {
		_, err := s.c.ExtendVolume(ctx, v.ref, size)
		return err
	}) {
		v.sizeGB = size
	}
}

// create makes a volume, unless there are enough.
func (s *shelf) create(ctx context.Context, in hangar.VolumeCreate, acked []uint64) *kept {
	s.mu.Lock()
	inUse := 0
	for _, v := range s.volumes {
		if !v.gone {
			inUse++
		}
	}
	enough := inUse >= volumesMost || s.ever >= volumesEver
	if !enough {
		s.ever++
	}
	s.mu.Unlock()
	if enough {
		return nil
	}
	return s.make(ctx, in, acked)
}

func (s *shelf) make(ctx context.Context, in hangar.VolumeCreate, acked []uint64) *kept {
	var made *hangar.Volume
	verb := "create"
	switch {
	case in.Source != "":
		verb = "fork"
	case in.Snapshot != "":
		verb = "restore"
	}
	if !s.do(verb, func() (err error) {
		made, err = s.c.CreateVolume(ctx, app, in)
		return err
	}) {
		return nil
	}
	v := &kept{ref: made.Ref(), acked: acked, partial: verb != "create", sizeGB: made.SizeGB, promised: make(map[hangar.SnapshotID][]uint64)}
	s.mu.Lock()
	v.source = s.volumes[in.Source]
	s.volumes[made.ID] = v
	s.mu.Unlock()
	return v
}

// restoreOne makes a volume of a snapshot that is complete.
func (s *shelf) restoreOne(ctx context.Context, v *kept, rng *rand.Rand) {
	snapshot, acked := s.complete(ctx, v, rng)
	if snapshot != "" {
		s.create(ctx, hangar.VolumeCreate{Name: "restored", Snapshot: snapshot}, acked)
	}
}

// complete returns a snapshot of the volume that is complete, and what must be in it.
func (s *shelf) complete(ctx context.Context, v *kept, rng *rand.Rand) (hangar.SnapshotID, []uint64) {
	all, err := s.c.Snapshots(ctx, v.ref)
	if err != nil {
		return "", nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []hangar.SnapshotID
	for _, one := range all {
		if _, known := v.promised[one.ID]; known && one.State == hangar.SnapshotCreated {
			ids = append(ids, one.ID)
		}
	}
	if len(ids) == 0 {
		return "", nil
	}
	id := ids[rng.IntN(len(ids))]
	return id, v.promised[id]
}

// attach runs a program on the volume.
func (s *shelf) attach(ctx context.Context, v *kept) {
	var made *hangar.Machine
	if s.do("attach", func() (err error) {
		made, err = s.c.CreateMachine(ctx, app, hangar.MachineCreate{Config: hangar.MachineConfig{
			Image: s.image, Env: blockstest.Env("/data/ledger"), Mounts: []hangar.Mount{{Volume: string(v.ref.ID), Path: "/data"}},
			Restart: &hangar.RestartConfig{Policy: hangar.RestartNo},
		}})
		return err
	}) {
		s.use(v, made)
	} else {
		v.unsure = true
	}
}

func (s *shelf) use(v *kept, m *hangar.Machine) {
	ref := m.Ref()
	w := blockstest.New(s, net.JoinHostPort(m.PrivateIP.String(), strconv.Itoa(blockstest.Port)))
	s.mu.Lock()
	v.machine, v.writer = &ref, w
	s.mu.Unlock()
}

// start starts the Machine of a volume, and the writing on it.
func (s *shelf) start(ctx context.Context, group *sync.WaitGroup, v *kept) {
	if s.do("start", func() error {
		_, err := s.c.StartMachine(ctx, *v.machine)
		return err
	}) {
		if _, err := v.writer.Ready(ctx); err == nil {
			s.write(ctx, group, v)
		}
	}
}

// detach destroys the Machine of a volume.
func (s *shelf) detach(ctx context.Context, v *kept) {
	ok := s.do("detach", func() error { return s.c.DestroyMachine(ctx, *v.machine, hangar.MachineDestroy{Force: true}) })
	s.note(v)
	s.mu.Lock()
	defer s.mu.Unlock()
	if v.unsure = !ok; ok {
		v.machine, v.writer = nil, nil
	}
}

// destroy destroys a volume, and mostly takes that back.
func (s *shelf) destroy(ctx context.Context, v *kept, rng *rand.Rand) {
	s.mu.Lock()
	v.mayGo, v.doomed = true, true
	v.cut = v.cut || v.partial
	s.mu.Unlock()
	if s.do("destroy", func() error {
		_, err := s.c.DestroyVolume(ctx, v.ref)
		return err
	}) && rng.IntN(3) > 0 && s.do("undelete", func() error {
		_, err := s.c.UndeleteVolume(ctx, v.ref)
		return err
	}) {
		s.mu.Lock()
		v.mayGo = false
		s.mu.Unlock()
	}
}
