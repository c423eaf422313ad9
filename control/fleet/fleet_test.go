package fleet_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/fleet"
	"github.com/hangar-platform/hangar/control/state"
)

const (
	first  hangar.HostID = "00000001"
	second hangar.HostID = "00000002"
)

// rows are those of one host that has a Machine.
type rows struct {
	host     hangar.HostID
	machines map[hangar.MachineID]uint64
	volumes  map[hangar.VolumeRef]uint64

	retracting func() // before a Machine is retracted; nil: nothing happens
}

func (r *rows) PublishedMachines(_ context.Context, host hangar.HostID) (map[hangar.MachineID]uint64, error) {
	if host != r.host {
		return nil, nil
	}
	return r.machines, nil
}

func (r *rows) ReservedMachines(context.Context, hangar.HostID) ([]hangar.MachineRef, error) {
	return nil, nil
}

func (r *rows) RetractMachine(_ context.Context, _ hangar.HostID, ref hangar.MachineRef) error {
	if r.retracting != nil {
		r.retracting()
	}
	delete(r.machines, ref.ID)
	return nil
}

func (r *rows) PublishedVolumes(_ context.Context, host hangar.HostID) (map[hangar.VolumeRef]uint64, error) {
	if host != r.host {
		return nil, nil
	}
	return r.volumes, nil
}

func (r *rows) RetractVolume(_ context.Context, _ hangar.HostID, ref hangar.VolumeRef) error {
	delete(r.volumes, ref)
	return nil
}

// world is a platform with one state.
type world struct {
	store    *state.Memory
	rows     *rows
	vacated  []hangar.HostID
	founders []hangar.HostID // of vacated: the ones that have not joined
	mu       sync.Mutex      // guards made
	made     int
	ahead    time.Duration // of the clocks of hosts that are made from now on
}

func newWorld() *world {
	return &world{store: state.NewMemory(), rows: &rows{
		host: second, machines: map[hangar.MachineID]uint64{"00000000000001": 1}, volumes: map[hangar.VolumeRef]uint64{{ID: "vol_1"}: 1},
	}}
}

// host is the Fleet of one host.
func (w *world) host(id hangar.HostID, joined bool) *fleet.Fleet {
	return w.hostWith(id, joined, w.store)
}

func (w *world) hostWith(id hangar.HostID, joined bool, presence state.Presence) *fleet.Fleet {
	ahead := w.ahead
	return fleet.New(fleet.Config{
		Store: w.store, Presence: presence, Rows: w.rows, Joined: joined, JoinURL: "https://10.0.0.1:4281",
		Self: hangar.Host{ID: id, Name: "host-" + string(id), Region: "loc", CPUs: 2, Memory: 1 << 30, Address: "10.0.0." + string(id[7:]) + ":4281"},
		Vacate: func(_ context.Context, h hangar.Host, joined bool) error {
			if w.vacated = append(w.vacated, h.ID); !joined {
				w.founders = append(w.founders, h.ID)
			}
			return nil
		},
		NewToken: func() (hangar.JoinTokenID, string, []byte) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.made++
			text := fmt.Sprintf("token %d", w.made)
			return hangar.JoinTokenID(fmt.Sprintf("aaaaaaaaaa%02d", w.made)), text, digest(text)
		},
		DeadAfter: time.Minute, Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return time.Now().Add(ahead) },
	})
}

func digest(text string) []byte {
	sum := sha256.Sum256([]byte(text))
	return sum[:]
}

func admin(ctx context.Context) context.Context {
	return hangar.WithPrincipal(ctx, hangar.Principal{User: "admin", Admin: true})
}

func applicant(t hangar.NewJoinToken, id hangar.HostID, key string) hangar.HostApplicant {
	return hangar.HostApplicant{Token: t.ID, Digest: digest(t.Token), Host: id, Name: "host-" + string(id), Address: "10.0.0." + string(id[7:]) + ":4281", Key: digest(key)}
}

