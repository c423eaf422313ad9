package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"

	"github.com/superfly/ltx"
	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/replica"
	"github.com/hangar-platform/hangar/replica/backup"
	"github.com/hangar-platform/hangar/replica/config"
	"github.com/hangar-platform/hangar/replica/proxy"
)

// startProxy starts the HTTP proxy in g, if it is configured. It runs until ctx ends.
func startProxy(ctx context.Context, g *errgroup.Group, c *config.Config, node *replica.Node, log *slog.Logger) error {
	if c.Proxy.Addr == "" {
		return nil
	}
	var acknowledged func(ctx context.Context, db string, id ltx.TXID) error
	if c.Sync > 0 {
		acknowledged = func(ctx context.Context, db string, id ltx.TXID) error { return node.WaitReplicas(ctx, db, id, c.Sync) }
	}
	p := proxy.New(proxy.Options{
		Acknowledged: acknowledged, Target: c.Proxy.Target, DB: c.Proxy.DB, MaxLag: c.Proxy.MaxLag, RedirectTimeout: c.Proxy.RedirectTimeout,
		Passthrough: c.Proxy.Passthrough, AlwaysForward: c.Proxy.AlwaysForward, Debug: c.Proxy.Debug, Node: node, Log: log,
	})
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.Proxy.Addr)
	if err != nil {
		return fmt.Errorf("proxy: %w", err)
	}
	log.Info("proxy", "addr", listener.Addr().String(), "target", c.Proxy.Target)
	server := &http.Server{
		Handler: p, ReadTimeout: c.Proxy.ReadTimeout, ReadHeaderTimeout: c.Proxy.ReadHeaderTimeout,
		WriteTimeout: c.Proxy.WriteTimeout, IdleTimeout: c.Proxy.IdleTimeout,
	}
	g.Go(func() error {
		defer p.Close()
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		return finish.Do(ctx, stopGrace, func(ctx finish.Context) error {
			if server.Shutdown(ctx) != nil {
				return server.Close()
			}
			return nil
		})
	})
	return nil
}

// startBackup starts the backup in g, if it is configured. The backup runs until ctx ends, and then stores the
// rest; the channel is closed after that. startBackup is called before the node serves HTTP.
func startBackup(ctx context.Context, g *errgroup.Group, c *config.Config, node *replica.Node, log *slog.Logger) (<-chan struct{}, error) {
	done := make(chan struct{})
	if c.Backup.URL == "" {
		close(done)
		return done, nil
	}
	store, err := backup.OpenStore(c.Backup.URL, credentials())
	if err != nil {
		close(done)
		return done, fmt.Errorf("backup: %w", err)
	}
	b := backup.New(backup.Options{
		Node: node, Store: store, Dir: filepath.Join(c.Data.Dir, "backup"), Delay: c.Backup.Delay, SnapshotInterval: c.Backup.SnapshotInterval,
		Exact: c.Backup.Exact, Retention: c.Backup.Retention, Log: log,
	})
	node.KeepLog(b.Needs)
	node.Measure(b)
	log.Info("backup", "store", store.String())
	g.Go(func() error {
		defer close(done)
		return b.Run(ctx)
	})
	return done, nil
}
