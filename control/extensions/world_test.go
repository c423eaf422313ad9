package extensions

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/addresses"
	"github.com/hangar-platform/hangar/control/auth"
	"github.com/hangar-platform/hangar/control/extensions/call"
	"github.com/hangar-platform/hangar/control/extensions/extensionstest"
	"github.com/hangar-platform/hangar/control/ledger"
	"github.com/hangar-platform/hangar/control/providers"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/control/users"
	"github.com/hangar-platform/hangar/control/vault"
	"github.com/hangar-platform/hangar/internal/keyset"
	"github.com/hangar-platform/hangar/internal/publicdial"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock is a time that stands still until it is moved.
type clock struct {
	mu   sync.Mutex
	now  time.Time
	real bool // it goes, from now on
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.real {
		return time.Now()
	}
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// world is a state with two organizations, acme with the App web and the user ann, and rival with the
// App shop and the user ben.
type world struct {
	t      *testing.T
	store  state.Store
	keys   *keyset.Keyset
	clock  *clock
	dialer *publicdial.Dialer

	config    Config
	providers *providers.Providers
	service   *Extensions
	work      *Provisioner
	hooks     *Hooks
}

const (
	acme, rival = hangar.OrgID("acmeacmeacmeacme"), hangar.OrgID("rivalrivalrivalr")
	ann, ben    = hangar.UserID("annannannannanna"), hangar.UserID("benbenbenbenbenb")
)

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, store: state.NewMemory(), clock: &clock{now: time.Now()}}
	var err error
	if w.keys, err = keyset.Create(filepath.Join(t.TempDir(), keyset.File)); err != nil {
		t.Fatal(err)
	}
	w.plant(acme, "acme", "web", ann)
	w.plant(rival, "rival", "shop", ben)
	w.open(w.store)
	return w
}

// plant writes the records of an organization with one App and one member.
func (w *world) plant(org hangar.OrgID, slug hangar.OrgSlug, app hangar.AppName, user hangar.UserID) {
	w.t.Helper()
	network := hangar.NetworkID(len(slug))
	w.write(map[string]any{
		state.OrgKey(slug):                           tenants.OrgRecord{Org: hangar.Org{ID: org, Slug: slug, Name: "The " + string(slug)}},
		state.NetworkKey(org, hangar.DefaultNetwork): tenants.NetworkRecord{ID: network},
		state.AppKey(app):                            w.app(org, slug, app, network),
		state.UserKey(user): map[string]any{
			"id": user, "name": "A user", "email": string(slug) + "@example.com", "customer": "alias" + string(slug), "sign_ins": "tie",
			"memberships": []auth.Membership{{Membership: hangar.Membership{OrgID: org, Org: slug, Role: hangar.RoleMember}, Tie: "tie"}},
		},
		state.MemberKey(org, user): map[string]any{"user": user},
	})
}

func (w *world) app(org hangar.OrgID, slug hangar.OrgSlug, app hangar.AppName, network hangar.NetworkID) tenants.AppRecord {
	return tenants.AppRecord{
		ID: hangar.AppID("id-of-" + app), Name: app, Org: slug, OrgID: org, Network: hangar.DefaultNetwork, NetworkID: network,
	}
}

func (w *world) write(records map[string]any) {
	w.t.Helper()
	var txn state.Txn
	for key, record := range records {
		put, err := state.Write(key, record)
		if err != nil {
			w.t.Fatal(err)
		}
		txn.Then = append(txn.Then, put)
	}
	if _, err := w.store.Txn(w.t.Context(), txn); err != nil {
		w.t.Fatal(err)
	}
}

