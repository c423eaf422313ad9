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

// server has what Machines run on, and the record of this server.
type server struct {
	records *journal.Journal
	self    hangar.Host
	keeper  *keeper.Client // nil with the fake driver
	logs    *logs.Store
	driver  driver.Driver
	network *network.Network // nil with the fake driver, whose Machines have none
}

// openServer opens the journal, and what running Machines are connected to.
func (d *opening) openServer(ctx context.Context) (*server, error) {
	records, err := journal.Open(filepath.Join(d.cfg.Dir, "journal.db"), journal.Options{NoSync: d.options.Around.NoSync, Log: d.log})
	if err != nil {
		return nil, err
	}
	d.opened.add(records.Close)
	self, err := describeHost(records, d.cfg)
	if err != nil {
		return nil, err
	}
	s := &server{records: records, self: self}
	if d.cfg.Driver != DriverFake {
		if s.keeper, err = d.openKeeper(ctx); err != nil {
			return nil, err
		}
	}
	s.logs = logs.New(logs.Options{
		Dir: filepath.Join(d.cfg.Dir, "logs"), Region: d.cfg.Region, Keeper: s.keeper, Log: d.log, Now: time.Now,
	})
	if err := s.logs.Open(ctx); err != nil {
		return nil, err
	}
	d.opened.add(s.logs.Close)
	if d.cfg.Driver == DriverFake {
		s.driver = fake.New(fake.NewWorld(filepath.Join(d.cfg.Dir, "fake")), fake.Options{})
		return s, nil
	}
	if s.network, err = d.openNetwork(ctx, self.ID); err != nil {
		return nil, err
	}
	s.driver, err = d.openGvisor(ctx)
	return s, err
}

// openKeeper finds or starts the process that holds the output of Machines and the sockets
// of the edge while no daemon runs.
func (d *opening) openKeeper(ctx context.Context) (*keeper.Client, error) {
	c := keeper.New(keeper.Options{Socket: keeperSocket(d.cfg), Log: d.log, Start: func(listener *os.File) (*os.Process, error) {
		return startKeeper(d.cfg, listener)
	}})
	if err := c.Open(ctx); err != nil {
		return nil, err
	}
	d.opened.add(c.Close)
	return c, nil
}

// openNetwork opens the private networks of Machines.
func (d *opening) openNetwork(ctx context.Context, self hangar.HostID) (*network.Network, error) {
	egress, err := d.cfg.egress()
	if err != nil {
		return nil, err
	}
	n := newNetwork(d.cfg, self, egress, d.log)
	if err := n.Open(ctx); err != nil {
		return nil, err
	}
	d.opened.add(n.Close)
	return n, nil
}

// openGvisor opens the driver of real Machines.
func (d *opening) openGvisor(ctx context.Context) (*gvisor.Driver, error) {
	g, err := newGvisor(d.cfg, d.log)
	if err != nil {
		return nil, err
	}
	if err := g.Open(ctx); err != nil {
		return nil, err
	}
	d.opened.add(g.Close)
	return g, nil
}

// runDir is the directory for what a reboot may forget.
func runDir(cfg Config) string { return filepath.Join("/run", "hangar-"+instance(cfg.Dir)) }

func newNetwork(cfg Config, id hangar.HostID, egress []netip.Prefix, log *slog.Logger) *network.Network {
	o := network.Options{
		Instance: instance(cfg.Dir), Host: id, Log: log, RunDir: filepath.Join(runDir(cfg), "netns"), AllowEgress: egress,
	}
	if cfg.IPv6Pool == "" { // no operator routes it here
		o.Own = ippool.UniqueLocal(instance(cfg.Dir))
	}
	return network.New(o)
}

// keeperSocket is in a directory of its own, which only root may enter.
func keeperSocket(cfg Config) string { return filepath.Join(runDir(cfg), "keeper", "socket") }

// startKeeper starts a process that inherits nothing but the listener. It has its own session, so that
// signals for the daemon do not reach it.
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
	guest, err := cfg.guestProgram()
	if err != nil {
		return nil, err
	}
	memory, err := serverMemory()
	if err != nil {
		return nil, err
	}
	return gvisor.New(gvisor.Options{
		Root: filepath.Join(runDir(cfg), "runsc"), Engine: path, Guest: guest, CgroupParent: "hangar-" + instance(cfg.Dir), Log: log,
		MemoryLimit: memory - memoryReserve(memory),
	}), nil
}

// settingHostID is where the journal keeps the server's id.
const settingHostID = "host_id"

// describeHost returns the record of this server. Its id is made on the first start.
func describeHost(records *journal.Journal, cfg Config) (hangar.Host, error) {
	id, err := records.Setting(settingHostID)
	if errors.Is(err, journal.ErrNotFound) {
		id = newHostID()
		err = records.Commit(func(tx *journal.Tx) error { return tx.SetSetting(settingHostID, id) })
	}
	if err != nil {
		return hangar.Host{}, err
	}
	memory, err := serverMemory()
	if err != nil {
		return hangar.Host{}, err
	}
	name := cfg.HostName
	if name == "" {
		if name, err = os.Hostname(); err != nil {
			return hangar.Host{}, err
		}
	}
	return hangar.Host{ID: hangar.HostID(id), Name: name, Region: cfg.Region, Zone: cfg.Zone, CPUs: runtime.NumCPU(), Memory: memory}, nil
}

// newHostID makes an id.
func newHostID() []byte {
	for {
		var b [4]byte
		_, _ = rand.Read(b[:]) // never fails: crypto/rand.Read aborts the program instead
		id := hex.EncodeToString(b[:])
		if _, err := hangar.ParseHostID(id); err == nil {
			return []byte(id)
		}
	}
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
