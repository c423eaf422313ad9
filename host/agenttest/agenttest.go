// Package agenttest is the suite that every hangar.Agent passes, with its hangar.MachineGate: that of
// a host in process, and the same over the network.
//
// It asks only for what the interfaces promise, and waits by WaitMachine and WatchMachine. Every test
// makes its own Machines in an App of its own.
package agenttest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/finish"
)

// Harness is an agent under test.
type Harness struct {
	Agent hangar.Agent
	Gate  hangar.MachineGate
	Org   hangar.OrgID // whose Machines are made; it exists
	// Image runs until it is asked to end.
	Image string
	// Missing is an image that there is not.
	Missing string
	// Echo is the port at which every Machine sends back what it receives, and Closed one at which
	// nothing listens.
	Echo, Closed int
	// Print is a command that copies its input to its output and ends with a code.
	Print func(code int) []string
}

const patience = time.Minute

// Run runs the suite.
func Run(t *testing.T, h Harness) {
	t.Helper()
	for _, test := range []struct {
		name string
		run  func(*testing.T, fixture)
	}{
		{"create", create},
		{"verbs", verbs},
		{"errors", refusals},
		{"leases", leases},
		{"metadata", metadata},
		{"watch", watch},
		{"exec", exec},
		{"dial", dial},
		{"gate", gate},
		{"volumes", volumes},
		{"images and room", images},
		{"logs", logs},
	} {
		t.Run(test.name, func(t *testing.T) {
			var b [6]byte
			_, _ = rand.Read(b[:])
			test.run(t, fixture{h, hangar.AppID("app_" + hex.EncodeToString(b[:]))})
		})
	}
}

// fixture is a harness with an App.
type fixture struct {
	Harness

	app hangar.AppID
}

