// Package sim plays random users against the real daemon and kills it at random moments. After each
// round the daemon is started again and everything that was acknowledged must be true, everything
// that was under way must have come to an end, and nothing may be on the host without a record.
//
// A run is determined by its seed as far as the scheduler allows; a failure prints
// it. SIM_SEED, SIM_ROUNDS and SIM_DRIVER choose another run than the default.
package sim

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/control"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/host/driver/fake"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/test/daemon"
)

const (
	app          = hangar.AppName("sim")
	users        = 8  // who act at once
	machinesMost = 24 // that exist at once
)

func fromEnv[T ~int | ~uint64](t *testing.T, name string, otherwise T) T {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		t.Fatalf("%s=%q: must be a number", name, text)
	}
	return T(n)
}

func TestRandomUsersAndKills(t *testing.T) {
	seed := fromEnv(t, "SIM_SEED", uint64(time.Now().UnixNano())>>1)
	// The default is what fits into every run of the tests.
	for driver, rounds := range map[string]int{"fake": 6, "gvisor": 2} {
		if only := os.Getenv("SIM_DRIVER"); only != "" && only != driver || only == "" && driver == "gvisor" && os.Getenv("SIM_ROUNDS") != "" {
			continue
		}
		t.Run(driver, func(t *testing.T) { play(t, driver, seed, fromEnv(t, "SIM_ROUNDS", rounds)) })
	}
}

func play(t *testing.T, driver string, seed uint64, rounds int) {
	t.Helper()
	t.Logf("SIM_SEED=%d SIM_ROUNDS=%d SIM_DRIVER=%s", seed, rounds, driver)
	defer func() {
		if t.Failed() {
			t.Logf("run again with SIM_SEED=%d SIM_ROUNDS=%d SIM_DRIVER=%s", seed, rounds, driver)
		}
	}()
	d := daemon.Start(t, daemon.Options{Driver: driver})
	w := newWorld(t, d, driver, seed)
	for round := range rounds {
		w.round(round)
		if t.Failed() {
			return
		}
	}
	d.Term()
	w.checkRows()
}

// fact is what is known of a Machine from answers: the acknowledged state, and whether there was
// another request without an answer.
type fact struct {
	ref    hangar.MachineRef
	expect hangar.MachineState // after the last verb that was acknowledged
	maybe  bool                // a verb had no answer: its effect may be there or not
	gone   bool                // destruction was acknowledged
	acked  hangar.InstanceID   // the newest version that was acknowledged
	flaky  bool                // its main process ends by itself, for good
	name   string
}

// world is what the users believe of the platform.
type world struct {
	*testing.T
	d      *daemon.Daemon
	c      *client.Client
	rng    *rand.Rand // of the coordinating goroutine
	driver string
	image  string

	mu    sync.Mutex
	facts map[hangar.MachineID]*fact
	busy  map[hangar.MachineID]bool // one user at a time asks something of a Machine
	verbs map[string]int            // that were acknowledged, for the summary
	apps  map[hangar.AppName]bool   // whether it exists; absent: unknown
}

func newWorld(t *testing.T, d *daemon.Daemon, driver string, seed uint64) *world {
	t.Helper()
	w := &world{
		T: t, d: d, c: d.Client(), rng: rand.New(rand.NewPCG(seed, 1)), driver: driver,
		facts: make(map[hangar.MachineID]*fact), busy: make(map[hangar.MachineID]bool), verbs: make(map[string]int),
		apps: make(map[hangar.AppName]bool),
	}
	if _, err := w.c.CreateApp(t.Context(), hangar.AppCreate{Name: app, Org: hangar.OrgPersonal}); err != nil {
		t.Fatal(err)
	}
	w.image = pushSleeper(t, d)
	return w
}

