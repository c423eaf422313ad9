// Package deploy has the commands about the file of an App: to write it, to deploy it, and to return to a
// release.
package deploy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/cmd/hangar/deploy/appconfig"
	"github.com/hangar-platform/hangar/cmd/hangar/deploy/build"
	"github.com/hangar-platform/hangar/cmd/hangar/deploy/rollout"
)

// commands make the commands of one invocation.
type commands struct{ *cli.Invocation }

// defaultSettling is how long a program must run to count as healthy, with checks or without.
const defaultSettling = 10 * time.Second

const deployLong = `Deploy the App that hangar.toml describes, or fly.toml if there is none: run the release
command, change Machines in the order of the strategy, and wait for their checks.

  rolling      some Machines of each group at a time, see max_unavailable (default)
  rolling_one  one Machine of a group at a time
  canary       like rolling, after one additional Machine is healthy, which is removed at the end
  bluegreen    a second set of Machines, which gets requests once all of them are healthy
  immediate    all at once, without waiting

--image, or image in [build], names the image. Without either, it is built from the Dockerfile and pushed
to the registry of the platform. docker, podman or buildah on this computer builds it, or without any of
these, a Machine of the organization. Machines receive the current secrets of the App, including those
that ` + "`hangar secrets set`" + ` has only stored.

A failure stops the deploy: changed Machines stay changed, and the error says which releases run.
Deploy again to continue, or return with ` + "`hangar releases rollback`" + `. The same continues an interrupted
deploy.`

// flags are the flags of a deploy.
type flags struct {
	file, app, image, strategy, maxUnavailable string

	patience, waitLease, settling time.Duration

	dryRun, asJSON, skipRelease, takeOver, rollback, secrets bool

	builder               string // image of a Machine that builds images
	localOnly, remoteOnly bool
}

func (f *flags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&f.strategy, "strategy", "", "order in which Machines are changed (default that of the file, or rolling)")
	fs.StringVar(&f.maxUnavailable, "max-unavailable", "", "Machines of a group that may be unavailable at a time, such as 2 or 0.33")
	fs.DurationVar(&f.patience, "wait-timeout", 0, "time that a Machine has to become healthy (default that of the file, or 5m)")
	fs.DurationVar(&f.waitLease, "wait-lease", 0, "how long to wait for another command that holds a Machine")
	fs.DurationVar(&f.settling, "smoke-time", defaultSettling, "how long a program has to run to count as healthy; 0: not at all")
	fs.BoolVar(&f.dryRun, "dry-run", false, "print the plan, and change nothing")
	fs.BoolVar(&f.skipRelease, "skip-release-command", false, "do not run the release command")
	fs.BoolVar(&f.takeOver, "take-over", false, "continue although another deploy seems to be in progress")
	fs.BoolVar(&f.rollback, "rollback", false, "return to the last complete release if the deploy fails")
	fs.BoolVar(&f.asJSON, "json", false, "print events as lines of JSON; with --dry-run, the plan")
	cli.CompleteFlag(cmd, "strategy", cli.Texts(appconfig.Strategies())...)
}

func (f *flags) addFile(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.file, "config", "c", "", "file of the App (default hangar.toml, or fly.toml)")
	cmd.Flags().StringVarP(&f.app, "app", "a", "", "App (default that of the file)")
}

// options converts the flags for a rollout.
func (f *flags) options() (rollout.Options, error) {
	o := rollout.Options{
		Image: f.image, SkipRelease: f.skipRelease, TakeOver: f.takeOver, WaitLease: f.waitLease, WaitTimeout: f.patience, Settling: f.settling,
	}
	var err error
	if f.strategy != "" {
		if o.Strategy, err = appconfig.ParseStrategy(f.strategy); err != nil {
			return o, cli.UsageErrorf("invalid --strategy: %w", err)
		}
	}
	if f.maxUnavailable != "" {
		if err := o.MaxUnavailable.UnmarshalJSON([]byte(f.maxUnavailable)); err != nil {
			return o, cli.UsageErrorf("invalid --max-unavailable: %w", err)
		}
	}
	return o, nil
}

