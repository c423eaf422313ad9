// Package secret has the commands for the secrets and secret keys of Apps.
package secret

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/cmd/hangar/cli/follow"
)

// Redeploy deploys the current release of an App again, so that its Machines get the newest secrets. If the App has no
// release, or its release has no Machines, it does nothing and returns false.
type Redeploy func(ctx context.Context, p *client.Client, app hangar.AppName, patience time.Duration, out io.Writer) (bool, error)

// commands make the commands of one invocation.
type commands struct {
	*cli.Invocation

	redeploy Redeploy
}

// NewCommand returns `hangar secrets`.
func NewCommand(inv *cli.Invocation, redeploy Redeploy) *cobra.Command {
	c := commands{inv, redeploy}
	cmd := cli.Group("secrets", "Manage the secrets of Apps", "secret")
	cmd.AddCommand(newSetCommand(c), newImportCommand(c), newUnsetCommand(c), newListCommand(c),
		newDeployCommand(c), newRotateKeyCommand(c))
	return cmd
}

// secretsFlags are the flags of commands that change secrets.
type secretsFlags struct {
	stage    bool
	deploy   bool
	asJSON   bool
	patience time.Duration
}

func (f *secretsFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.BoolVar(&f.stage, "stage", false, "only store the secrets, and do not list outdated Machines")
	fs.BoolVar(&f.deploy, "deploy", false, "update every Machine of the App now; started ones reboot")
	fs.DurationVar(&f.patience, "timeout", cli.DefaultPatience, "how long to wait for Machines, with --deploy")
	cli.JSONFlag(cmd, &f.asJSON)
	cmd.MarkFlagsMutuallyExclusive("stage", "deploy")
}

const setLong = `Set secrets of an App. Its Machines have them as environment variables. A Machine gets
the secrets that exist when a version of it is created: new Machines get the new secrets
at once, others with their next update. --deploy updates them now.

Other users of this computer can see the command line, and it stays in the history of the
shell. To avoid that, read one value from standard input with --stdin, or many with
` + "`hangar secrets import`" + `.`

const setExample = `  hangar secrets set hello MODE=prod LEVEL=3
  hangar secrets set hello TOKEN --stdin < token
  hangar secrets set hello TOKEN=… --deploy`

