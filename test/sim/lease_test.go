package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/test/daemon"
)

const (
	tenants        = 6 // clients that want the same Machines for themselves
	leasedMachines = 3
	modelPatience  = 2 * time.Minute // to check the history of one Machine
)

// TestLeasesOverKills lets clients take leases of the same Machines and update them
// while the daemon is killed. The history of each Machine, over all lives of the
// daemon, must be one that a lease and a compare-and-swap register can have.
func TestLeasesOverKills(t *testing.T) {
	seed := fromEnv(t, "SIM_SEED", uint64(time.Now().UnixNano())>>1)
	rounds := fromEnv(t, "SIM_ROUNDS", 6)
	// The fake driver alone: no lease depends on what runs.
	if driver := os.Getenv("SIM_DRIVER"); driver != "" && driver != "fake" {
		t.Skip("leases are the same with every driver")
	}
	t.Logf("SIM_SEED=%d SIM_ROUNDS=%d", seed, rounds)
	d := daemon.Start(t, daemon.Options{Driver: "fake"})
	l := newLeaseGame(t, d)
	rng := rand.New(rand.NewPCG(seed, 2))
	for range rounds {
		l.round(rng)
		if t.Failed() {
			break
		}
	}
	for _, m := range l.machines {
		l.check(m)
	}
	l.checkSecrets()
	if t.Failed() {
		t.Logf("run again with SIM_SEED=%d SIM_ROUNDS=%d", seed, rounds)
	}
}

// leaseGame is what the clients have done.
type leaseGame struct {
	*testing.T
	d        *daemon.Daemon
	c        *client.Client
	image    string
	machines []*leasedMachine
	ids      atomic.Int64 // of operations
}

// leasedMachine is what is known of one Machine, by all clients.
type leasedMachine struct {
	ref     hangar.MachineRef
	created hangar.InstanceID
	running bool

	mu      sync.Mutex
	history []porcupine.Operation
	lost    []int    // operations of history that had no answer yet
	nonces  []string // seen, newest last
	version string   // seen last
}

func newLeaseGame(t *testing.T, d *daemon.Daemon) *leaseGame {
	t.Helper()
	l := &leaseGame{T: t, d: d, c: d.Client()}
	if _, err := l.c.CreateApp(t.Context(), hangar.AppCreate{Name: app, Org: hangar.OrgPersonal}); err != nil {
		t.Fatal(err)
	}
	l.image = pushSleeper(t, d)
	for i := range leasedMachines {
		m := &leasedMachine{running: i == 0}
		made, err := l.c.CreateMachine(t.Context(), app, hangar.MachineCreate{Config: config(l.image, 0), SkipLaunch: !m.running})
		if err != nil {
			t.Fatal(err)
		}
		m.ref, m.created, m.version = made.Ref(), made.InstanceID, string(made.InstanceID)
		l.settled(m)
		l.machines = append(l.machines, m)
	}
	return l
}

func (l *leaseGame) settled(m *leasedMachine) {
	l.Helper()
	_, err := l.c.WaitMachine(l.Context(), m.ref, hangar.MachineWait{States: []hangar.MachineState{hangar.WaitSettled}, Timeout: time.Minute})
	if err != nil {
		l.Fatal(err)
	}
}

// round lets the clients act, and ends the daemon in the middle of it.
func (l *leaseGame) round(rng *rand.Rand) {
	l.Helper()
	ctx, stop := context.WithCancel(l.Context())
	var group sync.WaitGroup
	for tenant := range tenants {
		own := rand.New(rand.NewPCG(rng.Uint64(), rng.Uint64()))
		group.Go(func() {
			for ctx.Err() == nil {
				l.act(tenant, l.machines[own.IntN(len(l.machines))], own)
			}
		})
	}
	time.Sleep(100*time.Millisecond + time.Duration(rng.Int64N(int64(1500*time.Millisecond))))
	stop()
	if rng.IntN(4) == 0 {
		l.d.Term()
	} else {
		l.d.Kill()
	}
	group.Wait()
	// Operations without an answer have happened by now, or never will.
	for _, m := range l.machines {
		m.close(time.Now().UnixNano())
	}
	l.d.Up()
	for _, m := range l.machines {
		l.settled(m)
	}
}

// act does one random thing and writes down what came of it.
func (l *leaseGame) act(tenant int, m *leasedMachine, rng *rand.Rand) {
	in := leaseInput{id: int(l.ids.Add(1))}
	nonce, version := m.knowledge(rng)
	in.nonce = nonce
	switch rng.IntN(12) {
	case 0, 1, 2:
		in.op, in.ttl = opAcquire, []time.Duration{time.Second, 2 * time.Second, time.Hour}[rng.IntN(3)]
	case 3, 4:
		in.op = opRelease
	case 5:
		in.op = opLease
	case 6, 7, 8:
		in.op, in.current = opUpdate, version
	case 9, 10:
		in.op = opMachine
	default:
		in.op = opGuarded
	}
	in.call = time.Now().UnixNano()
	out, err := l.do(m, in)
	out.back = time.Now().UnixNano()
	if out.answer = l.answerOf(in, err); out.answer == "" {
		return
	}
	m.record(tenant, in, out)
}

