package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/pause"
	"github.com/hangar-platform/hangar/test/daemon"
)

// keptByDesign is what a destroyed Machine or volume keeps: its log, its snapshots, and records
// in the journal and the cluster state; and series, whose store has more and fewer files by
// itself.
var keptByDesign = []string{"logs", "metrics", "snapshots", "snapshots-cache", "state"}

// heapAtRest is how much of the daemon's heap may be in use when nothing happens, and heapPerCycle
// how much more for each cycle: for the records of some three Machines and five volumes with
// snapshots that were destroyed and can still be read, which is about half of that.
const (
	heapAtRest   = 48 << 20
	heapPerCycle = 64 << 10
)

// collectedWithin is how soon the heap is collected when nothing happens.
const collectedWithin = 150 * time.Second

// turnoverConfig is the config of all Machines of the test: one serves any request, and none is
// started or stopped by that.
const turnoverConfig = `{"image":%q,"guest":{"cpus":1,"memory_mb":256},"restart":{"policy":"no"},"stop_config":{"signal":"SIGKILL"},
	"services":[{"protocol":"tcp","internal_port":8080,"autostart":false,"autostop":"off","ports":[{"port":80,"handlers":["http"]}]}]}`

// TestNothingStaysBehind lets Machines and volumes come and go, several at once and in every way
// that there is, beside a Machine that stays. The platform's things on the server are then those
// that it had after a few of these cycles; see census. What is kept of destroyed ones by design
// is left out, except that there is at most one log of each Machine.
func TestNothingStaysBehind(t *testing.T) {
	p := startWith(t, "--quota", "volumes=unlimited,volume_gb=unlimited,snapshots=unlimited,machines=unlimited", "--volume-overcommit", "100")
	p.publish(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	image := p.d.Push(daemon.Busybox(t, "sh", "sleep", "cat", "httpd"), "turnover:1", "--cmd", "httpd", "--cmd", "-f", "--cmd", "-p", "--cmd", "8080")
	stays := p.volume(t, hangar.VolumeCreate{})
	p.run(t, "stays", stays.mount(config(t, turnoverConfig, image)))
	most, warmUp := cycles(t, 1000, 15), times(12, 6)
	p.turnOver(t, image, seed, 0, warmUp)
	before := p.settled(t, nil)
	kept := p.retiredLogs(t)
	began := time.Now()
	made := p.turnOver(t, image, seed, warmUp, warmUp+most)
	took := time.Since(began)
	after := p.settled(t, before)
	for _, difference := range differences(before, after) {
		t.Error(difference)
	}
	if logs := p.retiredLogs(t) - kept; logs > made {
		t.Errorf("%d logs were kept of %d Machines", logs, made)
	}
	heap := p.heap(t, heapAtRest+heapPerCycle*float64(warmUp+most))
	t.Logf("%d cycles with %d Machines in %s, %.1f a minute; %d kinds of things; heap %.0f KB",
		most, made, took.Round(time.Second), float64(most)/took.Minutes(), len(after), heap/1024)
	if t.Failed() {
		p.logGoroutines(t, image, seed, warmUp)
	}
}

// logGoroutines logs the goroutines of the daemon by their creator, and those of which a new daemon has
// fewer after the first cycles. A daemon prints its goroutines when it ends.
func (p *platform) logGoroutines(t *testing.T, image string, seed uint64, warmUp int) {
	t.Helper()
	printed := p.d.Quit()
	after := creators(printed)
	for _, who := range slices.Sorted(maps.Keys(after)) {
		t.Logf("%d goroutines of %s", after[who], who)
	}
	p.d.Up()
	p.turnOver(t, image, seed, 0, warmUp)
	p.settled(t, nil)
	before := creators(strings.TrimPrefix(p.d.Quit(), printed))
	for _, who := range slices.Sorted(maps.Keys(after)) {
		if after[who] > before[who] {
			t.Logf("more goroutines of %s: %d, were %d", who, after[who], before[who])
		}
	}
}

// creators counts, in the stacks that a daemon has printed, the goroutines by their creator, without those
// of the runtime. One of a group counts for its own function.
func creators(stacks string) map[string]int {
	counts := map[string]int{}
	function := ""
	for line := range strings.Lines(stacks) {
		who, last := strings.CutPrefix(strings.TrimSpace(line), "created by ")
		group := strings.HasPrefix(who, "golang.org/x/sync/errgroup.") || strings.HasPrefix(who, "sync.(*WaitGroup)")
		switch {
		case last && group:
			counts[function]++
		case last && !strings.HasPrefix(who, "runtime."):
			who, _, _ = strings.Cut(who, " in goroutine")
			counts[who]++
		case !last && !group && !strings.HasPrefix(line, "\t") && strings.HasSuffix(who, ")"):
			function = who[:strings.LastIndex(who, "(")]
		}
	}
	return counts
}

// TestCreators: goroutines count for the function that started them.
func TestCreators(t *testing.T) {
	t.Parallel()
	got := creators("goroutine 7 [select]:\nmain.work()\n\t/src/main.go:1 +0x1\ncreated by main.start in goroutine 1\n\t/src/main.go:2 +0x2\n\n" +
		"goroutine 8 [select]:\nmain.work()\ncreated by main.start in goroutine 9\n\ngoroutine 2 [finalizer wait]:\nruntime.runFinalizers()\n" +
		"created by runtime.createfing in goroutine 1\n\ngoroutine 3 [select]:\nmain.wait(...)\n\t/src/main.go:3 +0x3\nmain.(*T).all.func1(0x1)\n\t/src/main.go:4\n" +
		"sync.(*WaitGroup).Go.func1()\n\t/go/wg.go:1\ncreated by sync.(*WaitGroup).Go in goroutine 1\n\ngoroutine 1 [running]:\nmain.main()\n")
	if want := map[string]int{"main.start": 2, "main.(*T).all.func1": 1}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// turnOver goes through the cycles of some numbers, four at once, and purges what is left of their
// volumes. It returns how many Machines were made.
func (p *platform) turnOver(t *testing.T, image string, seed uint64, from, to int) (made int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	numbers := make(chan int)
	go func() {
		defer close(numbers)
		for n := from; n < to; n++ {
			select {
			case numbers <- n:
			case <-ctx.Done():
				return
			}
		}
	}()
	var (
		workers sync.WaitGroup
		mu      sync.Mutex
		failed  error
	)
	configured := config(t, turnoverConfig, image)
	for range 4 {
		workers.Go(func() {
			for n := range numbers {
				c := &turnover{platform: p, random: rand.New(rand.NewPCG(seed, uint64(n))), config: configured}
				err := c.run(ctx)
				mu.Lock()
				made += len(c.machines)
				if err != nil && failed == nil {
					failed = fmt.Errorf("cycle %d, after %v: %w", n, c.done, err)
					cancel()
				}
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	if failed != nil {
		t.Fatal(failed)
	}
	gone, err := p.c.DestroyedVolumes(t.Context(), hangar.OrgPersonal)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range gone {
		if _, err := p.c.PurgeVolume(t.Context(), hangar.OrgPersonal, v.ID); err != nil {
			t.Fatal(err)
		}
	}
	return made
}

// turnover is one cycle: a Machine with a volume, the operations on them, and the results.
type turnover struct {
	*platform
	random *rand.Rand
	config hangar.MachineConfig

	machine  hangar.MachineRef
	volume   hangar.VolumeRef
	machines []hangar.MachineRef // with the one above, all that were made
	volumes  []hangar.VolumeRef
	done     []string // so far
}

// run goes through the cycle.
func (c *turnover) run(ctx context.Context) (err error) {
	if c.volume, err = c.makeVolume(ctx, hangar.VolumeCreate{SizeGB: 1}); err != nil {
		return err
	}
	if c.machine, err = c.launch(ctx, c.volume); err != nil {
		return err
	}
	if err := c.reach(ctx, c.machine, hangar.MachineStarted); err != nil {
		return err
	}
	steps := []struct {
		name string
		do   func(context.Context) error
	}{
		{"exec", c.exec},
		{"suspend", c.suspend},
		{"stop", c.stop},
		{"snapshot", c.snapshot},
		{"fork", c.fork},
		{"clone", c.clone},
		{"request", c.request},
		{"break off", c.breakOff},
		{"destroy early", c.destroyEarly},
		{"crash", c.crash},
	}
	c.random.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
	for _, s := range steps {
		c.done = append(c.done, s.name)
		if err := s.do(ctx); err != nil {
			return err
		}
	}
	return c.destroy(ctx)
}

// makeVolume makes a volume and waits until it is usable.
func (c *turnover) makeVolume(ctx context.Context, in hangar.VolumeCreate) (hangar.VolumeRef, error) {
	in.Name = "data"
	v, err := c.c.CreateVolume(ctx, app, in)
	if err != nil {
		return hangar.VolumeRef{}, fmt.Errorf("create a volume: %w", err)
	}
	c.volumes = append(c.volumes, v.Ref())
	return v.Ref(), attempt(func() error {
		v, err := c.c.Volume(ctx, v.Ref())
		if err == nil && v.State != hangar.VolumeCreated {
			err = fmt.Errorf("volume %s is %s", v.ID, v.State)
		}
		return err
	})
}

// launch makes a Machine with a volume.
func (c *turnover) launch(ctx context.Context, volume hangar.VolumeRef) (hangar.MachineRef, error) {
	with := c.config
	with.Mounts = []hangar.Mount{{Volume: string(volume.ID), Path: onVolume}}
	m, err := c.c.CreateMachine(ctx, app, hangar.MachineCreate{Config: with})
	if err != nil {
		return hangar.MachineRef{}, fmt.Errorf("create a Machine: %w", err)
	}
	c.machines = append(c.machines, m.Ref())
	return m.Ref(), nil
}

// reach waits until a Machine has a state.
func (c *turnover) reach(ctx context.Context, ref hangar.MachineRef, state hangar.MachineState) error {
	if _, err := c.c.WaitMachine(ctx, ref, hangar.MachineWait{States: []hangar.MachineState{state}, Timeout: hangar.MaxWaitTimeout}); err != nil {
		now, _ := c.c.Machine(ctx, ref)
		return fmt.Errorf("wait for %s: %w\n%s", state, err, describe(now))
	}
	return nil
}

// resume starts the Machine.
func (c *turnover) resume(ctx context.Context) error {
	if _, err := c.c.StartMachine(ctx, c.machine); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	return c.reach(ctx, c.machine, hangar.MachineStarted)
}

func (c *turnover) exec(ctx context.Context) error {
	command := []string{"sh", "-c", "echo kept >>" + onVolume + "/file; cat " + onVolume + "/file"}
	result, err := c.c.ExecMachine(ctx, c.machine, hangar.ExecRequest{Command: command}, hangar.ExecStreams{Stdout: io.Discard, Stderr: io.Discard})
	if err != nil || result.ExitCode != 0 {
		return fmt.Errorf("exec: code %d, %w", result.ExitCode, err)
	}
	return nil
}

func (c *turnover) suspend(ctx context.Context) error {
	if err := c.c.SuspendMachine(ctx, c.machine); err != nil {
		return fmt.Errorf("suspend: %w", err)
	}
	if err := c.reach(ctx, c.machine, hangar.MachineSuspended); err != nil {
		return err
	}
	return c.resume(ctx)
}

func (c *turnover) stop(ctx context.Context) error {
	if err := c.c.StopMachine(ctx, c.machine, hangar.MachineStop{}); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	if err := c.reach(ctx, c.machine, hangar.MachineStopped); err != nil {
		return err
	}
	return c.resume(ctx)
}

// snapshot takes a snapshot of the volume, and makes another volume of it.
func (c *turnover) snapshot(ctx context.Context) error {
	asked, err := c.c.CreateSnapshot(ctx, c.volume)
	if err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	err = attempt(func() error {
		all, err := c.c.Snapshots(ctx, c.volume)
		for _, s := range all {
			if s.ID == asked.ID && s.State == hangar.SnapshotCreated {
				return nil
			}
		}
		return errors.Join(err, fmt.Errorf("no snapshot %s among %d", asked.ID, len(all)))
	})
	if err != nil {
		return err
	}
	_, err = c.makeVolume(ctx, hangar.VolumeCreate{Snapshot: asked.ID})
	return err
}

func (c *turnover) fork(ctx context.Context) error {
	_, err := c.makeVolume(ctx, hangar.VolumeCreate{Source: c.volume.ID})
	return err
}

// clone runs a Machine like the first one, with an empty volume of its own.
func (c *turnover) clone(ctx context.Context) error {
	out, err := c.d.Try("machine", "clone", string(app), string(c.machine.ID), "--json")
	if err != nil {
		return fmt.Errorf("clone: %w", err)
	}
	var m hangar.Machine
	if err := json.Unmarshal([]byte(out), &m); err != nil {
		return fmt.Errorf("clone: %w: %s", err, out)
	}
	c.machines = append(c.machines, m.Ref())
	for _, mount := range m.Config.Mounts {
		c.volumes = append(c.volumes, hangar.VolumeRef{App: app, ID: hangar.VolumeID(mount.Volume)})
	}
	return c.reach(ctx, m.Ref(), hangar.MachineStarted)
}

// request asks the App for something. Any of its Machines may answer, even one that is about to go.
func (c *turnover) request(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	edge, _ := c.d.Edge()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+edge+"/", http.NoBody)
	if err != nil {
		return err
	}
	req.Host, req.Close = edgeHost, true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("request: %w", err)
	}
	_, _ = io.Copy(io.Discard, res.Body) // cut short when its Machine ends
	return res.Body.Close()
}

// breakOff begins what lasts, and goes away.
func (c *turnover) breakOff(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(c.random.IntN(300))*time.Millisecond)
	defer cancel()
	var lasting sync.WaitGroup
	lasting.Go(func() {
		_, _ = c.c.ExecMachine(ctx, c.machine, hangar.ExecRequest{Command: []string{"sleep", "100"}}, hangar.ExecStreams{Stdout: io.Discard, Stderr: io.Discard})
	})
	lasting.Go(func() {
		for range c.c.FollowLogs(ctx, app, hangar.LogQuery{Instance: c.machine.ID}) {
		}
	})
	lasting.Go(func() {
		for range c.c.WatchMachine(ctx, c.machine) {
		}
	})
	lasting.Go(func() {
		_, _ = c.c.WaitMachine(ctx, c.machine, hangar.MachineWait{States: []hangar.MachineState{hangar.MachineDestroyed}})
	})
	lasting.Wait()
	return nil
}

// destroyEarly destroys a Machine wherever its start has got to.
func (c *turnover) destroyEarly(ctx context.Context) error {
	volume, err := c.makeVolume(ctx, hangar.VolumeCreate{SizeGB: 1})
	if err != nil {
		return err
	}
	m, err := c.launch(ctx, volume)
	if err != nil {
		return err
	}
	_ = pause.For(ctx, time.Duration(c.random.IntN(500))*time.Millisecond)
	if err := c.c.DestroyMachine(ctx, m, hangar.MachineDestroy{Force: true}); err != nil {
		return fmt.Errorf("destroy early: %w", err)
	}
	return c.reach(ctx, m, hangar.MachineDestroyed)
}

// crash ends the sandbox of the Machine under it, or the storage daemon of its volume.
func (c *turnover) crash(ctx context.Context) error {
	sandboxes, err := daemon.SandboxPIDs(c.d.Dir())
	if err != nil {
		return err
	}
	storage, err := daemon.StorageDaemons(c.d.Dir())
	if err != nil {
		return err
	}
	victim := sandboxes[c.machine.ID]
	if open := storage[c.volume.ID]; len(open) == 1 && c.random.IntN(2) == 0 {
		victim = open[0]
	}
	if victim == 0 {
		return errors.New("the Machine has no sandbox")
	}
	if err := syscall.Kill(victim, syscall.SIGKILL); err != nil {
		return err
	}
	if err := c.reach(ctx, c.machine, hangar.MachineStopped); err != nil {
		return err
	}
	return c.resume(ctx)
}

// destroy destroys all that the cycle made in any order that is possible, and purges some of the
// volumes at once.
func (c *turnover) destroy(ctx context.Context) error {
	c.random.Shuffle(len(c.machines), func(i, j int) { c.machines[i], c.machines[j] = c.machines[j], c.machines[i] })
	for _, m := range c.machines {
		if now, err := c.c.Machine(ctx, m); err == nil && now.State == hangar.MachineDestroyed {
			continue
		}
		if err := c.c.DestroyMachine(ctx, m, hangar.MachineDestroy{Force: true}); err != nil {
			return fmt.Errorf("destroy: %w", err)
		}
		if err := c.reach(ctx, m, hangar.MachineDestroyed); err != nil {
			return err
		}
	}
	c.random.Shuffle(len(c.volumes), func(i, j int) { c.volumes[i], c.volumes[j] = c.volumes[j], c.volumes[i] })
	for _, v := range c.volumes {
		if _, err := c.c.DestroyVolume(ctx, v); err != nil {
			return fmt.Errorf("destroy: %w", err)
		}
		if c.random.IntN(2) == 0 {
			continue
		}
		if _, err := c.c.PurgeVolume(ctx, hangar.OrgPersonal, v.ID); err != nil {
			return fmt.Errorf("purge: %w", err)
		}
	}
	return nil
}

// attempt repeats what may not be possible yet, and returns the last error.
func attempt(try func() error) (err error) {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if err = try(); err == nil {
			return nil
		}
	}
	return fmt.Errorf("still after %s: %w", patience, err)
}

// How long a census must have stayed the same to be taken, and how long is waited for that:
// released resources may take a moment longer than their state, idle connections end gradually, and
// the kernel takes devices down in its own time.
const (
	settledFor    = 4 * time.Second
	settledWithin = 90 * time.Second
	// settlePause is longer than an HTTP server stays with a connection that it has closed.
	settlePause = time.Second
)

// settled takes a count once nothing changes any more, or, if there is one to compare with, as
// soon as it is like that.
func (p *platform) settled(t *testing.T, want map[string][]string) (found map[string][]string) {
	t.Helper()
	until(t, "store of metrics", func() error { _, err := p.metricsStore(); return err })
	var since time.Time
	for deadline := time.Now().Add(settledWithin); ; time.Sleep(settlePause) {
		now := p.count(t)
		if len(differences(found, now)) > 0 {
			since = time.Now()
		}
		found = now
		same := want != nil && len(differences(want, found)) == 0
		if same || want == nil && time.Since(since) >= settledFor || time.Now().After(deadline) {
			return found
		}
	}
}

// count takes a census, and counts the goroutines of the daemon.
func (p *platform) count(t *testing.T) map[string][]string {
	t.Helper()
	p.c.Close() // its idle connections
	http.DefaultClient.CloseIdleConnections()
	found := census(t, p.d, keptByDesign...)
	found["goroutines"] = make([]string, int(p.measures(t)["go_goroutines"]))
	return found
}

// heap returns what of the daemon's heap was in use after its last collection, in bytes, and fails
// if that stays above most.
func (p *platform) heap(t *testing.T, most float64) float64 {
	t.Helper()
	for deadline := time.Now().Add(collectedWithin); ; time.Sleep(settlePause) {
		is := p.measures(t)["go_gc_heap_live_bytes"]
		if is <= most {
			return is
		}
		if time.Now().After(deadline) {
			t.Errorf("the heap of the daemon has %.0f bytes in use, more than %.0f", is, most)
			return is
		}
	}
}

// measures are the counters of the daemon that have no labels.
func (p *platform) measures(t *testing.T) map[string]float64 {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.d.URL()+"/metrics", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+p.d.Token())
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	found := map[string]float64{}
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if n, err := strconv.ParseFloat(value, 64); err == nil {
			found[name] = n
		}
	}
	if err := lines.Err(); err != nil || found["go_goroutines"] == 0 || found["go_gc_heap_live_bytes"] == 0 {
		t.Fatalf("the daemon does not tell of its goroutines and its heap: %v, %s", err, res.Status)
	}
	return found
}