// NewCommand makes `hangar deploy`.
func NewCommand(inv *cli.Invocation) *cobra.Command {
	c := commands{inv}
	var f flags
	cmd := &cobra.Command{
		Use: "deploy [DIR]", Short: "Deploy the App of hangar.toml", Long: deployLong, Args: cobra.MaximumNArgs(1),
		Example: "  hangar deploy --image registry.example.com/web:12\n  hangar deploy --dry-run\n  hangar deploy --strategy bluegreen",
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := "."
			if len(args) > 0 {
				dir = args[0]
			}
			if f.localOnly && f.remoteOnly {
				return cli.UsageErrorf("--local-only and --remote-only exclude one another")
			}
			if f.secrets {
				return c.deploySecrets(cmd.Context(), &f, dir)
			}
			o, err := f.options()
			if err != nil {
				return err
			}
			if o.File, o.ReadFile, err = c.readFile(dir, f.file); err != nil {
				return err
			}
			if o.App, err = f.appOf(o.File); err != nil {
				return err
			}
			o.Reason = "deploy"
			p, err := c.Connect()
			if err != nil {
				return err
			}
			if o.Image, err = c.imageOf(cmd.Context(), p, &f, &o, dir); err != nil {
				return err
			}
			return c.deploy(cmd.Context(), p, &f, o)
		},
	}
	f.add(cmd)
	f.addFile(cmd)
	cmd.Flags().StringVarP(&f.image, "image", "i", "", "image to deploy (default that of the file)")
	cmd.Flags().BoolVar(&f.localOnly, "local-only", false, "build the Dockerfile on this computer")
	cmd.Flags().BoolVar(&f.remoteOnly, "remote-only", false, "build the Dockerfile in a Machine of the organization")
	cmd.Flags().StringVar(&f.builder, "builder-image", build.DefaultImage, "image with BuildKit, for a new Machine that builds images")
	cmd.Flags().BoolVar(&f.secrets, "secrets", false, "deploy the current release again, so that Machines receive the secrets of the App")
	return cmd
}

// appOf returns the App of the flag, or of the file.
func (f *flags) appOf(file *appconfig.File) (hangar.AppName, error) {
	name := cmp.Or(hangar.AppName(f.app), file.App)
	if name == "" {
		return "", cli.UsageErrorf("say which App: --app, or app in the file")
	}
	return name, nil
}

// readFile reads the file of an App, and prints its notes on standard error. It also returns a function
// that reads files relative to it.
func (c commands) readFile(dir, named string) (*appconfig.File, func(string) ([]byte, error), error) {
	path, raw, err := findFile(dir, named)
	if err != nil {
		return nil, nil, err
	}
	file, notes, err := appconfig.Parse(filepath.Base(path), raw)
	for _, n := range notes {
		fmt.Fprintf(c.Stderr, "Note: %s:%d: %s\n", filepath.Base(path), n.Line, n)
	}
	if err != nil {
		return nil, nil, cli.UsageError{Err: err}
	}
	read := func(name string) ([]byte, error) {
		if !filepath.IsAbs(name) {
			name = filepath.Join(filepath.Dir(path), name)
		}
		return os.ReadFile(name)
	}
	if err := inline(file, read); err != nil {
		return nil, nil, err
	}
	return file, read, nil
}

// findFile returns the named file, or hangar.toml or else fly.toml in a directory.
func findFile(dir, named string) (path string, raw []byte, err error) {
	names := []string{named}
	if named == "" {
		names = []string{filepath.Join(dir, appconfig.FileName), filepath.Join(dir, appconfig.FileNameCompat)}
	}
	for _, path := range names {
		raw, err = os.ReadFile(path)
		if err == nil || !errors.Is(err, os.ErrNotExist) {
			return path, raw, err
		}
	}
	if named == "" {
		err = fmt.Errorf("there is neither %s nor %s in %s: %w", appconfig.FileName, appconfig.FileNameCompat, dir, os.ErrNotExist)
	}
	return "", nil, cli.WithHint(err, "write one: hangar launch --image IMAGE")
}

// inline replaces the paths of small files with their content, so that a release has it.
func inline(file *appconfig.File, read func(string) ([]byte, error)) error {
	for i := range file.Files {
		one := &file.Files[i]
		if one.LocalPath == "" {
			continue
		}
		content, err := read(one.LocalPath)
		if err != nil {
			return err
		}
		if len(content) <= maxInlined {
			one.SetContent(content)
		}
	}
	return nil
}

// maxInlined bounds the size of a file in a release, in bytes.
const maxInlined = 8 << 10

// deploy makes the plan, and executes it unless --dry-run is set.
func (c commands) deploy(ctx context.Context, p *client.Client, f *flags, o rollout.Options) error {
	ctx, restore := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer restore()
	show := newView(&c.Streams, f.asJSON)
	o.Report = show.event
	d, err := rollout.Prepare(ctx, p, o)
	if err != nil {
		return about(o.App, err)
	}
	if f.dryRun {
		return c.printPlan(d, f.asJSON)
	}
	for _, n := range d.Notes {
		fmt.Fprintf(c.Stderr, "Note: %s\n", n)
	}
	err = d.Run(ctx)
	show.close()
	if err != nil {
		if f.rollback && d.Begun && ctx.Err() == nil {
			return errors.Join(err, c.rollBackFrom(ctx, p, f, d.Release))
		}
		return err
	}
	if f.asJSON {
		return nil
	}
	fmt.Fprintf(c.Stdout, "Release v%d of %s is complete.\n", d.Release.Version, o.App)
	if app, err := p.App(ctx, o.App); err == nil && app.URL != "" && o.File.HTTPService != nil {
		return c.Sayf("  public   %s", app.URL)
	}
	return nil
}

