package host_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"go.uber.org/goleak"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host"
	"github.com/hangar-platform/hangar/host/driver/fake"
	"github.com/hangar-platform/hangar/host/image"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/host/logs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// faults decide what goes wrong.
type faults func(op fake.Op, id hangar.MachineID) (time.Duration, error)

// rig is an agent on a pretend host, which outlives it.
type rig struct {
	testing.TB
	dir    string
	world  *fake.World
	faults atomic.Pointer[faults]
	images *images
	rows   *rows
	*host.Agent
	close func()
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{TB: t, dir: t.TempDir(), images: newImages(t), rows: &rows{}}
	r.world = fake.NewWorld(filepath.Join(r.dir, "world"))
	r.open()
	t.Cleanup(func() {
		r.close()
		misuses, err := r.world.Misuses()
		if err != nil || len(misuses) > 0 {
			t.Errorf("the agent misused the driver: %v %v", misuses, err)
		}
	})
	return r
}

// open starts an agent on what the one before left.
func (r *rig) open() {
	r.Helper()
	ctx := context.Background()
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	j, err := journal.Open(filepath.Join(r.dir, "journal.db"), journal.Options{Log: log})
	if err != nil {
		r.Fatal(err)
	}
	l := logs.New(logs.Options{Dir: filepath.Join(r.dir, "logs"), Region: "loc", Log: log, Now: time.Now})
	if err := l.Open(ctx); err != nil {
		r.Fatal(err)
	}
	drv := fake.New(r.world, fake.Options{Faults: func(op fake.Op, id hangar.MachineID) (time.Duration, error) {
		if f := r.faults.Load(); f != nil {
			return (*f)(op, id)
		}
		return 0, nil
	}})
	a := host.New(host.Options{
		Dir: r.dir, Host: hangar.Host{ID: "0000aaaa", Region: "loc", CPUs: 2, Memory: 8 << 30}, Driver: drv,
		Images: r.images, Network: host.NoNetwork{}, Logs: l, Journal: j, Publisher: r.rows, Log: log, Now: time.Now,
	})
	if err := a.Open(ctx); err != nil {
		r.Fatal(err)
	}
	r.Agent = a
	r.close = sync.OnceFunc(func() {
		for _, err := range []error{a.Close(), l.Close(), j.Close()} {
			if err != nil {
				r.Error(err)
			}
		}
	})
}

// restart replaces the agent, as when the daemon is restarted.
func (r *rig) restart() {
	r.Helper()
	r.close()
	r.open()
}

// images is a store in which every image exists but those called "missing".
type images struct {
	layer string
	mu    sync.Mutex
	pulls int
}

func newImages(t *testing.T) *images {
	t.Helper()
	return &images{layer: t.TempDir()}
}

const digest = "sha256:0000000000000000000000000000000000000000000000000000000000000001"

func (s *images) ref(name string) hangar.ImageRef {
	return hangar.ImageRef{Registry: "r.test", Repository: name, Tag: "latest", Digest: digest}
}

func (s *images) Resolve(_ context.Context, ref string) (hangar.ImageRef, error) {
	switch {
	case strings.HasPrefix(ref, "missing"):
		return hangar.ImageRef{}, hangar.Errorf(hangar.CodeInvalid, hangar.ReasonImageNotFound, "failed to get manifest %s: not found", ref)
	case strings.HasPrefix(ref, "offline"):
		return hangar.ImageRef{}, hangar.Errorf(hangar.CodeUnavailable, "", "registry away")
	default:
		return s.ref(ref), nil
	}
}

func (s *images) Pull(_ context.Context, ref string, progress func(hangar.PullProgress)) (*image.Image, error) {
	if strings.HasPrefix(ref, "offline") {
		return nil, hangar.Errorf(hangar.CodeUnavailable, "", "registry away")
	}
	s.mu.Lock()
	s.pulls++
	s.mu.Unlock()
	progress(hangar.PullProgress{Phase: "pulling", Done: 1, Total: 1})
	return s.image(s.ref(ref)), nil
}

func (s *images) image(ref hangar.ImageRef) *image.Image {
	return &image.Image{Ref: ref, Config: v1.Config{Cmd: []string{"sleep", "1000"}}, Layers: []string{s.layer}}
}

