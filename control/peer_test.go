package control_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/test/contract"
)

// fakeGateway is a gateway that follows at once.
type fakeGateway struct {
	mu      sync.Mutex
	refusal error // of OpenGateway
	awaited []string
}

func (g *fakeGateway) GatewayHost() hangar.HostID { return "aaaaaaaa" }

func (g *fakeGateway) OpenGateway(context.Context) (hangar.PeerGateway, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return hangar.PeerGateway{EndpointIP: "gw", EndpointPort: 1, GatewayKey: testKey(0xff)}, g.refusal
}

func (g *fakeGateway) AwaitPeer(_ context.Context, key hangar.PeerKey, address netip.Addr) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.awaited = append(g.awaited, fmt.Sprint(key, address))
	return nil
}

func (g *fakeGateway) PeerTraffic() map[hangar.PeerKey]hangar.PeerTraffic {
	return map[hangar.PeerKey]hangar.PeerTraffic{testKey(1): {Received: 7}}
}

// testKey is a key made of a number.
func testKey(n byte) hangar.PeerKey {
	return hangar.PeerKey(base64.StdEncoding.EncodeToString(append(make([]byte, 31), n)))
}

func (p *plane) peer(t *testing.T, org hangar.OrgSlug, name string, n byte) *hangar.NewPeer {
	t.Helper()
	made, err := p.Peers().CreatePeer(admin(t), org, hangar.PeerCreate{Name: name, PublicKey: testKey(n)})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func TestPeerService(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		p := newPlane(t, store)
		var harness func(as func() context.Context) contract.Harness
		harness = func(as func() context.Context) contract.Harness {
			return contract.Harness{
				Orgs: p.Orgs(), Apps: p.Apps(), Tokens: p.Tokens(), Peers: p.Peers(),
				Context: func(tb testing.TB) context.Context { tb.Helper(); return as() },
				As: func(tb testing.TB, credential string) contract.Harness {
					tb.Helper()
					return harness(func() context.Context {
						who, err := p.auth.Authenticate(t.Context(), credential)
						if err != nil {
							return t.Context()
						}
						return hangar.WithPrincipal(t.Context(), who)
					})
				},
			}
		}
		contract.PeerService(t, harness(func() context.Context { return admin(t) }))
	})
}

// A gateway that cannot listen gets no peer, and a server without a gateway says so.
func TestGatewayRefuses(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.gateway.refusal = &hangar.Error{Code: hangar.CodeUnavailable, Message: "UDP port 51820 is in use"}
	_, err := p.Peers().CreatePeer(admin(t), hangar.OrgPersonal, hangar.PeerCreate{PublicKey: testKey(1)})
	wantError(t, err, hangar.CodeUnavailable, "")
	if list, err := p.Peers().Peers(admin(t), hangar.OrgPersonal); err != nil || len(list) > 0 {
		t.Errorf("there are peers %v, %v", list, err)
	}
	p.gateway.refusal = nil
	made := p.peer(t, hangar.OrgPersonal, "one", 1)
	if err := p.Peers().RemovePeer(admin(t), hangar.OrgPersonal, "one"); err != nil {
		t.Fatal(err)
	}
	want := []string{fmt.Sprint(testKey(1), made.Address), fmt.Sprint(testKey(1), netip.Addr{})}
	if !slices.Equal(p.gateway.awaited, want) {
		t.Errorf("the gateway was awaited for %v, want %v", p.gateway.awaited, want)
	}
	without := control.New(control.Config{Store: p.store, Log: quiet})
	_, err = without.Peers().CreatePeer(admin(t), hangar.OrgPersonal, hangar.PeerCreate{PublicKey: testKey(1)})
	wantError(t, err, hangar.CodeFailedPrecondition, "")
}

