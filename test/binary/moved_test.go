package binary_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/test/daemon"
)

const (
	movedApp     = hangar.AppName("shop")
	movedNetwork = "backend"
	movedPrivate = "only-of-the-first"
)

// TestNamesChangeHands destroys an App, with all that it has, and makes another one of the same
// name, once in another organization, once in the same and once in another of the same slug.
// Neither owner meets anything of the other, by any request or by what the first one kept.
func TestNamesChangeHands(t *testing.T) {
	d := daemon.Start(t, daemon.Options{Driver: "fake", Args: []string{"--acme", "off", "--volume-overcommit", "100"}})
	files := daemon.Busybox(t, "sleep")
	for what, move := range map[string]struct {
		from, to hangar.OrgSlug
		again    bool // the organization is removed, too, and made again
	}{
		"another organization":                  {"alpha", "beta", false},
		"the same organization":                 {"gamma", "gamma", false},
		"another organization of the same slug": {"delta", "delta", true},
	} {
		t.Run(what, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			m := &moved{T: t, ctx: ctx, admin: d.Client(), url: d.URL(), push: func(org hangar.OrgSlug) string {
				return d.Push(files, "sleep:1", "--org", string(org), "--cmd", "sleep", "--cmd", "100000")
			}}
			t.Cleanup(func() {
				if err := m.admin.DestroyApp(context.WithoutCancel(ctx), movedApp, true); err != nil && hangar.CodeOf(err) != hangar.CodeNotFound {
					t.Error(err)
				}
			})
			m.org(move.from)
			first := m.settle(move.from, true)
			first.open()
			must(t, "destroy the app", m.admin.DestroyApp(ctx, movedApp, true))
			if move.again {
				must(t, "remove the organization", m.admin.DeleteOrg(ctx, move.from))
			}
			m.org(move.to)
			next := m.settle(move.to, false)
			next.meetsNothingOf(first)
			first.isWorthNothing(next)
		})
	}
}

