package platform

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/daemon"
)

const downLong = `Stop the daemon of a data directory and its Machines, release everything it created
on this server, and remove the data directory: Apps, Machines, images and logs are
lost permanently. To stop only the daemon, send it SIGTERM.`

// NewDownCommand returns `hangar down`.
func NewDownCommand(inv *cli.Invocation) *cobra.Command {
	c := commands{inv}
	var (
		yes      bool
		logLevel string
	)
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Stop the platform on this server and remove its data",
		Long:  downLong,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.Dir == "" && c.Getenv("HANGAR_DIR") == "" {
				// An invalid file may name another directory.
				if _, err := c.readConfig(nil); err != nil {
					return err
				}
			}
			dir, err := c.DataDir()
			if err != nil {
				return err
			}
			log, err := newLogger(c.Invocation, logLevel, "text")
			if err != nil {
				return err
			}
			if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
				fmt.Fprintf(c.Stdout, "Nothing to do: %s does not exist.\n", dir)
				return nil
			}
			cfg, err := daemon.LoadConfig(dir)
			if err != nil {
				return err
			}
			if !yes {
				if err := c.Confirm("Stop the platform and remove %s with all Apps, Machines and images permanently?", dir); err != nil {
					return err
				}
			}
			if err := daemon.Uninstall(cmd.Context(), cfg, log); err != nil {
				return err
			}
			fmt.Fprintf(c.Stdout, "Stopped the platform and removed %s.\n", dir)
			return nil
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	cmd.Flags().StringVar(&logLevel, "log-level", "warn", "lowest level to log: debug, info, warn or error")
	return cmd
}
