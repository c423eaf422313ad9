// Command hangar-db is a node of replicated SQLite databases: it mounts a directory of databases, captures what
// programs commit there, and keeps copies of the databases of other nodes.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// Set by the linker.
var version = "v0.1.0-dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	err := root().ExecuteContext(ctx)
	stop()
	if exit, ok := errors.AsType[exitStatus](err); ok {
		os.Exit(int(exit))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "hangar-db:", err)
		os.Exit(1)
	}
}

// exitStatus is the exit status of a program that runProgram ran.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "hangar-db",
		Short:         "Replicated SQLite databases",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.AddCommand(
		mountCommand(), runCommand(), importCommand(), exportCommand(), restoreCommand(), statusCommand(), handoffCommand(), promoteCommand(),
	)
	return cmd
}