// do makes the call of an operation.
func (l *leaseGame) do(m *leasedMachine, in leaseInput) (out leaseOutput, err error) {
	ctx := hangar.WithLeaseNonce(l.Context(), in.nonce)
	switch in.op {
	case opAcquire:
		var lease hangar.Lease
		lease, err = l.c.AcquireLease(ctx, m.ref, hangar.LeaseAcquire{TTL: in.ttl, Description: strconv.Itoa(in.id)})
		out = outputOf(lease)
	case opRelease:
		err = l.c.ReleaseLease(ctx, m.ref)
	case opLease:
		var lease hangar.Lease
		lease, err = l.c.MachineLease(ctx, m.ref)
		out = outputOf(lease)
	case opUpdate:
		var updated *hangar.Machine
		updated, err = l.c.UpdateMachine(ctx, m.ref, hangar.MachineUpdate{Config: config(l.image, in.id), CurrentVersion: hangar.InstanceID(in.current)})
		if err == nil {
			out = leaseOutput{version: string(updated.InstanceID), by: in.id}
		}
	case opMachine:
		var got *hangar.Machine
		got, err = l.c.Machine(ctx, m.ref)
		if err == nil {
			out.version = string(got.InstanceID)
			out.by, _ = strconv.Atoi(got.Config.Env["VERSION"])
		}
	case opGuarded:
		if m.running {
			_, err = l.c.StartMachine(ctx, m.ref)
		} else {
			err = l.c.StopMachine(ctx, m.ref, hangar.MachineStop{})
		}
	}
	return out, err
}

func outputOf(lease hangar.Lease) leaseOutput {
	by, _ := strconv.Atoi(lease.Description)
	return leaseOutput{nonce: lease.Nonce, by: by, expires: lease.ExpiresAt.UnixNano(), version: string(lease.Version)}
}

// answerOf sorts answers. Those that nothing excuses fail the run. It returns "" for
// a look that brought nothing.
func (l *leaseGame) answerOf(in leaseInput, err error) string {
	switch code, reason := hangar.CodeOf(err), hangar.ReasonOf(err); {
	case err == nil:
		return done
	case reason == hangar.ReasonLeaseHeld:
		return held
	case reason == hangar.ReasonLeaseNotFound:
		return notHeld
	case reason == hangar.ReasonStaleVersion:
		return stale
	case reason == hangar.ReasonWrongState:
		return busy
	case code == hangar.CodeUnavailable && (in.op == opLease || in.op == opMachine || in.op == opGuarded):
		return ""
	case code == hangar.CodeUnavailable:
		return noAnswer
	default:
		l.Errorf("%s: %v", describeLeaseOp(in, leaseOutput{}), err)
		return ""
	}
}

// knowledge is a nonce and a version for an operation: often the last seen ones, by any client,
// sometimes older ones or none.
func (m *leasedMachine) knowledge(rng *rand.Rand) (nonce, version string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := len(m.nonces); n > 0 {
		switch rng.IntN(6) {
		case 0:
		case 1:
			nonce = m.nonces[rng.IntN(n)]
		default:
			nonce = m.nonces[n-1]
		}
	}
	if rng.IntN(4) > 0 {
		version = m.version
	}
	return nonce, version
}

func (m *leasedMachine) record(tenant int, in leaseInput, out leaseOutput) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if out.answer == noAnswer {
		m.lost = append(m.lost, len(m.history))
		out = leaseOutput{answer: noAnswer}
	}
	m.history = append(m.history, porcupine.Operation{ClientId: tenant, Input: in, Call: in.call, Output: out, Return: out.back})
	if out.nonce != "" && !slices.Contains(m.nonces, out.nonce) {
		m.nonces = append(m.nonces, out.nonce)
	}
	if (in.op == opMachine || in.op == opUpdate) && out.version != "" {
		m.version = out.version
	}
}

// close ends the operations that had no answer.
func (m *leasedMachine) close(at int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, i := range m.lost {
		out := m.history[i].Output.(leaseOutput)
		out.back = at
		m.history[i].Output, m.history[i].Return = out, at
	}
	m.lost = nil
}

// check compares the history of a Machine with the model.
func (l *leaseGame) check(m *leasedMachine) {
	l.Helper()
	count := map[string]int{}
	for _, op := range m.history {
		count[op.Input.(leaseInput).op+" "+op.Output.(leaseOutput).answer]++
	}
	l.Logf("machine %s: %d operations, %d nonces: %v", m.ref.ID, len(m.history), len(m.nonces), count)
	result, info := porcupine.CheckOperationsVerbose(leaseModel(string(m.created)), m.history, modelPatience)
	if result == porcupine.Ok {
		return
	}
	longest := 0
	for _, partial := range info.PartialLinearizations()[0] {
		longest = max(longest, len(partial))
	}
	slices.SortFunc(m.history, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	l.Errorf("machine %s: the history is %s: %d of %d operations can be put in order", m.ref.ID, result, longest, len(m.history))
	for i := max(0, longest-15); i < min(len(m.history), longest+15); i++ {
		op := m.history[i]
		l.Logf("%12s to %12s client %d %s", time.Unix(0, op.Call).Format("05.000000"), time.Unix(0, op.Return).Format("05.000000"),
			op.ClientId, describeLeaseOp(op.Input.(leaseInput), op.Output.(leaseOutput)))
	}
}

// checkSecrets: only the holder of a lease, and those that may act for it, see the nonce.
func (l *leaseGame) checkSecrets() {
	l.Helper()
	output := l.d.Output()
	for _, m := range l.machines {
		events, err := l.c.MachineEvents(l.Context(), m.ref, mostEvents)
		if err != nil {
			l.Fatal(err)
		}
		logs, err := l.c.Logs(l.Context(), app, hangar.LogQuery{Instance: m.ref.ID})
		if err != nil {
			l.Fatal(err)
		}
		told := output + fmt.Sprintf("%+v %+v", events, logs)
		for _, nonce := range m.nonces {
			if strings.Contains(told, nonce) {
				l.Errorf("machine %s: nonce %s is in its events, its log or the daemon's", m.ref.ID, nonce)
			}
		}
	}
}