func (w *world) token(t *testing.T, f *fleet.Fleet, in hangar.JoinTokenCreate) hangar.NewJoinToken {
	t.Helper()
	made, err := f.CreateJoinToken(admin(t.Context()), in)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// runner returns what runs a Fleet, and what waits until all of them have ended: without an error, or with
// the one that may end them.
func runner(t *testing.T, ends error) (run func(context.Context, *fleet.Fleet), wait func()) {
	t.Helper()
	var running sync.WaitGroup
	return func(ctx context.Context, f *fleet.Fleet) {
		running.Go(func() {
			if err := f.Run(ctx); err != nil && !errors.Is(err, ends) {
				t.Error(err)
			}
		})
	}, running.Wait
}

// TestLifeAndDeath: a host is alive while it holds its lease, suspect and then dead without it, and
// the feed yields the current state at each time.
func TestLifeAndDeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		f := w.host(first, false)
		ctx, stop := context.WithCancel(t.Context())
		run, wait := runner(t, fleet.ErrRemoved)
		var watching sync.WaitGroup
		run(ctx, f)
		synctest.Wait()
		if err := f.AdmitHost(ctx, applicant(w.token(t, f, hangar.JoinTokenCreate{}), second, "key")); err != nil {
			t.Fatal(err)
		}
		other := w.host(second, true)
		living, kill := context.WithCancel(ctx)
		run(living, other)
		synctest.Wait()

		var mu sync.Mutex
		var seen []string
		watching.Go(func() {
			for c, err := range f.WatchHosts(ctx) {
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				switch {
				case c.Synced:
					seen = append(seen, "synced")
				case c.Host == nil:
					seen = append(seen, string(c.ID)+" gone")
				default:
					seen = append(seen, string(c.ID)+" "+string(c.Host.State))
				}
				mu.Unlock()
			}
		})
		stateOf := func() hangar.HostState {
			synctest.Wait()
			h, err := f.Host(admin(ctx), second)
			if err != nil {
				t.Fatal(err)
			}
			return h.State
		}
		if got := stateOf(); got != hangar.HostAlive {
			t.Errorf("a host that runs is %s", got)
		}
		if err := f.RemoveHost(admin(ctx), second, hangar.HostRemoval{Force: true}); hangar.CodeOf(err) != hangar.CodeConflict {
			t.Errorf("removing a host that lives: %v", err)
		}
		kill()
		if got := stateOf(); got != hangar.HostSuspect {
			t.Errorf("a host without a lease is %s", got)
		}
		if !f.Knows(ctx, second) || f.Knows(ctx, "00000009") {
			t.Error("the hosts that are known are others than there are")
		}
		time.Sleep(2 * time.Minute)
		if got := stateOf(); got != hangar.HostDead {
			t.Errorf("a host that has been away for long is %s", got)
		}
		if err := f.RemoveHost(admin(ctx), second, hangar.HostRemoval{}); hangar.CodeOf(err) != hangar.CodeConflict || !strings.Contains(err.Error(), "1 Machines") {
			t.Errorf("removing a host with a Machine: %v", err)
		}
		if err := f.RemoveHost(admin(ctx), second, hangar.HostRemoval{Force: true}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(w.rows.machines)+len(w.rows.volumes) != 0 || !slices.Equal(w.vacated, []hangar.HostID{second}) || f.Knows(ctx, second) {
			t.Errorf("something of a removed host is left: %+v, %v", w.rows, w.vacated)
		}
		if err := other.Run(ctx); !errors.Is(err, fleet.ErrRemoved) {
			t.Errorf("the removed host runs again: %v", err)
		}
		stop()
		wait()
		watching.Wait()
		if want := []string{"00000001 alive", "00000002 alive", "synced", "00000002 suspect", "00000002 dead", "00000002 gone"}; !slices.Equal(slices.Compact(seen), want) {
			t.Errorf("the feed has yielded %q, want %q", seen, want)
		}
	})
}

// TestAdministratorsAlone: no one else sees hosts or makes tokens.
func TestAdministratorsAlone(t *testing.T) {
	f := newWorld().host(first, false)
	user := hangar.WithPrincipal(t.Context(), hangar.Principal{User: "ann", SignedIn: true})
	for name, call := range map[string]func(context.Context) error{
		"Hosts":      func(ctx context.Context) error { _, err := f.Hosts(ctx); return err },
		"HostUsage":  func(ctx context.Context) error { _, err := f.HostUsage(ctx); return err },
		"Host":       func(ctx context.Context) error { _, err := f.Host(ctx, first); return err },
		"UpdateHost": func(ctx context.Context) error { _, err := f.UpdateHost(ctx, first, hangar.HostUpdate{}); return err },
		"RemoveHost": func(ctx context.Context) error { return f.RemoveHost(ctx, first, hangar.HostRemoval{}) },
		"CreateJoinToken": func(ctx context.Context) error {
			_, err := f.CreateJoinToken(ctx, hangar.JoinTokenCreate{})
			return err
		},
		"JoinTokens":      func(ctx context.Context) error { _, err := f.JoinTokens(ctx); return err },
		"RevokeJoinToken": func(ctx context.Context) error { return f.RevokeJoinToken(ctx, "x") },
		"BackupState":     func(ctx context.Context) error { _, err := f.BackupState(ctx); return err },
	} {
		if err := call(user); hangar.CodeOf(err) != hangar.CodeForbidden {
			t.Errorf("%s: %v, want that it is forbidden", name, err)
		}
	}
}

