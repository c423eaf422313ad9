// Package daemon is the platform on one server: it opens the planes, joins them and runs them.
//
// Run owns the data directory from its start to its end, and everything on the server that
// carries the instance's id. It keeps nothing outside of that and of the values that it is given:
// several daemons run in one process, each in its own directory. Machines outlive it, and the
// next Run in the same directory takes them back.
//
// The goroutine that calls Run opens every part in the order in which they need each other. Each
// part that runs has a goroutine; the first that fails ends the others, and Run returns when all
// have ended and are closed.
//
// It decides nothing about Apps or Machines, and neither reads the environment nor handles
// signals: the program that calls it does.
package daemon

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"syscall"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/hostnames"
	"github.com/hangar-platform/hangar/control/oidc"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/users"
	hostmachines "github.com/hangar-platform/hangar/host/machines"
	"github.com/hangar-platform/hangar/host/volumes"
	"github.com/hangar-platform/hangar/internal/hint"
	"github.com/hangar-platform/hangar/internal/oomscore"
)

// Options are what the program that runs a daemon gives it.
type Options struct {
	Version      string   // shown by the API
	DockerConfig string   // see Config.HostRegistryAuth
	Guard        []string // see volume.Options
	Log          *slog.Logger

	Around Around // for tests

	// Ready is required. It is called with the address of the API once connections are accepted and
	// hangar.AddressFile is written. Its error ends the daemon.
	Ready func(addr string) error
}

// Around replaces parts of a daemon's environment. Nil fields change nothing.
type Around struct {
	State  state.Store // of the cluster; its owner closes it after Run
	NoSync bool        // no fsync of the journal and of a cluster state of its own

	Registries http.RoundTripper     // answers for every registry but the built-in one
	Network    hostmachines.Networks // of the Machines of DriverFake, which are on none
	Devices    volumes.Devices       // of volumes
	Gateway    hangar.PeerHost       // lets WireGuard peers in
	Resolver   hostnames.Resolver    // of hostnames that are claimed
	NewKey     oidc.NewKey           // makes the keys of identity tokens

	OAuthClients hangar.OAuthClients // third parties that users sign in at
	PasswordCost users.PasswordCost  // of users' new passwords

	// Hosts joins the agent of this server with those of others, once it is open.
	Hosts func(agent hangar.Agent, gate hangar.MachineGate) (Hosts, error)

	MetricsProgram func(context.Context) (string, error) // finds the program of the store of metrics
}

// Hosts finds the agents of all servers of a cluster, and the gates of their Machines.
type Hosts interface {
	hangar.Agents
	hangar.MachineGates
}

// Run runs a daemon until ctx ends, which is no error, or until a part of it fails.
func Run(ctx context.Context, cfg Config, o Options) error {
	if err := cfg.Prepare(ctx); err != nil {
		return err
	}
	lock, err := lockDir(ctx, cfg.Dir)
	if errors.Is(err, errLocked) {
		return hint.With(fmt.Errorf("a daemon already runs in %s", cfg.Dir),
			"use it as it is, stop it with SIGTERM, or give this one another --dir and other addresses")
	}
	if err != nil {
		return badDir(err)
	}
	defer lock.release()
	listener, err := listenAPI(ctx, cfg.API)
	if err != nil {
		return err
	}
	defer listener.Close()
	space := newSpace(cfg, o.Log)
	if err := space.Open(); err != nil { // before anything is written
		return err
	}
	if err := cfg.save(); err != nil {
		return err
	}
	if cfg.Driver != DriverFake {
		if err := oomscore.Set(oomscore.Platform); err != nil {
			o.Log.Warn("the kernel may end this daemon when memory runs out", "error", err)
		}
	}
	return serve(ctx, cfg, o, listener, space)
}

// Prepare makes the data directory if a daemon can start there.
func (c *Config) Prepare(ctx context.Context) error {
	if os.Geteuid() != 0 && c.Driver != DriverFake {
		return hint.With(errors.New("running Machines needs root"), "sudo hangar up; or look around with --driver fake")
	}
	if !exists(c.Dir) { // so that no daemon runs there
		listener, err := listenAPI(ctx, c.API)
		if err != nil {
			return err
		}
		if err := listener.Close(); err != nil {
			return err
		}
	}
	return badDir(os.MkdirAll(c.Dir, 0o700))
}

// badDir adds a hint to the error of a data directory that cannot be used.
func badDir(err error) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("--dir: %w", err)
	if errors.Is(err, fs.ErrPermission) {
		return hint.With(err, "name a directory that you may write to")
	}
	return err
}

// listenAPI opens the socket of the API.
func listenAPI(ctx context.Context, addr string) (net.Listener, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err == nil {
		return listener, nil
	}
	err = fmt.Errorf("--api: %w", err)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, hint.With(err, "another program, or another daemon, listens there: name another address")
	case errors.Is(err, fs.ErrPermission):
		return nil, hint.With(err, "name a port from 1024 on, or run as root")
	default:
		return nil, err
	}
}

// instance is the id of a data directory. Everything that its daemon makes on the server carries it,
// which tells daemons on one server apart.
func instance(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return hex.EncodeToString(sum[:3])
}
