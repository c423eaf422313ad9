package account

import (
	"context"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

// NewOrgsCommand makes `hangar orgs`.
func NewOrgsCommand(inv *cli.Invocation) *cobra.Command {
	c := commands{inv}
	cmd := cli.Group("orgs", "Create, list and delete organizations", "org")
	cmd.AddCommand(newOrgsListCommand(c), newOrgsCreateCommand(c), newOrgsShowCommand(c), newOrgsDeleteCommand(c), newOrgsQuotaCommand(c))
	return cmd
}

func newOrgsListCommand(c commands) *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List organizations", Args: cobra.NoArgs}
	return cli.Listing(c.Invocation, cmd, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, _ []string) ([]*hangar.Org, error) {
		return p.Orgs(ctx)
	}), cli.Table[*hangar.Org]{
		Head: []string{"SLUG", "NAME", "NUMBER"},
		Row: func(_ time.Time, o *hangar.Org) []string {
			return []string{string(o.Slug), o.Name, strconv.FormatUint(o.NumericID, 10)}
		},
		Names: "slugs",
	})
}

func newOrgsCreateCommand(c commands) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "create SLUG",
		Short: "Create an organization",
		Long: `Create an organization: the owner of Apps, networks, tokens and images.

Its slug has at most 63 characters of a-z, 0-9 and dash, and never changes. Apps of
different organizations do not see each other. A token for one organization gives no
access to others.`,
		Example: "  hangar orgs create acme --name \"Acme Corporation\"\n  hangar apps create shop --org acme",
		Args:    cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&name, "name", "", "display name (default the slug)")
	return cli.Answering(c.Invocation, cmd, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, args []string) (*hangar.Org, error) {
		return p.CreateOrg(ctx, hangar.OrgCreate{Slug: hangar.OrgSlug(args[0]), Name: name})
	}), func(org *hangar.Org) error {
		return c.Sayf("Created organization %s. Next: hangar apps create NAME --org %s", org.Slug, org.Slug)
	})
}

func newOrgsShowCommand(c commands) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "show SLUG", Aliases: []string{"status"}, Short: "Show an organization and its Apps",
		Args: cobra.ExactArgs(1), ValidArgsFunction: c.CompleteOrg,
		RunE: c.Connected(func(ctx context.Context, p *client.Client, args []string) error {
			org, err := p.Org(ctx, hangar.OrgSlug(args[0]))
			if err != nil {
				return err
			}
			if asJSON {
				return c.PrintJSON(org)
			}
			apps, err := p.Apps(ctx, hangar.AppFilter{Org: org.Slug})
			if err != nil {
				return err
			}
			fields := []cli.Field{{"Slug", string(org.Slug)}, {"Name", org.Name}, {"Id", string(org.ID)}, {"Apps", strconv.Itoa(len(apps))}}
			for _, a := range apps {
				fields = append(fields, cli.Field{"", string(a.Name)})
			}
			return c.PrintFields(fields)
		}),
	}
	cli.JSONFlag(cmd, &asJSON)
	return cmd
}

func newOrgsDeleteCommand(c commands) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use: "delete SLUG", Aliases: []string{"rm", "destroy"}, Short: "Delete an organization that has no Apps, with its tokens",
		Args: cobra.ExactArgs(1), ValidArgsFunction: c.CompleteOrg,
		RunE: c.Connected(func(ctx context.Context, p *client.Client, args []string) error {
			org, err := p.Org(ctx, hangar.OrgSlug(args[0]))
			if err != nil {
				return err
			}
			if err := c.ConfirmUnless(yes, "Delete organization %s and all of its tokens permanently?", org.Slug); err != nil {
				return err
			}
			if err := p.DeleteOrg(ctx, org.Slug); err != nil {
				return err
			}
			return c.Sayf("Organization %s is deleted.", org.Slug)
		}),
	}
	cli.YesFlag(cmd, &yes)
	return cmd
}
