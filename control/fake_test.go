package control_test

import (
	"cmp"
	"context"
	"errors"
	"io"
	"iter"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
)

// fakeHost is an agent in memory: it keeps Machines, obeys the table of states
// without delay, and can be made to misbehave.
type fakeHost struct {
	host hangar.Host

	mu        sync.Mutex
	machines  map[hangar.MachineID]*hangar.Machine
	leases    map[hangar.MachineID]*hangar.Lease
	logs      []hangar.LogEntry
	images    []hangar.Image
	seq       uint64
	publish   hangar.Publisher     // nil: rows are not published
	down      bool                 // nothing is answered
	updated   hangar.MachineUpdate // the last one
	onCreate  func(spec hangar.MachineSpec) (before, after error)
	onDestroy func()                              // once
	onUpdate  func(in hangar.MachineUpdate) error // before an update is made
	brief     bool                                // Machines destroy themselves before their creation is answered

	refusal string // of its bids

	removedOrgs []hangar.OrgID
	onRemoveOrg func(ctx context.Context, org hangar.OrgID) error // before the content is removed; nil: nothing happens

	usage   hangar.ImageUsage      // of every organization
	rows    hangar.VolumePublisher // nil: rows of volumes are not published
	volumes fakeVolumes
}

var errDown = &hangar.Error{Code: hangar.CodeUnavailable, Message: "host cannot be reached"}

func newFakeHost(id hangar.HostID, region hangar.Region) *fakeHost {
	return &fakeHost{
		host:     hangar.Host{ID: id, Region: region, CPUs: 2, Memory: 1 << 30},
		machines: map[hangar.MachineID]*hangar.Machine{},
		leases:   map[hangar.MachineID]*hangar.Lease{},
	}
}

func (f *fakeHost) Host() hangar.Host { return f.host }

// set changes a Machine behind the platform's back, as its own exit does.
func (f *fakeHost) set(ctx context.Context, id hangar.MachineID, s hangar.MachineState) error {
	f.mu.Lock()
	m := f.machines[id]
	m.State = s
	row := f.row(m)
	f.mu.Unlock()
	return f.send(ctx, row)
}

func (f *fakeHost) row(m *hangar.Machine) hangar.MachineRow {
	f.seq++
	return hangar.MachineRow{Machine: *m, Org: hangar.OrgPersonal, Network: 1, Seq: f.seq}
}

func (f *fakeHost) send(ctx context.Context, row hangar.MachineRow) error {
	if f.publish == nil {
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	if row.Machine.State == hangar.MachineDestroyed {
		return f.publish.RetractMachine(ctx, f.host.ID, row.Machine.Ref())
	}
	return f.publish.PublishMachine(ctx, row)
}

// forget plays the day after a Machine was destroyed.
func (f *fakeHost) forget(id hangar.MachineID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.machines, id)
}

func (f *fakeHost) state(id hangar.MachineID) hangar.MachineState {
	f.mu.Lock()
	defer f.mu.Unlock()
	if m := f.machines[id]; m != nil {
		return m.State
	}
	return ""
}

// alive are the Machines that are not destroyed.
func (f *fakeHost) alive() (ids []hangar.MachineID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, m := range f.machines {
		if m.State != hangar.MachineDestroyed {
			ids = append(ids, id)
		}
	}
	return ids
}

func (f *fakeHost) setDown(down bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = down
}

func (f *fakeHost) CreateMachine(ctx context.Context, spec hangar.MachineSpec) (*hangar.Machine, error) {
	if f.onCreate != nil {
		before, after := f.onCreate(spec)
		if before != nil {
			return nil, before
		}
		if after != nil {
			_, _ = f.record(ctx, spec)
			return nil, after
		}
	}
	m, err := f.record(ctx, spec)
	if f.brief && err == nil {
		return m, f.set(ctx, spec.ID, hangar.MachineDestroyed)
	}
	return m, err
}