// round lets the users act, kills the daemon in the middle of it, and checks.
func (w *world) round(n int) {
	w.Helper()
	ctx, stop := context.WithCancel(w.Context())
	var group sync.WaitGroup
	for range users {
		rng := rand.New(rand.NewPCG(w.rng.Uint64(), w.rng.Uint64()))
		group.Go(func() {
			for ctx.Err() == nil {
				w.act(ctx, rng)
			}
		})
	}
	life := 100*time.Millisecond + time.Duration(w.rng.Int64N(int64(1500*time.Millisecond)))
	time.Sleep(life)
	if w.rng.IntN(4) == 0 {
		w.d.Term()
	} else {
		w.d.Kill()
	}
	stop()
	group.Wait()
	kills := 1
	for ; w.rng.IntN(3) == 0; kills++ { // while it starts, and does what was left undone
		w.d.UpAndKill(time.Duration(w.rng.Int64N(int64(700 * time.Millisecond))))
	}
	ready := w.d.Up()
	w.settle(n)
	w.mu.Lock()
	w.Logf("round %d: killed after %s, %d times, ready again in %s, %d machines, acknowledged %v", n, life, kills, ready, len(w.facts), w.verbs)
	w.mu.Unlock()
	w.check()
}

// act does one random thing.
func (w *world) act(ctx context.Context, rng *rand.Rand) {
	switch rng.IntN(40) {
	case 0:
		w.app(ctx)
		return
	case 1:
		w.removeImages(ctx)
		return
	}
	f := w.pick(rng)
	if f == nil {
		w.create(ctx, rng)
		return
	}
	defer w.release(f)
	switch rng.IntN(20) {
	case 0, 1, 2, 3, 4:
		w.ask(f, "start", hangar.MachineStarted, func() error {
			_, err := w.c.StartMachine(ctx, f.ref)
			return err
		})
	case 5, 6, 7:
		w.ask(f, "stop", hangar.MachineStopped, func() error {
			return w.c.StopMachine(ctx, f.ref, hangar.MachineStop{Timeout: time.Second})
		})
	case 8, 9, 10:
		w.ask(f, "suspend", hangar.MachineSuspended, func() error { return w.c.SuspendMachine(ctx, f.ref) })
	case 11, 12:
		w.ask(f, "restart", hangar.MachineStarted, func() error {
			return w.c.RestartMachine(ctx, f.ref, hangar.MachineRestart{})
		})
	case 13, 14:
		w.update(ctx, f)
	case 15:
		w.ask(f, "destroy", hangar.MachineDestroyed, func() error {
			return w.c.DestroyMachine(ctx, f.ref, hangar.MachineDestroy{Force: true})
		})
	default:
		_, err := w.c.WaitMachine(ctx, f.ref, hangar.MachineWait{States: []hangar.MachineState{hangar.WaitSettled}, Timeout: time.Second})
		w.tolerate("wait", err)
	}
}

// pick reserves a Machine that is not destroyed, or returns nil to create one.
func (w *world) pick(rng *rand.Rand) *fact {
	w.mu.Lock()
	defer w.mu.Unlock()
	var free []*fact
	living := 0
	for _, f := range w.facts {
		if f.gone {
			continue
		}
		living++
		if !w.busy[f.ref.ID] {
			free = append(free, f)
		}
	}
	if len(free) == 0 || living < machinesMost && rng.IntN(4) == 0 {
		return nil
	}
	slices.SortFunc(free, func(a, b *fact) int { return strings.Compare(string(a.ref.ID), string(b.ref.ID)) })
	f := free[rng.IntN(len(free))]
	w.busy[f.ref.ID] = true
	return f
}

func (w *world) release(f *fact) {
	w.mu.Lock()
	delete(w.busy, f.ref.ID)
	w.mu.Unlock()
}

func (w *world) create(ctx context.Context, rng *rand.Rand) {
	w.mu.Lock()
	full := len(w.facts) >= 4*machinesMost
	w.mu.Unlock()
	if full {
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
		return
	}
	in := hangar.MachineCreate{Config: config(w.image, 0), SkipLaunch: rng.IntN(4) == 0}
	flaky := w.driver == "fake" && rng.IntN(5) == 0
	if flaky {
		in.Config.Env[fake.EnvExit] = strconv.Itoa(flakyCode) + "@" + strconv.Itoa(rng.IntN(1000)) + "ms"
		in.Config.Restart.Policy = hangar.RestartNo
	}
	m, err := w.c.CreateMachine(ctx, app, in)
	if w.tolerate("create", err); err != nil {
		return
	}
	f := &fact{ref: hangar.MachineRef{App: app, ID: m.ID}, expect: hangar.MachineStarted, acked: m.InstanceID, flaky: flaky, name: m.Name}
	if in.SkipLaunch {
		f.expect = hangar.MachineStopped
	}
	w.mu.Lock()
	w.facts[m.ID] = f
	w.verbs["create"]++
	w.mu.Unlock()
}

