package machine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/cmd/hangar/cli/follow"
)

const runLong = `Run an image as a new Machine of an App, wait until it is started and say how to
reach it. If the Machine has a port that the shared address can serve, an App without an
address gets the shared one.

Unless --detach is given, the command watches the Machine for two seconds after its start. If its
program ends in that time, the command prints its exit code and the last lines of its log. The exit code of
the command is then 1, or 0 for a job: a Machine without ports whose program ends with 0.

The arguments after IMAGE replace the image's command; write -- before them if they
include flags.`

const runExample = `  hangar machine run hello nginx:alpine --port 80:80
  hangar machine run jobs debian:12 --rm -- sh -c 'echo done'
  hangar machine run api registry.example.com/api@sha256:… --memory 1gb --env MODE=prod -p 443:8080/tcp:tls+http \
    --autostop suspend --autostop-after 1m --concurrency 20:50:requests`

// launchFlags are the flags of the commands that create a Machine.
type launchFlags struct {
	config     configFlags
	name       string
	region     string
	skipLaunch bool
	cordoned   bool
	detach     bool
	asJSON     bool
	quiet      bool
	patience   time.Duration
}

func (f *launchFlags) add(c commands, cmd *cobra.Command) {
	f.config.add(cmd)
	_ = cmd.RegisterFlagCompletionFunc("volume", c.completeMount)
	fs := cmd.Flags()
	fs.StringVar(&f.name, "name", "", "name of the Machine, unique in its App (default a generated one)")
	fs.StringVar(&f.region, "region", "", "region to run in (default the server's)")
	fs.BoolVar(&f.skipLaunch, "skip-launch", false, "create the Machine and leave it stopped")
	fs.BoolVar(&f.cordoned, "cordoned", false, "do not send it requests yet")
	fs.BoolVarP(&f.detach, "detach", "d", false, "return as soon as the Machine is recorded")
	fs.DurationVar(&f.patience, "timeout", cli.DefaultPatience, "how long to wait")
	cli.JSONFlag(cmd, &f.asJSON)
	cli.QuietFlag(cmd, &f.quiet, "the id of the Machine")
}

func newRunCommand(c commands) *cobra.Command {
	var f launchFlags
	cmd := &cobra.Command{
		Use:               "run APP IMAGE [-- COMMAND…]",
		Short:             "Run an image as a new Machine",
		Long:              runLong,
		Example:           runExample,
		Args:              imageArgs(&f.config),
		ValidArgsFunction: c.CompleteApp,
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.launch(cmd, &f, args)
		},
	}
	f.add(c, cmd)
	return cmd
}

func newCreateCommand(c commands) *cobra.Command {
	f := launchFlags{}
	cmd := &cobra.Command{
		Use:               "create APP IMAGE [-- COMMAND…]",
		Short:             "Create a Machine without starting it",
		Long:              "Create a Machine and leave it stopped; `hangar machine start` boots it.",
		Args:              imageArgs(&f.config),
		ValidArgsFunction: c.CompleteApp,
		RunE: func(cmd *cobra.Command, args []string) error {
			f.skipLaunch = true
			return c.launch(cmd, &f, args)
		},
	}
	f.add(c, cmd)
	_ = cmd.Flags().MarkHidden("skip-launch")
	return cmd
}

// imageArgs requires APP and IMAGE, or APP alone when a config file is given.
func imageArgs(f *configFlags) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return cli.UsageErrorf("APP and IMAGE are missing")
		case len(args) == 1 && f.file == "":
			return cli.UsageErrorf("IMAGE is missing")
		}
		return nil
	}
}

// launch creates a Machine from APP [IMAGE] [COMMAND…] and follows its start.
func (c commands) launch(cmd *cobra.Command, f *launchFlags, args []string) error {
	app, command := hangar.AppName(args[0]), []string(nil)
	// With --config, the file names the image and the arguments after APP -- are the command.
	if rest := args[1:]; cmd.ArgsLenAtDash() == 1 {
		command = rest
	} else if len(rest) > 0 {
		f.config.image, command = rest[0], rest[1:]
	}
	base, err := f.config.base(c.Invocation)
	if err != nil {
		return err
	}
	patch, err := f.config.patch(c.Invocation, cmd, base, command)
	if err != nil {
		return err
	}
	config, err := patched(base, patch)
	if err != nil {
		return err
	}
	if config.ImageName() == "" {
		return cli.UsageErrorf("the image is missing")
	}
	p, err := c.Connect()
	if err != nil {
		return err
	}
	return c.createAndFollow(cmd.Context(), p, app, f, config)
}