func newSetCommand(c commands) *cobra.Command {
	var (
		f         secretsFlags
		fromStdin bool
	)
	cmd := &cobra.Command{
		Use:               "set APP NAME=VALUE…",
		Short:             "Set secrets",
		Long:              setLong,
		Example:           setExample,
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: c.CompleteApp,
		RunE: func(cmd *cobra.Command, args []string) error {
			values, err := c.secretArgs(args[1:], fromStdin)
			if err != nil {
				return err
			}
			return c.changeSecrets(cmd.Context(), hangar.AppName(args[0]), values, &f)
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&fromStdin, "stdin", false, "read the value of the one secret NAME from standard input")
	return cmd
}

// maxSecretsInput bounds standard input, in bytes.
const maxSecretsInput = 4 * hangar.MaxSecretsSize

// secretArgs reads NAME=VALUE arguments, or one NAME whose value is on standard input.
func (c commands) secretArgs(args []string, fromStdin bool) (map[string]hangar.Sensitive, error) {
	values := map[string]hangar.Sensitive{}
	if fromStdin {
		if len(args) != 1 || strings.Contains(args[0], "=") {
			return nil, cli.UsageErrorf("--stdin sets one secret: give only its NAME")
		}
		raw, err := io.ReadAll(io.LimitReader(c.Stdin, maxSecretsInput))
		if err != nil {
			return nil, fmt.Errorf("read standard input: %w", err)
		}
		values[args[0]] = hangar.NewSensitive(strings.TrimSuffix(string(raw), "\n"))
		return values, nil
	}
	for i, arg := range args {
		name, value, ok := strings.Cut(arg, "=")
		if !ok { // it may be a value, so it is not repeated
			return nil, cli.UsageErrorf("argument %d after APP is not NAME=VALUE; use --stdin to read the value from standard input", i+1)
		}
		values[name] = hangar.NewSensitive(value)
	}
	return values, nil
}

func newImportCommand(c commands) *cobra.Command {
	var f secretsFlags
	cmd := &cobra.Command{
		Use:   "import APP < FILE",
		Short: "Set secrets from NAME=VALUE lines on standard input",
		Long: "Set secrets from NAME=VALUE lines on standard input. Empty lines and lines that begin with # are\n" +
			"ignored. A value may be in quotes, or span several lines between \"\"\" and \"\"\".",
		Example:           "  hangar secrets import hello < .env",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.CompleteApp,
		RunE: func(cmd *cobra.Command, args []string) error {
			raw, err := io.ReadAll(io.LimitReader(c.Stdin, maxSecretsInput))
			if err != nil {
				return fmt.Errorf("read standard input: %w", err)
			}
			values, err := parseSecrets(string(raw))
			if err != nil {
				return err
			}
			return c.changeSecrets(cmd.Context(), hangar.AppName(args[0]), values, &f)
		},
	}
	f.add(cmd)
	return cmd
}

const manyLines = `"""` // before and after a value of several lines

// parseSecrets reads NAME=VALUE lines. Its errors have the numbers of lines, but not their content.
func parseSecrets(text string) (map[string]hangar.Sensitive, error) {
	values := map[string]hangar.Sensitive{}
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		line := strings.TrimSpace(lines[i])
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, value, ok := strings.Cut(strings.TrimPrefix(line, "export "), "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		if !ok {
			return nil, cli.UsageErrorf("line %d is not NAME=VALUE", i+1)
		}
		if rest, ok := strings.CutPrefix(value, manyLines); ok {
			first := i + 1
			for !strings.HasSuffix(rest, manyLines) {
				if i++; i == len(lines) {
					return nil, cli.UsageErrorf("line %d: the value has no closing \"\"\"", first)
				}
				rest += "\n" + strings.TrimSuffix(lines[i], "\r")
			}
			value = strings.TrimSuffix(rest, manyLines)
		} else if n := len(value); n >= 2 && (value[0] == '"' || value[0] == '\'') && value[n-1] == value[0] {
			value = value[1 : n-1]
		}
		values[name] = hangar.NewSensitive(value)
	}
	if len(values) == 0 {
		return nil, cli.UsageErrorf("standard input has no line NAME=VALUE")
	}
	return values, nil
}

func newUnsetCommand(c commands) *cobra.Command {
	var f secretsFlags
	cmd := &cobra.Command{
		Use:               "unset APP NAME…",
		Aliases:           []string{"rm", "remove"},
		Short:             "Remove secrets",
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: c.CompleteApp,
		RunE: func(cmd *cobra.Command, args []string) error {
			values := map[string]hangar.Sensitive{}
			for _, name := range args[1:] {
				values[name] = hangar.Sensitive{}
			}
			return c.changeSecrets(cmd.Context(), hangar.AppName(args[0]), values, &f)
		},
	}
	f.add(cmd)
	return cmd
}

// changeSecrets stores secrets. With --deploy it also updates the Machines; otherwise it lists the outdated ones.
func (c commands) changeSecrets(ctx context.Context, app hangar.AppName, values map[string]hangar.Sensitive, f *secretsFlags) error {
	p, err := c.Connect()
	if err != nil {
		return err
	}
	all, err := p.SetSecrets(ctx, app, values)
	if err != nil {
		return err
	}
	if f.asJSON {
		if f.deploy {
			err = c.deploySecrets(ctx, p, app, all.Version, f.patience, io.Discard)
		}
		if err != nil {
			return err
		}
		return c.PrintJSON(all)
	}
	fmt.Fprintf(c.Stdout, "The secrets of App %s are at version %d.\n", app, all.Version)
	switch {
	case f.stage:
		return nil
	case f.deploy:
		return c.deploySecrets(ctx, p, app, all.Version, f.patience, c.Stdout)
	}
	lagging, err := withoutSecrets(ctx, p, app, all.Version)
	if err != nil || len(lagging) == 0 {
		return err
	}
	fmt.Fprintf(c.Stdout, "%s outdated until the next update: %s\nTo update now: hangar secrets deploy %s\n",
		cli.Plural(len(lagging), "Machine is", "Machines are"), strings.Join(ids(lagging), " "), app)
	return nil
}

func ids(machines []*hangar.Machine) []string {
	list := make([]string, 0, len(machines))
	for _, m := range machines {
		list = append(list, string(m.ID))
	}
	return list
}