// printPlan prints what a deploy would do.
func (c commands) printPlan(d *rollout.Deploy, asJSON bool) error {
	if asJSON {
		return c.PrintJSON(d.Plan)
	}
	for _, n := range d.Notes {
		fmt.Fprintf(c.Stderr, "Note: %s\n", n)
	}
	if !d.Plan.Changes() {
		return c.Sayf("There is nothing to change.")
	}
	for i, stage := range d.Plan.Stages {
		fmt.Fprintf(c.Stdout, "%d.\n", i+1)
		for _, s := range stage {
			fmt.Fprintf(c.Stdout, "   %s\n", s)
		}
	}
	return nil
}

// deploySecrets deploys the current release again.
func (c commands) deploySecrets(ctx context.Context, f *flags, dir string) error {
	app := hangar.AppName(f.app)
	if app == "" {
		file, _, err := c.readFile(dir, f.file)
		if err != nil {
			return err
		}
		if app, err = f.appOf(file); err != nil {
			return err
		}
	}
	p, err := c.Connect()
	if err != nil {
		return err
	}
	now, err := p.CurrentRelease(ctx, app)
	if err != nil {
		return err
	}
	return c.deployAgain(ctx, p, f, now, "secrets")
}

// Again returns a function that deploys the current release of an App again without its release command, so that
// Machines receive the secrets of the App. The function reports false for an App without a release that can be
// deployed, or without Machines of a deploy.
func Again(inv *cli.Invocation) func(ctx context.Context, p *client.Client, app hangar.AppName, patience time.Duration, out io.Writer) (bool, error) {
	return func(ctx context.Context, p *client.Client, app hangar.AppName, patience time.Duration, out io.Writer) (bool, error) {
		now, err := p.CurrentRelease(ctx, app)
		if hangar.ReasonOf(err) == hangar.ReasonReleaseNotFound || err == nil && len(now.Definition) == 0 {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		managed, err := rollout.Managed(ctx, p, app)
		if managed == 0 || err != nil {
			return false, err
		}
		own := *inv
		own.Stdout = out
		return true, commands{&own}.deployAgain(ctx, p, &flags{skipRelease: true, patience: patience, settling: inv.Settling}, now, "secrets")
	}
}

// rollBackFrom deploys the last complete release before a failed one again. It changes nothing if a newer one is
// complete, as after a deploy that took over.
func (c commands) rollBackFrom(ctx context.Context, p *client.Client, f *flags, failed *hangar.Release) error {
	now, err := p.CurrentRelease(ctx, failed.App)
	switch {
	case err != nil:
		return err
	case now.Status != hangar.ReleaseComplete:
		return noSuchRelease(failed.App)
	case now.Version >= failed.Version:
		return nil
	}
	again := *f
	again.rollback = false
	return c.deployAgain(ctx, p, &again, now, "rollback")
}

func noSuchRelease(app hangar.AppName) error {
	return cli.WithHint(hangar.ReleaseNotFound(), "see `hangar releases list "+string(app)+"`")
}

// rollBack deploys a version again.
func (c commands) rollBack(ctx context.Context, p *client.Client, f *flags, app hangar.AppName, version int) error {
	list, err := p.Releases(ctx, app, 0)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(list, func(r *hangar.Release) bool { return r.Version == version })
	if at < 0 {
		return noSuchRelease(app)
	}
	again := *f
	again.rollback = false
	return c.deployAgain(ctx, p, &again, list[at], "rollback")
}

// deployAgain deploys the definition and image of a release.
func (c commands) deployAgain(ctx context.Context, p *client.Client, f *flags, r *hangar.Release, reason string) error {
	o, err := f.options()
	if err != nil {
		return err
	}
	if len(r.Definition) == 0 {
		return cli.WithHint(fmt.Errorf("release v%d has no definition", r.Version), "deploy its image with the file of the App: hangar deploy --image "+r.Image)
	}
	name := fmt.Sprintf("release v%d", r.Version)
	if o.File, _, err = appconfig.ParseDefinition(name, r.Definition); err != nil {
		return err
	}
	o.App, o.Image, o.Rollback, o.Reason = r.App, r.Image, r.Version, reason
	return c.deploy(ctx, p, f, o)
}