func (f *fakeHost) record(ctx context.Context, spec hangar.MachineSpec) (*hangar.Machine, error) {
	f.mu.Lock()
	if f.down {
		f.mu.Unlock()
		return nil, errDown
	}
	m := f.machines[spec.ID]
	if m == nil {
		state := hangar.MachineStarted
		if spec.SkipLaunch {
			state = hangar.MachineStopped
		}
		m = &hangar.Machine{
			ID: spec.ID, Name: spec.Name, App: spec.App, AppID: spec.AppID, State: state, Region: spec.Region, Host: f.host.ID,
			Config: spec.Config, Cordoned: spec.Cordoned, HostStatus: "ok", SecretsVersion: spec.Secrets.Version,
		}
		f.machines[spec.ID] = m
		if spec.LeaseTTL > 0 {
			f.leases[spec.ID], _ = f.leases[spec.ID].Acquire(ctx, spec.ID, hangar.LeaseAcquire{TTL: spec.LeaseTTL}, time.Now())
		}
	}
	got, row := *m, f.row(m)
	f.mu.Unlock()
	return &got, f.send(ctx, row)
}

// do asks a Machine for a verb and moves it to a state.
func (f *fakeHost) do(ctx context.Context, ref hangar.MachineRef, v hangar.Verb, force bool, to hangar.MachineState) (hangar.Machine, error) {
	if err := ctx.Err(); err != nil {
		return hangar.Machine{}, err
	}
	f.mu.Lock()
	if f.down {
		f.mu.Unlock()
		return hangar.Machine{}, errDown
	}
	m := f.machines[ref.ID]
	if m == nil || m.AppID != ref.AppID {
		f.mu.Unlock()
		return hangar.Machine{}, hangar.Errorf(hangar.CodeNotFound, hangar.ReasonMachineNotFound, "machine not found")
	}
	before := *m
	if v == "" {
		f.mu.Unlock()
		return before, nil
	}
	if m.State.Answers(v) == hangar.Refuse || v == hangar.VerbDestroy && !force && m.State.NeedsForce() {
		f.mu.Unlock()
		return before, hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonWrongState, "machine is %s", m.State)
	}
	if to != "" {
		m.State = to
	}
	row := f.row(m)
	f.mu.Unlock()
	return before, f.send(ctx, row)
}

func (f *fakeHost) Machine(ctx context.Context, ref hangar.MachineRef) (*hangar.Machine, error) {
	m, err := f.do(ctx, ref, "", false, "")
	if err != nil {
		return nil, err
	}
	return &m, nil
}

func (f *fakeHost) UpdateMachine(ctx context.Context, ref hangar.MachineRef, in hangar.MachineUpdate) (*hangar.Machine, error) {
	f.mu.Lock()
	before := f.onUpdate
	f.mu.Unlock()
	if before != nil {
		if err := before(in); err != nil {
			return nil, err
		}
	}
	m, err := f.do(ctx, ref, hangar.VerbUpdate, false, "")
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.updated = in
	f.machines[ref.ID].SecretsVersion, f.machines[ref.ID].Config = in.Secrets.Version, in.Config
	m.SecretsVersion = in.Secrets.Version
	return &m, nil
}

func (f *fakeHost) StartMachine(ctx context.Context, ref hangar.MachineRef) (hangar.StartResult, error) {
	m, err := f.do(ctx, ref, hangar.VerbStart, false, hangar.MachineStarted)
	return hangar.StartResult{PreviousState: m.State}, err
}

func (f *fakeHost) StopMachine(ctx context.Context, ref hangar.MachineRef, _ hangar.MachineStop) error {
	_, err := f.do(ctx, ref, hangar.VerbStop, false, hangar.MachineStopped)
	return err
}

func (f *fakeHost) SuspendMachine(ctx context.Context, ref hangar.MachineRef) error {
	_, err := f.do(ctx, ref, hangar.VerbSuspend, false, hangar.MachineSuspended)
	return err
}

func (f *fakeHost) RestartMachine(ctx context.Context, ref hangar.MachineRef, _ hangar.MachineRestart) error {
	_, err := f.do(ctx, ref, hangar.VerbRestart, false, hangar.MachineStarted)
	return err
}

func (f *fakeHost) SignalMachine(ctx context.Context, ref hangar.MachineRef, _ hangar.Signal) error {
	_, err := f.do(ctx, ref, hangar.VerbExec, false, "")
	return err
}