// flakyCode is how Machines exit that end by themselves.
const flakyCode = 7

// app makes an App with a Machine and destroys it again.
func (w *world) app(ctx context.Context) {
	name := hangar.AppName("sim-" + strings.ToLower(crand.Text()))
	_, err := w.c.CreateApp(ctx, hangar.AppCreate{Name: name, Org: hangar.OrgPersonal})
	if w.tolerate("create app", err); err != nil {
		return
	}
	w.know(name, true)
	_, err = w.c.CreateMachine(ctx, name, hangar.MachineCreate{Config: config(w.image, 0), Name: "only"})
	if w.tolerate("create in app", err); err != nil {
		return
	}
	err = w.c.DestroyApp(ctx, name, true)
	w.tolerate("destroy app", err)
	switch {
	case err == nil:
		w.know(name, false)
	case !answered(err):
		w.mu.Lock()
		delete(w.apps, name)
		w.mu.Unlock()
	}
}

func (w *world) know(name hangar.AppName, exists bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.apps[name] = exists
	w.verbs["app"]++
}

// removeImages tries to take away what Machines use, or are about to.
func (w *world) removeImages(ctx context.Context) {
	images, err := w.c.Images(ctx)
	w.tolerate("images", err)
	for _, image := range images {
		err := w.c.RemoveImage(ctx, image.Ref.Digest)
		if hangar.CodeOf(err) != hangar.CodeNotFound {
			w.tolerate("remove image", err)
		}
	}
}

func config(image string, version int) hangar.MachineConfig {
	return hangar.MachineConfig{
		Image: image, Env: map[string]string{"VERSION": strconv.Itoa(version)},
		Guest:   &hangar.Guest{CPUKind: "shared", CPUs: 1, MemoryMB: 256},
		Restart: &hangar.RestartConfig{Policy: hangar.RestartAlways},
	}
}

// ask does a verb whose acknowledgement promises a state.
func (w *world) ask(f *fact, verb string, promised hangar.MachineState, do func() error) {
	err := do()
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err == nil:
		f.expect, f.maybe = promised, false
		f.gone = f.gone || promised == hangar.MachineDestroyed
		w.verbs[verb]++
	case !answered(err):
		f.maybe = true
	}
	w.tolerateLocked(verb, err)
}

func (w *world) update(ctx context.Context, f *fact) {
	m, err := w.c.UpdateMachine(ctx, f.ref, hangar.MachineUpdate{Config: config(w.image, 1)})
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err == nil:
		f.flaky = false
		f.acked = m.InstanceID
		w.verbs["update"]++
		// A started one starts again, any other is left stopped; which it was
		// when the update came is the platform's to say.
		f.maybe = true
	case !answered(err):
		f.maybe = true
	}
	w.tolerateLocked("update", err)
}

// answered reports whether the error is the platform's word, so that nothing
// happened.
func answered(err error) bool {
	var e *hangar.Error
	return errors.As(err, &e) && e.Code != hangar.CodeInternal && e.Code != hangar.CodeUnavailable
}

func (w *world) tolerate(verb string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tolerateLocked(verb, err)
}

// tolerateLocked fails the run for answers that nothing excuses: a refusal because
// of the state, a loss of the connection and a shutdown are the game.
func (w *world) tolerateLocked(verb string, err error) {
	switch hangar.CodeOf(err) {
	case "", hangar.CodeFailedPrecondition, hangar.CodeConflict, hangar.CodeTimeout, hangar.CodeUnavailable:
	case hangar.CodeInternal:
		if e := (*hangar.Error)(nil); errors.As(err, &e) {
			w.Errorf("%s: the platform failed: %v", verb, err)
		}
	default:
		w.Errorf("%s: %v", verb, err)
	}
}

// settle waits until no Machine is under way.
func (w *world) settle(round int) {
	w.Helper()
	for _, f := range w.known() {
		_, err := w.c.WaitMachine(w.Context(), f.ref, hangar.MachineWait{States: []hangar.MachineState{hangar.WaitSettled}, Timeout: time.Minute})
		if err != nil {
			m, _ := w.c.Machine(w.Context(), f.ref)
			w.Errorf("round %d: machine %s does not settle: %v\n%+v", round, f.ref.ID, err, m)
		}
	}
}