func (s *images) Get(d string) (*image.Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pulls == 0 || d != digest {
		return nil, image.ErrNotFound
	}
	return s.image(hangar.ImageRef{Digest: d}), nil
}

func (s *images) List() ([]hangar.Image, error) {
	return []hangar.Image{{Ref: s.ref("web")}}, nil
}
func (s *images) Remove(context.Context, string) error                      { return nil }
func (s *images) GC(context.Context, image.Policy) (freed int64, err error) { return 0, nil }

// rows is a cluster state that can be away.
type rows struct {
	mu   sync.Mutex
	away bool
	has  map[hangar.MachineID]hangar.MachineRow
}

var errAway = errors.New("the cluster state is away")

func (p *rows) PublishMachine(_ context.Context, row hangar.MachineRow) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.away {
		return errAway
	}
	if p.has == nil {
		p.has = make(map[hangar.MachineID]hangar.MachineRow)
	}
	if row.Seq > p.has[row.Machine.ID].Seq {
		p.has[row.Machine.ID] = row
	}
	return nil
}

func (p *rows) RetractMachine(_ context.Context, _ hangar.HostID, id hangar.MachineID) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.away {
		return errAway
	}
	delete(p.has, id)
	return nil
}

func (p *rows) PublishedMachines(context.Context, hangar.HostID) (map[hangar.MachineID]uint64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.away {
		return nil, errAway
	}
	seqs := make(map[hangar.MachineID]uint64)
	for id, row := range p.has {
		seqs[id] = row.Seq
	}
	return seqs, nil
}

func (p *rows) setAway(away bool) {
	p.mu.Lock()
	p.away = away
	p.mu.Unlock()
}

func (p *rows) state(id hangar.MachineID) hangar.MachineState {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.has[id].Machine.State
}

// create makes a Machine with the environment that steers the fake driver.
func (r *rig) create(env map[string]string, edit ...func(*hangar.MachineSpec)) hangar.MachineRef {
	r.Helper()
	spec := hangar.MachineSpec{
		ID: hangar.NewMachineID(), Name: "m", App: "web", Org: hangar.OrgPersonal, Network: 1, Region: "loc",
		Config: hangar.MachineConfig{Image: "web", Env: env, Guest: &hangar.Guest{CPUKind: "shared", CPUs: 1, MemoryMB: 256}},
	}
	for _, e := range edit {
		e(&spec)
	}
	m, err := r.CreateMachine(r.Context(), spec)
	if err != nil {
		r.Fatal(err)
	}
	return m.Ref()
}

func (r *rig) wait(ref hangar.MachineRef, states ...hangar.MachineState) {
	r.Helper()
	if _, err := r.WaitMachine(r.Context(), ref, hangar.MachineWait{States: states, Timeout: 20 * time.Second}); err != nil {
		r.Fatalf("wait for %v: %v\n%s", states, err, r.history(ref))
	}
}

// history is the Machine's events, oldest first, as "type/status".
func (r *rig) history(ref hangar.MachineRef) string {
	r.Helper()
	events, err := r.MachineEvents(r.Context(), ref, 50)
	if err != nil {
		r.Fatal(err)
	}
	var lines []string
	for _, e := range slices.Backward(events) {
		lines = append(lines, fmt.Sprintf("%s/%s", e.Type, e.Status))
	}
	return strings.Join(lines, " ")
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *rig) start(ref hangar.MachineRef) {
	r.Helper()
	_, err := r.StartMachine(r.Context(), ref)
	r.must(err)
	r.wait(ref, hangar.MachineStarted)
}

