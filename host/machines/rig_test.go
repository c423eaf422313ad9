package machines_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host"
	"github.com/hangar-platform/hangar/host/driver/fake"
	"github.com/hangar-platform/hangar/host/image"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/host/localapi"
	"github.com/hangar-platform/hangar/host/logs"
	"github.com/hangar-platform/hangar/host/machines"
	"github.com/hangar-platform/hangar/host/rootfs"
	"github.com/hangar-platform/hangar/host/volumes"
	"github.com/hangar-platform/hangar/host/volumes/volumestest"
	"github.com/hangar-platform/hangar/internal/diskspace"
	"github.com/hangar-platform/hangar/internal/keyset"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// faults decide what goes wrong.
type faults func(op fake.Op, id hangar.MachineID) (time.Duration, error)

// rig is an agent on a simulated host, which outlives it.
type rig struct {
	volumestest.Rig
	dir     string
	keys    *keyset.Keyset
	world   *fake.World
	faults  atomic.Pointer[faults]
	images  *images
	rows    *rows
	pace    func(*machines.Limits)
	ahead   atomic.Int64 // nanoseconds by which the agent's clock is
	net     machines.Networks
	disk    *volumestest.Disk
	store   *volumestest.Archive
	vols    *volumestest.Rows
	session *volumestest.Session // of the disk, the agent's
	issuer  identities

	space *diskspace.Space // of the disk of the agent; nil: its room is not looked at; set before open

	view    hangar.MachineView // of the edge; set before open
	handler http.Handler       // of the local API; nil: there is none
	*host.Agent
	close func()
	crash func() // like close, but as in a kill

	archivePatience time.Duration // set before open

	overcommit float64 // of memory and processors; set before open
}

// machines and volumes are the parts of the agent.
func (r *rig) machines() *machines.Store { return r.MachineAgent.(*machines.Store) }
func (r *rig) volumes() *volumes.Store   { return r.VolumeAgent.(*volumes.Store) }

func newRig(tb testing.TB) *rig {
	tb.Helper()
	r := &rig{Rig: volumestest.Rig{TB: tb}, dir: tb.TempDir(), images: newImages(tb), rows: &rows{}, net: machines.NoNetwork{}, disk: volumestest.NewDisk(tb.TempDir()), store: volumestest.NewArchive(), vols: &volumestest.Rows{}}
	r.open()
	tb.Cleanup(func() {
		r.close()
		misuses, err := r.world.Misuses()
		if err != nil || len(misuses) > 0 {
			tb.Errorf("the agent misused the driver: %v %v", misuses, err)
		}
		if len(r.disk.Misuses()) > 0 {
			tb.Errorf("the agent misused its volumes: %v", r.disk.Misuses())
		}
	})
	return r
}

// patience bounds the wait for what is immediate on an idle machine.
const patience = time.Minute

// until waits for a condition without an event.
func (r *rig) until(true func() bool) {
	r.Helper()
	for deadline := time.Now().Add(patience); !true(); <-time.After(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.Fatal("it did not happen")
		}
	}
}