// withoutSecrets returns the Machines of an App that have an older version of its secrets.
func withoutSecrets(ctx context.Context, p *client.Client, app hangar.AppName, version int) ([]*hangar.Machine, error) {
	machines, err := p.Machines(ctx, app, hangar.MachineFilter{})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(machines, func(m *hangar.Machine) bool { return m.SecretsVersion >= version }), nil
}

// deploySecrets updates the Machines that have old secrets. It updates Machines of a deploy with a new release, and then
// the others one after the other, so that bad secrets stop only the first one.
func (c commands) deploySecrets(ctx context.Context, p *client.Client, app hangar.AppName, version int, patience time.Duration, out io.Writer) error {
	lagging, err := withoutSecrets(ctx, p, app, version)
	if err != nil {
		return err
	}
	if len(lagging) == 0 {
		fmt.Fprintln(out, "Every Machine has the newest secrets.")
		return nil
	}
	if deployed, err := c.redeploy(ctx, p, app, patience, out); err != nil {
		return err
	} else if deployed {
		if lagging, err = withoutSecrets(ctx, p, app, version); err != nil {
			return err
		}
	}
	for _, m := range lagging {
		wanted := hangar.MachineStopped
		if m.State == hangar.MachineStarted {
			wanted = hangar.MachineStarted
		}
		if m.State == hangar.MachineSuspended {
			fmt.Fprintf(out, "Machine %s is suspended: its memory is discarded, and it boots at its next start\n", m.ID)
		}
		updated, err := p.UpdateMachine(ctx, m.Ref(), hangar.MachineUpdate{
			Config: m.Config, CurrentVersion: m.InstanceID, MinSecretsVersion: version,
		})
		if err == nil {
			updated, err = follow.Machine(ctx, p, updated, wanted, patience, c.Progress())
		}
		if err != nil {
			return cli.AboutMachine(m.ID, err)
		}
		fmt.Fprintf(out, "Machine %s has the newest secrets and is %s\n", updated.ID, updated.State)
	}
	return nil
}

func newDeployCommand(c commands) *cobra.Command {
	var patience time.Duration
	cmd := &cobra.Command{
		Use:   "deploy APP",
		Short: "Update the Machines that have old secrets",
		Long: "Update every Machine of an App to the newest secrets. Machines of a deploy are updated by a new release with the\n" +
			"content of the current one, according to its strategy; its release command does not run. Others get a new version\n" +
			"with the same config, one after the other. A started Machine reboots; any other stays stopped, and a suspended\n" +
			"one loses its memory. The command stops at the first Machine that fails.",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.CompleteApp,
		RunE: c.Connected(func(ctx context.Context, p *client.Client, args []string) error {
			app := hangar.AppName(args[0])
			all, err := p.Secrets(ctx, app, hangar.SecretQuery{})
			if err != nil {
				return err
			}
			return c.deploySecrets(ctx, p, app, all.Version, patience, c.Stdout)
		}),
	}
	cmd.Flags().DurationVar(&patience, "timeout", cli.DefaultPatience, "how long to wait for each Machine")
	return cmd
}

func newListCommand(c commands) *cobra.Command {
	var f cli.ListFlags
	cmd := &cobra.Command{
		Use:               "list APP",
		Aliases:           []string{"ls"},
		Short:             "List the names of secrets",
		Long:              "List the names of secrets, with digests of their values. A digest changes only if the value does. The value is not shown.",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.CompleteApp,
		RunE: c.Connected(func(ctx context.Context, p *client.Client, args []string) error {
			all, err := p.Secrets(ctx, hangar.AppName(args[0]), hangar.SecretQuery{})
			if err != nil {
				return err
			}
			now := time.Now()
			rows := [][]string{{"NAME", "DIGEST", "UPDATED"}}
			for _, s := range all.List {
				rows = append(rows, []string{s.Name, s.Digest, cli.Ago(now, s.UpdatedAt)})
			}
			return c.PrintList(f, hangar.Secrets{List: cli.OrEmpty(all.List), Version: all.Version}, rows, fmt.Sprintf("No secrets yet. Set one: hangar secrets set %s NAME=VALUE", args[0]))
		}),
	}
	f.Add(cmd, "names")
	return cmd
}
