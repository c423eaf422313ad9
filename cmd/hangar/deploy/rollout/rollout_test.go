package rollout_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/deploy/appconfig"
	"github.com/hangar-platform/hangar/cmd/hangar/deploy/rollout"
	"github.com/hangar-platform/hangar/test/platform"
)

const (
	app  = hangar.AppName("web")
	poll = 10 * time.Millisecond
)

// start starts a platform with an App.
func start(t *testing.T) *platform.Platform {
	t.Helper()
	p := platform.Start(t, platform.Options{})
	if _, err := p.Client().CreateApp(t.Context(), hangar.AppCreate{Name: app, Org: hangar.OrgPersonal}); err != nil {
		t.Fatal(err)
	}
	return p
}

// file describes an App of three Machines. version distinguishes releases.
func file(t *testing.T, version string, more ...string) *appconfig.File {
	t.Helper()
	text := fmt.Sprintf("app = %q\n[build]\nimage = \"nginx\"\n[env]\nVERSION = %q\n[scale]\napp = 3\n%s", app, version, strings.Join(more, "\n"))
	f, _, err := appconfig.Parse("hangar.toml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// deploy plans a deploy and runs it.
func deploy(ctx context.Context, c *client.Client, f *appconfig.File, change ...func(*rollout.Options)) (*rollout.Deploy, error) {
	o := rollout.Options{App: app, File: f, Poll: poll, WaitTimeout: time.Minute, Reason: "test"}
	for _, ch := range change {
		ch(&o)
	}
	d, err := rollout.Prepare(ctx, c, o)
	if err != nil {
		return nil, err
	}
	return d, d.Run(ctx)
}

// versions counts the Machines in service by version.
func versions(t *testing.T, c *client.Client) map[string]int {
	t.Helper()
	machines, err := c.Machines(t.Context(), app, hangar.MachineFilter{})
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, m := range machines {
		switch m.State {
		case hangar.MachineDestroying, hangar.MachineDestroyed:
			continue
		default:
		}
		text := m.Config.Env["VERSION"]
		if m.Cordoned {
			text += " cordoned"
		}
		if m.State != hangar.MachineStarted {
			text += " " + string(m.State)
		}
		count[text]++
		if lease, err := c.MachineLease(t.Context(), m.Ref()); err == nil {
			t.Errorf("Machine %s is leased: %+v", m.ID, lease)
		}
	}
	return count
}

func expect(t *testing.T, c *client.Client, want map[string]int, statuses ...hangar.ReleaseStatus) {
	t.Helper()
	if got := versions(t, c); !maps.Equal(got, want) {
		t.Errorf("Machines are %v, not %v", got, want)
	}
	list, err := c.Releases(t.Context(), app, 0)
	if err != nil {
		t.Fatal(err)
	}
	var got []hangar.ReleaseStatus
	for _, r := range list {
		got = append(got, r.Status)
	}
	if !slices.Equal(got, statuses) {
		t.Errorf("releases are %v, not %v", got, statuses)
	}
}

const (
	complete    = hangar.ReleaseComplete
	failed      = hangar.ReleaseFailed
	interrupted = hangar.ReleaseInterrupted
)

// checked is a service whose check requests a path of the program of every Machine.
func checked(path string) string {
	return fmt.Sprintf("[http_service]\ninternal_port = %d\n[[http_service.checks]]\npath = %q\ninterval = \"1s\"\n", platform.HTTPPort, path)
}

func TestStrategies(t *testing.T) {
	t.Parallel()
	for _, strategy := range appconfig.Strategies() {
		t.Run(string(strategy), func(t *testing.T) {
			t.Parallel()
			p := start(t)
			c := p.Client()
			chosen := func(o *rollout.Options) { o.Strategy = strategy }
			if _, err := deploy(t.Context(), c, file(t, "1"), chosen); err != nil {
				t.Fatal(err)
			}
			d, err := deploy(t.Context(), c, file(t, "2", checked("/")), chosen)
			if err != nil {
				t.Fatal(err)
			}
			if strategy == appconfig.Strategy(hangar.StrategyImmediate) { // it does not wait
				waitStarted(t, c)
			}
			expect(t, c, map[string]int{"2": 3}, complete, complete)
			if d.Release.Version != 2 || d.Release.Strategy != hangar.ReleaseStrategy(strategy) {
				t.Errorf("%+v", d.Release)
			}
			if pinned := pinnedOf(t, c); strategy == "rolling" && pinned != 2 || strategy == "canary" && pinned != 3 {
				t.Errorf("%d Machines have the image that the first one got", pinned)
			}
			if list, err := c.Addresses(t.Context(), app); err != nil || len(list) != 1 {
				t.Errorf("addresses are %v, %v", list, err)
			}
		})
	}
}

// pinnedOf counts the Machines whose image is pinned to its digest.
func pinnedOf(t *testing.T, c *client.Client) (n int) {
	t.Helper()
	machines, err := c.Machines(t.Context(), app, hangar.MachineFilter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range machines {
		if strings.HasPrefix(m.Config.Image, "nginx@sha256:") {
			n++
		}
	}
	return n
}

func waitStarted(t *testing.T, c *client.Client) {
	t.Helper()
	machines, err := c.Machines(t.Context(), app, hangar.MachineFilter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range machines {
		if _, err := c.WaitMachine(t.Context(), m.Ref(), hangar.MachineWait{Instance: m.InstanceID}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFailingChecks: a Machine that does not become healthy stops a deploy, and the next one
// continues.
func TestFailingChecks(t *testing.T) {
	t.Parallel()
	for strategy, test := range map[appconfig.Strategy]struct{ after map[string]int }{
		"rolling":   {map[string]int{"1": 2, "2": 1}},
		"canary":    {map[string]int{"1": 3}},
		"bluegreen": {map[string]int{"1": 3}},
	} {
		t.Run(string(strategy), func(t *testing.T) {
			t.Parallel()
			c := start(t).Client()
			chosen := func(o *rollout.Options) { o.Strategy, o.WaitTimeout = strategy, 6*time.Second }
			if _, err := deploy(t.Context(), c, file(t, "1")); err != nil {
				t.Fatal(err)
			}
			_, err := deploy(t.Context(), c, file(t, "2", checked("/status/500")), chosen)
			if hangar.CodeOf(err) != hangar.CodeTimeout || !strings.Contains(err.Error(), "release v2 is failed") || !strings.Contains(err.Error(), "app: v1 is started") {
				t.Errorf("%v", err)
			}
			expect(t, c, test.after, failed, complete)
			if _, err := deploy(t.Context(), c, file(t, "3", checked("/")), func(o *rollout.Options) { o.Strategy = strategy }); err != nil {
				t.Fatal(err)
			}
			expect(t, c, map[string]int{"3": 3}, complete, failed, complete)
		})
	}
}

// TestProgramThatEnds: the smoke check sees a program that ends although it should not.
func TestProgramThatEnds(t *testing.T) {
	t.Parallel()
	c := start(t).Client()
	if _, err := deploy(t.Context(), c, file(t, "1")); err != nil {
		t.Fatal(err)
	}
	_, err := deploy(t.Context(), c, file(t, "2", "[experimental]\ncmd = [\"exit\", \"7\"]\n[[restart]]\npolicy = \"never\""), func(o *rollout.Options) { o.Settling = time.Minute })
	if err == nil || !strings.Contains(err.Error(), "its program has ended with code 7") {
		t.Error(err)
	}
	expect(t, c, map[string]int{"1": 2, "2 stopped": 1}, failed, complete)
	// The Machine that crashed is started again.
	if _, err := deploy(t.Context(), c, file(t, "3")); err != nil {
		t.Fatal(err)
	}
	expect(t, c, map[string]int{"3": 3}, complete, failed, complete)
}

func TestReleaseCommand(t *testing.T) {
	t.Parallel()
	c := start(t).Client()
	var mu sync.Mutex
	var said []string
	heard := func(o *rollout.Options) {
		o.Report = func(e rollout.Event) {
			mu.Lock()
			defer mu.Unlock()
			said = append(said, e.Group+": "+e.Text)
		}
	}
	if _, err := deploy(t.Context(), c, file(t, "1", "[deploy]\nrelease_command = \"true\""), heard); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(said, "release command: succeeded") {
		t.Errorf("%q", said)
	}
	_, err := deploy(t.Context(), c, file(t, "2", "[deploy]\nrelease_command = \"exit 3\""), heard)
	if err == nil || !strings.Contains(err.Error(), "release command: it ended with exit code 3") {
		t.Error(err)
	}
	expect(t, c, map[string]int{"1": 3}, failed, complete)
	if _, err := deploy(t.Context(), c, file(t, "2", "[deploy]\nrelease_command = \"exit 3\""), func(o *rollout.Options) { o.SkipRelease = true }); err != nil {
		t.Fatal(err)
	}
	expect(t, c, map[string]int{"2": 3}, complete, failed, complete)
}

func TestMachineChecks(t *testing.T) {
	t.Parallel()
	c := start(t).Client()
	_, err := deploy(t.Context(), c, file(t, "1", "[http_service]\n[[http_service.machine_checks]]\ncommand = \"true\""))
	if err != nil {
		t.Fatal(err)
	}
	_, err = deploy(t.Context(), c, file(t, "2", "[http_service]\n[[http_service.machine_checks]]\ncommand = \"exit 4\""))
	if err == nil || !strings.Contains(err.Error(), "machine check 1 of app: it ended with exit code 4") {
		t.Error(err)
	}
	expect(t, c, map[string]int{"1": 2, "2": 1}, failed, complete)
}

// TestSecretsAndNothing: a pinned image is deployed again only for a reason, such as new secrets.
func TestSecretsAndNothing(t *testing.T) {
	t.Parallel()
	c := start(t).Client()
	if _, err := deploy(t.Context(), c, file(t, "1")); err != nil {
		t.Fatal(err)
	}
	machines, err := c.Machines(t.Context(), app, hangar.MachineFilter{})
	if err != nil {
		t.Fatal(err)
	}
	pinned := func(o *rollout.Options) { o.Image = machines[0].ImageRef.String() }
	if _, err := deploy(t.Context(), c, file(t, "1"), pinned); err != nil {
		t.Fatal(err)
	}
	d, err := rollout.Prepare(t.Context(), c, rollout.Options{App: app, File: file(t, "1"), Image: machines[0].ImageRef.String()})
	if err != nil || d.Plan.Changes() {
		t.Fatalf("%v, %+v", err, d)
	}
	set, err := c.SetSecrets(t.Context(), app, map[string]hangar.Sensitive{"KEY": hangar.NewSensitive("x")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := deploy(t.Context(), c, file(t, "1"), pinned); err != nil {
		t.Fatal(err)
	}
	if machines, err = c.Machines(t.Context(), app, hangar.MachineFilter{}); err != nil {
		t.Fatal(err)
	}
	for _, m := range machines {
		if m.SecretsVersion != set.Version || m.Config.Metadata["fly_release_version"] != "3" {
			t.Errorf("Machine %s has secrets %d of %d and %v", m.ID, m.SecretsVersion, set.Version, m.Config.Metadata)
		}
	}
}

// TestGroups adds and removes groups, with standbys.
func TestGroups(t *testing.T) {
	t.Parallel()
	c := start(t).Client()
	two, _, err := appconfig.Parse("f", []byte("[build]\nimage = \"nginx\"\n[env]\nVERSION = \"1\"\n[processes]\nweb = \"serve\"\nwork = \"work\"\n[standbys]\nwork = 1"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := deploy(t.Context(), c, two); err != nil {
		t.Fatal(err)
	}
	machines, err := c.Machines(t.Context(), app, hangar.MachineFilter{Metadata: map[string]string{"fly_process_group": "work"}})
	if err != nil || len(machines) != 2 {
		t.Fatal(err, machines)
	}
	standby, active := machines[0], machines[1]
	if active.Config.StandsBy() {
		standby, active = active, standby
	}
	if !slices.Equal(standby.Config.Standbys, []hangar.MachineID{active.ID}) || active.State != hangar.MachineStarted || active.Config.Init.Cmd[0] != "work" {
		t.Errorf("%+v stands by for %+v", standby, active)
	}
	one, _, err := appconfig.Parse("f", []byte("[build]\nimage = \"nginx\"\n[env]\nVERSION = \"2\"\n[processes]\nweb = \"serve\""))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := deploy(t.Context(), c, one); err != nil {
		t.Fatal(err)
	}
	expect(t, c, map[string]int{"2": 1}, complete, complete)
}

// dying is a transport that fails after a number of changes, as if its process had been killed.
type dying struct {
	left atomic.Int64
	to   http.RoundTripper
	end  context.CancelFunc // ends the waits of the process
}

func (d *dying) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet && d.left.Add(-1) < 0 || d.left.Load() < 0 {
		d.end()
		return nil, errors.New("the process was killed")
	}
	return d.to.RoundTrip(r)
}

// TestKilled: the next deploy continues one that was killed after any change.
func TestKilled(t *testing.T) {
	t.Parallel()
	for strategy, ends := range map[appconfig.Strategy][]int64{"rolling": {4, 6, 7}, "canary": {6, 7, 11}, "bluegreen": {7, 9, 12, 16, 20}} {
		for _, changes := range ends {
			t.Run(fmt.Sprintf("%s after %d", strategy, changes), func(t *testing.T) {
				t.Parallel()
				p := start(t)
				c := p.Client()
				if _, err := deploy(t.Context(), c, file(t, "1")); err != nil {
					t.Fatal(err)
				}
				ctx, end := context.WithCancel(t.Context())
				cut := &dying{to: p.Transport(), end: end}
				cut.left.Store(changes)
				doomed := client.New(p.URL(), p.Token(), client.WithHTTPClient(&http.Client{Transport: cut}))
				defer doomed.Close()
				chosen := func(o *rollout.Options) { o.Strategy, o.MaxUnavailable = strategy, 1 }
				// Its leases end soon, but not before the next deploy was refused once.
				if _, err := deploy(ctx, doomed, file(t, "2"), chosen, func(o *rollout.Options) { o.LeaseTTL = 9 * time.Second }); err == nil {
					t.Fatal("a deploy that was killed succeeds")
				}
				if _, err := deploy(t.Context(), c, file(t, "2"), chosen); hangar.ReasonOf(err) != hangar.ReasonLeaseHeld {
					t.Errorf("at once: %v", err)
				}
				_, err := deploy(t.Context(), c, file(t, "2"), chosen, func(o *rollout.Options) { o.TakeOver, o.WaitLease = true, time.Minute })
				if err != nil {
					t.Fatal(err)
				}
				expect(t, c, map[string]int{"2": 3}, complete, interrupted, complete)
			})
		}
	}
}

// leasing is a transport that calls refreshed at the second request for a lease on a Machine.
type leasing struct {
	to        http.RoundTripper
	machine   hangar.MachineID
	requests  atomic.Int64
	refreshed func()
}

func (l *leasing) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/machines/"+string(l.machine)+"/lease") && l.requests.Add(1) == 2 {
		l.refreshed()
	}
	return l.to.RoundTrip(r)
}

// TestWaitingForALease: a deploy that waits for the lease of one Machine keeps those of the others.
func TestWaitingForALease(t *testing.T) {
	t.Parallel()
	p := start(t)
	c := p.Client()
	if _, err := deploy(t.Context(), c, file(t, "1")); err != nil {
		t.Fatal(err)
	}
	machines, err := c.Machines(t.Context(), app, hangar.MachineFilter{})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(machines, func(a, b *hangar.Machine) int { return strings.Compare(string(a.ID), string(b.ID)) })
	last := machines[len(machines)-1].Ref()
	held, err := c.AcquireLease(t.Context(), last, hangar.LeaseAcquire{TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	watched := &leasing{to: p.Transport(), machine: machines[0].ID, refreshed: func() {
		if err := c.ReleaseLease(hangar.WithLeaseNonce(t.Context(), held.Nonce), last); err != nil {
			t.Errorf("the lease was refreshed after the wait: %v", err)
		}
	}}
	waiting := client.New(p.URL(), p.Token(), client.WithHTTPClient(&http.Client{Transport: watched}))
	defer waiting.Close()
	_, err = deploy(t.Context(), waiting, file(t, "2"), func(o *rollout.Options) { o.LeaseTTL, o.WaitLease = 9*time.Second, 2*time.Minute })
	if err != nil {
		t.Fatal(err)
	}
	expect(t, c, map[string]int{"2": 3}, complete, complete)
}

// sleeping is a transport of a computer that falls asleep at the first request of a kind. All requests wait until it
// is awake, and those of that kind until their deploy gives up or two changes of its release were refused.
type sleeping struct {
	to            http.RoundTripper
	kind          func(*http.Request) bool
	asleep, awake chan struct{}
	fall          func()
	refusals      atomic.Int64
	refused       chan struct{}
}

func (s *sleeping) RoundTrip(r *http.Request) (*http.Response, error) {
	if s.kind(r) {
		s.fall()
	}
	select {
	case <-s.asleep:
		<-s.awake
	default:
	}
	if s.kind(r) {
		select {
		case <-r.Context().Done():
			return nil, r.Context().Err()
		case <-s.refused:
		}
	}
	res, err := s.to.RoundTrip(r)
	if err == nil && r.Method == http.MethodPatch && res.StatusCode >= http.StatusBadRequest && s.refusals.Add(1) == 2 {
		close(s.refused)
	}
	return res, err
}

// TestTakenOver: a deploy whose computer sleeps while another one takes over does not continue when it wakes.
func TestTakenOver(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		method string
		late   bool // the request may arrive before the deploy learns that it is over
	}{
		"in a change": {http.MethodPost, true},
		"in a wait":   {http.MethodGet, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t)
			c := p.Client()
			if _, err := deploy(t.Context(), c, file(t, "1")); err != nil {
				t.Fatal(err)
			}
			way := &sleeping{to: p.Transport(), asleep: make(chan struct{}), awake: make(chan struct{}), refused: make(chan struct{})}
			way.fall = sync.OnceFunc(func() { close(way.asleep) })
			way.kind = func(r *http.Request) bool {
				at, id := path.Split(r.URL.Path)
				return r.Method == test.method && strings.HasSuffix(at, "/machines/") && id != "" && r.URL.RawQuery == ""
			}
			if test.late {
				close(way.refused)
				way.refusals.Store(2)
			}
			first := client.New(p.URL(), p.Token(), client.WithHTTPClient(&http.Client{Transport: way}))
			defer first.Close()
			ended := make(chan error, 1)
			go func() {
				_, err := deploy(t.Context(), first, file(t, "2"), func(o *rollout.Options) { o.LeaseTTL = time.Second })
				ended <- err
			}()
			<-way.asleep
			_, err := deploy(t.Context(), c, file(t, "3"), func(o *rollout.Options) { o.TakeOver, o.WaitLease = true, time.Minute })
			close(way.awake)
			if err != nil {
				t.Error(err)
			}
			if err := <-ended; hangar.ReasonOf(err) != hangar.ReasonWrongState && hangar.ReasonOf(err) != hangar.ReasonStaleVersion {
				t.Errorf("the first one: %v", err)
			}
			expect(t, c, map[string]int{"3": 3}, complete, interrupted, complete)
		})
	}
}

// unmarked is a transport to a platform that does not take metadata.
type unmarked struct{ to http.RoundTripper }

func (u unmarked) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.Contains(r.URL.Path, "/metadata") && r.Method != http.MethodGet {
		return nil, errors.New("not now")
	}
	return u.to.RoundTrip(r)
}

// TestMarksAreMissing: a deploy does not fail because Machines that needed no update could not be marked.
func TestMarksAreMissing(t *testing.T) {
	t.Parallel()
	p := start(t)
	c := p.Client()
	if _, err := deploy(t.Context(), c, file(t, "1")); err != nil {
		t.Fatal(err)
	}
	machines, err := c.Machines(t.Context(), app, hangar.MachineFilter{})
	if err != nil {
		t.Fatal(err)
	}
	pinned := func(o *rollout.Options) { o.Image = "nginx@" + machines[0].ImageRef.Digest }
	if _, err := deploy(t.Context(), c, file(t, "1"), pinned); err != nil {
		t.Fatal(err)
	}
	cut := client.New(p.URL(), p.Token(), client.WithHTTPClient(&http.Client{Transport: unmarked{p.Transport()}}))
	defer cut.Close()
	told := 0
	_, err = deploy(t.Context(), cut, file(t, "1"), pinned, func(o *rollout.Options) {
		o.Report = func(e rollout.Event) {
			if strings.Contains(e.Text, "not marked") {
				told++
			}
		}
	})
	if err != nil || told != 3 {
		t.Errorf("%v, told %d times", err, told)
	}
	expect(t, c, map[string]int{"1": 3}, complete, complete, complete)
}

// TestTwoAtOnce: a second deploy is refused during the first, and its error names the user of that.
func TestTwoAtOnce(t *testing.T) {
	t.Parallel()
	c := start(t).Client()
	if _, err := deploy(t.Context(), c, file(t, "1")); err != nil {
		t.Fatal(err)
	}
	begun, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := deploy(t.Context(), c, file(t, "2"), func(o *rollout.Options) {
			once := sync.OnceFunc(func() {
				close(begun)
				<-goOn
			})
			o.Report = func(e rollout.Event) {
				if e.Machine != "" {
					once()
				}
			}
		})
		ended <- err
	}()
	<-begun
	_, err := deploy(t.Context(), c, file(t, "3"))
	if hangar.ReasonOf(err) != hangar.ReasonLeaseHeld || !strings.Contains(err.Error(), "release v2 of admin is being deployed") {
		t.Errorf("a second one: %v", err)
	}
	_, err = deploy(t.Context(), c, file(t, "3"), func(o *rollout.Options) { o.TakeOver = true })
	if hangar.ReasonOf(err) != hangar.ReasonLeaseHeld || !strings.Contains(err.Error(), "lease currently held by admin") {
		t.Errorf("one that takes over: %v", err)
	}
	close(goOn)
	if err := <-ended; err != nil {
		t.Errorf("the first one: %v", err)
	}
	expect(t, c, map[string]int{"2": 3}, failed, complete, complete)
}

// TestClockOfThePlatform: whether another deploy is alive depends on the clock of the platform, and not on that of
// the computer.
func TestClockOfThePlatform(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{-time.Hour, time.Hour} {
		now := time.Now().UTC().Add(ahead)
		for age, alive := range map[time.Duration]bool{30 * time.Second: true, 2 * time.Minute: false} {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Date", now.Format(http.TimeFormat))
				switch path.Base(r.URL.Path) {
				case "releases":
					_, _ = fmt.Fprintf(w, `{"releases":[{"version":1,"status":"running","updated_at":%q}]}`, now.Add(-age).Format(time.RFC3339))
				case "secrets":
					_, _ = io.WriteString(w, `{}`)
				default:
					_, _ = io.WriteString(w, `[]`)
				}
			}))
			defer server.Close()
			c := client.New(server.URL, "token")
			defer c.Close()
			_, err := rollout.Prepare(t.Context(), c, rollout.Options{App: app, File: file(t, "1")})
			if refused := hangar.ReasonOf(err) == hangar.ReasonLeaseHeld; refused != alive || err != nil && !refused {
				t.Errorf("%s ahead, a release that was updated %s ago: %v", ahead, age, err)
			}
		}
	}
}

// TestVolumes: each Machine has a volume of its own, and keeps it.
func TestVolumes(t *testing.T) {
	t.Parallel()
	c := start(t).Client()
	const mounts = "[mounts]\nsource = \"data\"\ndestination = \"/data\"\ninitial_size = \"1gb\""
	kept, err := c.CreateVolume(t.Context(), app, hangar.VolumeCreate{Name: "data", SizeGB: 1})
	if err != nil {
		t.Fatal(err)
	}
	volumes := func() map[hangar.MachineID]string {
		machines, err := c.Machines(t.Context(), app, hangar.MachineFilter{})
		if err != nil {
			t.Fatal(err)
		}
		found := map[hangar.MachineID]string{}
		for _, m := range machines {
			found[m.ID] = m.Config.Mounts[0].Volume
		}
		return found
	}
	if _, err := deploy(t.Context(), c, file(t, "1", mounts)); err != nil {
		t.Fatal(err)
	}
	before := volumes()
	if len(before) != 3 || !slices.Contains(slices.Collect(maps.Values(before)), string(kept.ID)) {
		t.Errorf("Machines have %v, of which one should be %s", before, kept.ID)
	}
	if _, err := deploy(t.Context(), c, file(t, "2", mounts), func(o *rollout.Options) { o.Strategy = "canary" }); err != nil {
		t.Fatal(err)
	}
	if after := volumes(); !maps.Equal(after, before) {
		t.Errorf("Machines have %v, and had %v", after, before)
	}
	if _, err := deploy(t.Context(), c, file(t, "3", mounts), func(o *rollout.Options) { o.Strategy = "bluegreen" }); hangar.CodeOf(err) != hangar.CodeInvalid {
		t.Errorf("bluegreen: %v", err)
	}
	if _, err := deploy(t.Context(), c, file(t, "3")); hangar.CodeOf(err) != hangar.CodeFailedPrecondition {
		t.Errorf("without the volume: %v", err)
	}
	expect(t, c, map[string]int{"2": 3}, complete, complete)
}

// TestOthersStay: a deploy does not change Machines that no deploy created.
func TestOthersStay(t *testing.T) {
	t.Parallel()
	c := start(t).Client()
	if _, err := c.CreateMachine(t.Context(), app, hangar.MachineCreate{Config: hangar.MachineConfig{Image: "nginx", Env: map[string]string{"VERSION": "mine"}}}); err != nil {
		t.Fatal(err)
	}
	d, err := deploy(t.Context(), c, file(t, "1"))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(d.Notes, []string{"not created by a deploy, and not changed: 1 Machine"}) {
		t.Errorf("%q", d.Notes)
	}
	waitStarted(t, c)
	expect(t, c, map[string]int{"1": 3, "mine": 1}, complete)
}

// TestRegion: an unknown primary region is reported, and moves no Machine.
func TestRegion(t *testing.T) {
	t.Parallel()
	c := start(t).Client()
	f := file(t, "1")
	f.PrimaryRegion = "ams"
	d, err := deploy(t.Context(), c, f)
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Notes) != 1 || !strings.HasPrefix(d.Notes[0], "primary_region: this platform has no region ams") {
		t.Errorf("%q", d.Notes)
	}
	machines, err := c.Machines(t.Context(), app, hangar.MachineFilter{})
	if err != nil || len(machines) != 3 || machines[0].Config.Env["PRIMARY_REGION"] != "" {
		t.Errorf("%v, %+v", err, machines)
	}
	if !strings.Contains(string(d.Release.Definition), `"primary_region":"ams"`) {
		t.Errorf("the release has %s", d.Release.Definition)
	}
}

// TestInterrupted: an interrupted deploy releases its leases.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	c := start(t).Client()
	if _, err := deploy(t.Context(), c, file(t, "1")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err := deploy(ctx, c, file(t, "2", checked("/status/500")), func(o *rollout.Options) {
		o.Report = func(e rollout.Event) {
			if e.Text == "updated" {
				cancel()
			}
		}
	})
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "release v2 is interrupted") {
		t.Errorf("%v", err)
	}
	list, err := c.Releases(t.Context(), app, 1)
	if err != nil || list[0].Status != interrupted {
		t.Errorf("%v, %v", list, err)
	}
	if _, err := deploy(t.Context(), c, file(t, "3")); err != nil {
		t.Fatal(err)
	}
	expect(t, c, map[string]int{"3": 3}, complete, interrupted, complete)
}