// TestTokens: a token admits one server, also repeatedly; a reusable one admits several, and an
// expired or revoked one none. An id belongs to one server, and an address to one host.
func TestTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		f := w.host(first, false)
		ctx := t.Context()
		if err := f.Register(ctx); err != nil {
			t.Fatal(err)
		}
		newer := state.FleetPrefix + "join-tokens/newer"
		if _, err := w.store.Txn(ctx, state.Txn{Then: []state.Op{state.Put(newer, []byte(`{"id": {"of": "a later version"}}`))}}); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if _, err := w.store.Get(ctx, newer); err != nil {
				t.Errorf("a token that cannot be read: %v", err)
			}
		}()
		once := w.token(t, f, hangar.JoinTokenCreate{Note: "rack 3"})
		var group sync.WaitGroup
		let := make([]error, 8)
		for i := range let {
			id := hangar.HostID(fmt.Sprintf("0000001%x", i+3))
			group.Go(func() { let[i] = f.AdmitHost(ctx, applicant(once, id, string(id))) })
		}
		group.Wait()
		var in []hangar.HostID
		for i, err := range let {
			switch id := hangar.HostID(fmt.Sprintf("0000001%x", i+3)); {
			case err == nil:
				in = append(in, id)
			case hangar.CodeOf(err) != hangar.CodeUnauthenticated:
				t.Error(err)
			}
		}
		if len(in) != 1 {
			t.Fatalf("one token has let in %v", in)
		}
		if err := f.AdmitHost(ctx, applicant(once, in[0], string(in[0]))); err != nil {
			t.Errorf("the same server again: %v", err)
		}
		list, err := f.JoinTokens(admin(ctx))
		if err != nil || len(list) != 1 || list[0].UsedBy != in[0] || list[0].Note != "rack 3" {
			t.Errorf("tokens %+v, %v", list, err)
		}

		many := w.token(t, f, hangar.JoinTokenCreate{Reusable: true, TTL: hangar.Duration(2 * time.Hour)})
		for _, c := range []struct {
			name string
			a    hangar.HostApplicant
			code hangar.Code
		}{
			{"a server", applicant(many, "0000002e", "a"), ""},
			{"another", applicant(many, "0000002f", "b"), ""},
			{"an id that is taken", applicant(many, "0000002e", "c"), hangar.CodeConflict},
			{"the id of the first host", applicant(many, first, "c"), hangar.CodeConflict},
			{"an address that is taken", applicant(many, "0000003e", "c"), hangar.CodeConflict},
			{"another secret", hangar.HostApplicant{Token: many.ID, Digest: digest("x"), Host: "0000002d"}, hangar.CodeUnauthenticated},
			{"no such token", hangar.HostApplicant{Token: "nnnnnnnnnnnn", Digest: digest("x"), Host: "0000002d"}, hangar.CodeUnauthenticated},
		} {
			if err := f.AdmitHost(ctx, c.a); hangar.CodeOf(err) != c.code {
				t.Errorf("%s: %v, want %q", c.name, err, c.code)
			}
		}
		if err := f.RevokeJoinToken(admin(ctx), many.ID); err != nil {
			t.Fatal(err)
		}
		if err := f.AdmitHost(ctx, applicant(many, "0000002d", "d")); hangar.CodeOf(err) != hangar.CodeUnauthenticated {
			t.Errorf("a revoked token: %v", err)
		}
		brief := w.token(t, f, hangar.JoinTokenCreate{})
		time.Sleep(hangar.DefaultJoinTTL)
		if err := f.AdmitHost(ctx, applicant(brief, "0000002d", "d")); hangar.CodeOf(err) != hangar.CodeUnauthenticated {
			t.Errorf("an expired token: %v", err)
		}
		if list, err := f.JoinTokens(admin(ctx)); err != nil || len(list) != 0 {
			t.Errorf("tokens %+v, %v; want none", list, err)
		}
		for range hangar.MaxJoinTokens {
			w.token(t, f, hangar.JoinTokenCreate{})
		}
		if _, err := f.CreateJoinToken(admin(ctx), hangar.JoinTokenCreate{}); hangar.CodeOf(err) != hangar.CodeExhausted {
			t.Errorf("one token too many: %v", err)
		}
	})
}

