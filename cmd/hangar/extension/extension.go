package extension

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/cmd/hangar/cli/follow"
)

const aboutExtensions = `Create and destroy extensions: databases and other services of third parties.

An extension is created for one App. Its credentials become secrets of the App, which Machines
receive with their next version.`

// NewExtensionsCommand makes `hangar extensions`.
func NewExtensionsCommand(inv *cli.Invocation) *cobra.Command {
	c := commands{inv}
	cmd := cli.Group("extensions", "Create extensions of Apps", "extension", "ext")
	cmd.Long = aboutExtensions
	cmd.AddCommand(
		newCreateCommand(c), newListCommand(c), newShowCommand(c), newUpdateCommand(c), newDestroyCommand(c), newOpenCommand(c), newRetryCommand(c),
	)
	return cmd
}

// waitFlag adds --timeout to a command, and returns a function that waits until an extension is created.
func (c commands) waitFlag(cmd *cobra.Command) func(ctx context.Context, p *client.Client, e *hangar.Extension) (*hangar.Extension, error) {
	var patience time.Duration
	cmd.Flags().DurationVar(&patience, "timeout", 4*time.Minute, "how long to wait for the provider; 0s: do not wait")
	return func(ctx context.Context, p *client.Client, e *hangar.Extension) (*hangar.Extension, error) {
		if e.Status != hangar.ExtensionProvisioning || patience <= 0 {
			return e, nil
		}
		fmt.Fprintf(c.Stderr, "Waiting for provider %s…\n", e.Provider)
		return follow.Extension(ctx, p, e, patience)
	}
}

func newCreateCommand(c commands) *cobra.Command {
	var in hangar.ExtensionCreate
	var region string
	var reads []string
	cmd := &cobra.Command{
		Use: "create APP PROVIDER", Short: "Create an extension of an App", Args: cobra.ExactArgs(2), ValidArgsFunction: c.CompleteApp,
		Example: "  hangar extensions create web logs --region ams --plan hobby",
	}
	flags := cmd.Flags()
	flags.StringVar(&in.Name, "name", "", "name, unique on the platform (default that of the App with the provider's suffix)")
	flags.StringVar(&in.Plan, "plan", "", "plan of the provider")
	flags.StringVar(&region, "region", "", "primary region, where the App writes")
	flags.StringSliceVar(&reads, "read-region", nil, "region of a read replica (repeatable)")
	flags.StringVar(&in.AcceptTerms, "accept-terms", "", "version of the provider's terms that you accept")
	flags.BoolVar(&in.Overwrite, "overwrite", false, "replace secrets of the App that have the same names")
	wait := c.waitFlag(cmd)
	return cli.Judging(c.Invocation, cmd, func(cmd *cobra.Command, args []string) (*hangar.Extension, error) {
		p, err := c.Connect()
		if err != nil {
			return nil, err
		}
		in.Provider, in.PrimaryRegion, in.ReadRegions = hangar.ProviderName(args[1]), hangar.Region(region), *named[hangar.Region](reads)
		e, err := p.CreateExtension(cmd.Context(), hangar.AppName(args[0]), in)
		if err != nil {
			return nil, err
		}
		return wait(cmd.Context(), p, e)
	}, c.printMade, judgeMade)
}

// printMade prints the result of creating, changing or retrying an extension.
func (c commands) printMade(e *hangar.Extension) error {
	if e.Status == hangar.ExtensionError {
		return nil // judgeMade says all
	}
	if e.Error != "" {
		fmt.Fprintf(c.Stderr, "Extension %s: %s\n", e.Name, e.Error)
	}
	if e.Status == hangar.ExtensionProvisioning {
		return c.Sayf("Extension %s is not ready yet; see `hangar extensions show %s %s`.", e.Name, e.App, e.Name)
	}
	if len(e.Secrets) > 0 {
		fmt.Fprintf(c.Stderr, "Secrets of App %s: %s. Machines receive them with their next version.\n", e.App, strings.Join(e.Secrets, ", "))
	}
	return c.Sayf("Extension %s is %s.", e.Name, e.Status)
}

// judgeMade returns the error of an extension that could not be created, changed or retried.
func judgeMade(e *hangar.Extension) error {
	if e.Status != hangar.ExtensionError {
		return nil
	}
	return cli.WithHint(fmt.Errorf("extension %s: %s", e.Name, e.Error),
		fmt.Sprintf("`hangar extensions retry %s %s` tries again, `destroy` removes it", e.App, e.Name))
}

func newListCommand(c commands) *cobra.Command {
	var org string
	cmd := &cobra.Command{
		Use: "list [APP]", Short: "List extensions of an App, or of an organization", Args: cobra.MaximumNArgs(1), ValidArgsFunction: c.CompleteApp,
	}
	cmd.Flags().StringVar(&org, "org", "", "organization, without APP (default that of the context, or personal)")
	return cli.Listing(c.Invocation, cmd, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, args []string) ([]*hangar.Extension, error) {
		if len(args) > 0 {
			return p.Extensions(ctx, hangar.AppName(args[0]))
		}
		return p.OrgExtensions(ctx, c.OrgOr(org))
	}), cli.Table[*hangar.Extension]{
		Head: []string{"NAME", "PROVIDER", "APP", "PLAN", "REGION", "STATUS", "CREATED"}, Names: "names",
		Row: func(now time.Time, e *hangar.Extension) []string {
			return []string{e.Name, string(e.Provider), string(e.App), e.Plan, string(e.PrimaryRegion), string(e.Status), cli.Ago(now, e.CreatedAt)}
		},
		Hint: "Create one with `hangar extensions create APP PROVIDER`.",
	})
}