func (f *fakeHost) DestroyMachine(ctx context.Context, ref hangar.MachineRef, in hangar.MachineDestroy) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f.mu.Lock()
	lease := f.leases[ref.ID]
	f.mu.Unlock()
	if !lease.Admits(ctx, time.Now()) {
		return lease.Held(ref.ID)
	}
	_, err := f.do(ctx, ref, hangar.VerbDestroy, in.Force, hangar.MachineDestroyed)
	f.mu.Lock()
	hook := f.onDestroy
	f.onDestroy = nil
	f.mu.Unlock()
	if hook != nil {
		hook()
	}
	return err
}

// change changes what a Machine shows of itself.
func (f *fakeHost) change(ctx context.Context, ref hangar.MachineRef, alter func(m *hangar.Machine)) error {
	if _, err := f.do(ctx, ref, hangar.VerbAnnotate, false, ""); err != nil {
		return err
	}
	f.mu.Lock()
	m := f.machines[ref.ID]
	alter(m)
	row := f.row(m)
	f.mu.Unlock()
	return f.send(ctx, row)
}

func (f *fakeHost) CordonMachine(ctx context.Context, ref hangar.MachineRef) error {
	return f.change(ctx, ref, func(m *hangar.Machine) { m.Cordoned = true })
}

func (f *fakeHost) UncordonMachine(ctx context.Context, ref hangar.MachineRef) error {
	return f.change(ctx, ref, func(m *hangar.Machine) { m.Cordoned = false })
}

func (f *fakeHost) MachineMetadata(ctx context.Context, ref hangar.MachineRef) (map[string]string, error) {
	m, err := f.do(ctx, ref, "", false, "")
	return m.Config.Metadata, err
}

func (f *fakeHost) SetMachineMetadata(ctx context.Context, ref hangar.MachineRef, in hangar.MetadataPair) error {
	return f.MergeMachineMetadata(ctx, ref, hangar.MetadataWrite{Pairs: map[string]string{in.Key: in.Value}})
}

func (f *fakeHost) RemoveMachineMetadata(ctx context.Context, ref hangar.MachineRef, key string) error {
	return f.MergeMachineMetadata(ctx, ref, hangar.MetadataWrite{Pairs: map[string]string{key: ""}})
}

func (f *fakeHost) ReplaceMachineMetadata(ctx context.Context, ref hangar.MachineRef, in hangar.MetadataWrite) error {
	return f.change(ctx, ref, func(m *hangar.Machine) { m.Config.SetMetadata(in.Pairs) })
}

func (f *fakeHost) MergeMachineMetadata(ctx context.Context, ref hangar.MachineRef, in hangar.MetadataWrite) error {
	return f.change(ctx, ref, func(m *hangar.Machine) {
		pairs, _ := hangar.MetadataTimes{}.Merge(m.Config.Metadata, in, time.Now())
		m.Config.SetMetadata(pairs)
	})
}

func (f *fakeHost) WaitMachine(ctx context.Context, ref hangar.MachineRef, _ hangar.MachineWait) (hangar.MachineReached, error) {
	m, err := f.do(ctx, ref, "", false, "")
	return hangar.MachineReached{State: m.State}, err
}