// open starts an agent on what the previous one left.
func (r *rig) open() {
	r.Helper()
	ctx := context.Background()
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	j, err := journal.Open(filepath.Join(r.dir, "journal.db"), journal.Options{Log: log})
	if err != nil {
		r.Fatal(err)
	}
	l := logs.New(logs.Options{Dir: filepath.Join(r.dir, "logs"), Region: "loc", Log: log, Now: time.Now})
	if err := l.Open(ctx); err != nil {
		r.Fatal(err)
	}
	sockets := localapi.New(log)
	if r.handler != nil {
		server := &http.Server{Handler: r.handler, ReadHeaderTimeout: time.Minute}
		serving, stop := context.WithCancel(ctx)
		var served sync.WaitGroup
		served.Go(func() { _ = sockets.Run(serving, server) })
		r.Cleanup(func() { stop(); served.Wait() })
	}
	layers := rootfs.New(rootfs.Options{Dir: filepath.Join(r.dir, "layers"), Unbounded: true, Log: log})
	if err := layers.Open(ctx); err != nil {
		r.Fatal(err)
	}
	images := r.disk.Session()
	r.Counts = prometheus.NewRegistry()
	world := fake.NewWorld(filepath.Join(r.dir, "world"))
	dead := make(chan struct{})
	drv := fake.New(world, fake.Options{Faults: func(op fake.Op, id hangar.MachineID) (time.Duration, error) {
		if f := r.faults.Load(); f != nil {
			delay, err := (*f)(op, id)
			if errors.Is(err, errHang) {
				<-dead
			}
			return delay, err
		}
		return 0, nil
	}})
	a := host.New(host.Options{
		Dir: r.dir, Host: hangar.Host{ID: "0000aaaa", Region: "loc", CPUs: 2, Memory: 8 << 30}, Driver: drv,
		Images: r.images, Network: r.net, Local: sockets, Identity: &r.issuer, Layers: layers, Logs: l, Journal: j, Publisher: r.rows, View: r.view, Keys: r.openKeys(), Log: log,
		Devices: images, VolumePublisher: r.vols, VolumesPerMachine: 2, Archive: r.store, ArchivePatience: r.archivePatience, Metrics: r.Counts,
		Space:            r.space,
		MemoryOvercommit: r.overcommit, CPUOvercommit: r.overcommit,
		Now: func() time.Time { return time.Now().Add(time.Duration(r.ahead.Load())) },
	})
	if r.pace != nil {
		machines.SetLimits(a.MachineAgent.(*machines.Store), r.pace)
	}
	if err := a.Open(ctx); err != nil {
		r.Fatal(err)
	}
	r.Agent, r.Volumes, r.world, r.session = a, a, world, images
	var once sync.Once
	r.close = func() {
		once.Do(func() {
			close(dead)
			for _, err := range []error{a.Close(), sockets.End(), layers.Close(), l.Close(), j.Close()} {
				if err != nil {
					r.Error(err)
				}
			}
		})
	}
	r.crash = func() {
		once.Do(func() {
			images.Kill()
			world.Die() // nothing is done to the host from now on, and nothing recorded
			for _, err := range []error{j.Close(), l.Close()} {
				if err != nil {
					r.Error(err)
				}
			}
			close(dead)
			for _, err := range []error{a.Close(), sockets.End(), layers.Close()} {
				if err != nil {
					r.Error(err)
				}
			}
		})
	}
}

// openKeys opens the keyset of the directory, and makes it the first time.
func (r *rig) openKeys() *keyset.Keyset {
	r.Helper()
	path := filepath.Join(r.dir, keyset.File)
	keys, err := keyset.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		keys, err = keyset.Create(path)
	}
	if err != nil {
		r.Fatal(err)
	}
	r.keys = keys
	return keys
}

// errHang is the fault of an operation that does not return until the daemon ends.
var errHang = errors.New("hangs")

// hangAt makes an operation hang permanently, and returns a channel that is closed once it does.
func (r *rig) hangAt(op fake.Op) <-chan struct{} {
	reached := make(chan struct{})
	hit := sync.OnceFunc(func() { close(reached) })
	r.inject(func(at fake.Op, _ hangar.MachineID) (time.Duration, error) {
		if at == op {
			hit()
			return 0, errHang
		}
		return 0, nil
	})
	return reached
}

func (r *rig) inject(f faults) {
	if f == nil {
		r.faults.Store(nil)
		return
	}
	r.faults.Store(&f)
}

// restart replaces the agent, as a restart of the daemon does.
func (r *rig) restart() {
	r.Helper()
	r.close()
	r.open()
}

// images is a store in which every image exists but those called "missing".
type images struct {
	layer  string
	mu     sync.Mutex
	pulls  int
	online bool // "offline" images are available after all

	onResolve atomic.Pointer[func()] // called before an image is resolved
}

func newImages(tb testing.TB) *images {
	tb.Helper()
	return &images{layer: tb.TempDir()}
}

const digest = "sha256:0000000000000000000000000000000000000000000000000000000000000001"

func (s *images) ref(name string) hangar.ImageRef {
	return hangar.ImageRef{Registry: "r.test", Repository: name, Tag: "latest", Digest: digest}
}

