package daemon

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/driver/fake"
	"github.com/hangar-platform/hangar/host/driver/gvisor"
	"github.com/hangar-platform/hangar/host/driver/gvisor/engine"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/host/logs"
	"github.com/hangar-platform/hangar/host/network"
	"github.com/hangar-platform/hangar/internal/ippool"
	"github.com/hangar-platform/hangar/internal/keeper"
)

// openEngine opens the driver that cfg names, and the network that goes with it: nil if
// its Machines have none.
func openEngine(ctx context.Context, cfg Config, id hangar.HostID, log *slog.Logger, opened *closers) (driver.Driver, *network.Network, error) {
	if cfg.Driver == DriverFake {
		return fake.New(fake.NewWorld(filepath.Join(cfg.Dir, "fake")), fake.Options{}), nil, nil
	}
	egress, err := cfg.egress()
	if err != nil {
		return nil, nil, err
	}
	wires := newNetwork(cfg, id, egress, log)
	if err := wires.Open(ctx); err != nil {
		return nil, nil, err
	}
	opened.add(wires.Close)
	sandboxes, err := newGvisor(cfg, log)
	if err != nil {
		return nil, nil, err
	}
	if err := sandboxes.Open(ctx); err != nil {
		return nil, nil, err
	}
	opened.add(sandboxes.Close)
	return sandboxes, wires, nil
}

// hostNetwork is the network of a host, which may have none.
func hostNetwork(wires *network.Network) host.Networks {
	if wires == nil {
		return host.NoNetwork{}
	}
	return wires
}

// runDir is where a daemon keeps what a reboot may forget.
func runDir(cfg Config) string { return filepath.Join("/run", "hangar-"+instance(cfg.Dir)) }

func newNetwork(cfg Config, id hangar.HostID, egress []netip.Prefix, log *slog.Logger) *network.Network {
	o := network.Options{
		Instance: instance(cfg.Dir), Host: id, Log: log, RunDir: filepath.Join(runDir(cfg), "netns"), AllowEgress: egress,
	}
	if cfg.IPv6Pool == "" { // nobody else leads it here
		o.Own = ippool.UniqueLocal(instance(cfg.Dir))
	}
	return network.New(o)
}

// keeperSocket is in a directory of its own, which is for root alone.
func keeperSocket(cfg Config) string { return filepath.Join(runDir(cfg), "keeper", "socket") }

// openLogs opens what keeps the output of Machines.
func openLogs(ctx context.Context, cfg Config, held *keeper.Client, log *slog.Logger, opened *closers) (*logs.Store, error) {
	lines := logs.New(logs.Options{
		Dir: filepath.Join(cfg.Dir, "logs"), Region: cfg.Region, Keeper: held, Log: log, Now: time.Now,
	})
	if err := lines.Open(ctx); err != nil {
		return nil, err
	}
	opened.add(lines.Close)
	return lines, nil
}

// openKeeper finds or starts the process that holds the output of Machines and the sockets
// of the edge while no daemon runs. With the fake driver there is none.
func openKeeper(ctx context.Context, cfg Config, log *slog.Logger, opened *closers) (*keeper.Client, error) {
	if cfg.Driver == DriverFake {
		return nil, nil //nolint:nilnil // package logs takes it for none
	}
	c := keeper.New(keeper.Options{Socket: keeperSocket(cfg), Log: log, Start: func(listener *os.File) (*os.Process, error) {
		return startKeeper(cfg, listener)
	}})
	if err := c.Open(ctx); err != nil {
		return nil, err
	}
	opened.add(c.Close)
	return c, nil
}

// startKeeper starts a process that has nothing of the daemon's but the listener, and
// that no signal reaches which is meant for the daemon.
func startKeeper(cfg Config, listener *os.File) (*os.Process, error) {
	path, err := enginePath(cfg)
	if err != nil {
		return nil, err
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	return os.StartProcess(path, []string{path, "keep"}, &os.ProcAttr{
		Dir: "/", Env: []string{}, Files: []*os.File{null, null, null, listener}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
}

// enginePath finds the program that runs sandboxes.
func enginePath(cfg Config) (string, error) {
	if cfg.Engine != "" {
		return cfg.Engine, nil
	}
	return engine.Locate(cfg.Dir)
}

func newGvisor(cfg Config, log *slog.Logger) (*gvisor.Driver, error) {
	path, err := enginePath(cfg)
	if err != nil {
		return nil, err
	}
	memory, err := serverMemory()
	if err != nil {
		return nil, err
	}
	return gvisor.New(gvisor.Options{
		Root: filepath.Join(runDir(cfg), "runsc"), Engine: path, CgroupParent: "hangar-" + instance(cfg.Dir), Log: log,
		MemoryLimit: memory - memoryReserve(memory),
	}), nil
}

// settingHostID is where the journal keeps the server's id.
const settingHostID = "host_id"

// describeHost says what this server is. Its id is made on the first start.
func describeHost(records *journal.Journal, region hangar.Region) (hangar.Host, error) {
	id, err := records.Setting(settingHostID)
	if errors.Is(err, journal.ErrNotFound) {
		var b [4]byte
		_, _ = rand.Read(b[:]) // never fails: crypto/rand.Read aborts the program instead
		id = []byte(hex.EncodeToString(b[:]))
		err = records.Commit(func(tx *journal.Tx) error { return tx.SetSetting(settingHostID, id) })
	}
	if err != nil {
		return hangar.Host{}, err
	}
	memory, err := serverMemory()
	if err != nil {
		return hangar.Host{}, err
	}
	return hangar.Host{ID: hangar.HostID(id), Region: region, CPUs: runtime.NumCPU(), Memory: memory}, nil
}

// serverMemory is how many bytes of memory the server has.
func serverMemory() (int64, error) {
	var info unix.Sysinfo_t
	err := unix.Sysinfo(&info)
	return int64(info.Totalram) * int64(info.Unit), err
}

// memoryReserve is how many bytes of a server's memory are for the platform and the kernel:
// an eighth, but no more than 1 GiB.
func memoryReserve(memory int64) int64 { return min(memory/8, 1<<30) }

// oneHost is the registry of hosts of a server that is alone.
type oneHost struct{ agent *host.Agent }

// Agent returns the one there is.
func (h oneHost) Agent(id hangar.HostID) (hangar.Agent, error) {
	if id != h.agent.Host().ID {
		return nil, hangar.Errorf(hangar.CodeNotFound, "", "unknown host %q", id)
	}
	return h.agent, nil
}

// Gate returns that of the one there is.
func (h oneHost) Gate(id hangar.HostID) (hangar.MachineGate, error) {
	if id != h.agent.Host().ID {
		return nil, hangar.Errorf(hangar.CodeUnavailable, "", "unknown host %q", id)
	}
	return h.agent, nil
}

// Hosts lists it.
func (h oneHost) Hosts() []hangar.Host { return []hangar.Host{h.agent.Host()} }
