package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
)

func newOrgsCommand(c *cli) *cobra.Command {
	cmd := group("orgs", "Create, list and delete organizations", "org")
	cmd.AddCommand(newOrgsListCommand(c), newOrgsCreateCommand(c), newOrgsShowCommand(c), newOrgsDeleteCommand(c), newOrgsQuotaCommand(c))
	return cmd
}

func newOrgsListCommand(c *cli) *cobra.Command {
	var f listFlags
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List organizations",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := c.connect()
			if err != nil {
				return err
			}
			orgs, err := p.Orgs(cmd.Context())
			if err != nil {
				return err
			}
			rows := [][]string{{"SLUG", "NAME", "NUMBER"}}
			for _, o := range orgs {
				rows = append(rows, []string{string(o.Slug), o.Name, strconv.FormatUint(o.NumericID, 10)})
			}
			return c.printList(f, orEmpty(orgs), rows, "")
		},
	}
	f.add(cmd, "slugs")
	return cmd
}

func newOrgsCreateCommand(c *cli) *cobra.Command {
	var (
		asJSON bool
		name   string
	)
	cmd := &cobra.Command{
		Use:   "create SLUG",
		Short: "Create an organization",
		Long: `Create an organization: the owner of Apps, networks, tokens and images.

Its slug has at most 63 characters of a-z, 0-9 and dash, and never changes. Apps of
different organizations do not see each other; a token made for one organization
opens no other.`,
		Example: "  hangar orgs create acme --name \"Acme Corporation\"\n  hangar apps create shop --org acme",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := c.connect()
			if err != nil {
				return err
			}
			org, err := p.CreateOrg(cmd.Context(), hangar.OrgCreate{Slug: hangar.OrgSlug(args[0]), Name: name})
			if err != nil {
				return err
			}
			if asJSON {
				return c.printJSON(org)
			}
			fmt.Fprintf(c.stdout, "Organization %s is there. Next: hangar apps create NAME --org %s\n", org.Slug, org.Slug)
			return nil
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "name for people (default the slug)")
	jsonFlag(cmd, &asJSON)
	return cmd
}

func newOrgsShowCommand(c *cli) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:               "show SLUG",
		Aliases:           []string{"status"},
		Short:             "Show an organization and its Apps",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.completeOrg,
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := c.connect()
			if err != nil {
				return err
			}
			org, err := p.Org(cmd.Context(), hangar.OrgSlug(args[0]))
			if err != nil {
				return err
			}
			if asJSON {
				return c.printJSON(org)
			}
			apps, err := p.Apps(cmd.Context(), hangar.AppFilter{Org: org.Slug})
			if err != nil {
				return err
			}
			fields := []field{{"Slug", string(org.Slug)}, {"Name", org.Name}, {"Id", string(org.ID)}, {"Apps", strconv.Itoa(len(apps))}}
			for _, a := range apps {
				fields = append(fields, field{"", string(a.Name)})
			}
			return printFields(c.stdout, fields)
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func newOrgsDeleteCommand(c *cli) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:               "delete SLUG",
		Aliases:           []string{"rm", "destroy"},
		Short:             "Delete an organization that has no Apps, with its tokens",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.completeOrg,
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := c.connect()
			if err != nil {
				return err
			}
			org, err := p.Org(cmd.Context(), hangar.OrgSlug(args[0]))
			if err != nil {
				return err
			}
			if !yes {
				if err := c.confirm("Delete organization %s and all of its tokens for ever?", org.Slug); err != nil {
					return err
				}
			}
			if err := p.DeleteOrg(cmd.Context(), org.Slug); err != nil {
				return err
			}
			fmt.Fprintf(c.stdout, "Organization %s is deleted.\n", org.Slug)
			return nil
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return cmd
}