func TestLife(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil)
	r.wait(ref, hangar.MachineStarted)
	r.must(r.StopMachine(t.Context(), ref, hangar.MachineStop{}))
	r.wait(ref, hangar.MachineStopped)
	r.start(ref)
	r.must(r.SuspendMachine(t.Context(), ref))
	r.wait(ref, hangar.MachineSuspended)
	r.start(ref)
	r.must(r.RestartMachine(t.Context(), ref, hangar.MachineRestart{}))
	r.wait(ref, hangar.MachineStarted)
	r.must(r.DestroyMachine(t.Context(), ref, hangar.MachineDestroy{Force: true}))
	r.wait(ref, hangar.MachineDestroyed)

	want := "launch/created start/starting start/started stop/stopping exit/stopped start/starting start/started " +
		"suspend/suspending suspend/suspended start/starting start/started " +
		"restart/restarting exit/restarting start/starting start/started destroy/destroying destroy/destroyed"
	if got := r.history(ref); got != want {
		t.Errorf("history:\n got %s\nwant %s", got, want)
	}
	running, err := r.world.Running()
	if err != nil || len(running) > 0 {
		t.Errorf("still running: %v %v", running, err)
	}
	if left, err := os.ReadDir(filepath.Join(r.dir, "machines")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

func TestExitsAndPolicies(t *testing.T) {
	policy := func(p hangar.RestartPolicy, retries int) func(*hangar.MachineSpec) {
		return func(s *hangar.MachineSpec) { s.Config.Restart = &hangar.RestartConfig{Policy: p, MaxRetries: retries} }
	}
	for name, tc := range map[string]struct {
		exit  string
		edit  func(*hangar.MachineSpec)
		state hangar.MachineState
		code  int
		sig   int
		oom   bool
	}{
		"no restart":            {"7@10ms", policy(hangar.RestartNo, 0), hangar.MachineStopped, 7, -1, false},
		"on-failure, success":   {"0@10ms", policy(hangar.RestartOnFailure, 3), hangar.MachineStopped, 0, -1, false},
		"on-failure, exhausted": {"3@10ms", policy(hangar.RestartOnFailure, 1), hangar.MachineStopped, 3, -1, false},
		"killed":                {"signal:9@10ms", policy(hangar.RestartNo, 0), hangar.MachineStopped, 137, 9, false},
		"out of memory":         {"oom@10ms", policy(hangar.RestartNo, 0), hangar.MachineStopped, 137, 9, true},
		"auto destroy":          {"1@10ms", func(s *hangar.MachineSpec) { s.Config.AutoDestroy = true }, hangar.MachineDestroyed, 1, -1, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			ref := r.create(map[string]string{fake.EnvExit: tc.exit}, tc.edit)
			r.wait(ref, tc.state)
			events, err := r.MachineEvents(t.Context(), ref, 50)
			r.must(err)
			for _, e := range events {
				if e.Type != hangar.EventExit {
					continue
				}
				x := e.Request.ExitEvent
				if x.ExitCode != tc.code || x.Signal != tc.sig || x.OOMKilled != tc.oom || x.RequestedStop || x.ExitedAt.IsZero() {
					t.Errorf("exit event = %+v", x)
				}
				return
			}
			t.Errorf("no exit event in %s", r.history(ref))
		})
	}
}

func TestRestartAlwaysStartsAgain(t *testing.T) {
	r := newRig(t)
	ref := r.create(map[string]string{fake.EnvExit: "0@10ms"}, func(s *hangar.MachineSpec) {
		s.Config.Restart = &hangar.RestartConfig{Policy: hangar.RestartAlways}
	})
	r.wait(ref, hangar.MachineRestarting)
	r.wait(ref, hangar.MachineStarted)
	r.must(r.StopMachine(t.Context(), ref, hangar.MachineStop{}))
	r.wait(ref, hangar.MachineStopped)
}

func TestExitWhileTheDaemonWasDown(t *testing.T) {
	r := newRig(t)
	ref := r.create(map[string]string{fake.EnvExit: "9@300ms"}, func(s *hangar.MachineSpec) {
		s.Config.Restart = &hangar.RestartConfig{Policy: hangar.RestartNo}
	})
	r.wait(ref, hangar.MachineStarted)
	r.close()
	for deadline := time.Now().Add(10 * time.Second); ; {
		running, err := r.world.Running()
		r.must(err)
		if len(running) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the sandbox did not end")
		}
		time.Sleep(10 * time.Millisecond)
	}
	r.open()
	r.wait(ref, hangar.MachineStopped)
	events, err := r.MachineEvents(t.Context(), ref, 1)
	r.must(err)
	if x := events[0].Request.ExitEvent; x == nil || x.ExitCode != 9 {
		t.Errorf("newest event = %+v, want an exit with code 9", events[0])
	}
}

