package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

// The linker sets these; see the Makefile.
var (
	version = "dev"
	commit  = ""

	// engineVersion decides whether a suspended Machine can be resumed.
	engineVersion = ""
)

func newVersionCommand(c *cli) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show version, commit and engine of this binary",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := struct {
				Version  string `json:"version"`
				Commit   string `json:"commit"`
				Engine   string `json:"engine"`
				Go       string `json:"go"`
				Platform string `json:"platform"`
			}{version, commit, engineVersion, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			if asJSON {
				return c.printJSON(v)
			}
			fmt.Fprintf(c.stdout, "hangar %s\n", v.Version)
			return printFields(c.stdout, []field{
				{"commit", v.Commit}, {"engine", v.Engine}, {"go", v.Go}, {"platform", v.Platform},
			})
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}
