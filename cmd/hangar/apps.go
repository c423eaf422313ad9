package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
)

func newAppsCommand(c *cli) *cobra.Command {
	cmd := group("apps", "Create, list and destroy Apps", "app")
	cmd.AddCommand(newAppsListCommand(c), newAppsCreateCommand(c), newAppsStatusCommand(c), newAppsDestroyCommand(c))
	return cmd
}

func newAppsListCommand(c *cli) *cobra.Command {
	var (
		f   listFlags
		org string
	)
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List Apps",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := c.connect()
			if err != nil {
				return err
			}
			apps, err := p.Apps(cmd.Context(), hangar.AppFilter{Org: hangar.OrgSlug(org)})
			if err != nil {
				return err
			}
			now := time.Now()
			rows := [][]string{{"NAME", "ORG", "STATUS", "MACHINES", "NETWORK", "CREATED"}}
			for _, a := range apps {
				rows = append(rows, []string{
					string(a.Name), string(a.Org.Slug), string(a.Status), strconv.Itoa(a.MachineCount), a.Network, ago(now, a.CreatedAt),
				})
			}
			return c.printList(f, orEmpty(apps), rows, "No Apps yet. Make one: hangar apps create NAME")
		},
	}
	cmd.Flags().StringVar(&org, "org", "", "only Apps of this organization")
	f.add(cmd, "names")
	return cmd
}

func newAppsCreateCommand(c *cli) *cobra.Command {
	var (
		asJSON       bool
		org, network string
	)
	cmd := &cobra.Command{
		Use:     "create NAME",
		Short:   "Create an App",
		Long:    "Create an App: a named group of Machines with a private network.\n\nNames have at most 63 characters of a-z, 0-9 and dash.",
		Example: "  hangar apps create hello",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := c.connect()
			if err != nil {
				return err
			}
			app, err := p.CreateApp(cmd.Context(), hangar.AppCreate{
				Name: hangar.AppName(args[0]), Org: hangar.OrgSlug(firstOf(org, string(c.used.org))), Network: network,
			})
			if err != nil {
				return err
			}
			if asJSON {
				return c.printJSON(app)
			}
			fmt.Fprintf(c.stdout, "App %s is there. Next: hangar machine run %s IMAGE\n", app.Name, app.Name)
			return nil
		},
	}
	cmd.Flags().StringVar(&org, "org", "", "organization that owns it (default that of the context, yours, or personal)")
	cmd.Flags().StringVar(&network, "network", "", "name of its private network (default the organization's)")
	jsonFlag(cmd, &asJSON)
	return cmd
}

func newAppsStatusCommand(c *cli) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:               "status NAME",
		Aliases:           []string{"show"},
		Short:             "Show an App and its Machines",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.completeApp,
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := c.connect()
			if err != nil {
				return err
			}
			app, err := p.App(cmd.Context(), hangar.AppName(args[0]))
			if err != nil {
				return err
			}
			if asJSON {
				return c.printJSON(app)
			}
			machines, err := p.Machines(cmd.Context(), app.Name, hangar.MachineFilter{})
			if err != nil {
				return err
			}
			var volumes string
			if app.VolumeCount > 0 {
				volumes = strconv.Itoa(app.VolumeCount)
			}
			err = printFields(c.stdout, []field{
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
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func newAppsDestroyCommand(c *cli) *cobra.Command {
	var force, yes bool
	cmd := &cobra.Command{
		Use:               "destroy NAME",
		Aliases:           []string{"rm", "delete"},
		Short:             "Destroy an App with its Machines and volumes",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.completeApp,
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := c.connect()
			if err != nil {
				return err
			}
			app, err := p.App(cmd.Context(), hangar.AppName(args[0]))
			if err != nil {
				return err
			}
			if !yes {
				has := plural(app.MachineCount, "Machine", "Machines")
				if app.VolumeCount > 0 {
					has += " and " + plural(app.VolumeCount, "volume", "volumes")
				}
				if err := c.confirm("Destroy App %s with %s for ever?", app.Name, has); err != nil {
					return err
				}
			}
			if err := p.DestroyApp(cmd.Context(), app.Name, force); err != nil {
				return err
			}
			fmt.Fprintf(c.stdout, "App %s is destroyed.\n", app.Name)
			return nil
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "also when Machines are running")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return cmd
}

// orEmpty makes nil an empty list, so that JSON readers always get an array.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