// TestRestartOfTheDaemon stops the agent in every state and finds the Machine again
// as it was, or where it was going.
func TestRestartOfTheDaemon(t *testing.T) {
	r := newRig(t)
	started := r.create(nil)
	stopped := r.create(nil, func(s *hangar.MachineSpec) { s.SkipLaunch = true })
	suspended := r.create(nil)
	destroyed := r.create(nil)
	r.wait(started, hangar.MachineStarted)
	r.wait(stopped, hangar.MachineStopped)
	r.wait(suspended, hangar.MachineStarted)
	r.must(r.SuspendMachine(t.Context(), suspended))
	r.wait(suspended, hangar.MachineSuspended)
	r.must(r.DestroyMachine(t.Context(), destroyed, hangar.MachineDestroy{Force: true}))
	r.wait(destroyed, hangar.MachineDestroyed)
	before := r.history(started)

	r.restart()
	for ref, want := range map[hangar.MachineRef]hangar.MachineState{
		started: hangar.MachineStarted, stopped: hangar.MachineStopped,
		suspended: hangar.MachineSuspended, destroyed: hangar.MachineDestroyed,
	} {
		m, err := r.Machine(t.Context(), ref)
		r.must(err)
		if m.State != want {
			t.Errorf("machine is %s after the restart, want %s", m.State, want)
		}
	}
	if after := r.history(started); after != before {
		t.Errorf("the restart left traces:\n got %s\nwant %s", after, before)
	}
	r.start(suspended)
	m, err := r.Machine(t.Context(), suspended)
	r.must(err)
	if e := m.Events[0]; e.Request != nil {
		t.Errorf("the resume after a restart was not a resume: %+v", e.Request)
	}
}

// TestCrashBetweenEffectAndRecord drops the agent right after the driver did
// something, before its answer could be recorded.
func TestCrashBetweenEffectAndRecord(t *testing.T) {
	for _, op := range []fake.Op{fake.OpStart, fake.OpStartDone, fake.OpSuspend, fake.OpSuspendDone, fake.OpResume, fake.OpResumeDone, fake.OpDestroyDone} {
		t.Run(string(op), func(t *testing.T) {
			r := newRig(t)
			reached := make(chan struct{})
			hit := sync.OnceFunc(func() { close(reached) })
			crash := faults(func(at fake.Op, _ hangar.MachineID) (time.Duration, error) {
				if at == op {
					hit()
					return time.Hour, nil // until the agent is gone
				}
				return 0, nil
			})
			ref := r.create(nil, func(s *hangar.MachineSpec) { s.SkipLaunch = true })
			r.wait(ref, hangar.MachineStopped)
			if op == fake.OpStart || op == fake.OpStartDone {
				r.faults.Store(&crash)
			}
			_, err := r.StartMachine(t.Context(), ref)
			r.must(err)
			if r.faults.Load() == nil {
				r.wait(ref, hangar.MachineStarted)
				if op != fake.OpResume && op != fake.OpResumeDone {
					r.faults.Store(&crash)
				}
				if op == fake.OpDestroyDone {
					r.must(r.DestroyMachine(t.Context(), ref, hangar.MachineDestroy{Force: true}))
				} else {
					r.must(r.SuspendMachine(t.Context(), ref))
				}
			}
			if r.faults.Load() == nil {
				r.wait(ref, hangar.MachineSuspended)
				r.faults.Store(&crash)
				_, err := r.StartMachine(t.Context(), ref)
				r.must(err)
			}
			<-reached
			r.close()
			r.faults.Store(nil)
			r.open()
			r.wait(ref, hangar.WaitSettled)
			want := map[fake.Op]hangar.MachineState{
				fake.OpSuspend: hangar.MachineSuspended, fake.OpSuspendDone: hangar.MachineSuspended,
				fake.OpDestroyDone: hangar.MachineDestroyed,
			}[op]
			if want == "" {
				want = hangar.MachineStarted
			}
			m, err := r.Machine(t.Context(), ref)
			r.must(err)
			if m.State != want {
				t.Errorf("machine is %s, want %s: %s", m.State, want, r.history(ref))
			}
		})
	}
}