// createAndFollow creates a Machine and follows its start. If the Machine cannot be created, it destroys the volumes in made.
func (c commands) createAndFollow(
	ctx context.Context, p *client.Client, app hangar.AppName, f *launchFlags, config hangar.MachineConfig, made ...*hangar.Volume,
) error {
	began := time.Now()
	m, err := createMachine(ctx, p, app, f, config)
	if err != nil {
		return errors.Join(err, destroyVolumes(ctx, p, made))
	}
	url := ""
	if !f.skipLaunch {
		url = c.openApp(ctx, p, app, &config)
	}
	if !f.detach {
		wanted := hangar.MachineStarted
		if f.skipLaunch || config.StandsBy() {
			wanted = hangar.MachineStopped
		}
		created := m
		if m, err = follow.Machine(ctx, p, m, wanted, f.patience, c.Progress()); err != nil {
			return discard(ctx, p, created, made, err)
		}
		took := time.Since(began)
		if wanted == hangar.MachineStarted {
			if exit, err := c.settled(ctx, p, m); err != nil {
				return err
			} else if exit != nil {
				return c.printEnded(ctx, p, m, f, exit)
			}
		}
		return c.printLaunched(m, f, took, cli.Field{"  public", url})
	}
	return c.printLaunched(m, f, time.Since(began), cli.Field{"  public", url})
}

// discard destroys a new Machine whose image could not be pulled, and the volumes that were created for it. It adds
// both to the error. A Machine that failed for another reason stays, because its logs say why.
func discard(ctx context.Context, p *client.Client, m *hangar.Machine, made []*hangar.Volume, failure error) error {
	ctx = context.WithoutCancel(ctx)
	events, err := p.MachineEvents(ctx, m.Ref(), 0)
	if err != nil || !slices.ContainsFunc(events, func(e hangar.Event) bool {
		return e.Type == hangar.EventLaunch && e.Request != nil && e.Request.Error != ""
	}) {
		return failure
	}
	if err := p.DestroyMachine(ctx, m.Ref(), hangar.MachineDestroy{Force: true}); err != nil {
		return errors.Join(failure, fmt.Errorf("destroy it: %w", err))
	}
	failure = errors.Join(fmt.Errorf("%w; the Machine is destroyed again", failure), destroyVolumes(ctx, p, made))
	return cli.WithHint(failure, "try again later, or push an image of your own with `hangar image push`")
}

func createMachine(ctx context.Context, p *client.Client, app hangar.AppName, f *launchFlags, config hangar.MachineConfig) (*hangar.Machine, error) {
	if err := pickVolumes(ctx, p, app, hangar.Region(f.region), "", &config); err != nil {
		return nil, err
	}
	m, err := p.CreateMachine(ctx, app, hangar.MachineCreate{
		Name: f.name, Region: hangar.Region(f.region), Config: config,
		SkipLaunch: f.skipLaunch, SkipServiceRegistration: f.cordoned,
	})
	if hangar.ReasonOf(err) == hangar.ReasonAppNotFound {
		err = cli.WithHint(err, "create it first: hangar apps create "+string(app))
	}
	return m, err
}

// printLaunched prints how to reach a Machine, the public addresses first.
func (c commands) printLaunched(m *hangar.Machine, f *launchFlags, took time.Duration, public ...cli.Field) error {
	switch {
	case f.asJSON:
		return c.PrintJSON(m)
	case f.quiet:
		return c.Sayf("%s", m.ID)
	}
	if f.detach {
		return c.Sayf("Machine %s (%s) is recorded and boots by itself.", m.ID, m.Name)
	}
	fmt.Fprintf(c.Stdout, "Machine %s (%s) is %s after %s.\n", m.ID, m.Name, m.State, cli.Brief(took))
	return c.PrintFields(append(public, reach(m)...))
}

// reach returns the lines that tell the user how to reach a Machine, or how to start it.
func reach(m *hangar.Machine) []cli.Field {
	machine := fmt.Sprintf("%s %s", m.App, m.ID)
	switch m.State {
	case hangar.MachineStarted:
	case hangar.MachineDestroying, hangar.MachineDestroyed:
		return []cli.Field{{"  logs", "hangar logs " + machine}}
	default:
		return []cli.Field{{"  start", "hangar machine start " + machine}}
	}
	fields := []cli.Field{{"  address", cli.AddressText(m)}}
	for _, s := range m.Config.Services {
		at := net.JoinHostPort(cli.AddressText(m), strconv.Itoa(s.InternalPort))
		if slices.ContainsFunc(s.Ports, func(p hangar.ServicePort) bool { return slices.Contains(p.Handlers, "http") }) {
			at = "curl http://" + at
		}
		fields = append(fields, cli.Field{"  from this server", at})
	}
	return append(fields,
		cli.Field{"  logs", "hangar logs -f " + machine},
		cli.Field{"  shell", "hangar machine exec -it " + machine + " sh"},
	)
}

