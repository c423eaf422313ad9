package deploy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/cmd/hangar/deploy/appconfig"
)

const launchLong = `Write hangar.toml for an image, create the App, and deploy it. An existing file is not
changed: it is deployed, and its App is created if it does not exist.`

// NewLaunchCommand makes `hangar launch`.
func NewLaunchCommand(inv *cli.Invocation) *cobra.Command {
	c := commands{inv}
	var (
		f              flags
		name, org, dir string
		port           int
		noDeploy       bool
	)
	cmd := &cobra.Command{
		Use: "launch", Short: "Write hangar.toml, create the App and deploy it", Long: launchLong, Args: cobra.NoArgs,
		Example: "  hangar launch --image nginx:alpine --name hello --port 80",
	}
	f.add(cmd)
	fs := cmd.Flags()
	fs.StringVarP(&f.image, "image", "i", "", "image of the App")
	fs.StringVar(&name, "name", "", "name of the App (default that of the directory)")
	fs.StringVar(&org, "org", "", "organization (default that of the context, or personal)")
	fs.StringVar(&dir, "path", ".", "directory of the file")
	fs.IntVar(&port, "port", appconfig.DefaultPort, "port of the program; 0: none")
	fs.BoolVar(&noDeploy, "no-deploy", false, "do not deploy")
	cmd.RunE = c.Connected(func(ctx context.Context, p *client.Client, _ []string) error {
		path, raw, err := findFile(dir, "")
		switch {
		case err == nil:
			fmt.Fprintf(c.Stderr, "%s exists and is not changed.\n", path)
		case errors.Is(err, os.ErrNotExist):
			if f.image == "" {
				return cli.UsageErrorf("--image is missing: the image of the App")
			}
			if path, raw, err = writeNew(dir, name, f.image, port); err != nil {
				return err
			}
			fmt.Fprintf(c.Stdout, "%s is written.\n", path)
		default:
			return err
		}
		file, _, err := appconfig.Parse(filepath.Base(path), raw)
		if err != nil {
			return cli.UsageError{Err: err}
		}
		f.app = name
		app, err := f.appOf(file)
		if err != nil {
			return err
		}
		if err := c.ensureApp(ctx, p, app, c.OrgOr(org)); err != nil {
			return err
		}
		if noDeploy {
			return c.Sayf("Deploy it: hangar deploy")
		}
		o, err := f.options()
		if err != nil {
			return err
		}
		if o.File, o.ReadFile, err = c.readFile(dir, ""); err != nil {
			return err
		}
		o.App, o.Reason = app, "launch"
		return c.deploy(ctx, p, &f, o)
	})
	return cmd
}

// ensureApp creates an App if it does not exist.
func (c commands) ensureApp(ctx context.Context, p *client.Client, name hangar.AppName, org hangar.OrgSlug) error {
	_, err := p.App(ctx, name)
	if hangar.ReasonOf(err) != hangar.ReasonAppNotFound {
		return err
	}
	if _, err := p.CreateApp(ctx, hangar.AppCreate{Name: name, Org: org}); err != nil {
		return err
	}
	return c.Sayf("App %s is created.", name)
}

// writeNew writes the first file of an App. It does not replace a file.
func writeNew(dir, name, image string, port int) (path string, raw []byte, err error) {
	if name == "" {
		full, err := filepath.Abs(dir)
		if err != nil {
			return "", nil, err
		}
		name = nameOf(filepath.Base(full))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "app = %q\n\n[build]\nimage = %q\n", name, image)
	if port > 0 {
		fmt.Fprintf(&b, "\n[http_service]\ninternal_port = %d\nforce_https = false\nauto_stop_machines = \"off\"\nauto_start_machines = true\n", port)
	}
	fmt.Fprintf(&b, "\n[[vm]]\nsize = \"shared-cpu-1x\"\nmemory = \"256mb\"\n")
	raw = []byte(b.String())
	path = filepath.Join(dir, appconfig.FileName)
	if _, _, err := appconfig.Parse(appconfig.FileName, raw); err != nil {
		return "", nil, cli.UsageError{Err: err}
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644) //nolint:gosec // a file that others may read
	if err != nil {
		return "", nil, err
	}
	_, err = file.Write(raw)
	return path, raw, errors.Join(err, file.Close())
}

// nameOf derives the name of an App from that of a directory.
func nameOf(directory string) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		default:
			return '-'
		}
	}, directory)
	if name = strings.Trim(name, "-"); name == "" {
		return appconfig.DefaultGroup
	}
	return name
}
