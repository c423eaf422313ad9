package platform

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/daemon"
	"github.com/hangar-platform/hangar/internal/durable"
)

const stateLong = `The cluster state: what all servers of the platform agree on, such as Apps, users and names.

The daemon makes a copy every day in DIR/backups and keeps the last seven. A copy does not
include volumes and their snapshots, images, the Machines themselves, which belong to their server,
or keyset.json, without which the secrets in the copy cannot be read.`

// NewStateCommand returns `hangar state`.
func NewStateCommand(inv *cli.Invocation) *cobra.Command {
	c := commands{inv}
	cmd := cli.Group("state", "Back up, restore and recover the cluster state")
	cmd.Long = stateLong
	cmd.AddCommand(newStateBackupCommand(c), newStateRestoreCommand(c), newStateRecoverCommand(c))
	return cmd
}

func newStateBackupCommand(c commands) *cobra.Command {
	cmd := &cobra.Command{
		Use: "backup FILE", Short: "Copy the cluster state to a file, while the daemon of this server runs", Args: cobra.ExactArgs(1),
		Example: "  hangar state backup /mnt/backup/hangar-state",
	}
	cmd.RunE = c.Connected(func(ctx context.Context, p *client.Client, args []string) error {
		made, err := p.BackupState(ctx)
		if err != nil {
			return err
		}
		size, err := copyFile(args[0], made.Path)
		if err != nil {
			return cli.WithHint(err, "the copy is "+made.Path+" on host "+string(made.Host)+": run this command there, as root")
		}
		return c.Sayf("Copied %d bytes to %s. Keep keyset.json with it: the secrets cannot be read without it.", size, args[0])
	})
	return cmd
}

// copyFile copies a file to a path that does not exist yet.
func copyFile(to, from string) (int64, error) {
	in, err := os.Open(from)
	if err != nil {
		return 0, err
	}
	defer in.Close()
	return durable.CopyNew(to, in)
}

const restoreLong = `Restore the cluster state from a copy. The daemon of this server must be stopped, and with
several servers all other daemons, too.

The previous state is kept beside the restored one. Only this server has the restored state, so
start it first. The others fetch the state from it when they start.`

func newStateRestoreCommand(c commands) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{Use: "restore FILE", Short: "Restore the cluster state from a copy", Long: restoreLong, Args: cobra.ExactArgs(1)}
	cli.YesFlag(cmd, &yes)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.offline(cmd.Context(), func(dir string) error {
			if err := c.ConfirmUnless(yes, "Replace the cluster state of %s with %s?", dir, args[0]); err != nil {
				return err
			}
			file, err := filepath.Abs(args[0])
			if err != nil {
				return err
			}
			kept, err := daemon.RestoreState(dir, file, time.Now(), c.stateLog())
			if err != nil {
				return err
			}
			if kept != "" {
				fmt.Fprintf(c.Stderr, "The previous state is in %s.\n", kept)
			}
			return c.Sayf("Restored the cluster state from %s. Start this server first.", args[0])
		})
	}
	return cmd
}

const recoverLong = `Continue with the cluster state of this server alone, after most of the servers that had it are
lost. Changes that only the lost servers have are lost, too: of the remaining servers, choose the one that
was reachable last. The daemon of this server must be stopped.

The others fetch the state from this server when they start. Stop those that still run first.`

func newStateRecoverCommand(c commands) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{Use: "recover", Short: "Continue with this server's state after the loss of most others", Long: recoverLong, Args: cobra.NoArgs}
	cli.YesFlag(cmd, &yes)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return c.offline(cmd.Context(), func(dir string) error {
			if err := c.ConfirmUnless(yes, "Continue with the cluster state of %s alone, and lose changes that only other servers have?", dir); err != nil {
				return err
			}
			if err := daemon.RecoverState(cmd.Context(), dir, c.stateLog()); err != nil {
				return err
			}
			return c.Sayf("This server now has the cluster state alone. Start it first, then the others, and remove lost ones: hangar host remove.")
		})
	}
	return cmd
}

// stateLog returns a logger for the warnings of etcd.
func (c commands) stateLog() *slog.Logger {
	return slog.New(slog.NewTextHandler(c.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
}

// offline calls f with a data directory whose daemon does not run.
func (c commands) offline(ctx context.Context, work func(dir string) error) error {
	dir, err := c.DataDir()
	if err != nil {
		return err
	}
	if _, err := daemon.LoadConfig(dir); err != nil {
		return err
	}
	return daemon.WhileStopped(ctx, dir, func() error { return work(dir) })
}
