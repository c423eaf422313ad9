package compat_test

import (
	"context"
	"net/netip"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/test/daemon"
)

// world is a daemon with an App and an image for it.
type world struct {
	*client
	daemon *daemon.Daemon
	driver string
	app    string
	image  string // serves HTTP on port 8080 until it is asked to end
}

func newWorld(t *testing.T, driver string) world {
	t.Helper()
	d := daemon.Start(t, daemon.Options{Driver: driver})
	w := world{client: newClient(t, d, d.Token()), daemon: d, driver: driver, app: "web"}
	w.image = d.Push(daemon.Busybox(t, "sh", "sleep", "echo", "cat", "httpd"), "httpd:1", "--cmd", "httpd", "--cmd", "-f", "--cmd", "-p", "--cmd", "8080")
	if _, err := w.createApp(t.Context(), w.app); err != nil {
		t.Fatal(err)
	}
	return w
}

// config is what existing clients send for a Machine with a service.
func (w world) config() *machineConfig {
	return &machineConfig{
		Image:    w.image,
		DNS:      &dns{},
		Env:      map[string]string{"FLY_PROCESS_GROUP": "app", "PRIMARY_REGION": "loc"},
		Guest:    &guest{CPUKind: "shared", CPUs: 1, MemoryMB: 256},
		Metadata: map[string]string{"fly_platform_version": "v2", "fly_process_group": "app"},
		Restart:  &restart{Policy: "on-failure", MaxRetries: 10},
		Services: []service{{
			Protocol: "tcp", InternalPort: 8080, Autostop: new(autostop("stop")), Autostart: new(true), MinMachinesRunning: new(0),
			Ports: []port{
				{Port: new(80), Handlers: []string{"http"}, ForceHTTPS: true},
				{Port: new(443), Handlers: []string{"http", "tls"}},
			},
			Checks: []check{{
				Type: new("http"), Interval: &duration{15 * time.Second}, Timeout: &duration{2 * time.Second}, HTTPMethod: new("GET"),
				HTTPPath: new("/"), HTTPHeaders: []header{{Name: "X-Forwarded-Proto", Values: []string{"https"}}},
			}},
			Concurrency: &concurrency{Type: "connections", SoftLimit: 20, HardLimit: 25},
		}},
		Checks: map[string]check{"alive": {Type: new("tcp"), Port: new(8080), Interval: &duration{15 * time.Second}, GracePeriod: &duration{time.Second}}},
		Stop:   &stopConfig{Timeout: &duration{10 * time.Second}, Signal: new("SIGTERM")},
	}
}

// run launches a Machine and waits until it is started.
func (w world) run(t *testing.T, in launch) *machine {
	t.Helper()
	m, err := w.launch(t.Context(), w.app, in)
	if err != nil {
		t.Fatal(err)
	}
	w.reach(t, m.ID, "started")
	return m
}

// reach waits until the Machine has one of the states.
func (w world) reach(t *testing.T, id string, states ...string) {
	t.Helper()
	if err := w.wait(t.Context(), w.app, id, url.Values{"state": states}); err != nil {
		t.Fatalf("wait for %v: %v", states, err)
	}
}