// TestUsage asks two hosts, of which one does not answer: it is listed with what it has published.
func TestUsage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		for _, id := range []hangar.HostID{first, second} {
			if err := w.host(id, false).Register(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		f := fleet.New(fleet.Config{
			Store: w.store, Rows: w.rows, Self: hangar.Host{ID: first, Memory: 1 << 30}, Log: slog.New(slog.DiscardHandler), Now: time.Now,
			Room: func(ctx context.Context, id hangar.HostID) (hangar.HostRoom, error) {
				if id == second {
					<-ctx.Done()
					return hangar.HostRoom{}, ctx.Err()
				}
				return hangar.HostRoom{Memory: 1 << 30, Free: 1 << 28, VolumesPromised: 5, Volumes: -3}, nil
			},
		})
		began := time.Now()
		usage, err := f.HostUsage(admin(t.Context()))
		if err != nil || len(usage) != 2 || time.Since(began) != 2*time.Second {
			t.Fatalf("usage after %v is %+v, %v", time.Since(began), usage, err)
		}
		if u := usage[0]; !u.Reached || u.MemoryPromised != 3<<28 || u.VolumesPromised != 5 || u.VolumesFree != 0 || u.Machines != 0 {
			t.Errorf("the first is %+v", u)
		}
		if u := usage[1]; u.Reached || u.MemoryPromised != 0 || u.Machines != 1 || u.Volumes != 1 {
			t.Errorf("the second is %+v", u)
		}
	})
}

// TestUpdate: what administrators say of a host stays when it starts again.
// TestHeard: of other hosts it is shown when this one last heard of them, and none of it is recorded.
func TestHeard(t *testing.T) {
	w := newWorld()
	at := time.Date(2026, 8, 14, 9, 57, 35, 0, time.UTC)
	cfg := fleet.Config{
		Store: w.store, Rows: w.rows, Self: hangar.Host{ID: first, MeshKey: "key", MeshAddress: "10.0.0.1:51821"}, Log: slog.New(slog.DiscardHandler),
		Heard: func() map[hangar.HostID]time.Time { return map[hangar.HostID]time.Time{second: at.Add(-time.Minute)} },
		Now:   func() time.Time { return at },
	}
	other := cfg
	other.Self, other.Heard = hangar.Host{ID: second, MeshKey: "other key", MeshAddress: "10.0.0.2:51821"}, nil
	f, g := fleet.New(cfg), fleet.New(other)
	for _, each := range []*fleet.Fleet{f, g} {
		if err := each.Register(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	hosts, err := f.Hosts(admin(t.Context()))
	if err != nil || len(hosts) != 2 || !hosts[0].MeshHandshake.Equal(at) || !hosts[1].MeshHandshake.Equal(at.Add(-time.Minute)) || hosts[1].MeshKey != "other key" {
		t.Errorf("hosts are %+v, %v", hosts, err)
	}
	if h, err := f.Host(admin(t.Context()), second); err != nil || !h.MeshHandshake.Equal(at.Add(-time.Minute)) {
		t.Errorf("the host is %+v, %v", h, err)
	}
	if _, err := f.UpdateHost(admin(t.Context()), second, hangar.HostUpdate{}); err != nil {
		t.Fatal(err)
	}
	if h, err := g.Host(admin(t.Context()), second); err != nil || !h.MeshHandshake.IsZero() {
		t.Errorf("another host says %+v, %v", h, err)
	}
}

func TestUpdate(t *testing.T) {
	w := newWorld()
	f := w.host(first, false)
	if err := f.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{"disk": "nvme"}
	if _, err := f.UpdateHost(admin(t.Context()), first, hangar.HostUpdate{Cordoned: new(true), Labels: &labels}); err != nil {
		t.Fatal(err)
	}
	if err := w.host(first, false).Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	h, err := f.Host(admin(t.Context()), first)
	if err != nil || !h.Cordoned || h.Labels["disk"] != "nvme" {
		t.Errorf("%+v, %v", h, err)
	}
	if _, err := f.UpdateHost(admin(t.Context()), "00000009", hangar.HostUpdate{}); hangar.CodeOf(err) != hangar.CodeNotFound {
		t.Errorf("a host that is not there: %v", err)
	}
	bad := map[string]string{"": "x"}
	if _, err := f.UpdateHost(admin(t.Context()), first, hangar.HostUpdate{Labels: &bad}); hangar.CodeOf(err) != hangar.CodeInvalid {
		t.Errorf("a label without a name: %v", err)
	}
}
