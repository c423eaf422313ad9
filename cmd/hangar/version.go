package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

// versionOutput is what --json prints.
type versionOutput struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"`
	Engine   string `json:"engine"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Context  string `json:"context,omitempty"`
	URL      string `json:"url,omitempty"`
}

func newVersionCommand(c *cli) *cobra.Command {
	return answering(c, &cobra.Command{
		Use: "version", Short: "Show version, commit and engine of this binary, and the platform that commands use", Args: cobra.NoArgs,
	}, func(*cobra.Command, []string) (versionOutput, error) {
		// Without one, or with a context that cannot be read, the version is still known.
		at, err := c.locate()
		if err != nil {
			at = endpoint{}
		}
		name := at.context
		if dir, err := c.dataDir(); name == "" && at.url != "" && err == nil && at.url == localURL(dir) {
			name = localContext
		}
		return versionOutput{c.build.version, c.build.commit, c.build.engine, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH, name, at.url}, nil
	}, func(v versionOutput) error {
		fmt.Fprintf(c.stdout, "hangar %s\n", v.Version)
		return c.printFields([]field{
			{"commit", v.Commit},
			{"engine", v.Engine},
			{"go", v.Go},
			{"platform", v.Platform},
			{"context", v.Context},
			{"url", v.URL},
		})
	})
}