func (f *fakeHost) AcquireLease(ctx context.Context, ref hangar.MachineRef, in hangar.LeaseAcquire) (hangar.Lease, error) {
	if _, err := f.do(ctx, ref, hangar.VerbLease, false, ""); err != nil {
		return hangar.Lease{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	next, err := f.leases[ref.ID].Acquire(ctx, ref.ID, in, time.Now())
	if err != nil {
		return hangar.Lease{}, err
	}
	f.leases[ref.ID] = next
	return *next, nil
}

func (f *fakeHost) MachineLease(ctx context.Context, ref hangar.MachineRef) (hangar.Lease, error) {
	if _, err := f.do(ctx, ref, "", false, ""); err != nil {
		return hangar.Lease{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if l := f.leases[ref.ID]; l.Live(time.Now()) {
		return *l, nil
	}
	return hangar.Lease{}, hangar.NotLeased(ref.ID)
}

func (f *fakeHost) ReleaseLease(ctx context.Context, ref hangar.MachineRef) error {
	if _, err := f.do(ctx, ref, "", false, ""); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.leases[ref.ID].Release(ctx, ref.ID, time.Now())
	if err == nil {
		delete(f.leases, ref.ID)
	}
	return err
}

func (f *fakeHost) MachineEvents(ctx context.Context, ref hangar.MachineRef, _ int) ([]hangar.Event, error) {
	_, err := f.do(ctx, ref, "", false, "")
	return nil, err
}

func (f *fakeHost) MachineVersions(ctx context.Context, ref hangar.MachineRef) ([]hangar.MachineVersion, error) {
	_, err := f.do(ctx, ref, "", false, "")
	return nil, err
}

func (f *fakeHost) MachineProcesses(ctx context.Context, ref hangar.MachineRef) ([]hangar.Process, error) {
	_, err := f.do(ctx, ref, "", false, "")
	return nil, err
}

func (f *fakeHost) WatchMachine(ctx context.Context, ref hangar.MachineRef) iter.Seq2[hangar.MachineChange, error] {
	return func(yield func(hangar.MachineChange, error) bool) {
		m, err := f.do(ctx, ref, "", false, "")
		yield(hangar.MachineChange{Machine: &m}, err)
	}
}

// ExecMachine imitates exit CODE; everything else ends with 7, once it has read its input.
func (f *fakeHost) ExecMachine(ctx context.Context, ref hangar.MachineRef, req hangar.ExecRequest, streams hangar.ExecStreams) (hangar.ExecResult, error) {
	_, err := f.do(ctx, ref, hangar.VerbExec, false, "")
	if err == nil && streams.Stdin != nil {
		_, err = io.Copy(io.Discard, streams.Stdin)
	}
	code := 7
	if len(req.Command) == 2 && req.Command[0] == "exit" {
		code, _ = strconv.Atoi(req.Command[1])
	}
	return hangar.ExecResult{ExitCode: code}, err
}

// DialMachine connects to no program.
func (f *fakeHost) DialMachine(ctx context.Context, ref hangar.MachineRef, _ int) (net.Conn, error) {
	if _, err := f.do(ctx, ref, hangar.VerbExec, false, ""); err != nil {
		return nil, err
	}
	mine, theirs := net.Pipe()
	return mine, theirs.Close()
}

func (f *fakeHost) Machines(_ context.Context, app hangar.AppID, filter hangar.MachineFilter) ([]*hangar.Machine, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return nil, errDown
	}
	var list []*hangar.Machine
	for _, m := range f.machines {
		if got := *m; (app == "" || got.AppID == app) && filter.Matches(&got) {
			list = append(list, &got)
		}
	}
	slices.SortFunc(list, func(a, b *hangar.Machine) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return list, nil
}

func (f *fakeHost) Bid(ctx context.Context, _ hangar.MachineAsk) (hangar.MachineBid, error) {
	room, err := f.Room(ctx)
	return hangar.MachineBid{HostRoom: room, CPUs: int64(f.host.CPUs), Refusal: f.refusal}, err
}

// OrgMachines has all Machines in one organization.
func (f *fakeHost) OrgMachines(
	ctx context.Context, _ hangar.OrgID, after hangar.MachineID, limit int, filter hangar.MachineFilter,
) ([]*hangar.Machine, error) {
	list, err := f.Machines(ctx, "", filter)
	list = slices.DeleteFunc(list, func(m *hangar.Machine) bool { return m.ID <= after })
	return list[:min(limit, len(list))], err
}

func (f *fakeHost) Room(context.Context) (hangar.HostRoom, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return hangar.HostRoom{}, errDown
	}
	room := hangar.HostRoom{Region: f.host.Region, Memory: f.host.Memory, Free: f.host.Memory, Volumes: int64(cmp.Or(f.volumes.room, 100)) << 30}
	for _, m := range f.machines {
		if !m.State.AtRest() {
			room.Free -= int64(m.Config.Guest.MemoryMB) << 20
		}
	}
	return room, nil
}

// Logs has tokens that count lines.
func (f *fakeHost) Logs(_ context.Context, _ hangar.AppID, q hangar.LogQuery) (hangar.LogPage, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return hangar.LogPage{}, errDown
	}
	from := len(q.Token)
	if q.Token == "" {
		from = max(0, len(f.logs)-q.Limit)
	}
	to := min(len(f.logs), from+q.Limit)
	return hangar.LogPage{Entries: slices.Clone(f.logs[from:to]), Next: strings.Repeat("x", to)}, nil
}

func (f *fakeHost) FollowLogs(ctx context.Context, app hangar.AppID, q hangar.LogQuery) iter.Seq2[hangar.LogEntry, error] {
	return func(yield func(hangar.LogEntry, error) bool) {
		page, err := f.Logs(ctx, app, q)
		for _, e := range page.Entries {
			if !yield(e, nil) {
				return
			}
		}
		if err != nil {
			yield(hangar.LogEntry{}, err)
			return
		}
		<-ctx.Done()
	}
}

func (f *fakeHost) say(at time.Time, text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.logs = append(f.logs, hangar.LogEntry{Time: at, Message: text})
}

func (f *fakeHost) Images(context.Context) ([]hangar.Image, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return nil, errDown
	}
	return slices.Clone(f.images), nil
}

// Resolve knows every reference but those that begin with "gone".
func (f *fakeHost) Resolve(_ context.Context, who hangar.ImagePuller, ref string) (*hangar.ResolvedImage, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return nil, errDown
	}
	if strings.HasPrefix(ref, "gone") {
		return nil, hangar.Errorf(hangar.CodeInvalid, hangar.ReasonImageNotFound, "no image %s for %s", ref, who.Slug)
	}
	return &hangar.ResolvedImage{Ref: hangar.ImageRef{Registry: "registry.test", Repository: ref, Digest: "sha256:1"}, Size: 7}, nil
}

