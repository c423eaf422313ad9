package platform

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/cmd/hangar/platform/hostcheck"
)

const doctorLong = `Check whether this server can run the platform, and say how to fix what is missing.

The exit code is 1 when something is missing that every Machine needs. Warnings are
about optional features.`

// marks are the statuses in the text output.
var marks = map[hostcheck.Status]string{hostcheck.OK: "ok", hostcheck.Warn: "warn", hostcheck.Fail: "FAIL"}

// NewDoctorCommand returns `hangar doctor`.
func NewDoctorCommand(inv *cli.Invocation) *cobra.Command {
	c := commands{inv}
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check whether this server can run the platform",
		Long:  doctorLong,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			used, dir := c.checkConfig()
			checks := append([]hostcheck.Check{used}, hostcheck.Run(cmd.Context(), hostcheck.Options{Dir: dir})...)
			checks = append(checks, checkServers(cmd.Context(), dir)...)
			var err error
			if asJSON {
				err = c.PrintJSON(cli.OrEmpty(checks))
			} else {
				err = c.printChecks(checks)
			}
			if err != nil {
				return err
			}
			return verdict(checks)
		},
	}
	cli.JSONFlag(cmd, &asJSON)
	return cmd
}

// checkConfig reports the configuration file in use and whether it is valid. It also returns the data directory.
func (c commands) checkConfig() (hostcheck.Check, string) {
	r, err := c.readConfig(nil)
	if err != nil {
		return hostcheck.Check{
			Name: "configuration", Status: hostcheck.Fail, Detail: cli.Message(err),
			Fix: "correct the file; `hangar config check` validates it, and packaging/hangar.yaml lists every key",
		}, cmp.Or(c.Dir, c.Getenv("HANGAR_DIR"), cli.DefaultDir)
	}
	detail := "no " + cli.DefaultConfigFile + ": defaults and flags"
	if r.file != nil {
		detail = r.file.Path
	}
	return hostcheck.Check{Name: "configuration", Status: hostcheck.OK, Detail: detail}, r.flags.Lookup(cli.DirFlag).Value.String()
}

func (c commands) printChecks(checks []hostcheck.Check) error {
	rows := [][]string{{"RESULT", "CHECK", "FOUND"}}
	for _, x := range checks {
		rows = append(rows, []string{marks[x.Status], x.Name, x.Detail})
	}
	if err := c.PrintTable(rows); err != nil {
		return err
	}
	for _, x := range checks {
		if x.Status != hostcheck.OK && x.Fix != "" {
			fmt.Fprintf(c.Stdout, "\n%s: %s\n", x.Name, x.Fix)
		}
	}
	return nil
}

// verdict returns an error if a check failed.
func verdict(checks []hostcheck.Check) error {
	failed := 0
	for _, x := range checks {
		if x.Status == hostcheck.Fail {
			failed++
		}
	}
	if failed == 0 {
		return nil
	}
	return cli.WithHint(errors.New("this server cannot run Machines yet"), fmt.Sprintf("fix the failed checks (%d) and run `hangar doctor` again", failed))
}
