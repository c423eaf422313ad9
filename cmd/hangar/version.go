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
		Short: "Show version, commit and engine of this binary, and the platform that commands use",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			// Without one, or with a context that cannot be read, the version is still known.
			at, err := c.locate()
			if err != nil {
				at = endpoint{}
			}
			name := at.context
			if dir, err := c.dataDir(); name == "" && at.url != "" && err == nil && at.url == localURL(dir) {
				name = localContext
			}
			v := struct {
				Version  string `json:"version"`
				Commit   string `json:"commit"`
				Engine   string `json:"engine"`
				Go       string `json:"go"`
				Platform string `json:"platform"`
				Context  string `json:"context,omitempty"`
				URL      string `json:"url,omitempty"`
			}{version, commit, engineVersion, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH, name, at.url}
			if asJSON {
				return c.printJSON(v)
			}
			fmt.Fprintf(c.stdout, "hangar %s\n", v.Version)
			return printFields(c.stdout, []field{
				{"commit", v.Commit},
				{"engine", v.Engine},
				{"go", v.Go},
				{"platform", v.Platform},
				{"context", v.Context},
				{"url", v.URL},
			})
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}
