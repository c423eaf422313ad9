package contract_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/test/platform"
)

// holding is an operation on something that one client at a time has: a name, or the lease of a
// Machine.
type holding struct {
	key    string
	take   bool // else it is given back
	client int
}

// holder is the model: the holder of each thing, -1 for none. A take succeeds if it has no
// holder, and a client gives back only what it has.
func holder() porcupine.Model {
	return porcupine.Model{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			byKey := map[string][]porcupine.Operation{}
			for _, op := range history {
				key := op.Input.(holding).key
				byKey[key] = append(byKey[key], op)
			}
			var parts [][]porcupine.Operation
			for _, part := range byKey {
				parts = append(parts, part)
			}
			return parts
		},
		Init: func() any { return -1 },
		Step: func(state, input, output any) (bool, any) {
			in, done := input.(holding), output.(bool)
			free := state.(int) < 0
			switch {
			case in.take && done:
				return free, in.client
			case in.take:
				return !free, state
			default:
				return done && state.(int) == in.client, -1
			}
		},
	}
}

// contend has clients of all servers take and give back the same things at the same time, and checks
// that what they saw could have happened one after the other.
func contend(t *testing.T, c *platform.Cluster, keys []string, take func(ctx context.Context, api *client.Client, key string) (give func() error, err error)) {
	t.Helper()
	const clients, rounds = 6, 12
	began := time.Now()
	var mu sync.Mutex
	var history []porcupine.Operation
	record := func(in holding, do func() (bool, error)) bool {
		call := time.Since(began).Nanoseconds()
		done, err := do()
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		history = append(history, porcupine.Operation{ClientId: in.client, Input: in, Call: call, Output: done, Return: time.Since(began).Nanoseconds()})
		return done
	}
	var all sync.WaitGroup
	for n := range clients {
		api := c.Servers[n%len(c.Servers)].Client()
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(n), 1))
			for range rounds {
				in := holding{key: keys[random.IntN(len(keys))], take: true, client: n}
				var give func() error
				if !record(in, func() (bool, error) {
					var err error
					give, err = take(t.Context(), api, in.key)
					return give != nil, err
				}) {
					continue
				}
				in.take = false
				record(in, func() (bool, error) { return true, give() })
			}
		})
	}
	all.Wait()
	if result := porcupine.CheckOperationsTimeout(holder(), history, time.Minute); result != porcupine.Ok {
		t.Errorf("the history of %d operations is not linearizable: %s", len(history), result)
		for _, op := range history {
			t.Logf("%d: %+v %v from %d to %d", op.ClientId, op.Input, op.Output, op.Call, op.Return)
		}
	}
}

// refusedAs is nil for an error that has one of the reasons: another client was first.
func refusedAs(err error, reason string) error {
	if hangar.ReasonOf(err) == reason {
		return nil
	}
	return err
}

// TestNamesAndLeasesAcrossHosts: the name of a Machine, or the lease of one, goes to one caller,
// whichever servers are asked.
func TestNamesAndLeasesAcrossHosts(t *testing.T) {
	c := platform.StartCluster(t, 3, platform.Options{})
	api := c.Servers[0].Client()
	if _, err := api.CreateApp(t.Context(), hangar.AppCreate{Name: "shared", Org: hangar.OrgPersonal}); err != nil {
		t.Fatal(err)
	}
	for _, p := range c.Servers { // which learn of the App one after the other
		for other := p.Client(); ; {
			if _, err := other.App(t.Context(), "shared"); err == nil {
				break
			} else if hangar.CodeOf(err) != hangar.CodeNotFound {
				t.Fatal(err)
			}
		}
	}
	create := func(ctx context.Context, api *client.Client, name string) (*hangar.Machine, error) {
		return api.CreateMachine(ctx, "shared", hangar.MachineCreate{Name: name, SkipLaunch: true, Config: hangar.MachineConfig{Image: "nginx:alpine"}})
	}
	t.Run("names", func(t *testing.T) {
		contend(t, c, []string{"one", "two"}, func(ctx context.Context, api *client.Client, name string) (func() error, error) {
			m, err := create(ctx, api, name)
			if err != nil {
				return nil, refusedAs(err, hangar.ReasonNameTaken)
			}
			return func() error { return api.DestroyMachine(ctx, m.Ref(), hangar.MachineDestroy{Force: true}) }, nil
		})
	})
	t.Run("leases", func(t *testing.T) {
		machines := map[string]hangar.MachineRef{}
		hosts := map[hangar.HostID]bool{}
		for _, name := range []string{"a", "b", "c"} {
			m, err := create(t.Context(), api, name)
			if err != nil {
				t.Fatal(err)
			}
			machines[name], hosts[m.Host] = m.Ref(), true
		}
		if len(hosts) < 2 { // where those were that the names went to may count still
			t.Error("the machines of an App are on one host")
		}
		for name, ref := range machines { // their reservations are known everywhere
			for _, p := range c.Servers {
				for other := p.Client(); ; {
					if _, err := other.Machine(t.Context(), ref); err == nil {
						break
					} else if hangar.CodeOf(err) != hangar.CodeNotFound {
						t.Fatal(name, err)
					}
				}
			}
		}
		contend(t, c, []string{"a", "b", "c"}, func(ctx context.Context, api *client.Client, name string) (func() error, error) {
			lease, err := api.AcquireLease(ctx, machines[name], hangar.LeaseAcquire{TTL: time.Hour})
			if err != nil {
				return nil, refusedAs(err, hangar.ReasonLeaseHeld)
			}
			return func() error { return api.ReleaseLease(hangar.WithLeaseNonce(ctx, lease.Nonce), machines[name]) }, nil
		})
	})
}