func (w world) look(t *testing.T, id string) *machine {
	t.Helper()
	m, err := w.get(t.Context(), w.app, id)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func must(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// wantFailure checks what clients look at: the status code and a part of the text.
func wantFailure(t *testing.T, what string, err error, status int, text string) {
	t.Helper()
	e := failure(t, err)
	if e.status != status || !strings.Contains(e.text, text) {
		t.Errorf("%s is answered %d %q, want %d and a text with %q", what, e.status, e.text, status, text)
	}
	if e.requestID == "" {
		t.Errorf("%s is answered without the id of the request", what)
	}
}

func TestClient(t *testing.T) {
	for _, driver := range []string{"fake", "gvisor"} {
		t.Run(driver, func(t *testing.T) {
			w := newWorld(t, driver)
			t.Run("tokens", w.tokens)
			t.Run("apps", w.appLife)
			t.Run("launch", w.launchShape)
			t.Run("list", w.listFilters)
			t.Run("verbs", w.verbs)
			t.Run("inside", w.inside)
			t.Run("update", w.updates)
			t.Run("leases", w.leases)
			t.Run("waits", w.waits)
			t.Run("release command", w.releaseCommand)
			t.Run("texts", w.texts)
			t.Run("logs", w.logPages)
			t.Run("volumes", w.volumeLife)
			t.Run("snapshots", w.volumeSnapshots)
			t.Run("addresses", w.addresses)
			t.Run("destroy app", w.destroyApp)
		})
	}
}

func (w world) tokens(t *testing.T) {
	ctx, valid := t.Context(), w.daemon.Token()
	for _, header := range []string{
		"Bearer " + valid, "FlyV1 " + valid, "PlatformV1 " + valid, "bearer " + valid, "FlyV1 fm2_unknown," + valid, "Bearer " + valid + ",unknown",
	} {
		c := newClient(t, w.daemon, valid)
		c.authorization = header
		if _, err := c.app(ctx, w.app); err != nil {
			t.Errorf("with %s…: %v", header[:10], err)
		}
	}
	for _, header := range []string{"", "Bearer", "Bearer ", "Bearer wrong", "FlyV1 fm2_wrong,fm2_wrong", "Basic " + valid, valid, "Bearer " + valid[:len(valid)-1]} {
		c := newClient(t, w.daemon, valid)
		c.authorization = header
		_, err := c.app(ctx, w.app)
		wantFailure(t, "a bad token", err, 401, "Authenticate: token validation error")
		_, err = c.app(ctx, "nothing-there")
		wantFailure(t, "a bad token for an app that is not there", err, 401, "Authenticate: token validation error")
	}
	// Beyond 20 of them at once, a source is told to try later.
	c := newClient(t, w.daemon, valid)
	c.authorization = "Bearer wrong"
	_, _, err := c.logs(ctx, w.app, "", "", "")
	wantFailure(t, "a bad token for logs", err, 401, "Authenticate: token validation error")
}

func (w world) appLife(t *testing.T) {
	ctx := t.Context()
	_, err := w.client.app(ctx, "shop")
	if e := failure(t, err); e.status != 404 || e.text != "app not found" {
		t.Errorf("an app whose name is free is answered %d %q, which clients compare as a whole", e.status, e.text)
	}
	made, err := w.createApp(ctx, "shop")
	must(t, "create app", err)
	if made.Name != "shop" || made.ID == "" || made.Status != "pending" || made.Organization.Slug != "personal" || made.InternalNumericID <= 0 {
		t.Errorf("the answer to create is %+v", made)
	}
	if made.CnameTarget == nil || made.AppRole == nil || *made.AppRole != "" {
		t.Errorf("the answer to create lacks cname_target or app_role: %+v", made)
	}
	// Clients poll right after the creation and go on at the first success.
	got, err := w.client.app(ctx, "shop")
	must(t, "get app", err)
	if !reflect.DeepEqual(got, made) {
		t.Errorf("get answers %+v, create did %+v", got, made)
	}
	_, err = w.createApp(ctx, "Shop!")
	wantFailure(t, "a bad name", err, 422, "Validation failed: Name may only contain numbers, lowercase letters and dashes")
	_, err = w.createApp(ctx, "shop")
	wantFailure(t, "a name that is taken", err, 422, "Validation failed: Name has already been taken")
	if e := failure(t, err); e.class != "name_taken" {
		t.Errorf("a name that is taken has the status %q", e.class)
	}
	list, err := w.apps(ctx, "org_slug=personal")
	must(t, "list apps", err)
	if !slices.ContainsFunc(list, func(a app) bool { return a.Name == "shop" }) || !slices.ContainsFunc(list, func(a app) bool { return a.Name == w.app }) {
		t.Errorf("the list is %+v", list)
	}
	builders, err := w.apps(ctx, "org_slug=personal&app_role=remote-docker-builder")
	must(t, "list builders", err)
	if builders == nil || len(builders) != 0 {
		t.Errorf("the list of builders is %#v, want an empty one", builders)
	}
	must(t, "delete app", w.deleteApp(ctx, "shop"))
	_, err = w.client.app(ctx, "shop")
	wantFailure(t, "an app that is deleted", err, 404, "app not found")
	_, err = w.createApp(ctx, "shop")
	must(t, "create an app of the same name", err)
	must(t, "delete app", w.deleteApp(ctx, "shop"))
}

var (
	machineID = regexp.MustCompile(`^[0-9a-f]{14}$`)
	ulid      = regexp.MustCompile(`^[0-9A-HJKMNP-TV-Z]{26}$`)
	madeName  = regexp.MustCompile(`^[a-z]+-[a-z]+-\d{4}$`)
	wireTime  = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$`)
)

// launchShape checks what clients decode of a Machine, and that its config comes
// back as it was sent.
func (w world) launchShape(t *testing.T) {
	ctx := t.Context()
	sent := w.config()
	m, err := w.launch(ctx, w.app, launch{Config: sent, Region: "loc"})
	must(t, "launch", err)
	if m.State != "created" {
		t.Errorf("the answer to launch has the state %q", m.State)
	}
	w.reach(t, m.ID, "started")
	m = w.look(t, m.ID)
	for name, wrong := range map[string]bool{
		"id":                !machineID.MatchString(m.ID),
		"name":              !madeName.MatchString(m.Name),
		"region":            m.Region != "loc",
		"instance_id":       !ulid.MatchString(m.InstanceID),
		"version":           m.Version != m.InstanceID,
		"created_at":        !wireTime.MatchString(m.CreatedAt),
		"updated_at":        !wireTime.MatchString(m.UpdatedAt),
		"host_status":       m.HostStatus != "ok",
		"incomplete_config": m.Incomplete != nil,
		"cordoned":          m.Cordoned,
		"nonce":             m.Nonce != "",
		"image_ref":         m.ImageRef.Registry == "" || m.ImageRef.Repository == "" || !strings.HasPrefix(m.ImageRef.Digest, "sha256:"),
	} {
		if wrong {
			t.Errorf("%s is not as clients expect it: %+v", name, m)
		}
	}
	if ip, err := netip.ParseAddr(m.PrivateIP); err != nil || ip.As16()[0] != 0xfd || ip.As16()[1] != 0xaa {
		t.Errorf("private_ip is %q", m.PrivateIP)
	}
	if !reflect.DeepEqual(m.Config, sent) {
		t.Errorf("the config is\n%+v, sent was\n%+v", m.Config, sent)
	}
	if len(m.Checks) != 2 {
		t.Errorf("%d checks, want 2", len(m.Checks))
	}
	for _, c := range m.Checks {
		if c.Name == "" || c.UpdatedAt == nil || !slices.Contains([]string{"passing", "warning", "critical"}, c.Status) {
			t.Errorf("a check is %+v", c)
		}
	}
	if !m.startedAfterLaunch() {
		t.Errorf("no start after the launch in %+v", m.Events)
	}
	if e := m.newest("launch"); e == nil || e.Status != "created" || e.Source != "user" || time.Since(time.UnixMilli(e.Timestamp)).Abs() > time.Hour {
		t.Errorf("the launch is %+v", e)
	}
	// Missing fields are filled in, as clients read them without a check.
	small, err := w.launch(ctx, w.app, launch{Config: &machineConfig{Image: w.image}, SkipLaunch: true})
	must(t, "launch", err)
	if small.Config == nil || !reflect.DeepEqual(small.Config.Guest, &guest{CPUKind: "shared", CPUs: 1, MemoryMB: 256}) || small.Config.Services != nil {
		t.Errorf("the config of a machine that names only its image is %+v", small.Config)
	}
	w.reach(t, small.ID, "stopped")
	must(t, "destroy", w.destroy(ctx, w.app, small.ID, false))
	// Before the image is known, its reference is.
	far, err := w.launch(ctx, w.app, launch{Config: &machineConfig{Image: "127.0.0.1:1/some/image:tag"}})
	must(t, "launch from a registry that is not there", err)
	if got := far.ImageRef; got.Registry != "127.0.0.1:1" || got.Repository != "some/image" || got.Tag != "tag" || got.Digest != "" {
		t.Errorf("the image of a registry that is not there is %+v", got)
	}
	w.reach(t, far.ID, "failed")
	must(t, "destroy", w.destroy(ctx, w.app, far.ID, false))
	must(t, "destroy", w.destroy(ctx, w.app, m.ID, true))
}

func (w world) listFilters(t *testing.T) {
	ctx := t.Context()
	web := w.run(t, launch{Config: w.config(), Name: "one"})
	worker := &machineConfig{Image: w.image, Metadata: map[string]string{"fly_process_group": "worker"}}
	idle, err := w.launch(ctx, w.app, launch{Config: worker, Name: "two", SkipLaunch: true})
	must(t, "launch", err)
	w.reach(t, idle.ID, "stopped")
	gone, err := w.launch(ctx, w.app, launch{Config: worker, Name: "three", SkipLaunch: true})
	must(t, "launch", err)
	w.reach(t, gone.ID, "stopped")
	must(t, "destroy", w.destroy(ctx, w.app, gone.ID, false))
	w.reach(t, gone.ID, "destroyed")
	for query, want := range map[string][]string{
		"":                                        {"one", "two"},
		"include_deleted=&region=":                {"one", "two"},
		"state=started":                           {"one"},
		"state=started,stopped":                   {"one", "two"},
		"state=stopped&region=loc":                {"two"},
		"region=zzz":                              {},
		"metadata.fly_process_group=worker":       {"two"},
		"metadata.fly_process_group=none":         {},
		"summary=true&state=started":              {"one"},
		"include_deleted=true&state=destroyed":    {"three"},
		"metadata.fly_platform_version=v2&state=": {"one"},
	} {
		list, err := w.list(ctx, w.app, query)
		must(t, "list "+query, err)
		names := []string{}
		for _, m := range list {
			if !slices.Contains([]string{"one", "two", "three"}, m.Name) || m.State == "destroyed" && m.ID != gone.ID {
				continue // of another test
			}
			names = append(names, m.Name)
			if summary := strings.Contains(query, "summary"); summary != (m.Config == nil) || summary != (m.HostStatus == "") || summary != (len(m.Events) == 0) {
				t.Errorf("list %s: machine %s has the config %v, host status %q and %d events", query, m.Name, m.Config, m.HostStatus, len(m.Events))
			}
		}
		slices.Sort(names)
		slices.Sort(want)
		if !slices.Equal(names, want) {
			t.Errorf("list %s is %v, want %v", query, names, want)
		}
	}
	must(t, "destroy", w.destroy(ctx, w.app, web.ID, true))
	must(t, "destroy", w.destroy(ctx, w.app, idle.ID, true))
}

// verbs goes through the life of a Machine as a client drives it.
func (w world) verbs(t *testing.T) {
	ctx := t.Context()
	id := w.run(t, launch{Config: w.config()}).ID
	previous := func(want string) {
		t.Helper()
		got, err := w.start(ctx, w.app, id)
		must(t, "start", err)
		if got != want {
			t.Errorf("start answers with the previous state %q, want %q", got, want)
		}
		w.reach(t, id, "started")
	}
	previous("started")
	must(t, "stop", w.stop(ctx, w.app, id, "", 0))
	w.reach(t, id, "stopped")
	exit := w.look(t, id).newest("exit")
	if exit == nil || exit.Request == nil || exit.Request.ExitEvent == nil || exit.Request.MonitorEvent == nil || !exit.Request.ExitEvent.RequestedStop {
		t.Fatalf("the exit of a stop is %+v", exit)
	}
	must(t, "stop what is stopped", w.stop(ctx, w.app, id, "SIGTERM", 5*time.Second))
	previous("stopped")
	must(t, "suspend", w.suspend(ctx, w.app, id))
	w.reach(t, id, "suspended")
	previous("suspended")
	must(t, "suspend", w.suspend(ctx, w.app, id))
	w.reach(t, id, "suspended")
	must(t, "stop", w.stop(ctx, w.app, id, "", 0))
	w.reach(t, id, "stopped")
	version := w.look(t, id).InstanceID
	must(t, "restart what is stopped", w.restart(ctx, w.app, id, false, 0, ""))
	w.reach(t, id, "started")
	must(t, "restart", w.restart(ctx, w.app, id, false, 10*time.Second, "SIGTERM"))
	w.reach(t, id, "started")
	must(t, "restart with force", w.restart(ctx, w.app, id, true, 0, ""))
	w.reach(t, id, "started")
	if got := w.look(t, id).InstanceID; got != version {
		t.Errorf("a restart made version %s of %s", got, version)
	}
	wantFailure(t, "destroy what runs", w.destroy(ctx, w.app, id, false), 412, "failed_precondition: unable to destroy machine, not currently stopped")
	must(t, "destroy with kill", w.destroy(ctx, w.app, id, true))
	w.reach(t, id, "destroyed")
	if m := w.look(t, id); m.State != "destroyed" || m.newest("destroy") == nil || m.Config == nil {
		t.Errorf("the destroyed machine is %+v", m)
	}
	if err := w.destroy(ctx, w.app, id, true); err != nil && failure(t, err).status != 404 {
		t.Errorf("destroy again: %v", err)
	}
}

// inside looks into a Machine: commands, processes, metadata, and a kill from
// outside that its restart policy answers.
func (w world) inside(t *testing.T) {
	ctx := t.Context()
	id := w.run(t, launch{Config: w.config()}).ID
	res, err := w.exec(ctx, w.app, id, "echo hello", "", 0)
	must(t, "exec", err)
	if res != (execResponse{StdOut: "hello\n"}) {
		t.Errorf("exec answers %+v", res)
	}
	res, err = w.exec(ctx, w.app, id, `sh -c "exit 3"`, "", 60)
	must(t, "exec", err)
	if res.ExitCode != 3 {
		t.Errorf("a command that fails answers %+v", res)
	}
	res, err = w.exec(ctx, w.app, id, "cat", "from stdin", 60)
	must(t, "exec", err)
	if res.StdOut != "from stdin" {
		t.Errorf("a command that reads answers %+v", res)
	}
	_, err = w.exec(ctx, w.app, id, "", "", 0)
	wantFailure(t, "an empty command", err, 400, "command")
	_, err = w.exec(ctx, w.app, id, "sleep 100", "", 1)
	wantFailure(t, "a command that takes too long", err, 408, "deadline_exceeded: ")

	w.lists(t, id, "httpd in /", func(p process) bool { return strings.Contains(p.Command, "httpd") && p.Directory == "/" })

	if w.driver == "gvisor" {
		// This is how deployments find out whether a service is up.
		w.lists(t, id, "a listener", func(p process) bool {
			return slices.ContainsFunc(p.ListenSockets, func(s listenSocket) bool { return s.Proto == "tcp" && strings.HasSuffix(s.Address, ":8080") })
		})
	}

	var metadata map[string]string
	must(t, "metadata", w.call(ctx, "GET", machines(w.app, id, "metadata"), nil, &metadata))
	if !reflect.DeepEqual(metadata, w.config().Metadata) {
		t.Errorf("the metadata is %v", metadata)
	}
	var value struct {
		Value string `json:"value"`
	}
	must(t, "metadata", w.call(ctx, "GET", machines(w.app, id, "metadata", "fly_process_group"), nil, &value))
	if value.Value != "app" {
		t.Errorf("the metadata value is %q", value.Value)
	}
	wantFailure(t, "metadata that is not there", w.call(ctx, "GET", machines(w.app, id, "metadata", "x"), nil, nil), 404, "not found")

	must(t, "kill", w.kill(ctx, w.app, id))
	exit := w.exitOf(t, id)
	if e := exit.Request.ExitEvent; e.Signal != 9 || e.GuestSignal != 9 || e.ExitCode != 137 || e.RequestedStop || !e.Restarting || e.ExitedAt.IsZero() {
		t.Errorf("the exit of a kill is %+v", e)
	}
	if exit.Request.RestartCount < 1 || *exit.Request.MonitorEvent.ExitEvent != *exit.Request.ExitEvent {
		t.Errorf("the exit of a kill is reported as %+v", exit.Request)
	}
	w.reach(t, id, "started")
	must(t, "destroy", w.destroy(ctx, w.app, id, true))
}

// lists waits until there is a process like that: the command comes a moment after what starts it.
func (w world) lists(t *testing.T, id, what string, like func(process) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		list, err := w.processes(ctx, w.app, id)
		if ctx.Err() != nil {
			t.Fatalf("no process is %s", what)
		}
		must(t, "ps", err)
		if slices.ContainsFunc(list, like) {
			return
		}
	}
}

// exitOf returns the exit of a Machine that is about to end, or has ended.
func (w world) exitOf(t *testing.T, id string) *event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for ctx.Err() == nil {
		if e := w.look(t, id).newest("exit"); e != nil {
			return e
		}
	}
	t.Fatal("the machine does not end")
	return nil
}

func (w world) updates(t *testing.T) {
	ctx := t.Context()
	m := w.run(t, launch{Config: w.config(), Name: "updated"})
	next := w.config()
	next.Env["GENERATION"] = "2"
	updated, err := w.update(ctx, w.app, m.ID, launch{Config: next, Name: "updated", Region: "loc"})
	must(t, "update", err)
	if updated.ID != m.ID || updated.InstanceID <= m.InstanceID || updated.InstanceID != updated.Version {
		t.Errorf("the update answers %+v", updated)
	}
	must(t, "wait for the version", w.wait(ctx, w.app, m.ID, url.Values{"state": {"settled"}, "version": {updated.InstanceID}}))
	got := w.look(t, m.ID)
	if got.State != "started" || got.PrivateIP != m.PrivateIP || got.InstanceID != updated.InstanceID || !got.startedAfterLaunch() {
		t.Errorf("the updated machine is %+v", got)
	}
	if got.Config.Env["GENERATION"] != "2" {
		t.Errorf("the updated machine has the environment %v", got.Config.Env)
	}
	if e := got.newest("update"); e == nil || e.Status != "replacing" {
		t.Errorf("the update is reported as %+v", e)
	}
	// A Machine that does not run is not started by an update.
	must(t, "stop", w.stop(ctx, w.app, m.ID, "", 0))
	w.reach(t, m.ID, "stopped")
	updated, err = w.update(ctx, w.app, m.ID, launch{Config: w.config()})
	must(t, "update", err)
	must(t, "wait for the version", w.wait(ctx, w.app, m.ID, url.Values{"state": {"settled"}, "version": {updated.InstanceID}}))
	if got := w.look(t, m.ID); got.State != "stopped" || got.InstanceID != updated.InstanceID {
		t.Errorf("after an update of a stopped machine it is %s, version %s", got.State, got.InstanceID)
	}
	var versions []struct {
		Version string         `json:"version"`
		Config  *machineConfig `json:"user_config"`
	}
	must(t, "versions", w.call(ctx, "GET", machines(w.app, m.ID, "versions"), nil, &versions))
	if len(versions) != 3 || versions[0].Version != updated.InstanceID || versions[2].Version != m.InstanceID || versions[0].Config == nil {
		t.Errorf("the versions are %+v", versions)
	}
	must(t, "destroy", w.destroy(ctx, w.app, m.ID, false))
}

func (w world) waits(t *testing.T) {
	ctx := t.Context()
	m := w.run(t, launch{Config: w.config()})
	wait := func(query url.Values) error { return w.wait(ctx, w.app, m.ID, query) }
	for name, query := range map[string]url.Values{
		"no state":        {},
		"settled":         {"state": {"settled"}},
		"repeated states": {"state": {"stopped", "started"}},
		"listed states":   {"state": {"stopped,started"}},
		"a version":       {"state": {"started"}, "version": {m.InstanceID}},
		"an instance":     {"state": {"started"}, "instance_id": {m.InstanceID}},
	} {
		if err := wait(query); err != nil {
			t.Errorf("wait with %s: %v", name, err)
		}
	}
	wantFailure(t, "a wait that takes too long", wait(url.Values{"state": {"stopped"}, "timeout": {"1"}}), 408,
		"deadline_exceeded: machine failed to reach desired state, stopped, currently started")
	wantFailure(t, "a wait for nonsense", wait(url.Values{"state": {"nonsense"}}), 400, "state")
	wantFailure(t, "a wait that is too long", wait(url.Values{"timeout": {"9999"}}), 400, "timeout")
	wantFailure(t, "a wait for a machine that is not there", w.wait(ctx, w.app, "00000000000000", url.Values{}), 404, "machine not found")
	// Passed time counts from an event on.
	var events []struct {
		ID string `json:"id"`
	}
	must(t, "events", w.call(ctx, "GET", machines(w.app, m.ID, "events")+"?limit=1", nil, &events))
	must(t, "stop", w.stop(ctx, w.app, m.ID, "", 0))
	w.reach(t, m.ID, "stopped")
	_, err := w.start(ctx, w.app, m.ID)
	must(t, "start", err)
	w.reach(t, m.ID, "started")
	if err := wait(url.Values{"state": {"stopped"}, "from_event_id": {events[0].ID}}); err != nil {
		t.Errorf("wait for what has passed: %v", err)
	}
	must(t, "destroy", w.destroy(ctx, w.app, m.ID, true))
	must(t, "wait for the end", wait(url.Values{"state": {"destroyed"}}))
	wantFailure(t, "a wait for what cannot come true", wait(url.Values{"state": {"stopped"}}), 400, "destroyed")
}

// releaseCommand is how deployments run a command before anything else: a Machine
// that is prepared, started, does its work and destroys itself.
func (w world) releaseCommand(t *testing.T) {
	ctx := t.Context()
	for _, test := range []struct {
		command []string
		code    int
	}{{[]string{"sh", "-c", "exit 0"}, 0}, {[]string{"sh", "-c", "exit 7"}, 7}} {
		m, err := w.launch(ctx, w.app, launch{SkipLaunch: true, Config: &machineConfig{
			Image: w.image, AutoKill: true, Restart: &restart{Policy: "no"}, Env: map[string]string{"RELEASE_COMMAND": "1"},
			Metadata: map[string]string{"fly_process_group": "fly_app_release_command"}, Init: machineInit{Exec: test.command},
		}})
		must(t, "launch", err)
		w.reach(t, m.ID, "stopped")
		_, err = w.start(ctx, w.app, m.ID)
		must(t, "start", err)
		// It may have ended before the wait begins, which is no failure.
		if err := w.wait(ctx, w.app, m.ID, url.Values{"state": {"started"}}); err != nil {
			t.Errorf("wait for the start of %v: %v", test.command, err)
		}
		w.reach(t, m.ID, "destroyed")
		exit := w.look(t, m.ID).newest("exit")
		if exit == nil || exit.Request == nil || exit.Request.ExitEvent == nil {
			t.Fatalf("%v has no exit", test.command)
		}
		if e := exit.Request.ExitEvent; e.ExitCode != test.code || e.GuestExitCode != test.code || e.Signal != -1 || e.GuestSignal != -1 || e.Restarting {
			t.Errorf("the exit of %v is %+v", test.command, e)
		}
		if _, err := w.start(ctx, w.app, m.ID); err == nil {
			t.Error("a machine that destroyed itself was started")
		}
	}
}

// texts are those that clients match, or that people know.
func (w world) texts(t *testing.T) {
	ctx := t.Context()
	const missing = "00000000000000"
	running := w.run(t, launch{Config: w.config(), Name: "taken"})
	_, err := w.get(ctx, w.app, missing)
	wantFailure(t, "a machine that is not there", err, 404, "machine not found")
	_, err = w.get(ctx, w.app, "not-an-id")
	wantFailure(t, "an id that is none", err, 404, "machine not found")
	wantFailure(t, "destroy of a machine that is not there", w.destroy(ctx, w.app, missing, true), 404, "machine not found")
	_, err = w.get(ctx, "nothing-there", running.ID)
	wantFailure(t, "an app that is not there", err, 404, "app not found")
	_, err = w.launch(ctx, w.app, launch{Config: w.config(), Name: "taken"})
	wantFailure(t, "a name that is taken", err, 409, `already_exists: unique machine name violation, machine ID `+running.ID+` already exists with name "taken"`)
	_, err = w.launch(ctx, w.app, launch{Config: &machineConfig{Image: w.image, Guest: &guest{CPUKind: "quantum"}}})
	wantFailure(t, "a bad config", err, 400, "invalid config.guest.cpu_kind")
	_, err = w.launch(ctx, w.app, launch{Config: &machineConfig{Image: w.image, Guest: &guest{CPUKind: "shared", CPUs: 1, MemoryMB: 256 << 10}}})
	wantFailure(t, "more memory than there is", err, 409, "could not reserve resource for machine: insufficient memory available to fulfill request")
	_, err = w.launch(ctx, w.app, launch{Config: &machineConfig{Image: strings.Split(w.image, "/")[0] + "/personal/nothing:1"}})
	wantFailure(t, "an image that is not there", err, 400, "not found")
	wantFailure(t, "a body of the wrong type", w.call(ctx, "POST", machines(w.app), []int{1}, nil), 400, "json: cannot unmarshal array into Go value of type")
	body := struct {
		launch
		Current string `json:"current_version"`
	}{launch{Config: w.config()}, "01ARZ3NDEKTSV4RRFFQ69G5FAV"}
	wantFailure(t, "a stale version", w.call(ctx, "POST", machines(w.app, running.ID), body, nil), 409, "aborted: ")

	must(t, "stop", w.stop(ctx, w.app, running.ID, "", 0))
	w.reach(t, running.ID, "stopped")
	_, err = w.exec(ctx, w.app, running.ID, "echo", "", 0)
	wantFailure(t, "exec in a stopped machine", err, 412, "failed_precondition: machine not running")
	_, err = w.processes(ctx, w.app, running.ID)
	wantFailure(t, "ps of a stopped machine", err, 412, "failed_precondition: machine not running")
	wantFailure(t, "kill of a stopped machine", w.kill(ctx, w.app, running.ID), 412, "failed_precondition: machine not running")
	wantFailure(t, "suspend of a stopped machine", w.suspend(ctx, w.app, running.ID), 412, "failed_precondition: ")
	must(t, "destroy", w.destroy(ctx, w.app, running.ID, false))
	_, err = w.start(ctx, w.app, running.ID)
	wantFailure(t, "start of a destroyed machine", err, 412, "failed_precondition: unable to start machine from current state: '")
	// The name is free again.
	again, err := w.launch(ctx, w.app, launch{Config: w.config(), Name: "taken", SkipLaunch: true})
	must(t, "launch", err)
	w.reach(t, again.ID, "stopped")
	must(t, "destroy", w.destroy(ctx, w.app, again.ID, false))
}

// logPages polls as clients do, which wait only after an empty page.
func (w world) logPages(t *testing.T) {
	ctx := t.Context()
	m := w.run(t, launch{Config: &machineConfig{Image: w.image}})
	first, token, err := w.logs(ctx, w.app, "", "", m.ID)
	must(t, "logs", err)
	if len(first) == 0 || token == "" {
		t.Fatalf("a started machine has %d lines and the token %q", len(first), token)
	}
	for _, e := range first {
		_, err := time.Parse(time.RFC3339Nano, e.Timestamp)
		if err != nil || e.Message == "" || e.Instance != m.ID || e.Region != "loc" || e.Meta.Instance != m.ID || e.Meta.Region != "loc" ||
			!slices.Contains([]string{"app", "runner"}, e.Meta.Event.Provider) || e.Level == "" {
			t.Errorf("a line is %+v", e)
		}
	}
	for range 2 {
		lines, next, err := w.logs(ctx, w.app, token, "", m.ID)
		must(t, "logs", err)
		if len(lines) != 0 || next != token {
			t.Fatalf("when nothing is new the page has %d lines and the token %q after %q", len(lines), next, token)
		}
	}
	must(t, "stop", w.stop(ctx, w.app, m.ID, "", 0))
	w.reach(t, m.ID, "stopped")
	more, next, err := w.logs(ctx, w.app, token, "", m.ID)
	must(t, "logs", err)
	if len(more) == 0 || next == token || slices.ContainsFunc(more, func(e logEntry) bool { return slices.Contains(first, e) }) {
		t.Errorf("after a stop the page has the lines %+v and the token %q", more, next)
	}
	for _, filter := range []struct{ region, instance string }{{"zzz", ""}, {"loc", "00000000000000"}} {
		lines, _, err := w.logs(ctx, w.app, "", filter.region, filter.instance)
		if err == nil && len(lines) > 0 || err != nil && failure(t, err).status != 404 {
			t.Errorf("logs of %v: %d lines, %v", filter, len(lines), err)
		}
	}
	_, _, err = w.logs(ctx, w.app, "junk", "", "")
	wantFailure(t, "a token that is none", err, 400, "next_token")
	must(t, "destroy", w.destroy(ctx, w.app, m.ID, true))
}

// destroyApp deletes an App without force while a Machine runs, as clients do.
func (w world) destroyApp(t *testing.T) {
	ctx := t.Context()
	m := w.run(t, launch{Config: w.config()})
	if a, err := w.client.app(ctx, w.app); err != nil || a.Status != "deployed" || a.MachineCount == 0 {
		t.Errorf("the app is %+v, %v", a, err)
	}
	must(t, "delete app", w.deleteApp(ctx, w.app))
	_, err := w.client.app(ctx, w.app)
	wantFailure(t, "an app that is deleted", err, 404, "app not found")
	_, err = w.get(ctx, w.app, m.ID)
	wantFailure(t, "a machine of an app that is deleted", err, 404, "app not found")
}