func TestUpdate(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil)
	r.wait(ref, hangar.MachineStarted)
	before, err := r.Machine(t.Context(), ref)
	r.must(err)
	config := before.Config
	config.Env = map[string]string{"V": "2"}

	_, err = r.UpdateMachine(t.Context(), ref, hangar.MachineUpdate{Config: config, CurrentVersion: "stale"})
	if hangar.ReasonOf(err) != hangar.ReasonStaleVersion {
		t.Errorf("update with a stale version = %v", err)
	}
	after, err := r.UpdateMachine(t.Context(), ref, hangar.MachineUpdate{Config: config, CurrentVersion: before.InstanceID})
	r.must(err)
	if after.InstanceID <= before.InstanceID {
		t.Errorf("version %s does not follow %s", after.InstanceID, before.InstanceID)
	}
	_, err = r.WaitMachine(t.Context(), ref, hangar.MachineWait{Instance: after.InstanceID, Timeout: 20 * time.Second})
	r.must(err)
	r.wait(ref, hangar.MachineStarted)

	r.must(r.StopMachine(t.Context(), ref, hangar.MachineStop{}))
	r.wait(ref, hangar.MachineStopped)
	_, err = r.UpdateMachine(t.Context(), ref, hangar.MachineUpdate{Config: config})
	r.must(err)
	r.wait(ref, hangar.WaitSettled)
	if m, err := r.Machine(t.Context(), ref); err != nil || m.State != hangar.MachineStopped {
		t.Errorf("an update of a stopped machine left it %s (%v)", m.State, err)
	}
	versions, err := r.MachineVersions(t.Context(), ref)
	if err != nil || len(versions) != 3 {
		t.Errorf("versions = %v, %v; want 3", versions, err)
	}
}

func TestFailedUpdateKeepsTheOldVersionRunning(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil)
	r.wait(ref, hangar.MachineStarted)
	before, err := r.Machine(t.Context(), ref)
	r.must(err)
	config := before.Config
	config.Image = "offline"
	_, err = r.UpdateMachine(t.Context(), ref, hangar.MachineUpdate{Config: config})
	r.must(err)
	r.wait(ref, hangar.MachineStarted)
	after, err := r.Machine(t.Context(), ref)
	r.must(err)
	if after.InstanceID != before.InstanceID || after.Config.Image != "web" {
		t.Errorf("after the failed update: version %s image %s", after.InstanceID, after.Config.Image)
	}
	if e := after.Events[0]; e.Type != hangar.EventUpdate || e.Request == nil || e.Request.Error == "" {
		t.Errorf("newest event = %+v, want an update with its error", e)
	}
	if strings.Contains(r.history(ref), "exit/") {
		t.Errorf("the old version was touched: %s", r.history(ref))
	}
}

func TestUnusableSnapshotBootsCold(t *testing.T) {
	r := newRig(t)
	ref := r.create(map[string]string{fake.EnvResumeError: "snapshot unusable"})
	r.wait(ref, hangar.MachineStarted)
	r.must(r.SuspendMachine(t.Context(), ref))
	r.wait(ref, hangar.MachineSuspended)
	r.start(ref)
	m, err := r.Machine(t.Context(), ref)
	r.must(err)
	if e := m.Events[0]; e.Request == nil || e.Request.ColdBoot == "" {
		t.Errorf("newest event = %+v, want the reason of the cold boot", e)
	}
}

