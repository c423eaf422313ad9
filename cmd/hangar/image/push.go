package image

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/internal/ociimage"
)

const pushLong = `Create an image, without Docker, and push it to the platform's own registry.

The image is created from a directory, which becomes its root file system, or from a
static program. An archive of docker save or an OCI layout keeps its config. The last
word printed is the reference to run.`

const pushExample = `  CGO_ENABLED=0 go build -o server . && hangar image push server api:v2
  hangar image push ./rootfs site --entrypoint /bin/httpd --expose 80
  docker save app | gzip > app.tgz && hangar image push app.tgz app`

func newPushCommand(c *cli.Invocation) *cobra.Command {
	var (
		config ociimage.Config
		labels []string
		org    string
		asJSON bool
		quiet  bool
	)
	cmd := &cobra.Command{
		Use:     "push DIR|BINARY|TAR NAME[:TAG]",
		Short:   "Create an image from a directory, a program or an archive, and push it",
		Long:    pushLong,
		Example: pushExample,
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if config.Labels, err = cli.ParsePairs("--label", labels); err != nil {
				return err
			}
			at, err := c.Endpoint()
			if err != nil {
				return err
			}
			to, err := cli.RegistryReference(at.URL, string(c.OrgOr(org)), args[1])
			if err != nil {
				return err
			}
			shown, err := cli.ImageReference(cmd.Context(), at, to)
			if err != nil {
				return err
			}
			began := time.Now()
			image, err := ociimage.Open(args[0], config)
			if err != nil {
				return err
			}
			defer image.Close()
			bar := c.Progress()
			digest, err := ociimage.Push(cmd.Context(), image, to, at.Registry(), func(done, total int64) {
				bar.Update("pushing "+args[1], done, total)
			})
			bar.Close()
			if err != nil {
				return err
			}
			pushed := shown + "@" + digest.String()
			switch {
			case asJSON:
				return c.PrintJSON(map[string]string{"reference": pushed})
			case quiet:
			default:
				// Standard output has only the reference, so that $(hangar image push …) can be an argument.
				fmt.Fprintf(c.Stderr, "pushed %s after %s; to run it: hangar machine run APP %s\n", args[1], cli.Brief(time.Since(began)), pushed)
			}
			return c.Sayf("%s", pushed)
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&config.Entrypoint, "entrypoint", nil, "program to run; repeat it for each argument")
	flags.StringArrayVar(&config.Cmd, "cmd", nil, "default arguments; repeat it for each")
	flags.StringArrayVarP(&config.Env, "env", "e", nil, "set a variable NAME=VALUE; may be repeated")
	flags.StringVar(&config.WorkingDir, "workdir", "", "working directory")
	flags.StringVar(&config.User, "user", "", "user to run as, USER or USER:GROUP")
	flags.StringArrayVar(&config.Expose, "expose", nil, "port that it listens on; may be repeated")
	flags.StringArrayVar(&labels, "label", nil, "label KEY=VALUE; may be repeated")
	flags.StringVar(&org, "org", "", "organization that owns the image (default that of the context, or personal)")
	cli.JSONFlag(cmd, &asJSON)
	cli.QuietFlag(cmd, &quiet, "the reference")
	return cmd
}