func (w *world) known() []*fact {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := make([]*fact, 0, len(w.facts))
	for _, f := range w.facts {
		list = append(list, f)
	}
	return list
}

// check compares what was acknowledged with what is.
func (w *world) check() {
	w.Helper()
	var gone *fact
	for _, f := range w.known() {
		m, err := w.c.Machine(w.Context(), f.ref)
		if err != nil {
			w.Errorf("machine %s was acknowledged and is lost: %v", f.ref.ID, err)
			continue
		}
		if m.Events, err = w.c.MachineEvents(w.Context(), f.ref, mostEvents); err != nil {
			w.Fatal(err)
		}
		ended := f.flaky && m.State == hangar.MachineStopped && // before it could be suspended, perhaps
			(f.expect == hangar.MachineStarted || f.expect == hangar.MachineSuspended)
		if !f.maybe && m.State != f.expect && !ended {
			w.Errorf("machine %s is %s, acknowledged was %s: %s", m.ID, m.State, f.expect, history(m))
		}
		if f.gone && m.State != hangar.MachineDestroyed {
			w.Errorf("machine %s was destroyed and is %s", m.ID, m.State)
		}
		if m.InstanceID < f.acked && m.State != hangar.MachineDestroyed {
			w.Errorf("machine %s is at version %s, acknowledged was %s: %s", m.ID, m.InstanceID, f.acked, history(m))
		}
		w.checkHistory(m)
		w.checkVersions(f, m)
		w.checkLog(m)
		f.expect, f.maybe, f.gone, f.acked = m.State, false, m.State == hangar.MachineDestroyed, m.InstanceID
		if f.gone {
			w.forget(f)
			gone = f
		}
	}
	w.checkApps()
	w.checkHost()
	w.checkNames(gone)
	w.tidy()
}

// mostEvents is how many events the platform answers with.
const mostEvents = 50

// checkVersions: acknowledged versions are listed, newest first.
func (w *world) checkVersions(f *fact, m *hangar.Machine) {
	w.Helper()
	versions, err := w.c.MachineVersions(w.Context(), f.ref)
	if err != nil {
		w.Fatal(err)
	}
	for i, v := range versions {
		if i > 0 && v.Version >= versions[i-1].Version {
			w.Errorf("machine %s: version %s is listed after %s", m.ID, v.Version, versions[i-1].Version)
		}
	}
	for _, want := range []hangar.InstanceID{f.acked, m.InstanceID} {
		known := slices.ContainsFunc(versions, func(v hangar.MachineVersion) bool { return v.Version == want })
		if !known && (len(versions) == 0 || want > versions[len(versions)-1].Version) {
			w.Errorf("machine %s: version %s is not listed", m.ID, want)
		}
	}
}

// checkLog: the platform says something at each start. The line of the start at
// which the daemon was killed may be missing.
func (w *world) checkLog(m *hangar.Machine) {
	w.Helper()
	starts := 0
	for _, e := range m.Events {
		if e.Type == hangar.EventStart && e.Status == string(hangar.MachineStarted) {
			starts++
		}
	}
	if starts < 2 {
		return
	}
	page, err := w.c.Logs(w.Context(), app, hangar.LogQuery{Instance: m.ID})
	if err != nil {
		w.Fatal(err)
	}
	if !slices.ContainsFunc(page.Entries, func(e hangar.LogEntry) bool { return e.Provider == hangar.LogRunner }) {
		w.Errorf("machine %s was started %d times, of which its log says nothing", m.ID, starts)
	}
}

// checkNames: a name is its Machine's alone, and free once that is destroyed.
func (w *world) checkNames(gone *fact) {
	w.Helper()
	if known := w.known(); len(known) > 0 {
		taken := known[w.rng.IntN(len(known))]
		_, err := w.c.CreateMachine(w.Context(), app, hangar.MachineCreate{Config: config(w.image, 0), Name: taken.name})
		if hangar.ReasonOf(err) != hangar.ReasonNameTaken {
			w.Errorf("a second machine with the name of %s: %v", taken.ref.ID, err)
		}
	}
	if gone == nil {
		return
	}
	m, err := w.c.CreateMachine(w.Context(), app, hangar.MachineCreate{Config: config(w.image, 0), Name: gone.name})
	if err != nil {
		w.Errorf("the name of machine %s, which is destroyed, is not free: %v", gone.ref.ID, err)
		return
	}
	w.mu.Lock()
	w.facts[m.ID] = &fact{ref: hangar.MachineRef{App: app, ID: m.ID}, expect: hangar.MachineStarted, acked: m.InstanceID, name: m.Name}
	w.mu.Unlock()
}