func TestFailures(t *testing.T) {
	r := newRig(t)
	_, err := r.CreateMachine(t.Context(), hangar.MachineSpec{ID: hangar.NewMachineID(), App: "web", Config: hangar.MachineConfig{
		Image: "missing", Guest: &hangar.Guest{MemoryMB: 256},
	}})
	if hangar.ReasonOf(err) != hangar.ReasonImageNotFound {
		t.Errorf("create with a missing image = %v", err)
	}
	_, err = r.CreateMachine(t.Context(), hangar.MachineSpec{ID: hangar.NewMachineID(), App: "web", Config: hangar.MachineConfig{
		Image: "web", Guest: &hangar.Guest{MemoryMB: 1 << 20},
	}})
	if hangar.ReasonOf(err) != hangar.ReasonInsufficientCapacity {
		t.Errorf("create of a huge machine = %v", err)
	}

	ref := r.create(map[string]string{fake.EnvStartError: "command not found"})
	r.wait(ref, hangar.MachineFailed)
	if err := r.SignalMachine(t.Context(), ref, 1); hangar.CodeOf(err) != hangar.CodeFailedPrecondition {
		t.Errorf("signal to a failed machine = %v", err)
	}
	if err := r.SuspendMachine(t.Context(), ref); hangar.ReasonOf(err) != hangar.ReasonWrongState {
		t.Errorf("suspend of a failed machine = %v", err)
	}
	r.must(r.DestroyMachine(t.Context(), ref, hangar.MachineDestroy{}))
	r.wait(ref, hangar.MachineDestroyed)
	if _, err := r.StartMachine(t.Context(), ref); hangar.CodeOf(err) != hangar.CodeFailedPrecondition {
		t.Errorf("start of a destroyed machine = %v", err)
	}

	running := r.create(nil)
	r.wait(running, hangar.MachineStarted)
	if err := r.DestroyMachine(t.Context(), running, hangar.MachineDestroy{}); hangar.CodeOf(err) != hangar.CodeFailedPrecondition {
		t.Errorf("destroy of a running machine without force = %v", err)
	}
	if _, err := r.WaitMachine(t.Context(), running, hangar.MachineWait{States: []hangar.MachineState{hangar.MachineStopped}, Timeout: 10 * time.Millisecond}); hangar.ReasonOf(err) != hangar.ReasonWaitTimeout {
		t.Errorf("wait that cannot come true in time = %v", err)
	}
}

func TestRowsFollowEvenWhenTheStateWasAway(t *testing.T) {
	r := newRig(t)
	r.rows.setAway(true)
	ref := r.create(nil)
	r.wait(ref, hangar.MachineStarted)
	r.rows.setAway(false)
	for deadline := time.Now().Add(20 * time.Second); r.rows.state(ref.ID) != hangar.MachineStarted; {
		if time.Now().After(deadline) {
			t.Fatalf("the row says %q", r.rows.state(ref.ID))
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestWatchSeesEveryEvent(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil, func(s *hangar.MachineSpec) { s.SkipLaunch = true })
	r.wait(ref, hangar.MachineStopped)
	var seen []string
	for change, err := range r.WatchMachine(t.Context(), ref) {
		r.must(err)
		if change.Event == nil && len(seen) == 0 {
			_, err := r.StartMachine(t.Context(), ref)
			r.must(err)
			r.wait(ref, hangar.MachineStarted)
			r.must(r.DestroyMachine(t.Context(), ref, hangar.MachineDestroy{Force: true}))
		}
		if change.Event != nil {
			seen = append(seen, change.Event.Status)
		}
	}
	want := "starting started destroying destroyed"
	if got := strings.Join(seen, " "); got != want {
		t.Errorf("watched %q, want %q", got, want)
	}
}

func TestWaitersFromEvent(t *testing.T) {
	r := newRig(t)
	ref := r.create(map[string]string{fake.EnvExit: "0@10ms"}, func(s *hangar.MachineSpec) {
		s.SkipLaunch = true
		s.Config.Restart = &hangar.RestartConfig{Policy: hangar.RestartNo}
	})
	r.wait(ref, hangar.MachineStopped)
	m, err := r.Machine(t.Context(), ref)
	r.must(err)
	from := m.Events[0].ID
	_, err = r.StartMachine(t.Context(), ref)
	r.must(err)
	_, err = r.WaitMachine(t.Context(), ref, hangar.MachineWait{States: []hangar.MachineState{hangar.MachineStopped}, FromEvent: from, Timeout: 20 * time.Second})
	r.must(err)
	reached, err := r.WaitMachine(t.Context(), ref, hangar.MachineWait{FromEvent: from})
	if err != nil || reached.State != hangar.MachineStarted {
		t.Errorf("wait for a state that passed = %+v, %v", reached, err)
	}
}
