package daemon

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/hangar-platform/hangar/control/pushed"
	"github.com/hangar-platform/hangar/control/vault"
	"github.com/hangar-platform/hangar/host"
	"github.com/hangar-platform/hangar/host/archive"
	"github.com/hangar-platform/hangar/host/image"
	"github.com/hangar-platform/hangar/host/localapi"
	hostmachines "github.com/hangar-platform/hangar/host/machines"
	"github.com/hangar-platform/hangar/host/rootfs"
	"github.com/hangar-platform/hangar/host/volumes"
	"github.com/hangar-platform/hangar/internal/hint"
	"github.com/hangar-platform/hangar/internal/publicdial"
)

// machines has the parts that run Machines on this server.
type machines struct {
	agent   *host.Agent
	images  *image.Store
	sockets *localapi.Sockets
}

// openMachines opens what Machines need, and takes running ones back.
func (d *opening) openMachines(ctx context.Context, s *server, c *cluster) (*machines, error) {
	m := &machines{}
	var err error
	if m.images, err = d.openImages(ctx, s, c, func() map[string]bool { return m.agent.ImagesInUse() }); err != nil {
		return nil, err
	}
	layers, err := d.openLayers(ctx)
	if err != nil {
		return nil, err
	}
	m.sockets = localapi.New(d.log)
	d.opened.add(m.sockets.End)
	networks := hostmachines.Networks(hostmachines.NoNetwork{})
	switch {
	case s.network != nil:
		networks = s.network
	case d.options.Around.Network != nil:
		networks = d.options.Around.Network
	}
	m.agent = host.New(host.Options{
		Dir: d.cfg.Dir, Host: s.self, Driver: s.driver, Images: m.images, Network: networks, Layers: layers, Logs: s.logs,
		Journal: s.records, Space: d.space, Publisher: c.rows, View: c.machines, Local: m.sockets, Identity: d.late.identities, Keys: c.keys,
		Nameservers: s.nameservers(), DatabaseProgram: d.cfg.databaseProgram, PublicIP: publicAddress(ctx), Log: d.log, Now: time.Now,
		Devices: d.openDevices(ctx), VolumePublisher: c.rows, VolumeOvercommit: d.cfg.VolumeOvercommit,
		MemoryOvercommit: d.cfg.MemoryOvercommit, CPUOvercommit: d.cfg.CPUOvercommit, MemoryReserve: memoryReserve(s.self.Memory),
		VolumesPerMachine: d.cfg.VolumesPerMachine, Archive: d.newArchive(c), Metrics: d.counts, AutostopAfter: d.cfg.AutostopAfter,
	})
	if err := m.agent.Open(ctx); err != nil {
		return nil, fmt.Errorf("take up machines: %w", err)
	}
	d.opened.add(m.agent.Close)
	return m, nil
}

// openImages opens the images of the data directory, with the built-in registry. It keeps those in use.
func (d *opening) openImages(ctx context.Context, s *server, c *cluster, inUse func() map[string]bool) (*image.Store, error) {
	allowed, err := d.cfg.registries()
	if err != nil {
		return nil, err
	}
	pools, err := d.cfg.addressPools()
	if err != nil {
		return nil, err
	}
	o := image.Options{
		Dir: filepath.Join(d.cfg.Dir, "images"), Local: registryNames(d.cfg.registryHost(), d.listener.Addr()),
		Credentials: vault.NewLogins(c.sealed).Credentials, Quota: c.rows.AdmitImages, InUse: inUse, Space: d.space, Log: d.log,
		Catalog: pushed.New(pushed.Config{Store: c.store, Memory: c.mirror, Host: s.self.ID, Log: d.log, Now: time.Now}), Peers: d.late.pushed, Host: s.self.ID,
		Limits: image.Limits{
			UnpackedBytes: int64(d.cfg.ImageSizeGB) << 30, Ratio: d.cfg.ImageRatio, PullTime: d.cfg.PullTimeout, MinRate: d.cfg.PullRate,
		},
		Dialer: publicdial.New(publicdial.Options{Allow: allowed, Own: func(a netip.Addr) bool {
			return pools.Contains(a) || publicdial.OnThisServer(a)
		}}),
		Transport: d.options.Around.Registries,
	}
	if d.cfg.HostRegistryAuth {
		o.DockerConfig = d.options.DockerConfig
	}
	images := image.New(o)
	if err := images.Open(ctx); err != nil {
		return nil, err
	}
	d.opened.add(images.Close)
	return images, nil
}

// registryNames are the hosts under which the built-in registry is reached.
func registryNames(registry string, served net.Addr) []string {
	names := []string{registry}
	_, port, err := net.SplitHostPort(served.String())
	if err != nil {
		return names
	}
	for _, name := range []string{"127.0.0.1", "localhost", "[::1]", registry} {
		names = append(names, name+":"+port)
	}
	return names
}

func (d *opening) openLayers(ctx context.Context) (*rootfs.Layers, error) {
	layers := newLayers(d.cfg, d.log)
	if err := layers.Open(ctx); err != nil {
		if d.cfg.RootfsUnbounded {
			return nil, err
		}
		return nil, hint.With(err, "see `hangar doctor`; `hangar up --rootfs-unbounded` does without, and lets every Machine fill the disk")
	}
	d.opened.add(layers.Close)
	if d.cfg.RootfsUnbounded {
		d.log.Warn("every Machine may fill the disk of this server", "flag", "--rootfs-unbounded")
	}
	return layers, nil
}

// openDevices opens the volumes of this server. A server that cannot have volumes serves everything
// else.
func (d *opening) openDevices(ctx context.Context) volumes.Devices {
	if given := d.options.Around.Devices; given != nil {
		return given
	}
	devices := newDevices(d.cfg, d.options.Guard, d.log)
	if err := devices.Open(ctx); err != nil {
		d.log.Warn("this server cannot keep volumes; see hangar doctor", "error", err)
		return volumes.None{Why: err.Error(), Run: volumesRun(d.cfg)}
	}
	d.opened.add(func() error {
		err := devices.Close()
		_ = os.Remove(runDir(d.cfg)) // unless a Machine still uses it
		return err
	})
	return volumes.LocalDevices(devices)
}

// newArchive returns the store of snapshots. The agent opens it on first use and closes it, because it
// may be on another server and its password is in the cluster state.
func (d *opening) newArchive(c *cluster) *archive.Archive {
	where := d.cfg.Snapshots
	if where == "" {
		where = (&url.URL{Scheme: "file", Path: filepath.Join(d.cfg.Dir, "snapshots")}).String()
	}
	return archive.New(archive.Options{
		URL: where, Cache: filepath.Join(d.cfg.Dir, "snapshots-cache"), Password: vault.NewArchivePassword(c.sealed).Password, Log: d.log,
	})
}

// somewhere is an address of the internet (RFC 9637). Nothing is sent to it.
const somewhere = "[3fff::1]:9"

// publicAddress is this server's address on the internet over IPv6, or the zero Addr.
func publicAddress(ctx context.Context) netip.Addr {
	c, err := (&net.Dialer{}).DialContext(ctx, "udp6", somewhere)
	if err != nil {
		return netip.Addr{}
	}
	defer c.Close()
	local, ok := c.LocalAddr().(*net.UDPAddr)
	if !ok {
		return netip.Addr{}
	}
	addr := local.AddrPort().Addr().WithZone("")
	if !addr.IsGlobalUnicast() || addr.IsPrivate() {
		return netip.Addr{}
	}
	return addr
}
