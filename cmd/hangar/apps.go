package main

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
)

func newAppsCommand(c *cli) *cobra.Command {
	cmd := group("apps", "Create, list and destroy Apps", "app")
	cmd.AddCommand(newAppsListCommand(c), newAppsCreateCommand(c), newAppsStatusCommand(c), newAppsDestroyCommand(c))
	return cmd
}

func newAppsListCommand(c *cli) *cobra.Command {
	var org string
	cmd := &cobra.Command{Use: "list", Short: "List Apps", Args: cobra.NoArgs}
	cmd.Flags().StringVar(&org, "org", "", "only Apps of this organization")
	return listing(c, cmd, asked(c, func(ctx context.Context, p *client.Client, _ []string) ([]*hangar.App, error) {
		return p.Apps(ctx, hangar.AppFilter{Org: hangar.OrgSlug(org)})
	}), table[*hangar.App]{
		head: []string{"NAME", "ORG", "STATUS", "MACHINES", "NETWORK", "CREATED"},
		row: func(now time.Time, a *hangar.App) []string {
			return []string{string(a.Name), string(a.Org.Slug), string(a.Status), strconv.Itoa(a.MachineCount), a.Network, ago(now, a.CreatedAt)}
		},
		names: "names", hint: "No Apps yet. Make one: hangar apps create NAME",
	})
}

func newAppsCreateCommand(c *cli) *cobra.Command {
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
	return answering(c, cmd, asked(c, func(ctx context.Context, p *client.Client, args []string) (*hangar.App, error) {
		return p.CreateApp(ctx, hangar.AppCreate{
			Name: hangar.AppName(args[0]), Org: hangar.OrgSlug(cmp.Or(org, string(c.used.org))), Network: network,
		})
	}), func(app *hangar.App) error {
		return c.sayf("App %s is there. Next: hangar machine run %s IMAGE", app.Name, app.Name)
	})
}

func newAppsStatusCommand(c *cli) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "status NAME", Aliases: []string{"show"}, Short: "Show an App and its Machines",
		Args: cobra.ExactArgs(1), ValidArgsFunction: c.completeApp,
		RunE: c.connected(func(ctx context.Context, p *client.Client, args []string) error {
			app, err := p.App(ctx, hangar.AppName(args[0]))
			if err != nil {
				return err
			}
			if asJSON {
				return c.printJSON(app)
			}
			machines, err := p.Machines(ctx, app.Name, hangar.MachineFilter{})
			if err != nil {
				return err
			}
			var volumes string
			if app.VolumeCount > 0 {
				volumes = strconv.Itoa(app.VolumeCount)
			}
			err = c.printFields([]field{
				{"Name", string(app.Name)},
				{"Organization", string(app.Org.Slug)},
				{"Status", string(app.Status)},
				{"Network", app.Network},
				{"Volumes", volumes},
				{"Created", ago(time.Now(), app.CreatedAt)},
			})
			if err != nil || len(machines) == 0 {
				return err
			}
			fmt.Fprintln(c.stdout)
			return c.printTable(machineRows(machines, true))
		}),
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func newAppsDestroyCommand(c *cli) *cobra.Command {
	var force, yes bool
	cmd := &cobra.Command{
		Use: "destroy NAME", Aliases: []string{"rm", "delete"}, Short: "Destroy an App with its Machines and volumes",
		Args: cobra.ExactArgs(1), ValidArgsFunction: c.completeApp,
		RunE: c.connected(func(ctx context.Context, p *client.Client, args []string) error {
			app, err := p.App(ctx, hangar.AppName(args[0]))
			if err != nil {
				return err
			}
			has := plural(app.MachineCount, "Machine", "Machines")
			if app.VolumeCount > 0 {
				has += " and " + plural(app.VolumeCount, "volume", "volumes")
			}
			if err := c.confirmUnless(yes, "Destroy App %s with %s for ever?", app.Name, has); err != nil {
				return err
			}
			if err := p.DestroyApp(ctx, app.Name, force); err != nil {
				return err
			}
			return c.sayf("App %s is destroyed.", app.Name)
		}),
	}
	cmd.Flags().BoolVar(&force, "force", false, "also when Machines are running")
	yesFlag(cmd, &yes)
	return cmd
}

// orEmpty makes nil an empty list, so that JSON readers always get an array.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
