package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/replica"
	"github.com/hangar-platform/hangar/replica/mount"
)

func runCommand() *cobra.Command {
	var node string
	var ifPrimary, ifCandidate bool
	var haltOn string
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND...",
		Short: "Run a program beside a node, depending on the role of the node",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			resp, err := call(cmd.Context(), http.MethodGet, node, "/info", nil, nil)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			var info replica.Info
			if err := json.NewDecoder(resp.Body).Decode(&info); err != nil {
				return err
			}
			if ifPrimary && !info.IsPrimary || ifCandidate && !info.Candidate {
				fmt.Fprintln(cmd.ErrOrStderr(), "hangar-db: not run: the node has another role")
				return nil
			}
			if haltOn != "" {
				lock, err := lockToWrite(info.Path, haltOn)
				if err != nil {
					return err
				}
				defer lock.Close()
			}
			return runProgram(cmd.Context(), args)
		},
	}
	urlFlag(cmd, &node)
	cmd.Flags().BoolVar(&ifPrimary, "if-primary", false, "only if the node is the primary")
	cmd.Flags().StringVar(&haltOn, "with-halt-lock-on", "", "hold the lock that lets programs write to this database, also on a replica, for up to 25 seconds")
	cmd.Flags().BoolVar(&ifCandidate, "if-candidate", false, "only if the node may become the primary")
	return cmd
}

// lockToWrite takes the halt lock of a database, in the directory of a node. Closing the file releases it.
func lockToWrite(dir, db string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, db+"-lock"), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	l := unix.Flock_t{Type: unix.F_WRLCK, Start: mount.HaltByte, Len: 1}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLKW, &l); err != nil {
		return nil, errors.Join(fmt.Errorf("halt lock on %s: %w", db, err), f.Close())
	}
	return f, nil
}
