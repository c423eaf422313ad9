package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/vault"
	"github.com/hangar-platform/hangar/edge/catalog"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/internal/hint"
	"github.com/hangar-platform/hangar/internal/keyset"
)

// cluster is the state that all servers share, as this one knows it.
type cluster struct {
	mirror   *state.Mirror
	keys     *keyset.Keyset
	sealed   *vault.Vault  // encrypted values of mirror, by keys
	rows     *control.Rows // of Machines and volumes, as their hosts publish them
	machines *catalog.Catalog
	routes   *catalog.Routes
	store    state.Store // which mirror follows
	peers    *peers      // nil: this server is alone
}

// openCluster opens the cluster state and the keys of its encrypted values. The mirror reads nothing
// before openMirror.
func (d *opening) openCluster(ctx context.Context, s *server) (*cluster, error) {
	peers, err := d.openPeers(ctx, s)
	if err != nil {
		return nil, err
	}
	store, err := d.openState(ctx, peers)
	if err != nil {
		return nil, err
	}
	mirror := control.NewMirror(store, d.log)
	d.opened.add(mirror.Close)
	keys, err := d.openKeyset(ctx, mirror, s.records)
	if err != nil {
		return nil, err
	}
	rows := control.NewRows(mirror, d.log)
	return &cluster{
		store: store, peers: peers,
		mirror: mirror, keys: keys, sealed: vault.New(mirror, keys, d.log), rows: rows, machines: catalog.New(rows, d.log),
		routes: catalog.NewRoutes(control.NewRouteRecords(mirror, d.log), hangar.Hostname(d.cfg.Domain), d.log),
	}, nil
}

// openMirror reads the state. In a cluster it may have to wait until other servers have started.
func (c *cluster) openMirror(ctx context.Context) error {
	if c.peers != nil {
		if err := c.peers.settle(ctx); err != nil {
			return err
		}
	}
	return c.mirror.Open(ctx)
}

func (d *opening) openState(ctx context.Context, p *peers) (state.Store, error) {
	if d.options.Around.State != nil {
		return d.options.Around.State, nil
	}
	if p != nil {
		return p.seats.Store(), nil
	}
	store, err := state.OpenEtcd(ctx, state.EtcdConfig{
		Dir: stateDir(d.cfg.Dir), Endpoints: d.cfg.Etcd, Space: d.space, NoSync: d.options.Around.NoSync, Log: d.log,
	})
	if err != nil {
		return nil, err
	}
	d.opened.add(store.Close)
	return store, nil
}

// openKeyset opens the keys of a data directory. It makes new ones only if the old ones have encrypted
// nothing, or if ForgetSecrets is set. Otherwise secrets would be lost silently.
func (d *opening) openKeyset(ctx context.Context, store state.Store, records *journal.Journal) (*keyset.Keyset, error) {
	path := filepath.Join(d.cfg.Dir, keyset.File)
	keys, err := keyset.Open(path)
	lost := errors.Is(err, fs.ErrNotExist)
	switch damaged := errors.Is(err, keyset.ErrDamaged); {
	case !lost && !damaged:
		return keys, err
	case d.cfg.ForgetSecrets:
		d.log.Warn("secrets are forgotten, because the keys are lost", "path", path)
		if err := vault.ForgetSealed(ctx, store); err != nil {
			return nil, err
		}
		if damaged {
			err = os.Rename(path, path+".damaged")
		}
		if err != nil && !lost {
			return nil, err
		}
		return keyset.Create(path)
	case damaged:
		return nil, hint.With(err, restoreKeyset)
	}
	encrypted, err := records.HasSecrets()
	if err == nil && !encrypted {
		encrypted, err = vault.HasSealed(ctx, store)
	}
	if err != nil {
		return nil, fmt.Errorf("find out whether secrets are encrypted: %w", err)
	}
	if encrypted {
		return nil, hint.With(fmt.Errorf("%s is missing, and there are secrets that were encrypted with it", path), restoreKeyset)
	}
	return keyset.Create(path)
}

const restoreKeyset = "restore the file from a backup, nothing was changed; if there is none, `hangar up --forget-secrets` starts without the secrets of Apps and the registry credentials, and with new keys for identity tokens; encrypted volumes and the snapshots that there are can never be read again, and --snapshots has to name a new place"