// Of many who want the same name, or have the same key, one gets it; numbers are given
// once.
// TestPeerNames: names have capitals, as those of people's computers, and are found and unique without.
func TestPeerNames(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		p := newPlane(t, store)
		p.app(t, "web")
		p.peer(t, hangar.OrgPersonal, "Johns-MacBook-01", 1)
		_, err := p.Peers().CreatePeer(admin(t), hangar.OrgPersonal, hangar.PeerCreate{Name: "johns-macbook-01", PublicKey: testKey(2)})
		wantError(t, err, hangar.CodeInvalid, hangar.ReasonNameTaken)
		_, err = p.Peers().CreatePeer(admin(t), hangar.OrgPersonal, hangar.PeerCreate{Name: "Johns_MacBook", PublicKey: testKey(2)})
		wantError(t, err, hangar.CodeInvalid, "")
		list, err := p.Peers().Peers(admin(t), hangar.OrgPersonal)
		if err != nil || len(list) != 1 || list[0].Name != "Johns-MacBook-01" {
			t.Errorf("%+v, %v", list, err)
		}
		if err := p.Peers().RemovePeer(admin(t), hangar.OrgPersonal, "JOHNS-macbook-01"); err != nil {
			t.Error(err)
		}
		p.peer(t, hangar.OrgPersonal, "johns-macbook-01", 1)
	})
}

func TestPeersAreUnique(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		p := newPlane(t, store)
		ctx := admin(t)
		var group sync.WaitGroup
		made := make([]*hangar.NewPeer, 24)
		for i := range made {
			group.Go(func() {
				in := hangar.PeerCreate{Name: fmt.Sprint("peer-", i%12), PublicKey: testKey(byte(1 + i/2))}
				made[i], _ = p.Peers().CreatePeer(ctx, hangar.OrgPersonal, in)
			})
		}
		group.Wait()
		names, keys, addresses := map[string]bool{}, map[hangar.PeerKey]bool{}, map[netip.Addr]bool{}
		for _, m := range made {
			if m == nil {
				continue
			}
			if names[m.Name] || keys[m.PublicKey] || addresses[m.Address] {
				t.Errorf("%+v shares something with another", m.Peer)
			}
			names[m.Name], keys[m.PublicKey], addresses[m.Address] = true, true, true
		}
		list, err := p.Peers().Peers(ctx, hangar.OrgPersonal)
		if err != nil || len(list) != len(names) || len(list) == 0 {
			t.Errorf("%d peers were made, %d are listed, %v", len(names), len(list), err)
		}
	})
}

// A watcher of the peers receives each change, in spite of an unreadable record.
func TestWatchPeers(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		p := newPlane(t, store)
		for key, value := range map[string]string{"/peers/personal/broken": "{", "/peers/personal/other": `{"name":"else","org_slug":"personal"}`} {
			if _, err := store.Txn(t.Context(), state.Txn{Then: []state.Op{state.Put(key, []byte(value))}}); err != nil {
				t.Fatal(err)
			}
		}
		one := p.peer(t, hangar.OrgPersonal, "one", 1)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		step := 0
		for peers, err := range control.NewPeerRecords(store, quiet).WatchPeers(ctx) {
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case step == 0 && reflect.DeepEqual(peers, []hangar.Peer{one.Peer}):
				p.peer(t, hangar.OrgPersonal, "two", 2)
			case step == 1 && len(peers) == 2:
				if err := p.Peers().RemovePeer(admin(t), hangar.OrgPersonal, "one"); err != nil {
					t.Fatal(err)
				}
			case step == 2 && len(peers) == 1 && peers[0].Name == "two":
				cancel()
			default:
				t.Fatalf("step %d: %+v", step, peers)
			}
			step++
		}
		if step != 3 {
			t.Errorf("%d steps", step)
		}
	})
}

// A record that cannot be read can still be removed.
func TestBrokenPeerIsRemoved(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	if _, err := p.store.Txn(t.Context(), state.Txn{Then: []state.Op{state.Put("/peers/"+string(p.orgID(t, hangar.OrgPersonal))+"/broken", []byte("{"))}}); err != nil {
		t.Fatal(err)
	}
	if err := p.Peers().RemovePeer(admin(t), hangar.OrgPersonal, "broken"); err != nil {
		t.Error(err)
	}
	wantError(t, p.Peers().RemovePeer(admin(t), hangar.OrgPersonal, "broken"), hangar.CodeNotFound, hangar.ReasonPeerNotFound)
}
