package platform

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

// versionOutput is the JSON output.
type versionOutput struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"`
	Engine   string `json:"engine"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Context  string `json:"context,omitempty"`
	URL      string `json:"url,omitempty"`
}

// NewVersionCommand returns `hangar version`.
func NewVersionCommand(inv *cli.Invocation) *cobra.Command {
	c := commands{inv}
	return cli.Answering(c.Invocation, &cobra.Command{
		Use: "version", Short: "Show version, commit and engine of this binary, and the platform that commands use", Args: cobra.NoArgs,
	}, func(*cobra.Command, []string) (versionOutput, error) {
		// Without a valid context, the version of this binary is still printed.
		at, err := c.Locate()
		if err != nil {
			at = cli.Endpoint{}
		}
		name := at.Context
		if dir, err := c.DataDir(); name == "" && at.URL != "" && err == nil && at.URL == cli.LocalURL(dir) {
			name = cli.LocalContext
		}
		return versionOutput{c.Build.Version, c.Build.Commit, c.Build.Engine, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH, name, at.URL}, nil
	}, func(v versionOutput) error {
		fmt.Fprintf(c.Stdout, "hangar %s\n", v.Version)
		return c.PrintFields([]cli.Field{
			{"commit", v.Commit},
			{"engine", v.Engine},
			{"go", v.Go},
			{"platform", v.Platform},
			{"context", v.Context},
			{"url", v.URL},
		})
	})
}
