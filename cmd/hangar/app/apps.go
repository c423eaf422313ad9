// Package app has the commands about whole Apps: listing and creating them, how they are served and
// what they log.
package app

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

// NewCommand makes `hangar apps`.
func NewCommand(c *cli.Invocation) *cobra.Command {
	cmd := cli.Group("apps", "Create, list and destroy Apps", "app")
	cmd.AddCommand(newListCommand(c), newCreateCommand(c), newStatusCommand(c), newDestroyCommand(c))
	return cmd
}

func newListCommand(c *cli.Invocation) *cobra.Command {
	var org string
	cmd := &cobra.Command{Use: "list", Short: "List Apps", Args: cobra.NoArgs}
	cmd.Flags().StringVar(&org, "org", "", "only Apps of this organization")
	return cli.Listing(c, cmd, cli.Asked(c, func(ctx context.Context, p *client.Client, _ []string) ([]*hangar.App, error) {
		return p.Apps(ctx, hangar.AppFilter{Org: hangar.OrgSlug(org)})
	}), cli.Table[*hangar.App]{
		Head: []string{"NAME", "ORG", "STATUS", "MACHINES", "NETWORK", "CREATED"},
		Row: func(now time.Time, a *hangar.App) []string {
			return []string{string(a.Name), string(a.Org.Slug), string(a.Status), strconv.Itoa(a.MachineCount), a.Network, cli.Ago(now, a.CreatedAt)}
		},
		Names: "names", Hint: "No Apps yet. Make one: hangar apps create NAME",
	})
}

func newCreateCommand(c *cli.Invocation) *cobra.Command {
	var org, network string
	cmd := &cobra.Command{
		Use:     "create NAME",
		Short:   "Create an App",
		Long:    "Create an App: a named group of Machines with a private network.\n\nNames have at most 63 characters of a-z, 0-9 and dash.",
		Example: "  hangar apps create hello",
		Args:    cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&org, "org", "", "organization that owns it (default that of the context, yours, or personal)")
	cmd.Flags().StringVar(&network, "network", "", "name of its private network (default the organization's)")
	return cli.Answering(c, cmd, cli.Asked(c, func(ctx context.Context, p *client.Client, args []string) (*hangar.App, error) {
		return p.CreateApp(ctx, hangar.AppCreate{
			Name: hangar.AppName(args[0]), Org: hangar.OrgSlug(cmp.Or(org, string(c.Used.Org))), Network: network,
		})
	}), func(app *hangar.App) error {
		return c.Sayf("Created App %s. Next: hangar machine run %s IMAGE", app.Name, app.Name)
	})
}

func newStatusCommand(c *cli.Invocation) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "status NAME", Aliases: []string{"show"}, Short: "Show an App and its Machines",
		Args: cobra.ExactArgs(1), ValidArgsFunction: c.CompleteApp,
		RunE: c.Connected(func(ctx context.Context, p *client.Client, args []string) error {
			app, err := p.App(ctx, hangar.AppName(args[0]))
			if err != nil {
				return err
			}
			if asJSON {
				return c.PrintJSON(app)
			}
			machines, err := p.Machines(ctx, app.Name, hangar.MachineFilter{})
			if err != nil {
				return err
			}
			var volumes string
			if app.VolumeCount > 0 {
				volumes = strconv.Itoa(app.VolumeCount)
			}
			err = c.PrintFields([]cli.Field{
				{"Name", string(app.Name)},
				{"Organization", string(app.Org.Slug)},
				{"Status", string(app.Status)},
				{"Network", app.Network},
				{"Volumes", volumes},
				{"Created", cli.Ago(time.Now(), app.CreatedAt)},
			})
			if err != nil || len(machines) == 0 {
				return err
			}
			fmt.Fprintln(c.Stdout)
			return c.PrintTable(cli.MachineRows(machines, true))
		}),
	}
	cli.JSONFlag(cmd, &asJSON)
	return cmd
}

func newDestroyCommand(c *cli.Invocation) *cobra.Command {
	var force, yes bool
	cmd := &cobra.Command{
		Use: "destroy NAME", Aliases: []string{"rm", "delete"}, Short: "Destroy an App with its Machines and volumes",
		Args: cobra.ExactArgs(1), ValidArgsFunction: c.CompleteApp,
		RunE: c.Connected(func(ctx context.Context, p *client.Client, args []string) error {
			app, err := p.App(ctx, hangar.AppName(args[0]))
			if err != nil {
				return err
			}
			has := cli.Plural(app.MachineCount, "Machine", "Machines")
			if app.VolumeCount > 0 {
				has += " and " + cli.Plural(app.VolumeCount, "volume", "volumes")
			}
			if err := c.ConfirmUnless(yes, "Destroy App %s with %s permanently?", app.Name, has); err != nil {
				return err
			}
			if err := p.DestroyApp(ctx, app.Name, force); err != nil {
				return err
			}
			return c.Sayf("App %s is destroyed.", app.Name)
		}),
	}
	cmd.Flags().BoolVar(&force, "force", false, "also when Machines are running")
	cli.YesFlag(cmd, &yes)
	return cmd
}