func (f *fakeHost) ImageUsage(context.Context, hangar.OrgID) (hangar.ImageUsage, error) {
	return f.usage, nil
}

func (f *fakeHost) RemoveOrg(ctx context.Context, org hangar.OrgID) error {
	if f.onRemoveOrg != nil {
		if err := f.onRemoveOrg(ctx, org); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return errDown
	}
	f.removedOrgs = append(f.removedOrgs, org)
	return nil
}

func (f *fakeHost) RemoveImage(_ context.Context, digest string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return errDown
	}
	for i, image := range f.images {
		if image.Ref.Digest == digest {
			if image.InUse {
				return hangar.Errorf(hangar.CodeFailedPrecondition, "", "image is in use")
			}
			f.images = slices.Delete(f.images, i, i+1)
			return nil
		}
	}
	return hangar.Errorf(hangar.CodeNotFound, hangar.ReasonImageNotFound, "image not found")
}

// fleet implements hangar.Agents.
type fleet []*fakeHost

func (f fleet) Agent(id hangar.HostID) (hangar.Agent, error) {
	for _, h := range f {
		if h.host.ID == id {
			h.mu.Lock()
			defer h.mu.Unlock()
			if h.down {
				return nil, errDown
			}
			return h, nil
		}
	}
	return nil, hangar.Errorf(hangar.CodeNotFound, "", "unknown host")
}

func (f fleet) Known() []hangar.Host { return f.Hosts() }

func (f fleet) Hosts() (hosts []hangar.Host) {
	for _, h := range f {
		hosts = append(hosts, h.host)
	}
	return hosts
}

var (
	_ hangar.Agent  = (*fakeHost)(nil)
	_ hangar.Agents = fleet(nil)

	errRoom = hangar.Errorf(hangar.CodeConflict, hangar.ReasonInsufficientCapacity, "no room")
	errBad  = hangar.Errorf(hangar.CodeInvalid, hangar.ReasonImageNotFound, "no such image")
	errDisk = errors.New("disk is broken")
)

func (f *fakeHost) KeepMachineBusy(ctx context.Context, ref hangar.MachineRef, ttl time.Duration) (hangar.MachineBusy, error) {
	_, err := f.do(ctx, ref, "", false, "")
	return hangar.MachineBusy{Until: time.Now().Add(ttl)}, err
}