func must(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// moved is the platform on which names move.
type moved struct {
	*testing.T
	ctx   context.Context //nolint:containedctx // of one subtest
	admin *client.Client
	url   string
	push  func(org hangar.OrgSlug) string // an image of the organization
}

func (m *moved) org(slug hangar.OrgSlug) {
	m.Helper()
	if _, err := m.admin.CreateOrg(m.ctx, hangar.OrgCreate{Slug: slug}); err != nil && hangar.ReasonOf(err) != hangar.ReasonNameTaken {
		m.Fatal(err)
	}
}

// owner has the names, and what is reached by them.
type owner struct {
	*moved
	org            hangar.OrgSlug
	all, ofApp     *client.Client // with a token of the organization, and one of the App
	ofMachine      *client.Client
	tokens         []hangar.TokenID
	machine        *hangar.Machine
	volume         *hangar.Volume
	snapshot       *hangar.Snapshot
	page           hangar.LogPage
	mu             sync.Mutex
	heard          []hangar.LogEntry // by a follower, guarded by mu
	watched        []hangar.MachineChange
	followed, ends sync.WaitGroup
}

// client returns the platform as a new token sees it.
func (o *owner) client(in hangar.TokenCreate) *client.Client {
	o.Helper()
	in.Name = "ci"
	made, err := o.admin.CreateToken(o.ctx, in)
	must(o.T, "create a token", err)
	o.tokens = append(o.tokens, made.ID)
	c := client.New(o.url, made.Text)
	o.Cleanup(c.Close)
	return c
}

// settle makes the App and, if it is to have something, one of everything in it.
func (m *moved) settle(org hangar.OrgSlug, full bool) *owner {
	m.Helper()
	o := &owner{moved: m, org: org}
	o.all = o.client(hangar.TokenCreate{Kind: hangar.TokenOrg, Org: org})
	_, err := o.all.CreateApp(m.ctx, hangar.AppCreate{Name: movedApp, Org: org, Network: movedNetwork})
	must(m.T, "create the app", err)
	o.ofApp = o.client(hangar.TokenCreate{Kind: hangar.TokenDeploy, Org: org, Apps: []hangar.AppName{movedApp}})
	config := hangar.MachineConfig{Image: m.push(org), Restart: &hangar.RestartConfig{Policy: hangar.RestartNo}}
	if full {
		_, err = o.all.SetSecrets(m.ctx, movedApp, map[string]hangar.Sensitive{"KEY": hangar.NewSensitive(movedPrivate)})
		must(m.T, "set a secret", err)
		_, err = o.all.AllocateAddress(m.ctx, movedApp, hangar.AddressCreate{Kind: hangar.AddressPrivateV6})
		must(m.T, "allocate an address", err)
		o.volume, err = o.all.CreateVolume(m.ctx, movedApp, hangar.VolumeCreate{Name: "data", SizeGB: 1})
		must(m.T, "create a volume", err)
		o.snapshot, err = o.all.CreateSnapshot(m.ctx, o.volume.Ref())
		must(m.T, "take a snapshot", err)
		config.Mounts = []hangar.Mount{{Volume: string(o.volume.ID), Path: "/data"}}
		config.Metadata = map[string]string{"owner": movedPrivate}
	}
	o.machine, err = o.all.CreateMachine(m.ctx, movedApp, hangar.MachineCreate{Name: "worker", Config: config})
	must(m.T, "create a machine", err)
	_, err = o.all.WaitMachine(m.ctx, o.machine.Ref(), hangar.MachineWait{States: []hangar.MachineState{hangar.MachineStarted}})
	must(m.T, "wait for the machine", err)
	o.ofMachine = o.client(hangar.TokenCreate{Kind: hangar.TokenReadOnly, Org: org, Apps: []hangar.AppName{movedApp}, Machines: []hangar.MachineID{o.machine.ID}})
	if full {
		_, err = o.all.AcquireLease(m.ctx, o.machine.Ref(), hangar.LeaseAcquire{TTL: time.Hour})
		must(m.T, "lease the machine", err)
	}
	o.page, err = o.all.Logs(m.ctx, movedApp, hangar.LogQuery{})
	must(m.T, "read the log", err)
	return o
}

// open leaves open what outlasts a request.
func (o *owner) open() {
	ctx, cancel := context.WithCancel(o.ctx)
	o.Cleanup(func() { cancel(); o.ends.Wait() })
	for _, c := range []*client.Client{o.admin, o.all, o.ofApp} {
		o.followed.Add(1)
		o.ends.Go(func() {
			heard := sync.OnceFunc(o.followed.Done)
			defer heard()
			for e, err := range c.FollowLogs(ctx, movedApp, hangar.LogQuery{}) {
				if err != nil {
					if code := hangar.CodeOf(err); code != hangar.CodeNotFound && code != hangar.CodeUnauthenticated {
						o.Errorf("a follower of the log ends with %v", err)
					}
					return
				}
				o.mu.Lock()
				o.heard = append(o.heard, e)
				o.mu.Unlock()
				heard()
			}
		})
		o.ends.Go(func() {
			for change, err := range c.WatchMachine(ctx, o.machine.Ref()) {
				if err != nil {
					return
				}
				o.mu.Lock()
				o.watched = append(o.watched, change)
				o.mu.Unlock()
			}
		})
	}
	o.followed.Wait() // a line of before shows that the log is followed
}

// gone wants an answer that says nothing but that there is no such thing.
func (o *owner) gone(what string, err error) {
	o.Helper()
	if hangar.CodeOf(err) != hangar.CodeNotFound {
		o.Errorf("%s: %v, want that it is not found", what, err)
	}
}

// meetsNothingOf asks for everything by the names that the first owner had, and by its ids.
func (o *owner) meetsNothingOf(first *owner) {
	o.Helper()
	old := hangar.MachineRef{App: movedApp, ID: first.machine.ID}
	volume := hangar.VolumeRef{App: movedApp}
	if first.volume != nil {
		volume.ID = first.volume.ID
	}
	for who, c := range map[string]*client.Client{"the administrator": o.admin, "the organization": o.all, "the app": o.ofApp} {
		machines, err := c.Machines(o.ctx, movedApp, hangar.MachineFilter{IncludeDestroyed: true})
		if err != nil || len(machines) != 1 || machines[0].ID != o.machine.ID {
			o.Errorf("%s lists machines %v, %v", who, machines, err)
		}
		for what, ask := range map[string]func() error{
			"machine":   func() error { _, err := c.Machine(o.ctx, old); return err },
			"events":    func() error { _, err := c.MachineEvents(o.ctx, old, 10); return err },
			"versions":  func() error { _, err := c.MachineVersions(o.ctx, old); return err },
			"processes": func() error { _, err := c.MachineProcesses(o.ctx, old); return err },
			"metadata":  func() error { _, err := c.MachineMetadata(o.ctx, old); return err },
			"lease":     func() error { _, err := c.MachineLease(o.ctx, old); return err },
			"start":     func() error { _, err := c.StartMachine(o.ctx, old); return err },
			"destroy":   func() error { return c.DestroyMachine(o.ctx, old, hangar.MachineDestroy{Force: true}) },
			"wait": func() error {
				_, err := c.WaitMachine(o.ctx, old, hangar.MachineWait{States: []hangar.MachineState{hangar.MachineDestroyed}, Timeout: time.Second})
				return err
			},
			"log of the machine": func() error { _, err := c.Logs(o.ctx, movedApp, hangar.LogQuery{Instance: old.ID}); return err },
			"secret":             func() error { _, err := c.Secret(o.ctx, movedApp, "KEY", hangar.SecretQuery{}); return err },
			"volume":             func() error { _, err := c.Volume(o.ctx, volume); return err },
			"undelete":           func() error { _, err := c.UndeleteVolume(o.ctx, volume); return err },
			"volume events":      func() error { _, err := c.VolumeEvents(o.ctx, volume); return err },
			"snapshots":          func() error { _, err := c.Snapshots(o.ctx, volume); return err },
		} {
			o.gone(who+" asks for the "+what, ask())
		}
		if list, err := c.Volumes(o.ctx, movedApp); err != nil || len(list) != 0 {
			o.Errorf("%s lists volumes %v, %v", who, list, err)
		}
		if list, err := c.Addresses(o.ctx, movedApp); err != nil || len(list) != 0 {
			o.Errorf("%s lists addresses %v, %v", who, list, err)
		}
		if secrets, err := c.Secrets(o.ctx, movedApp, hangar.SecretQuery{Show: true}); err != nil || len(secrets.List) != 0 || secrets.Version != 0 {
			o.Errorf("%s lists secrets %+v, %v", who, secrets, err)
		}
		for _, token := range []string{"", first.page.Next} {
			page, err := c.Logs(o.ctx, movedApp, hangar.LogQuery{Token: token})
			if err != nil || slices.ContainsFunc(page.Entries, func(e hangar.LogEntry) bool { return e.Instance != o.machine.ID }) {
				o.Errorf("%s reads %v after %q, %v", who, page.Entries, token, err)
			}
		}
		tokens, err := c.Tokens(o.ctx, hangar.TokenFilter{App: movedApp})
		if err != nil || slices.ContainsFunc(tokens, func(t *hangar.Token) bool { return slices.Contains(first.tokens, t.ID) }) {
			o.Errorf("%s lists tokens %v, %v", who, tokens, err)
		}
	}
	o.follows(first)
	page, err := o.all.OrgMachines(o.ctx, o.org, hangar.MachinePageQuery{MachineFilter: hangar.MachineFilter{IncludeDestroyed: true}, Limit: 10})
	if err != nil || len(page.Machines) != 1 || page.Machines[0].ID != o.machine.ID {
		o.Errorf("the organization has %v, %v", page.Machines, err)
	}
	list, err := o.all.OrgVolumes(o.ctx, o.org, "", 10)
	if err != nil || len(list) != 0 {
		o.Errorf("the organization has volumes %v, %v", list, err)
	}
	app, err := o.all.App(o.ctx, movedApp)
	if err != nil || app.MachineCount != 1 || app.VolumeCount != 0 || app.Org.Slug != o.org {
		o.Errorf("the app is %+v, %v", app, err)
	}
}

// follows reads all that the log has from the beginning, up to a line of the owner's.
func (o *owner) follows(first *owner) {
	o.Helper()
	ctx, cancel := context.WithTimeout(o.ctx, time.Minute)
	defer cancel()
	left := len(o.page.Entries)
	for e, err := range o.all.FollowLogs(ctx, movedApp, hangar.LogQuery{Limit: 1000}) {
		if err != nil {
			o.Errorf("follow the log: %v", err)
			return
		}
		if e.Instance == first.machine.ID {
			o.Errorf("a follower reads %q of the app of before", e.Message)
		}
		if left--; left <= 0 {
			return
		}
	}
}

// isWorthNothing tries what the first owner still has.
func (o *owner) isWorthNothing(next *owner) {
	o.Helper()
	ref := hangar.MachineRef{App: movedApp, ID: next.machine.ID}
	kept := map[string]*client.Client{"the token of the app": o.ofApp, "the token of the machine": o.ofMachine}
	if o.org != next.org {
		kept["the token of the organization"] = o.all
	}
	for who, c := range kept {
		for what, ask := range map[string]func() error{
			"app":      func() error { _, err := c.App(o.ctx, movedApp); return err },
			"machines": func() error { _, err := c.Machines(o.ctx, movedApp, hangar.MachineFilter{}); return err },
			"machine":  func() error { _, err := c.Machine(o.ctx, ref); return err },
			"log":      func() error { _, err := c.Logs(o.ctx, movedApp, hangar.LogQuery{}); return err },
			"secrets":  func() error { _, err := c.Secrets(o.ctx, movedApp, hangar.SecretQuery{}); return err },
			"volumes":  func() error { _, err := c.Volumes(o.ctx, movedApp); return err },
			"exec": func() error {
				_, err := c.ExecMachine(o.ctx, ref, hangar.ExecRequest{Command: []string{"id"}}, hangar.ExecStreams{})
				return err
			},
			"destroy": func() error { return c.DestroyApp(o.ctx, movedApp, true) },
			"token": func() error {
				_, err := c.CreateToken(o.ctx, hangar.TokenCreate{Kind: hangar.TokenDeploy, Org: next.org, Apps: []hangar.AppName{movedApp}})
				return err
			},
		} {
			switch err := ask(); hangar.CodeOf(err) {
			case hangar.CodeNotFound, hangar.CodeForbidden, hangar.CodeUnauthenticated:
			default:
				o.Errorf("%s gets the %s of the next one: %v", who, what, err)
			}
		}
	}
	o.ends.Wait() // with the App
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range o.heard {
		if e.Instance != o.machine.ID {
			o.Errorf("an earlier follower of the log reads %q of machine %s", e.Message, e.Instance)
		}
	}
	for _, change := range o.watched {
		if change.Machine != nil && (change.Machine.ID != o.machine.ID || strings.Contains(change.Machine.Name, "next")) {
			o.Errorf("an earlier watcher of the machine sees %+v", change.Machine)
		}
	}
}