// open makes everything again over a store, as after a crash.
func (w *world) open(store state.Store) {
	w.t.Helper()
	log := slog.New(slog.NewTextHandler(w.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	dir, sealed, book := tenants.NewDirectory(store), vault.New(store, w.keys, log), ledger.New(store)
	book.SetDefaults(ledger.Defaults{Org: hangar.DefaultQuotas(hangar.ServerSize{MemoryMB: 1 << 20, CPUs: 100, VolumeGB: 1000})})
	registry := providers.New(providers.Config{
		Store: store, Tenants: dir, Vault: sealed, Hooks: "https://api.example.com/hooks/extensions", Log: log, Now: w.clock.Now,
	})
	people := users.New(users.Config{Store: store, Tenants: dir, Ledger: book, Domain: "example.com", Log: log, Now: w.clock.Now})
	w.dialer = publicdial.New(publicdial.Options{})
	w.config = Config{
		Store: store, Tenants: dir, Ledger: book, Vault: sealed, Secrets: vault.NewAppSecrets(sealed, dir, book, w.clock.Now),
		Addresses: addresses.New(addresses.Config{Store: store, Tenants: dir, Ledger: book, Log: log, Now: w.clock.Now}),
		Providers: registry, Users: people.Upkeep(), Caller: call.New(w.dialer, w.clock.Now), Log: log, Now: w.clock.Now,
	}
	w.service, w.work, w.hooks = New(w.config)
	w.providers = providers.NewProviders(registry, w.work.ForgetProvider)
	w.t.Cleanup(w.config.Caller.Close)
}

// as is a context of a user who has signed in.
func (w *world) as(org hangar.OrgID) context.Context {
	slug, user := hangar.OrgSlug("acme"), ann
	if org == rival {
		slug, user = "rival", ben
	}
	return hangar.WithPrincipal(w.t.Context(), hangar.Principal{
		Subject: string(user), User: user, SignedIn: true, Grants: []hangar.Grant{{Org: slug, OrgID: org, Actions: hangar.ActionAll}},
	})
}

// admin is a context of the administrator of the platform.
func (w *world) admin() context.Context {
	return hangar.WithPrincipal(w.t.Context(), hangar.Principal{Subject: "admin", Admin: true, User: hangar.UserAdmin})
}

// provider registers a server as a provider.
func (w *world) provider(name hangar.ProviderName, server *extensionstest.Server, edit func(*hangar.ProviderCreate)) *hangar.NewProvider {
	w.t.Helper()
	in := hangar.ProviderCreate{Name: name, ProviderSettings: hangar.ProviderSettings{BaseURL: server.URL, AllowPrivate: true}}
	if edit != nil {
		edit(&in)
	}
	made, err := w.providers.CreateProvider(w.admin(), in)
	if err != nil {
		w.t.Fatal(err)
	}
	server.Now = w.clock.Now
	server.Trust(w.t, made.RequestSecret.Reveal())
	return made
}

// create journals an extension of the App web.
func (w *world) create(in hangar.ExtensionCreate) *hangar.Extension {
	w.t.Helper()
	e, err := w.service.CreateExtension(w.as(acme), "web", in)
	if err != nil {
		w.t.Fatal(err)
	}
	return e
}

// steps does the steps of all extensions until none is to be done at once, and returns how many
// there are that were not successful.
func (w *world) steps() (failed int) {
	w.t.Helper()
	for at := range w.refs() {
		for range 20 {
			a, err := w.work.step(w.t.Context(), at, state.Item{})
			if err != nil && !errors.Is(err, errStale) {
				w.t.Fatal(err)
			}
			if a.failed {
				failed++
			}
			if a.failed || a.never || a.after > 0 {
				break
			}
		}
	}
	return failed
}

// run has the Provisioner work until the test ends, or stop is called.
func (w *world) run() (stop func()) {
	w.t.Helper()
	w.clock.mu.Lock()
	w.clock.real = true
	w.clock.mu.Unlock()
	ctx, cancel := context.WithCancel(w.t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = w.work.Run(ctx)
	}()
	for !w.work.running.Load() {
		runtime.Gosched()
	}
	stop = sync.OnceFunc(func() {
		cancel()
		<-ended
	})
	w.t.Cleanup(stop)
	return stop
}

// awaitAll returns the records of all extensions once each of them is as done wants it.
func (w *world) awaitAll(done func(*record) bool) map[ref]record {
	w.t.Helper()
	all := w.refs()
	_, revision, err := state.All(w.t.Context(), w.store, state.ExtensionsPrefix, true)
	if err != nil {
		w.t.Fatal(err)
	}
	ready := func() bool {
		for _, r := range all {
			if !done(&r) {
				return false
			}
		}
		return true
	}
	all = w.refs()
	if ready() {
		return all
	}
	for _, err := range w.store.Watch(w.t.Context(), state.ExtensionsPrefix, revision+1) {
		if err != nil {
			w.t.Fatal(err)
		}
		if all = w.refs(); ready() {
			return all
		}
	}
	w.t.Fatal("the test has ended")
	return nil
}

func itemOf(r *record) state.Item { return state.Item{Key: r.ref().key()} }

// refs are the extensions that there are.
func (w *world) refs() map[ref]record {
	w.t.Helper()
	items, _, err := state.All(w.t.Context(), w.store, state.ExtensionsPrefix, false)
	if err != nil {
		w.t.Fatal(err)
	}
	all := map[ref]record{}
	for _, item := range items {
		rec, err := state.Decode[record](item)
		if err != nil {
			w.t.Fatal(err)
		}
		all[rec.ref()] = rec
	}
	return all
}

// one is the only extension of the App web.
func (w *world) one() *hangar.Extension {
	w.t.Helper()
	list, err := w.service.Extensions(w.as(acme), "web")
	if err != nil || len(list) != 1 {
		w.t.Fatalf("%d extensions, %v", len(list), err)
	}
	return list[0]
}

// secrets are those of an App of an organization.
func (w *world) secrets(org hangar.OrgID, app hangar.AppName) map[string]string {
	w.t.Helper()
	all, err := vault.NewSecrets(w.config.Secrets).Secrets(w.as(org), app, hangar.SecretQuery{Show: true})
	if err != nil {
		w.t.Fatal(err)
	}
	values := map[string]string{}
	for _, s := range all.List {
		values[s.Name] = s.Value.Reveal()
	}
	return values
}

func (w *world) setSecret(name, value string) {
	w.t.Helper()
	_, err := vault.NewSecrets(w.config.Secrets).SetSecrets(w.as(acme), "web", map[string]hangar.Sensitive{name: hangar.NewSensitive(value)})
	if err != nil {
		w.t.Fatal(err)
	}
}

// nothingLeft checks that no record of an extension is there, and nothing is counted, but for
// tombstones.
func (w *world) nothingLeft() {
	w.t.Helper()
	for _, prefix := range []string{
		state.ExtensionsPrefix, state.ExtensionNamesPrefix, state.ExtensionConfigPrefix, state.ProviderCountsPrefix, state.OwnersPrefix,
		state.AddressesPrefix,
	} {
		items, _, err := state.All(w.t.Context(), w.store, prefix, false)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, item := range items {
			w.t.Errorf("%s is left: %s", item.Key, item.Value)
		}
	}
	for _, org := range []hangar.OrgID{acme, rival} {
		used, _, err := w.config.Ledger.Usage(w.t.Context(), org)
		if err != nil {
			w.t.Fatal(err)
		}
		if n := used[hangar.QuotaExtensions]; n != 0 {
			w.t.Errorf("organization %s still uses %d extensions", org, n)
		}
	}
}

// paths are the methods and paths of requests to a server.
func paths(server *extensionstest.Server) (list []string) {
	for _, r := range server.Requests() {
		list = append(list, fmt.Sprintf("%s %s", r.Method, r.Path))
	}
	return list
}

func wantPaths(t *testing.T, server *extensionstest.Server, want ...string) {
	t.Helper()
	if got := paths(server); !slices.Equal(got, want) {
		t.Errorf("the provider was asked %q, want %q", got, want)
	}
}