// retiredLogs counts the logs of Machines, nearly all of which are destroyed.
func (p *platform) retiredLogs(t *testing.T) int {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(p.d.Dir(), "logs", "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return len(logs)
}

// idleConnections is how many connections to its API a daemon is left with.
const idleConnections = 64

// TestCensusSeesWhatStays leaves things of many kinds on the server, as errors of the platform
// would, and looks whether they are counted: a test that nothing is left behind can fail.
func TestCensusSeesWhatStays(t *testing.T) {
	p := startWith(t, "--quota", "volumes=unlimited")
	image := p.d.Push(daemon.Busybox(t, "sh", "sleep"), "stays:1", "--cmd", "sleep", "--cmd", "100000")
	p.run(t, "stays", p.volume(t, hangar.VolumeCreate{}).mount(hangar.MachineConfig{Image: image}))
	dir, id := p.d.Dir(), instance(t, p.d)
	before := p.settled(t, nil)
	kinds := map[string]bool{}
	for thing := range before {
		kind, _, _ := strings.Cut(thing, " ")
		kinds[kind] = true
	}
	for _, kind := range []string{
		"link", "namespace", "table", "rule", "element", "mount", "loop", "cgroup", "process", "run", "route", "descriptor", "file", "goroutines",
	} {
		if !kinds[kind] {
			t.Errorf("a running daemon has no %s: the census does not see it", kind)
		}
	}
	leaks := []struct {
		seen []string // prefixes of the expected reports
		make func(t *testing.T)
	}{
		{[]string{"process stays", "zombie (sleep)"}, func(t *testing.T) {
			cmd := exec.Command("bash", "-c", `sleep 0.5 & exec -a "$0" sleep 100000`, dir+"/stays")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			})
		}},
		{[]string{"mount none DIR/machines/stays", "file DIR/machines/stays"}, func(t *testing.T) {
			at := filepath.Join(dir, "machines", "stays")
			if err := errors.Join(os.Mkdir(at, 0o700), unix.Mount("none", at, "tmpfs", 0, "")); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = errors.Join(unix.Unmount(at, 0), os.Remove(at)) })
		}},
		{[]string{"loop DIR/volumes/stays", "file DIR/volumes/stays"}, func(t *testing.T) {
			at := filepath.Join(dir, "volumes", "stays")
			if err := os.WriteFile(at, make([]byte, 1<<20), 0o600); err != nil {
				t.Fatal(err)
			}
			device := strings.TrimSpace(local(t, "losetup", "--find", "--show", at))
			t.Cleanup(func() { _ = errors.Join(exec.Command("losetup", "--detach", device).Run(), os.Remove(at)) })
		}},
		{[]string{"namespace /run/netns/hangar-INSTANCE-stays"}, func(t *testing.T) {
			local(t, "ip", "netns", "add", "hangar-"+id+"-stays")
			t.Cleanup(func() { _ = exec.Command("ip", "netns", "delete", "hangar-"+id+"-stays").Run() })
		}},
		{[]string{"link hINSTANCEstays"}, func(t *testing.T) {
			local(t, "ip", "link", "add", "h"+id+"stays", "type", "veth", "peer", "name", "h"+id+"peer")
			t.Cleanup(func() { _ = exec.Command("ip", "link", "delete", "h"+id+"stays").Run() })
		}},
		{[]string{"cgroup "}, func(t *testing.T) {
			for thing := range inventory(t) {
				if at, ok := strings.CutPrefix(thing, "cgroup "); ok && filepath.Base(at) == "hangar-"+id {
					at = filepath.Join(at, "stays")
					if err := os.Mkdir(at, 0o700); err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { _ = os.Remove(at) })
					return
				}
			}
			t.Fatal("the daemon has no cgroup")
		}},
		// More than may have ended since the first census, of what was idle then.
		{[]string{"descriptor of hangar: socket:"}, func(t *testing.T) {
			for range idleConnections {
				conn, err := net.Dial("tcp", p.d.Addr())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { conn.Close() })
				if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: hangar\r\n\r\n"); err != nil {
					t.Fatal(err)
				}
				if _, err := conn.Read(make([]byte, 1)); err != nil {
					t.Fatal(err)
				}
			}
		}},
	}
	for _, leak := range leaks {
		t.Run(leak.seen[0], func(t *testing.T) {
			leak.make(t)
			until(t, "told of", func() error {
				told := differences(before, p.count(t))
				for _, want := range leak.seen {
					if !slices.ContainsFunc(told, func(s string) bool { return strings.HasPrefix(s, want) }) {
						return fmt.Errorf("no %s in %q", want, told)
					}
				}
				return nil
			})
		})
	}
	after := p.settled(t, before)
	for _, difference := range differences(before, after) {
		t.Errorf("when all of that is gone: %s", difference)
	}
}