// tidy destroys what was made without an answer, so that a long run does not fill the server.
func (w *world) tidy() {
	w.Helper()
	apps, err := w.c.Apps(w.Context(), hangar.AppFilter{Org: hangar.OrgPersonal})
	if err != nil {
		w.Fatal(err)
	}
	for _, a := range apps {
		if !strings.HasPrefix(string(a.Name), "sim-") {
			continue
		}
		w.mu.Lock()
		delete(w.apps, a.Name)
		w.mu.Unlock()
		if err := w.c.DestroyApp(w.Context(), a.Name, true); err != nil {
			w.Errorf("destroy app %s: %v", a.Name, err)
		}
	}
	list, err := w.c.Machines(w.Context(), app, hangar.MachineFilter{})
	if err != nil {
		w.Fatal(err)
	}
	for _, m := range list {
		if w.facts[m.ID] == nil {
			if err := w.c.DestroyMachine(w.Context(), m.Ref(), hangar.MachineDestroy{Force: true}); err != nil {
				w.Errorf("destroy machine %s: %v", m.ID, err)
			}
		}
	}
}

// checkApps: an App is there or not, as was acknowledged.
func (w *world) checkApps() {
	w.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, exists := range w.apps {
		_, err := w.c.App(w.Context(), name)
		switch {
		case exists && err != nil:
			w.Errorf("app %s was created: %v", name, err)
		case !exists && hangar.CodeOf(err) != hangar.CodeNotFound:
			w.Errorf("app %s was destroyed: %v", name, err)
		}
		if !exists {
			delete(w.apps, name)
		}
	}
}

// checkRows compares the journal of the host with the cluster state, once the daemon has ended:
// they agree, except for rows that wait to be published.
func (w *world) checkRows() {
	w.Helper()
	log := slog.New(slog.DiscardHandler)
	records, err := journal.Open(filepath.Join(w.d.Dir(), "journal.db"), journal.Options{})
	if err != nil {
		w.Fatal(err)
	}
	defer records.Close()
	store, err := state.OpenEtcd(w.Context(), state.EtcdConfig{Dir: filepath.Join(w.d.Dir(), "state"), Log: log})
	if err != nil {
		w.Fatal(err)
	}
	defer store.Close()
	pending, err := records.Unpublished(0)
	if err != nil {
		w.Fatal(err)
	}
	var published map[hangar.MachineID]uint64
	err = records.Machines(func(rec *journal.Record) (err error) {
		if published == nil {
			if published, err = control.NewRows(store, log).PublishedMachines(w.Context(), rec.Machine.Host); err != nil {
				return err
			}
		}
		waits := slices.ContainsFunc(pending, func(p journal.Pending) bool { return p.ID == rec.Machine.ID })
		if seq, ok := published[rec.Machine.ID]; !waits && (!ok || seq != rec.Seq) {
			w.Errorf("machine %s is at %d in the journal and at %d in the cluster state", rec.Machine.ID, rec.Seq, seq)
		}
		delete(published, rec.Machine.ID)
		return nil
	})
	if err != nil {
		w.Fatal(err)
	}
	for id := range published {
		if !slices.ContainsFunc(pending, func(p journal.Pending) bool { return p.ID == id }) {
			w.Errorf("machine %s has a row and no record", id)
		}
	}
}

// forget makes room for new Machines: a destroyed one was checked for good.
func (w *world) forget(f *fact) {
	w.mu.Lock()
	delete(w.facts, f.ref.ID)
	w.mu.Unlock()
}