func must(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func wantError(t *testing.T, what string, err error, code hangar.Code, reason string) {
	t.Helper()
	if hangar.CodeOf(err) != code || hangar.ReasonOf(err) != reason {
		t.Errorf("%s: got %v (%s, %s), want %s, %s", what, err, hangar.CodeOf(err), hangar.ReasonOf(err), code, reason)
	}
}

func (f fixture) spec() hangar.MachineSpec {
	config := hangar.MachineConfig{
		Image: f.Image, Metadata: map[string]string{"role": "web"}, Services: []hangar.Service{{Protocol: "tcp", InternalPort: f.Echo}},
	}
	_ = config.Normalize() // it is built above
	return hangar.MachineSpec{
		ID: hangar.NewMachineID(), Name: "web", App: "agents", AppID: f.app, Org: hangar.OrgPersonal, OrgID: f.Org, Network: 1, Region: f.Agent.Host().Region,
		Config: config, Secrets: hangar.SecretValues{Version: 1, Values: map[string]hangar.Sensitive{"KEY": hangar.NewSensitive("hush")}},
	}
}

// start makes a Machine that is started, and destroys it with the test.
func (f fixture) start(t *testing.T) *hangar.Machine {
	t.Helper()
	m, err := f.Agent.CreateMachine(t.Context(), f.spec())
	must(t, "create", err)
	t.Cleanup(func() { f.drop(t, m.Ref()) })
	f.wait(t, m.Ref(), hangar.MachineStarted)
	return m
}

func (f fixture) drop(t *testing.T, ref hangar.MachineRef) {
	t.Helper()
	ctx, cancel := finish.Within(t.Context(), patience)
	defer cancel()
	asAgent := hangar.WithEventSource(ctx, hangar.SourceAgent) // which no lease keeps out
	if err := f.Agent.DestroyMachine(asAgent, ref, hangar.MachineDestroy{Force: true}); err != nil {
		t.Errorf("destroy: %v", err)
	}
}

func (f fixture) wait(t *testing.T, ref hangar.MachineRef, state hangar.MachineState) hangar.MachineReached {
	t.Helper()
	reached, err := f.Agent.WaitMachine(t.Context(), ref, hangar.MachineWait{States: []hangar.MachineState{state}, Timeout: patience})
	must(t, "wait for "+string(state), err)
	return reached
}

func create(t *testing.T, f fixture) {
	spec := f.spec()
	m, err := f.Agent.CreateMachine(t.Context(), spec)
	must(t, "create", err)
	t.Cleanup(func() { f.drop(t, m.Ref()) })
	again, err := f.Agent.CreateMachine(t.Context(), spec)
	must(t, "create again", err)
	if m.ID != spec.ID || again.ID != m.ID || again.CreatedAt != m.CreatedAt || m.Host != f.Agent.Host().ID || m.SecretsVersion != 1 {
		t.Errorf("made %+v and %+v", m, again)
	}
	f.wait(t, m.Ref(), hangar.MachineStarted)
	got, err := f.Agent.Machine(t.Context(), m.Ref())
	must(t, "get", err)
	if got.State != hangar.MachineStarted || len(got.Events) == 0 || got.Config.Metadata["role"] != "web" || got.AppID != f.app {
		t.Errorf("got %+v", got)
	}
	list, err := f.Agent.Machines(t.Context(), f.app, hangar.MachineFilter{Metadata: map[string]string{"role": "web"}})
	must(t, "list", err)
	none, err := f.Agent.Machines(t.Context(), f.app, hangar.MachineFilter{Metadata: map[string]string{"role": "db"}})
	must(t, "list", err)
	if len(list) != 1 || list[0].ID != m.ID || len(list[0].Events) != 0 || len(none) != 0 {
		t.Errorf("listed %v and %v", list, none)
	}
	page, err := f.Agent.OrgMachines(t.Context(), spec.OrgID, m.ID[:len(m.ID)-1], 1, hangar.MachineFilter{})
	must(t, "page", err)
	if len(page) != 1 {
		t.Errorf("got the page %v", page)
	}
	events, err := f.Agent.MachineEvents(t.Context(), m.Ref(), 1)
	must(t, "events", err)
	versions, err := f.Agent.MachineVersions(t.Context(), m.Ref())
	must(t, "versions", err)
	if len(events) != 1 || len(versions) != 1 || versions[0].Version != got.InstanceID || versions[0].Config.Image != f.Image {
		t.Errorf("got %d events and the versions %+v", len(events), versions)
	}
}

func verbs(t *testing.T, f fixture) {
	m := f.start(t)
	ref := m.Ref()
	must(t, "cordon", f.Agent.CordonMachine(t.Context(), ref))
	must(t, "uncordon", f.Agent.UncordonMachine(t.Context(), ref))
	must(t, "restart", f.Agent.RestartMachine(t.Context(), ref, hangar.MachineRestart{ForceStop: true}))
	f.wait(t, ref, hangar.MachineStarted)
	must(t, "stop", f.Agent.StopMachine(t.Context(), ref, hangar.MachineStop{}))
	f.wait(t, ref, hangar.MachineStopped)
	result, err := f.Agent.StartMachine(t.Context(), ref)
	must(t, "start", err)
	if result.PreviousState != hangar.MachineStopped {
		t.Errorf("started from %s", result.PreviousState)
	}
	f.wait(t, ref, hangar.MachineStarted)
	changed := f.spec().Config
	changed.Env = map[string]string{"NEW": "<&>"}
	now, err := f.Agent.UpdateMachine(t.Context(), ref, hangar.MachineUpdate{Config: changed, CurrentVersion: m.InstanceID})
	must(t, "update", err)
	if now.InstanceID == m.InstanceID || now.Config.Env["NEW"] != "<&>" {
		t.Errorf("updated to %+v", now)
	}
	f.wait(t, ref, hangar.MachineStarted)
	_, err = f.Agent.UpdateMachine(t.Context(), ref, hangar.MachineUpdate{Config: changed, CurrentVersion: m.InstanceID})
	if hangar.ReasonOf(err) != hangar.ReasonStaleVersion && hangar.CodeOf(err) != hangar.CodeConflict {
		t.Errorf("update of an old version: %v", err)
	}
	until, err := f.Agent.KeepMachineBusy(t.Context(), ref, time.Hour)
	must(t, "busy", err)
	if until.Until.IsZero() {
		t.Error("it is not busy")
	}
}

func refusals(t *testing.T, f fixture) {
	unknown := hangar.MachineRef{App: "agents", AppID: f.app, ID: hangar.NewMachineID()}
	_, err := f.Agent.Machine(t.Context(), unknown)
	wantError(t, "get an unknown machine", err, hangar.CodeNotFound, hangar.ReasonMachineNotFound)
	wantError(t, "stop one", f.Agent.StopMachine(t.Context(), unknown, hangar.MachineStop{}), hangar.CodeNotFound, hangar.ReasonMachineNotFound)
	wantError(t, "signal one", f.Agent.SignalMachine(t.Context(), unknown, hangar.Signal(10)), hangar.CodeNotFound, hangar.ReasonMachineNotFound)
	_, err = f.Gate.EnterMachine(unknown, 80)
	wantError(t, "enter one", err, hangar.CodeNotFound, hangar.ReasonMachineNotFound)
	spec := f.spec()
	spec.Config.Image = f.Missing
	_, err = f.Agent.CreateMachine(t.Context(), spec)
	wantError(t, "create without an image", err, hangar.CodeInvalid, hangar.ReasonImageNotFound)
	m := f.start(t)
	_, err = f.Agent.WaitMachine(t.Context(), m.Ref(), hangar.MachineWait{States: []hangar.MachineState{hangar.MachineStopped}, Timeout: time.Millisecond})
	wantError(t, "wait for a state that does not come", err, hangar.CodeTimeout, hangar.ReasonWaitTimeout)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = f.Agent.WaitMachine(ctx, m.Ref(), hangar.MachineWait{States: []hangar.MachineState{hangar.MachineStopped}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("wait of a caller who gave up: %v", err)
	}
}

func leases(t *testing.T, f fixture) {
	m := f.start(t)
	me := hangar.WithPrincipal(t.Context(), hangar.Principal{Subject: "token me"})
	_, err := f.Agent.MachineLease(me, m.Ref())
	wantError(t, "no lease", err, hangar.CodeNotFound, hangar.ReasonLeaseNotFound)
	lease, err := f.Agent.AcquireLease(me, m.Ref(), hangar.LeaseAcquire{TTL: time.Hour, Description: "deploy"})
	must(t, "acquire", err)
	if lease.Owner != "token me" || lease.Description != "deploy" || lease.Nonce == "" {
		t.Errorf("got %+v", lease)
	}
	_, err = f.Agent.AcquireLease(t.Context(), m.Ref(), hangar.LeaseAcquire{TTL: time.Hour})
	wantError(t, "acquire again", err, hangar.CodeConflict, hangar.ReasonLeaseHeld)
	wantError(t, "stop without the nonce", f.Agent.StopMachine(t.Context(), m.Ref(), hangar.MachineStop{}), hangar.CodeConflict, hangar.ReasonLeaseHeld)
	holder := hangar.WithLeaseNonce(me, lease.Nonce)
	must(t, "stop with the nonce", f.Agent.StopMachine(holder, m.Ref(), hangar.MachineStop{}))
	must(t, "release", f.Agent.ReleaseLease(holder, m.Ref()))
	wantError(t, "release again", f.Agent.ReleaseLease(holder, m.Ref()), hangar.CodeInvalid, hangar.ReasonLeaseNotFound)
}

func metadata(t *testing.T, f fixture) {
	m := f.start(t)
	ref := m.Ref()
	must(t, "set", f.Agent.SetMachineMetadata(t.Context(), ref, hangar.MetadataPair{Key: "a", Value: "<1>"}))
	must(t, "merge", f.Agent.MergeMachineMetadata(t.Context(), ref, hangar.MetadataWrite{Pairs: map[string]string{"b": "2", "role": ""}}))
	got, err := f.Agent.MachineMetadata(t.Context(), ref)
	must(t, "get", err)
	if len(got) != 2 || got["a"] != "<1>" || got["b"] != "2" {
		t.Errorf("got %v", got)
	}
	must(t, "remove", f.Agent.RemoveMachineMetadata(t.Context(), ref, "a"))
	must(t, "replace", f.Agent.ReplaceMachineMetadata(t.Context(), ref, hangar.MetadataWrite{Pairs: map[string]string{"c": "3"}}))
	if got, err = f.Agent.MachineMetadata(t.Context(), ref); err != nil || len(got) != 1 || got["c"] != "3" {
		t.Errorf("got %v %v", got, err)
	}
}

func watch(t *testing.T, f fixture) {
	m := f.start(t)
	stopped := false
	for change, err := range f.Agent.WatchMachine(t.Context(), m.Ref()) {
		must(t, "watch", err)
		if change.Machine.ID != m.ID {
			t.Fatalf("got a change of %s", change.Machine.ID)
		}
		if !stopped {
			stopped = true
			must(t, "stop", f.Agent.StopMachine(t.Context(), m.Ref(), hangar.MachineStop{}))
		}
		if change.Machine.State == hangar.MachineStopped {
			break
		}
	}
	unknown := hangar.MachineRef{App: "agents", AppID: f.app, ID: hangar.NewMachineID()}
	for _, err := range f.Agent.WatchMachine(t.Context(), unknown) {
		wantError(t, "watch an unknown machine", err, hangar.CodeNotFound, hangar.ReasonMachineNotFound)
	}
}

func exec(t *testing.T, f fixture) {
	m := f.start(t)
	var out bytes.Buffer
	in := strings.Repeat("0123456789", 10_000)
	result, err := f.Agent.ExecMachine(t.Context(), m.Ref(), hangar.ExecRequest{Command: f.Print(3)}, hangar.ExecStreams{Stdin: strings.NewReader(in), Stdout: &out})
	must(t, "exec", err)
	if result.ExitCode != 3 || out.String() != in {
		t.Errorf("got %+v and %d bytes of %d", result, out.Len(), len(in))
	}
	broken := io.MultiReader(strings.NewReader(in), iotest.ErrReader(errors.New("broken")))
	_, err = f.Agent.ExecMachine(t.Context(), m.Ref(), hangar.ExecRequest{Command: f.Print(3)}, hangar.ExecStreams{Stdin: broken, Stdout: io.Discard})
	wantError(t, "exec of a broken input", err, hangar.CodeInternal, "")
	_, err = f.Agent.ExecMachine(t.Context(), m.Ref(), hangar.ExecRequest{}, hangar.ExecStreams{})
	wantError(t, "exec of nothing", err, hangar.CodeInvalid, "")
	_, err = f.Agent.MachineProcesses(t.Context(), m.Ref())
	must(t, "processes", err)
}

func dial(t *testing.T, f fixture) {
	m := f.start(t)
	ctx, cancel := context.WithCancel(t.Context())
	conn, err := f.Agent.DialMachine(ctx, m.Ref(), f.Echo)
	cancel() // of the dialing alone
	must(t, "dial", err)
	defer conn.Close()
	_, err = conn.Write([]byte("hello"))
	must(t, "write", err)
	must(t, "end the writing", conn.(interface{ CloseWrite() error }).CloseWrite()) //nolint:forcetypeassert // as documented
	got, err := io.ReadAll(conn)
	if err != nil || string(got) != "hello" {
		t.Errorf("got %q %v", got, err)
	}
	_, err = f.Agent.DialMachine(t.Context(), m.Ref(), f.Closed)
	wantError(t, "dial a closed port", err, hangar.CodeUnavailable, hangar.ReasonConnectionRefused)
	_, err = f.Agent.DialMachine(t.Context(), m.Ref(), 0)
	wantError(t, "dial no port", err, hangar.CodeInvalid, "")
	lost, err := f.Agent.DialMachine(t.Context(), m.Ref(), f.Echo)
	must(t, "dial", err)
	defer lost.Close()
	must(t, "stop", f.Agent.StopMachine(t.Context(), m.Ref(), hangar.MachineStop{}))
	if _, err := io.ReadAll(lost); hangar.ReasonOf(err) != hangar.ReasonWrongState {
		t.Errorf("the connection to a machine that stopped ends with %v", err)
	}
}

func gate(t *testing.T, f fixture) {
	m := f.start(t)
	must(t, "wake one that is started", f.Gate.WakeMachine(t.Context(), m.Ref(), 0))
	leave, err := f.Gate.EnterMachine(m.Ref(), f.Echo)
	must(t, "enter", err)
	conn, err := f.Gate.DialService(t.Context(), m.Ref(), f.Echo)
	must(t, "dial", err)
	_, err = conn.Write([]byte("hi"))
	must(t, "write", err)
	b := make([]byte, 2)
	_, err = io.ReadFull(conn, b)
	must(t, "read", err)
	must(t, "close", conn.Close())
	leave()
	leave()
	must(t, "stop", f.Agent.StopMachine(t.Context(), m.Ref(), hangar.MachineStop{}))
	f.wait(t, m.Ref(), hangar.MachineStopped)
	_, err = f.Gate.EnterMachine(m.Ref(), f.Echo)
	wantError(t, "enter one that is stopped", err, hangar.CodeUnavailable, hangar.ReasonWrongState)
	must(t, "wake", f.Gate.WakeMachine(t.Context(), m.Ref(), 0))
	f.wait(t, m.Ref(), hangar.MachineStarted)
	f.Gate.LogEdge(m.Ref(), "info", "seen")
}

func volumes(t *testing.T, f fixture) {
	spec := hangar.VolumeSpec{
		ID: hangar.NewVolumeID(), Name: "data", App: "agents", AppID: f.app, Org: hangar.OrgPersonal, OrgID: f.Org, Region: f.Agent.Host().Region,
		SizeGB: 1, Encrypted: true, FSType: hangar.FSExt4, SnapshotRetention: 5,
	}
	row, err := f.Agent.CreateVolume(t.Context(), spec)
	must(t, "create", err)
	again, err := f.Agent.CreateVolume(t.Context(), spec)
	must(t, "create again", err)
	ref := row.Volume.Ref()
	if again.Volume.ID != spec.ID || row.OrgID != f.Org || row.Seq == 0 {
		t.Errorf("made %+v and %+v", row, again)
	}
	days := 9
	row, err = f.Agent.UpdateVolume(t.Context(), ref, hangar.VolumeUpdate{SnapshotRetention: &days})
	must(t, "update", err)
	got, err := f.Agent.VolumeRow(t.Context(), ref)
	must(t, "get", err)
	rows, err := f.Agent.VolumeRows(t.Context(), f.app)
	must(t, "list", err)
	events, err := f.Agent.VolumeEvents(t.Context(), ref)
	must(t, "events", err)
	if row.Volume.SnapshotRetention != 9 || got.Volume.SnapshotRetention != 9 || len(rows) != 1 || len(events) == 0 {
		t.Errorf("got %+v, %+v, %d rows and %d events", row, got, len(rows), len(events))
	}
	_, err = f.Agent.VolumeDrill(t.Context(), f.app)
	wantError(t, "drill", err, hangar.CodeNotFound, hangar.ReasonOf(err))
	snapshots, err := f.Agent.Snapshots(t.Context(), ref)
	if err != nil || len(snapshots) != 0 {
		t.Errorf("got the snapshots %v %v", snapshots, err)
	}
	_, err = f.Agent.DestroyVolume(t.Context(), ref)
	must(t, "destroy", err)
	_, err = f.Agent.UndeleteVolume(t.Context(), ref)
	must(t, "undelete", err)
	_, err = f.Agent.DestroyVolume(t.Context(), ref)
	must(t, "destroy again", err)
	_, err = f.Agent.PurgeVolume(t.Context(), ref)
	must(t, "purge", err)
	_, err = f.Agent.VolumeRow(t.Context(), hangar.VolumeRef{AppID: f.app, ID: hangar.NewVolumeID()})
	wantError(t, "get an unknown volume", err, hangar.CodeNotFound, hangar.ReasonVolumeNotFound)
}

func images(t *testing.T, f fixture) {
	_, err := f.Agent.Images(t.Context())
	must(t, "images", err)
	_, err = f.Agent.ImageUsage(t.Context(), f.Org)
	must(t, "usage", err)
	found, err := f.Agent.Resolve(t.Context(), hangar.ImagePuller{Org: f.Org, Slug: hangar.OrgPersonal}, f.Image)
	must(t, "resolve", err)
	room, err := f.Agent.Room(t.Context())
	must(t, "room", err)
	bid, err := f.Agent.Bid(t.Context(), hangar.MachineAsk{App: f.app, Image: f.Image, Guest: hangar.Guest{CPUs: 1, MemoryMB: 256}})
	must(t, "bid", err)
	refused, err := f.Agent.Bid(t.Context(), hangar.MachineAsk{App: f.app, Image: f.Image, Guest: hangar.Guest{CPUs: 1, MemoryMB: 1 << 30}})
	must(t, "bid", err)
	if found.Ref.Repository == "" || room.Memory <= 0 || bid.Memory != room.Memory || bid.Refusal != "" || refused.Refusal == "" || bid.CPUs <= 0 {
		t.Errorf("found %+v, room %+v, bids %+v and %+v", found, room, bid, refused)
	}
}

func logs(t *testing.T, f fixture) {
	m := f.start(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for entry, err := range f.Agent.FollowLogs(ctx, f.app, hangar.LogQuery{}) {
		must(t, "follow", err)
		if entry.Instance == m.ID && entry.Message != "" {
			break
		}
	}
	page, err := f.Agent.Logs(t.Context(), f.app, hangar.LogQuery{})
	must(t, "logs", err)
	if len(page.Entries) == 0 || page.Next == "" {
		t.Errorf("got the page %+v", page)
	}
}