// completeExtension completes APP and then the names of its extensions.
func (c commands) completeExtension(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) != 1 {
		return c.CompleteApp(cmd, args, prefix)
	}
	return c.Complete(cmd, func(ctx context.Context, p *client.Client) (names []string, err error) {
		all, err := p.Extensions(ctx, hangar.AppName(args[0]))
		for _, one := range all {
			names = append(names, one.Name)
		}
		return names, err
	})
}

func newShowCommand(c commands) *cobra.Command {
	cmd := &cobra.Command{Use: "show APP NAME", Aliases: []string{"status"}, Short: "Show an extension", Args: cobra.ExactArgs(2), ValidArgsFunction: c.completeExtension}
	return cli.Answering(c.Invocation, cmd, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, args []string) (*hangar.Extension, error) {
		return p.Extension(ctx, hangar.AppName(args[0]), args[1])
	}), func(e *hangar.Extension) error {
		rows := [][]string{
			{"name", e.Name},
			{"provider", string(e.Provider)},
			{"status", string(e.Status)},
			{"plan", e.Plan},
			{"primary region", string(e.PrimaryRegion)},
			{"secrets", strings.Join(e.Secrets, ", ")},
			{"address", e.IP.String()},
			{"created by", string(e.User)},
		}
		if e.Error != "" {
			rows = append(rows, []string{"error", e.Error})
		}
		return c.PrintTable(rows)
	})
}

func newUpdateCommand(c commands) *cobra.Command {
	var plan, region string
	var reads []string
	cmd := &cobra.Command{
		Use: "update APP NAME", Short: "Change the settings of an extension that flags name", Args: cobra.ExactArgs(2), ValidArgsFunction: c.completeExtension,
	}
	cmd.Flags().StringVar(&plan, "plan", "", "plan of the provider")
	cmd.Flags().StringVar(&region, "region", "", "primary region, where the App writes")
	cmd.Flags().StringSliceVar(&reads, "read-region", nil, "region of a read replica (repeatable)")
	return cli.Judging(c.Invocation, cmd, func(cmd *cobra.Command, args []string) (*hangar.Extension, error) {
		p, err := c.Connect()
		if err != nil {
			return nil, err
		}
		var in hangar.ExtensionUpdate
		if cmd.Flags().Changed("plan") {
			in.Plan = &plan
		}
		if cmd.Flags().Changed("region") {
			in.PrimaryRegion = (*hangar.Region)(&region)
		}
		if cmd.Flags().Changed("read-region") {
			in.ReadRegions = named[hangar.Region](reads)
		}
		return p.UpdateExtension(cmd.Context(), hangar.AppName(args[0]), args[1], in)
	}, c.printMade, judgeMade)
}

func newDestroyCommand(c commands) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use: "destroy APP NAME", Aliases: []string{"rm", "delete"}, Short: "Destroy an extension with all its data, and remove its secrets",
		Args: cobra.ExactArgs(2), ValidArgsFunction: c.completeExtension,
	}
	cli.YesFlag(cmd, &yes)
	cmd.RunE = c.Connected(func(ctx context.Context, p *client.Client, args []string) error {
		if err := c.ConfirmUnless(yes, "Destroy extension %s with all its data?", args[1]); err != nil {
			return err
		}
		e, err := p.DestroyExtension(ctx, hangar.AppName(args[0]), args[1])
		if err != nil {
			return err
		}
		if e != nil {
			if e.Error != "" {
				fmt.Fprintf(c.Stderr, "Extension %s: %s\n", args[1], e.Error)
			}
			return c.Sayf("Extension %s is being destroyed; its provider has not confirmed it yet.", args[1])
		}
		return c.Sayf("Destroyed extension %s.", args[1])
	})
	return cmd
}

func newOpenCommand(c commands) *cobra.Command {
	var onlyPrint bool
	cmd := &cobra.Command{
		Use: "open APP NAME", Short: "Open an extension at its provider in the browser", Args: cobra.ExactArgs(2), ValidArgsFunction: c.completeExtension,
	}
	cmd.Flags().BoolVar(&onlyPrint, "print", false, "print the link, which works once within five minutes, and open nothing")
	cmd.RunE = c.Connected(func(ctx context.Context, p *client.Client, args []string) error {
		link, err := p.ExtensionLink(ctx, hangar.AppName(args[0]), args[1])
		if err != nil {
			return err
		}
		if onlyPrint {
			return c.Sayf("%s", link.URL)
		}
		ended, err := c.OpenBrowser(link.URL)
		if err == nil {
			err = ended()
		}
		if err != nil {
			return cli.WithHint(fmt.Errorf("open the browser: %w", err), "use --print and open the link yourself")
		}
		return nil
	})
	return cmd
}

func newRetryCommand(c commands) *cobra.Command {
	var in hangar.ExtensionRetry
	cmd := &cobra.Command{
		Use: "retry APP NAME", Short: "Retry a failed operation of an extension", Args: cobra.ExactArgs(2), ValidArgsFunction: c.completeExtension,
	}
	cmd.Flags().BoolVar(&in.Overwrite, "overwrite", false, "replace secrets of the App that have the same names")
	wait := c.waitFlag(cmd)
	return cli.Judging(c.Invocation, cmd, func(cmd *cobra.Command, args []string) (*hangar.Extension, error) {
		p, err := c.Connect()
		if err != nil {
			return nil, err
		}
		e, err := p.RetryExtension(cmd.Context(), hangar.AppName(args[0]), args[1], in)
		if err != nil {
			return nil, err
		}
		return wait(cmd.Context(), p, e)
	}, c.printMade, judgeMade)
}
