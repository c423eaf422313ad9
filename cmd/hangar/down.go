package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

const downLong = `Stop the daemon of a data directory with its Machines, release everything it made
on this server, and remove the data directory: Apps, Machines, images and logs are
gone for ever. To stop only the daemon, send it SIGTERM.`

// stopPatience is how long a daemon may take to end before it is killed.
const stopPatience = 20 * time.Second

func newDownCommand(c *cli) *cobra.Command {
	var (
		yes      bool
		logLevel string
	)
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Stop the platform on this server and remove all it has",
		Long:  downLong,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.dir == "" && c.getenv("HANGAR_DIR") == "" {
				// A file that is not understood may mean another directory.
				if _, err := c.readConfig(nil); err != nil {
					return err
				}
			}
			dir, err := c.dataDir()
			if err != nil {
				return err
			}
			log, err := newLogger(c, logLevel, "text")
			if err != nil {
				return err
			}
			if !exists(dir) {
				fmt.Fprintf(c.stdout, "Nothing to do: %s does not exist.\n", dir)
				return nil
			}
			cfg, err := loadConfig(dir)
			if err != nil {
				return err
			}
			if !yes {
				if err := c.confirm("Stop the platform and remove %s with all Apps, Machines and images for ever?", dir); err != nil {
					return err
				}
			}
			lock, err := c.takeOver(cmd, dir)
			if err != nil {
				return err
			}
			defer lock.release()
			if err := uninstall(cmd.Context(), cfg, log); err != nil {
				return withHint(err, "run `hangar down` again: it goes on where it stopped")
			}
			mounts, err := mountsBelow(dir)
			if err != nil {
				return err
			}
			if len(mounts) > 0 {
				return withHint(fmt.Errorf("still mounted: %s", strings.Join(mounts, ", ")), "unmount them and run `hangar down` again; nothing was removed")
			}
			if err := os.RemoveAll(dir); err != nil {
				return err
			}
			fmt.Fprintf(c.stdout, "The platform is stopped and %s is removed.\n", dir)
			return nil
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	cmd.Flags().StringVar(&logLevel, "log-level", "warn", "least level to log: debug, info, warn or error")
	return cmd
}

// takeOver gets the lock of a data directory, from a running daemon if need be.
func (c *cli) takeOver(cmd *cobra.Command, dir string) (*dirLock, error) {
	lock, err := lockDir(dir)
	if !errors.Is(err, errLocked) {
		return lock, err
	}
	d, err := findDaemon(dir)
	if err != nil {
		return nil, withHint(err, "wait until the other command on this directory has ended")
	}
	defer d.close()
	if d.managed() {
		return nil, withHint(fmt.Errorf("process %d is run by systemd, which would start it again", d.pid),
			"systemctl disable --now hangar; then run `hangar down` again")
	}
	if err := d.stop(cmd.Context(), stopPatience); err != nil {
		return nil, err
	}
	return lockDir(dir)
}
