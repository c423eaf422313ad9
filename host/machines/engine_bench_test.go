package machines_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host"
	"github.com/hangar-platform/hangar/host/driver/gvisor"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/host/localapi"
	"github.com/hangar-platform/hangar/host/logs"
	"github.com/hangar-platform/hangar/host/network"
	"github.com/hangar-platform/hangar/host/rootfs"
	"github.com/hangar-platform/hangar/host/volumes/volumestest"
)

// newEngineRig is an agent with real sandboxes in a real network. It needs root, and the programs
// of `make build`.
func newEngineRig(b *testing.B) *rig {
	b.Helper()
	engine, err := filepath.Abs("../bin/hangar-sandbox")
	if err == nil {
		_, err = os.Stat(engine)
	}
	if err != nil || os.Getuid() != 0 {
		b.Skip("needs root, and bin/hangar-sandbox")
	}
	ctx := context.Background()
	log := slog.New(slog.DiscardHandler)
	r := &rig{Rig: volumestest.Rig{TB: b}, dir: b.TempDir(), images: newImages(b), disk: volumestest.NewDisk(b.TempDir()), store: volumestest.NewArchive(), vols: &volumestest.Rows{}}
	build := exec.Command("go", "build", "-o", filepath.Join(r.images.layer, "bin", "sleep"), "./testdata/server")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, text)
	}
	instance := strconv.FormatInt(int64(os.Getpid()), 36)
	run, err := os.MkdirTemp("/run", "hangar-test-") //nolint:usetesting // sockets need a short path
	r.must(err)
	drv := gvisor.New(gvisor.Options{Root: filepath.Join(run, "runsc"), Engine: engine, CgroupParent: filepath.Base(run), Log: log})
	r.must(drv.Open(ctx))
	net := network.New(network.Options{Instance: "g" + instance, Host: "0000aaaa", Log: log, RunDir: filepath.Join(run, "netns")})
	r.must(net.Open(ctx))
	j, err := journal.Open(filepath.Join(r.dir, "journal.db"), journal.Options{Log: log})
	r.must(err)
	l := logs.New(logs.Options{Dir: filepath.Join(r.dir, "logs"), Region: "loc", Log: log})
	r.must(l.Open(ctx))
	sockets := localapi.New(log)
	layers := rootfs.New(rootfs.Options{Dir: filepath.Join(r.dir, "layers"), Log: log})
	r.must(layers.Open(ctx))
	r.Agent = host.New(host.Options{
		Dir: r.dir, Host: hangar.Host{ID: "0000aaaa", Region: "loc", CPUs: 2, Memory: 8 << 30}, Driver: drv, Images: r.images, Network: net,
		Local: sockets, Identity: &r.issuer, Layers: layers, Logs: l, Journal: j, Publisher: &rows{}, Keys: r.openKeys(), Log: log, Now: time.Now,
		Devices: r.disk.Session(), VolumePublisher: r.vols,
	})
	r.must(r.Open(ctx))
	b.Cleanup(func() {
		all, err := r.Machines(ctx, "", hangar.MachineFilter{})
		r.must(err)
		for _, m := range all {
			r.must(r.DestroyMachine(ctx, m.Ref(), hangar.MachineDestroy{Force: true}))
			_, err := r.WaitMachine(ctx, m.Ref(), hangar.MachineWait{States: []hangar.MachineState{hangar.MachineDestroyed}, Timeout: time.Minute})
			r.must(err)
		}
		for _, end := range []func() error{
			r.Close, sockets.End, layers.Close, l.Close, j.Close, func() error { return net.Remove(ctx) }, net.Close,
			func() error { return drv.Remove(ctx) }, func() error { drv.Close(); return os.RemoveAll(run) },
		} {
			r.must(end())
		}
	})
	return r
}

// BenchmarkWakeEngine wakes real Machines. It reports the median of the total time, and of the
// delay between the answer and the later of two moments: when the program began to listen, and when
// the Machine was recorded as started.
func BenchmarkWakeEngine(b *testing.B) {
	for _, rest := range []hangar.MachineState{hangar.MachineStopped, hangar.MachineSuspended} {
		b.Run(string(rest), func(b *testing.B) {
			r := newEngineRig(b)
			ref := r.create(nil, serves(false, 0))
			r.must(r.WakeMachine(b.Context(), ref, 8080))
			var whole, added []float64
			for b.Loop() {
				if rest == hangar.MachineStopped {
					r.must(r.StopMachine(b.Context(), ref, hangar.MachineStop{Signal: 9}))
				} else {
					r.must(r.SuspendMachine(b.Context(), ref))
				}
				r.wait(ref, rest)
				began := time.Now()
				r.must(r.WakeMachine(b.Context(), ref, 8080))
				now := time.Now()
				c, err := r.DialService(b.Context(), ref, 8080)
				r.must(err)
				if text, err := io.ReadAll(c); err != nil || len(text) == 0 {
					b.Fatalf("%q, %v", text, err)
				}
				r.must(c.Close())
				whole = append(whole, float64(now.Sub(began).Microseconds())/1000)
				added = append(added, float64(now.Sub(r.served(ref)).Microseconds())/1000)
			}
			slices.Sort(whole)
			slices.Sort(added)
			b.ReportMetric(whole[len(whole)/2], "ms-whole")
			b.ReportMetric(added[len(added)/2], "ms-added")
			b.ReportMetric(added[len(added)*9/10], "ms-added-p90")
		})
	}
}

// served is when the Machine was last recorded as started, or its program began to listen
// after that.
func (r *rig) served(ref hangar.MachineRef) time.Time {
	at := time.UnixMilli(r.newest(ref).Timestamp).Add(time.Millisecond)
	page, err := r.Logs(r.Context(), ref.AppID, hangar.LogQuery{Instance: ref.ID, Limit: 20})
	r.must(err)
	for _, e := range page.Entries {
		text, ok := strings.CutPrefix(e.Message, "listening ")
		if ns, err := strconv.ParseInt(text, 10, 64); ok && err == nil && time.Unix(0, ns).After(at) {
			at = time.Unix(0, ns)
		}
	}
	return at
}

// BenchmarkMachineFileEngine reads a file that a real Machine has written.
func BenchmarkMachineFileEngine(b *testing.B) {
	r := newEngineRig(b)
	ref := r.create(nil, serves(false, 0))
	r.must(r.WakeMachine(b.Context(), ref, 8080))
	buf := make([]byte, 32<<10)
	for _, size := range []int64{4 << 10, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			b.SetBytes(size)
			for b.Loop() {
				f, err := r.OpenMachineFile(b.Context(), ref, "/page")
				r.must(err)
				n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, io.LimitReader(f, size), buf)
				if r.must(err); n != size {
					b.Fatalf("%d bytes", n)
				}
				r.must(f.Close())
			}
		})
	}
}
