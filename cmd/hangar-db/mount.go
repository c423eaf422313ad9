package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/cmdline"
	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/replica"
	"github.com/hangar-platform/hangar/replica/config"
	"github.com/hangar-platform/hangar/replica/lease"
	"github.com/hangar-platform/hangar/replica/lease/platform"
)

// configName is the name of the configuration file.
const configName = "litefs.yml"

// stopGrace bounds how long requests in progress and the programs of exec delay the end of this program.
const stopGrace = 5 * time.Second

func mountCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "mount [-- COMMAND...]",
		Short: "Run a node: mount the databases, serve HTTP, and run the commands of the configuration",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := readConfig(file)
			if err != nil {
				return err
			}
			if len(args) > 0 {
				c.Exec = config.Exec{{Cmd: ""}}
			}
			return runNode(cmd.Context(), c, args, cmd.ErrOrStderr())
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "configuration file (default "+configName+" in the current directory, the home directory or /etc)")
	return cmd
}

func readConfig(file string) (*config.Config, error) {
	candidates := []string{file}
	if file == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			home = "/root"
		}
		candidates = []string{configName, filepath.Join(home, configName), filepath.Join("/etc", configName)}
	}
	for _, name := range candidates {
		b, err := os.ReadFile(name)
		if file == "" && errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		c, err := config.Parse(b, os.Getenv, machine())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		return c, nil
	}
	return nil, fmt.Errorf("no %s found: name one with --config", configName)
}

// machine returns the Machine in which this program runs, or nil.
func machine() *config.Machine {
	app, id, ok := platform.Within(os.Getenv)
	if !ok {
		return nil
	}
	return &config.Machine{App: app, ID: id}
}

func newLogger(c *config.Config, w io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: slog.LevelInfo}
	if c.Log.Debug {
		options.Level = slog.LevelDebug
	}
	if c.Log.Timestamp != nil && !*c.Log.Timestamp {
		options.ReplaceAttr = func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}
	}
	if c.Log.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

func newNode(c *config.Config, log *slog.Logger) (*replica.Node, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	hostname := cmp.Or(c.Lease.Hostname, host)
	l, err := newLease(c, lease.Peer{Hostname: hostname, URL: c.Lease.AdvertiseURL}, log)
	if err != nil {
		return nil, err
	}
	server, client, err := nodeTLS(c.TLS, log)
	if err != nil {
		return nil, err
	}
	return replica.New(replica.Config{
		Data: c.Data.Dir, Dir: c.Fuse.Dir, Hostname: hostname, Candidate: c.Candidate(),
		Lease: l, Capture: replica.Capture(c.Capture), Replicas: c.Sync, SyncTimeout: c.SyncTimeout, ProxyWaits: c.Proxy.Addr != "",
		ServerTLS: server, TLS: client,
		AllowOther: c.Fuse.AllowOther, Sync: c.Data.Sync,
		Retention: c.Data.Retention, LogLimit: c.Data.MaxLog, TrimInterval: c.Data.Interval, Log: log,
	}), nil
}

// runNode runs a node until ctx ends or, if commands are configured, until the last one ends.
func runNode(ctx context.Context, c *config.Config, args []string, stderr io.Writer) (err error) {
	log := newLogger(c, stderr)
	node, err := newNode(c, log)
	if err != nil {
		return err
	}
	if err := node.Open(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, node.Close()) }()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.HTTP.Addr)
	if err != nil {
		return err
	}
	log.Info("serving", "addr", listener.Addr().String())
	// The node continues after the end of ctx, until it has handed over.
	running, stop := finish.Lifetime(ctx)
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	stored, err := startBackup(ctx, g, c, node, log)
	if err = errors.Join(err, startProxy(ctx, g, c, node, log)); err != nil {
		cancel()
		return errors.Join(err, g.Wait())
	}
	server := node.NewServer()
	g.Go(func() error { return serve(server, listener) })
	g.Go(func() error {
		<-ctx.Done()
		retire(ctx, node, log)
		<-stored // if this node is still the primary, the backup stores the rest
		stop()
		// Requests of subscribers never end by themselves.
		node.Hub().Close()
		return finish.Do(ctx, stopGrace, func(ctx finish.Context) error {
			if err := server.Shutdown(ctx); err != nil {
				return server.Close()
			}
			return nil
		})
	})
	g.Go(func() error { return node.Run(running) })
	if len(c.Exec) > 0 {
		g.Go(func() error {
			if node.Ready(ctx) != nil {
				return nil //nolint:nilerr // the node ends before it is ready
			}
			err := runAll(ctx, c, args)
			if err != nil && !c.ExitOnError {
				log.Error("command ended", "error", err)
				return nil
			}
			cancel()
			return err
		})
	}
	return g.Wait()
}

// serve serves requests until the server is shut down or closed.
func serve(server *http.Server, l net.Listener) error {
	var err error
	if server.TLSConfig != nil {
		err = server.ServeTLS(l, "", "")
	} else {
		err = server.Serve(l)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// retire gives up the role of the primary. A failure delays other nodes until the lease expires.
func retire(ctx context.Context, node *replica.Node, log *slog.Logger) {
	err := finish.Do(ctx, replica.HandoffTimeout, func(ctx finish.Context) error { return node.Retire(ctx) })
	if err != nil {
		log.Warn("the lease was not given up", "error", err)
	}
}

// runAll runs the commands one after another.
func runAll(ctx context.Context, c *config.Config, args []string) error {
	for _, e := range c.Exec {
		if e.IfCandidate && !c.Candidate() {
			continue
		}
		words := args
		if e.Cmd != "" {
			var err error
			if words, err = cmdline.Split(e.Cmd); err != nil {
				return fmt.Errorf("exec: %w", err)
			}
		}
		err := runProgram(ctx, words)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the program was stopped
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// runProgram runs a program until it ends. When ctx ends, it sends SIGTERM, and kills the program after stopGrace. It
// returns an exitStatus other than 0, which is 128 and the number of a signal that has ended the program.
func runProgram(ctx context.Context, words []string) error {
	p := exec.CommandContext(ctx, words[0], words[1:]...)
	p.Stdin, p.Stdout, p.Stderr = os.Stdin, os.Stdout, os.Stderr
	p.Cancel = func() error { return p.Process.Signal(unix.SIGTERM) }
	p.WaitDelay = stopGrace
	err := p.Run()
	if p.ProcessState == nil {
		return err
	}
	if status, ok := p.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return exitStatus(128 + int(status.Signal()))
	}
	if code := p.ProcessState.ExitCode(); code != 0 {
		return exitStatus(code)
	}
	return nil // also if it was asked to end
}