func newCloneCommand(c commands) *cobra.Command {
	var (
		f               launchFlags
		toApp, snapshot string
	)
	cmd := &cobra.Command{
		Use:   "clone APP MACHINE [-- COMMAND…]",
		Short: "Run a new Machine with the config of another",
		Long: "Run a new Machine with the config of another. For each volume of the other Machine it gets a new one of the\n" +
			"same settings: empty, or with --from-snapshot the content of a snapshot. --volume mounts an existing volume instead.",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: c.CompleteMachine,
		RunE: func(cmd *cobra.Command, args []string) error {
			named, command := splitCommand(cmd, args, 2)
			p, source, err := c.OneMachine(cmd.Context(), named)
			if err != nil {
				return err
			}
			config, err := f.config.change(c.Invocation, cmd, source, command)
			if err != nil {
				return err
			}
			app := hangar.AppName(cmp.Or(toApp, string(source.App)))
			made, err := c.cloneVolumes(cmd.Context(), p, source, app, &f, snapshot, &config)
			if err != nil {
				return err
			}
			return c.createAndFollow(cmd.Context(), p, app, &f, config, made...)
		},
	}
	f.add(c, cmd)
	cmd.Flags().StringVar(&f.config.image, "image", "", "another image")
	cmd.Flags().StringArrayVar(&f.config.unsetEnv, "unset-env", nil, "remove a variable; may be repeated")
	cmd.Flags().StringVar(&snapshot, "from-snapshot", "", "fill its new volume from this snapshot, or `last` for the newest one")
	cmd.Flags().StringVar(&toApp, "to-app", "", "App of the new Machine (default the same)")
	return cmd
}

func newUpdateCommand(c commands) *cobra.Command {
	var f launchFlags
	cmd := &cobra.Command{
		Use:   "update APP MACHINE [-- COMMAND…]",
		Short: "Change the config of a Machine",
		Long: "Change the settings that have a flag, and keep the rest of the config. A started Machine reboots\n" +
			"with its new version; any other stays stopped. --port replaces all ports of the Machine; without it,\n" +
			"flags such as --autostop apply to the ports that the Machine has.",
		Example: "  hangar machine update hello 3d8d413b29d089 --image nginx:1.29 --memory 512\n" +
			"  hangar machine update hello --autostop suspend --autostop-after 1m",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: c.CompleteMachine,
		RunE: func(cmd *cobra.Command, args []string) error {
			named, command := splitCommand(cmd, args, 2)
			p, m, err := c.OneMachine(cmd.Context(), named)
			if err != nil {
				return err
			}
			config, err := f.config.change(c.Invocation, cmd, m, command)
			if err != nil {
				return err
			}
			if err := pickVolumes(cmd.Context(), p, m.App, "", m.ID, &config); err != nil {
				return err
			}
			began, wanted := time.Now(), hangar.MachineStopped
			if m.State == hangar.MachineStarted && !f.skipLaunch && !config.StandsBy() {
				wanted = hangar.MachineStarted
			}
			m, err = p.UpdateMachine(cmd.Context(), m.Ref(), hangar.MachineUpdate{
				Config: config, CurrentVersion: m.InstanceID, SkipLaunch: f.skipLaunch, SkipServiceRegistration: f.cordoned,
			})
			if err != nil {
				return err
			}
			if !f.detach {
				if m, err = follow.Machine(cmd.Context(), p, m, wanted, f.patience, c.Progress()); err != nil {
					return err
				}
			}
			return c.printLaunched(m, &f, time.Since(began))
		},
	}
	f.add(c, cmd)
	_ = cmd.Flags().MarkHidden("name")
	_ = cmd.Flags().MarkHidden("region")
	cmd.Flags().StringVar(&f.config.image, "image", "", "another image")
	cmd.Flags().StringArrayVar(&f.config.unsetEnv, "unset-env", nil, "remove a variable; may be repeated")
	return cmd
}

// change applies the flags to the config of an existing Machine.
func (f *configFlags) change(c *cli.Invocation, cmd *cobra.Command, m *hangar.Machine, command []string) (hangar.MachineConfig, error) {
	base, err := f.base(c)
	if err != nil {
		return hangar.MachineConfig{}, err
	}
	if f.file == "" {
		if base, err = asObject(m.Config); err != nil {
			return hangar.MachineConfig{}, err
		}
	}
	patch, err := f.patch(c, cmd, base, command)
	if err != nil {
		return hangar.MachineConfig{}, err
	}
	if f.file == "" && len(patch) == 0 && cmd.Name() == "update" {
		return hangar.MachineConfig{}, cli.UsageErrorf("nothing to change: give a flag, such as --image or --memory")
	}
	return patched(base, patch)
}

// splitCommand divides arguments into at most n names and a command: at the -- if there is one, else after the names.
func splitCommand(cmd *cobra.Command, args []string, n int) (names, command []string) {
	at := cmd.ArgsLenAtDash()
	if at < 0 || at > n {
		at = min(n, len(args))
	}
	return args[:at], args[at:]
}