// Resolve takes registry.test/ORG/NAME for the built-in registry.
func (s *images) Resolve(_ context.Context, who image.Puller, ref string) (hangar.ImageRef, error) {
	if before := s.onResolve.Load(); before != nil {
		(*before)()
	}
	repository, builtIn := strings.CutPrefix(ref, "registry.test/")
	switch org := hangar.RepositoryName(repository).Target().Org; {
	case builtIn && org != "" && org != who.Slug:
		return hangar.ImageRef{}, hangar.Errorf(hangar.CodeInvalid, hangar.ReasonImageNotFound, "failed to get manifest %s: request failed: not found", ref)
	case strings.HasPrefix(ref, "missing"):
		return hangar.ImageRef{}, hangar.Errorf(hangar.CodeInvalid, hangar.ReasonImageNotFound, "failed to get manifest %s: not found", ref)
	case strings.HasPrefix(ref, "offline"):
		return hangar.ImageRef{}, hangar.Errorf(hangar.CodeUnavailable, "", "registry away")
	default:
		return s.ref(ref), nil
	}
}

func (s *images) Pull(_ context.Context, _ image.Puller, ref string, progress func(hangar.PullProgress)) (*image.Image, error) {
	s.mu.Lock()
	away := strings.HasPrefix(ref, "offline") && !s.online
	s.mu.Unlock()
	if away {
		return nil, hangar.Errorf(hangar.CodeUnavailable, "", "registry away")
	}
	s.mu.Lock()
	s.pulls++
	s.mu.Unlock()
	progress(hangar.PullProgress{Phase: "pulling", Done: 1, Total: 1})
	return s.image(s.ref(ref)), nil
}

func (s *images) image(ref hangar.ImageRef) *image.Image {
	return &image.Image{Ref: ref, Config: v1.Config{Cmd: []string{"sleep", "1000"}}, Layers: []string{s.layer}}
}

func (s *images) Get(d string) (*image.Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pulls == 0 || d != digest {
		return nil, image.ErrNotFound
	}
	return s.image(hangar.ImageRef{Digest: d}), nil
}

func (s *images) Inspect(_ context.Context, _ image.Puller, ref string) (*hangar.ResolvedImage, error) {
	return &hangar.ResolvedImage{Ref: s.ref(ref), Size: 1}, nil
}

func (s *images) Holds(ref string) bool { return ref == "web" }

func (s *images) List() ([]hangar.Image, error) {
	return []hangar.Image{{Ref: s.ref("web")}}, nil
}
func (s *images) Remove(context.Context, string) error          { return nil }
func (s *images) RemoveOrg(context.Context, hangar.OrgID) error { return nil }
func (s *images) Usage(context.Context, hangar.OrgID) (hangar.ImageUsage, error) {
	return hangar.ImageUsage{}, nil
}
func (s *images) GC(context.Context, image.Policy) (freed int64, err error) { return 0, nil }

// identities issues tokens with the lifetime that a test sets.
type identities struct {
	mu    sync.Mutex
	away  bool
	lives time.Duration
	n     int

	held    chan struct{} // not nil: closed when the next call has come, which is held up
	calls   int           // under way
	overlap bool          // two were under way at once
}

// hold delays the next call, and returns a channel that is closed once it has arrived.
func (i *identities) hold() <-chan struct{} {
	i.mu.Lock()
	defer i.mu.Unlock()
	held := make(chan struct{})
	i.held = held
	return held
}

// enter counts a call and delays it, if it is the one to hold.
func (i *identities) enter() {
	i.mu.Lock()
	i.calls++
	i.overlap = i.overlap || i.calls > 1
	held := i.held
	i.held = nil
	i.mu.Unlock()
	if held != nil {
		close(held)
		time.Sleep(300 * time.Millisecond) // for what must not happen meanwhile
	}
}

func (i *identities) overlapped() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.overlap
}

func (i *identities) IssueIdentityToken(ctx context.Context, ref hangar.MachineRef, in hangar.IdentityTokenRequest) (string, error) {
	i.enter()
	i.mu.Lock()
	defer i.mu.Unlock()
	i.calls--
	if self, _ := hangar.SelfFrom(ctx); i.away || self != ref {
		return "", hangar.Errorf(hangar.CodeUnavailable, "", "issuer away")
	}
	i.n++
	ends := time.Now().Add(i.lives)
	claims := fmt.Sprintf(`{"aud":%q,"sub":%q,"n":%d,"exp":%d.%06d}`, in.Audience, ref.ID, i.n, ends.Unix(), ends.Nanosecond()/1000)
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".signature", nil
}