// checkHistory walks the events, each of which must be allowed to follow the one before it. There
// is one exit for each run of the main process.
func (w *world) checkHistory(m *hangar.Machine) {
	w.Helper()
	whole := len(m.Events) < mostEvents
	ran := !whole
	for i, e := range slices.Backward(m.Events) {
		to := hangar.MachineState(e.Status)
		if e.Type == hangar.EventExit {
			if !ran {
				w.Errorf("machine %s: exit %s of nothing that ran: %s", m.ID, e.ID, history(m))
			}
			ran = false
		}
		ran = ran || to == hangar.MachineStarted
		if i == len(m.Events)-1 {
			if whole && (e.Type != hangar.EventLaunch || to != hangar.MachineCreated) {
				w.Errorf("machine %s begins with %s/%s", m.ID, e.Type, e.Status)
			}
			continue
		}
		before := m.Events[i+1]
		from := hangar.MachineState(before.Status)
		if from != to && !from.CanBecome(to) {
			w.Errorf("machine %s went from %s to %s: %s", m.ID, from, to, history(m))
		}
		if before.Type == e.Type && before.Status == e.Status {
			w.Errorf("machine %s has two events for %s/%s: %s", m.ID, e.Type, e.Status, history(m))
		}
		if before.ID >= e.ID {
			w.Errorf("machine %s: event %s is not older than %s", m.ID, before.ID, e.ID)
		}
	}
	if len(m.Events) > 0 && m.Events[0].Status != string(m.State) {
		w.Errorf("machine %s is %s, its newest event says %s", m.ID, m.State, m.Events[0].Status)
	}
}

func history(m *hangar.Machine) string {
	var b strings.Builder
	for _, e := range slices.Backward(m.Events) {
		fmt.Fprintf(&b, "%s/%s ", e.Type, e.Status)
		if e.Request != nil && e.Request.Error != "" {
			fmt.Fprintf(&b, "(%s) ", e.Request.Error)
		}
	}
	return b.String()
}

// checkHost compares the host with the records. The resources of a Machine at rest may take a
// moment longer than its state.
func (w *world) checkHost() {
	w.Helper()
	var complaints []string
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if complaints = w.complaints(); len(complaints) == 0 {
			return
		}
	}
	for _, c := range complaints {
		w.Error(c)
	}
}

// machines says of every Machine whether it is started, and whether it exists.
func (w *world) machines() (started, existing map[hangar.MachineID]bool) {
	w.Helper()
	started, existing = make(map[hangar.MachineID]bool), make(map[hangar.MachineID]bool)
	apps, err := w.c.Apps(w.Context(), hangar.AppFilter{})
	if err != nil {
		w.Fatal(err)
	}
	for _, a := range apps {
		all, err := w.c.Machines(w.Context(), a.Name, hangar.MachineFilter{IncludeDestroyed: true})
		if err != nil && hangar.CodeOf(err) != hangar.CodeNotFound { // healed away meanwhile
			w.Fatal(err)
		}
		for _, m := range all {
			started[m.ID] = m.State == hangar.MachineStarted
			existing[m.ID] = m.State != hangar.MachineDestroyed
		}
	}
	return started, existing
}

// running lists the Machines that have a sandbox. With the fake driver, misuse of
// it is an error as well.
func (w *world) running() ([]hangar.MachineID, error) {
	if w.driver == "fake" {
		pretend := fake.NewWorld(filepath.Join(w.d.Dir(), "fake"))
		misuses, err := pretend.Misuses()
		if err == nil && len(misuses) > 0 {
			err = fmt.Errorf("the driver was misused: %s", strings.Join(misuses, "; "))
		}
		ids, listErr := pretend.Running()
		return ids, errors.Join(err, listErr)
	}
	return daemon.Sandboxes(w.d.Dir())
}

func (w *world) complaints() []string {
	var list []string
	started, existing := w.machines()
	for _, below := range []string{"machines", "layers"} {
		dirs, err := os.ReadDir(filepath.Join(w.d.Dir(), below))
		if err != nil {
			list = append(list, err.Error())
		}
		for _, dir := range dirs {
			id := hangar.MachineID(strings.TrimSuffix(dir.Name(), ".img"))
			if id.Valid() && !existing[id] {
				list = append(list, fmt.Sprintf("machine %s has %s in %s and no record", id, dir.Name(), below))
			}
		}
	}
	running, err := w.running()
	if err != nil {
		list = append(list, err.Error())
	}
	for _, id := range running {
		if !started[id] {
			list = append(list, fmt.Sprintf("machine %s runs and is not started", id))
		}
	}
	for id, yes := range started {
		if yes && !slices.Contains(running, id) {
			list = append(list, fmt.Sprintf("machine %s is started and does not run", id))
		}
	}
	return list
}
