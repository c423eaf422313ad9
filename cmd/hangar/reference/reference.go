// Package reference generates the manual of the command line from its tree of commands: one Markdown page, and
// a man page for each command.
//
// The commands are the only source, so the manual always agrees with `--help`. The output does not depend on the
// computer or the time. The Debian package is built with it, and a test compares it to docs/cli.md.
package reference

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

// NewCommand returns `hangar reference`, which the build of packages runs.
func NewCommand(c *cli.Invocation) *cobra.Command {
	cmd := &cobra.Command{
		Use: "reference", Short: "Write the manual of the command line", Args: cobra.NoArgs, Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		&cobra.Command{
			Use: "markdown", Short: "Print the manual as one Markdown page", Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				_, err := fmt.Fprint(c.Stdout, Markdown(cmd.Root()))
				return err
			},
		},
		&cobra.Command{
			Use: "man DIR", Short: "Write a man page for each command to a directory", Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error { return writeMan(cmd.Root(), args[0], c.Build.Version) },
		},
	)
	return cmd
}

// writeMan writes a man page for each command.
func writeMan(root *cobra.Command, dir, version string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // all users read manuals
		return err
	}
	for _, cmd := range commands(root) {
		path := filepath.Join(dir, manName(cmd)+".1")
		if err := os.WriteFile(path, []byte(Man(cmd, version)), 0o644); err != nil { //nolint:gosec // as above
			return err
		}
	}
	return nil
}

// commands lists a command and its visible descendants, each parent before its children.
func commands(cmd *cobra.Command) []*cobra.Command {
	list := []*cobra.Command{cmd}
	for _, child := range shown(cmd) {
		list = append(list, commands(child)...)
	}
	return list
}

// shown lists the visible direct subcommands. It leaves out those that cobra adds, which explain themselves.
func shown(cmd *cobra.Command) []*cobra.Command {
	var list []*cobra.Command
	for _, child := range cmd.Commands() {
		if child.IsAvailableCommand() && child.Name() != "help" && (cmd.HasParent() || child.Name() != "completion") {
			list = append(list, child)
		}
	}
	return list
}

// about returns the long description of a command, or else the short one.
func about(cmd *cobra.Command) string {
	if cmd.Long != "" {
		return strings.TrimSpace(cmd.Long)
	}
	return cmd.Short + "."
}

// useLine returns the usage of a command, or of its subcommands.
func useLine(cmd *cobra.Command) string {
	if len(shown(cmd)) > 0 {
		return cmd.CommandPath() + " COMMAND"
	}
	return cmd.UseLine()
}

// flags describes the local flags of a command, as `--help` does.
func flags(cmd *cobra.Command) string {
	cmd.InitDefaultHelpFlag()
	cmd.InitDefaultVersionFlag()
	set := cmd.NonInheritedFlags()
	if help := set.Lookup("help"); help != nil {
		help.Hidden = true // every command has it
		defer func() { help.Hidden = false }()
	}
	return strings.TrimRight(set.FlagUsages(), "\n")
}