func (i *identities) set(away bool, lives time.Duration) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.away, i.lives = away, lives
}

// rows is a cluster state that can be away.
type rows struct {
	mu     sync.Mutex
	away   bool
	faults int // of the platform that are still to come, for a Machine of the name fault
	has    map[hangar.MachineID]hangar.MachineRow
}

// seq is that of the row that was published of a Machine.
func (p *rows) seq(id hangar.MachineID) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.has[id].Seq
}

var errAway = errors.New("the cluster state is away")

func (p *rows) PublishMachine(_ context.Context, row hangar.MachineRow) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.away {
		return errAway
	}
	switch row.Machine.Name {
	case "poison":
		return hangar.Errorf(hangar.CodeInvalid, "", "the row is too large")
	case "unreadable":
		return hangar.Errorf(hangar.CodeInternal, hangar.ReasonRecordDamaged, "a record cannot be read")
	case "fault":
		if p.faults--; p.faults >= 0 {
			return hangar.Errorf(hangar.CodeInternal, "", "something else is wrong")
		}
	}
	if p.has == nil {
		p.has = make(map[hangar.MachineID]hangar.MachineRow)
	}
	if row.Seq > p.has[row.Machine.ID].Seq {
		p.has[row.Machine.ID] = row
	}
	return nil
}

func (p *rows) RetractMachine(_ context.Context, _ hangar.HostID, ref hangar.MachineRef) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.away {
		return errAway
	}
	delete(p.has, ref.ID)
	return nil
}

func (p *rows) PublishedMachines(context.Context, hangar.HostID) (map[hangar.MachineID]uint64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.away {
		return nil, errAway
	}
	seqs := make(map[hangar.MachineID]uint64)
	for id, row := range p.has {
		seqs[id] = row.Seq
	}
	return seqs, nil
}

func (p *rows) setAway(away bool) {
	p.mu.Lock()
	p.away = away
	p.mu.Unlock()
}

func (p *rows) row(id hangar.MachineID) hangar.MachineRow {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.has[id]
}

func (p *rows) state(id hangar.MachineID) hangar.MachineState { return p.row(id).Machine.State }

// create makes a Machine with an environment that controls the fake driver.
func (r *rig) create(env map[string]string, edit ...func(*hangar.MachineSpec)) hangar.MachineRef {
	r.Helper()
	spec := hangar.MachineSpec{
		ID: hangar.NewMachineID(), Name: "m", App: "web", AppID: "web", Org: hangar.OrgPersonal, OrgID: volumestest.Org, Network: 1, Region: "loc",
		Config: hangar.MachineConfig{Image: "web", Env: env, Guest: &hangar.Guest{CPUKind: "shared", CPUs: 1, MemoryMB: 256}},
	}
	for _, e := range edit {
		e(&spec)
	}
	m, err := r.CreateMachine(r.Context(), spec)
	if err != nil {
		r.Fatal(err)
	}
	return m.Ref()
}

func (r *rig) wait(ref hangar.MachineRef, states ...hangar.MachineState) {
	r.Helper()
	if _, err := r.WaitMachine(r.Context(), ref, hangar.MachineWait{States: states, Timeout: patience}); err != nil {
		r.Fatalf("wait for %v: %v\n%s", states, err, r.history(ref))
	}
}

// history is the Machine's events, oldest first, as "type/status".
func (r *rig) history(ref hangar.MachineRef) string {
	r.Helper()
	events, err := r.MachineEvents(r.Context(), ref, 50)
	if err != nil {
		r.Fatal(err)
	}
	var lines []string
	for _, e := range slices.Backward(events) {
		lines = append(lines, fmt.Sprintf("%s/%s", e.Type, e.Status))
	}
	return strings.Join(lines, " ")
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *rig) start(ref hangar.MachineRef) {
	r.Helper()
	before := r.newest(ref).ID
	result, err := r.StartMachine(r.Context(), ref)
	r.must(err)
	wish := hangar.MachineWait{Timeout: patience}
	if result.PreviousState != hangar.MachineStarted {
		wish.FromEvent = before // it may have ended before the wait begins
	}
	if _, err := r.WaitMachine(r.Context(), ref, wish); err != nil {
		r.Fatalf("wait for the start: %v\n%s", err, r.history(ref))
	}
}
