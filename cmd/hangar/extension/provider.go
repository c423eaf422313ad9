// Package extension has the commands about extensions and their providers.
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
)

// commands make the commands of one invocation.
type commands struct{ *cli.Invocation }

const aboutProviders = `Register providers of extensions, such as databases, for the customers of this platform.

A provider runs a server that the platform calls. It has three secrets, which are shown once: one
for single sign-on, and one for signatures in each direction.`

// NewProvidersCommand makes `hangar providers`.
func NewProvidersCommand(inv *cli.Invocation) *cobra.Command {
	c := commands{inv}
	cmd := cli.Group("providers", "Register providers of extensions", "provider")
	cmd.Long = aboutProviders
	cmd.AddCommand(
		newProvidersCreateCommand(c), newProvidersListCommand(c), newProvidersShowCommand(c), newProvidersUpdateCommand(c),
		newProvidersRotateCommand(c), newProvidersRemoveCommand(c),
	)
	return cmd
}

// settingsFlags are the flags with the settings of a provider.
type settingsFlags struct {
	displayName, baseURL, suffix, termsURL, termsVersion, platformApp string
	private, asynchronous, replicas, public                           bool
	redirects, plans, regions, granted                                []string
	limits                                                            hangar.ProviderLimits
}

func (f *settingsFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.displayName, "display-name", "", "display name")
	flags.BoolVar(&f.private, "allow-private", false, "the server may be on loopback, in a private network or on this platform, and speak plain HTTP")
	flags.StringSliceVar(&f.redirects, "redirect-uri", nil, "redirect URI of single sign-on (repeatable)")
	flags.StringVar(&f.termsURL, "terms-url", "", "URL of the terms that each user must accept")
	flags.StringVar(&f.termsVersion, "terms-version", "", "version of the terms")
	flags.StringVar(&f.suffix, "name-suffix", "", "suffix of default names, after the name of the App")
	flags.StringSliceVar(&f.plans, "plan", nil, "plan to choose from (repeatable)")
	flags.StringSliceVar(&f.regions, "region", nil, "region in which extensions are offered (repeatable; default everywhere)")
	flags.BoolVar(&f.asynchronous, "async", false, "creation is asynchronous: an extension may not be ready when the provider answers")
	flags.BoolVar(&f.replicas, "read-replicas", false, "extensions may have read regions")
	flags.BoolVar(&f.public, "public-event-types", false, "use the public platform's names of Machine events")
	flags.StringVar(&f.platformApp, "app", "", "App of the provider on this platform")
	flags.StringSliceVar(&f.granted, "granted-app", nil, "additional App whose Machine events the provider receives (repeatable)")
	flags.IntVar(&f.limits.Extensions, "limit", 0, "maximum number of extensions of all organizations")
	flags.IntVar(&f.limits.PerOrg, "limit-per-org", 0, "maximum number of extensions of one organization")
	flags.IntVar(&f.limits.Webhooks, "limit-webhooks", 0, "maximum number of webhooks per minute")
}

// update returns the changes by the given flags.
func (f *settingsFlags) update(cmd *cobra.Command, before hangar.ProviderSettings) (u hangar.ProviderUpdate) {
	given := cmd.Flags().Changed
	for flag, take := range map[string]func(){
		"display-name": func() { u.DisplayName = &f.displayName }, "base-url": func() { u.BaseURL = &f.baseURL },
		"allow-private": func() { u.AllowPrivate = &f.private }, "redirect-uri": func() { u.RedirectURIs = &f.redirects },
		"name-suffix": func() { u.NameSuffix = &f.suffix }, "plan": func() { u.Plans = &f.plans },
		"async": func() { u.Asynchronous = &f.asynchronous }, "read-replicas": func() { u.ReadReplicas = &f.replicas },
		"public-event-types": func() { u.PublicEventTypes = &f.public },
		"app":                func() { u.PlatformApp = (*hangar.AppName)(&f.platformApp) },
		"region":             func() { u.Regions = named[hangar.Region](f.regions) },
		"granted-app":        func() { u.GrantedApps = named[hangar.AppName](f.granted) },
	} {
		if given(flag) {
			take()
		}
	}
	if given("terms-url") || given("terms-version") {
		terms := hangar.ProviderTerms{}
		if before.Terms != nil {
			terms = *before.Terms
		}
		if given("terms-url") {
			terms.URL = f.termsURL
		}
		if given("terms-version") {
			terms.Version = f.termsVersion
		}
		u.Terms = &terms
	}
	if given("limit") || given("limit-per-org") || given("limit-webhooks") {
		limits := before.Limits
		for flag, pair := range map[string][2]*int{
			"limit": {&limits.Extensions, &f.limits.Extensions}, "limit-per-org": {&limits.PerOrg, &f.limits.PerOrg},
			"limit-webhooks": {&limits.Webhooks, &f.limits.Webhooks},
		} {
			if given(flag) {
				*pair[0] = *pair[1]
			}
		}
		u.Limits = &limits
	}
	return u
}

func named[T ~string](texts []string) *[]T {
	list := make([]T, len(texts))
	for i, text := range texts {
		list[i] = T(text)
	}
	return &list
}

func newProvidersCreateCommand(c commands) *cobra.Command {
	var f settingsFlags
	cmd := &cobra.Command{
		Use: "create NAME BASE-URL", Short: "Register a provider; its secrets are shown once", Args: cobra.ExactArgs(2),
		Example: "  hangar providers create logs https://logs.example.com --redirect-uri https://logs.example.com/oauth/callback",
	}
	f.add(cmd)
	return cli.AnsweringAs(c.Invocation, cmd, func(cmd *cobra.Command, args []string) (*hangar.NewProvider, error) {
		p, err := c.Connect()
		if err != nil {
			return nil, err
		}
		settings := f.update(cmd, hangar.ProviderSettings{}).Apply(hangar.ProviderSettings{BaseURL: args[1]})
		return p.CreateProvider(cmd.Context(), hangar.ProviderCreate{Name: hangar.ProviderName(args[0]), ProviderSettings: settings})
	}, viewSecrets, c.printSecrets)
}

// withSecrets is a provider with its new secrets, for JSON.
type withSecrets struct {
	hangar.Provider
	ClientSecret  string `json:"client_secret,omitempty"`
	RequestSecret string `json:"request_secret,omitempty"`
	WebhookSecret string `json:"webhook_secret,omitempty"`
}

func viewSecrets(p *hangar.NewProvider) withSecrets {
	return withSecrets{p.Provider, p.ClientSecret.Reveal(), p.RequestSecret.Reveal(), p.WebhookSecret.Reveal()}
}

func (c commands) printSecrets(p *hangar.NewProvider) error {
	fmt.Fprintf(c.Stderr, "Secrets of provider %s, which are not shown again:\n", p.Name)
	rows := [][]string{{"client id", p.ClientID}}
	for _, row := range [][]string{
		{"client secret", p.ClientSecret.Reveal()}, {"secret for requests", p.RequestSecret.Reveal()}, {"secret for webhooks", p.WebhookSecret.Reveal()},
	} {
		if row[1] != "" {
			rows = append(rows, row)
		}
	}
	return c.PrintTable(append(rows, []string{"webhook URL", p.WebhookURL}))
}

func newProvidersListCommand(c commands) *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List providers", Args: cobra.NoArgs}
	return cli.Listing(c.Invocation, cmd, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, _ []string) ([]*hangar.Provider, error) {
		return p.Providers(ctx)
	}), cli.Table[*hangar.Provider]{
		Head: []string{"NAME", "BASE URL", "EXTENSIONS", "CREATED"}, Names: "names",
		Row: func(now time.Time, p *hangar.Provider) []string {
			return []string{string(p.Name), p.BaseURL, fmt.Sprint(p.Extensions), cli.Ago(now, p.CreatedAt)}
		},
		Hint: "Register one with `hangar providers create NAME BASE-URL`.",
	})
}

// completeProvider completes the first argument with names of providers.
func (c commands) completeProvider(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.Complete(cmd, func(ctx context.Context, p *client.Client) (names []string, err error) {
		all, err := p.Providers(ctx)
		for _, one := range all {
			names = append(names, string(one.Name))
		}
		return names, err
	})
}

func newProvidersShowCommand(c commands) *cobra.Command {
	cmd := &cobra.Command{Use: "show NAME", Short: "Show a provider", Args: cobra.ExactArgs(1), ValidArgsFunction: c.completeProvider}
	return cli.Answering(c.Invocation, cmd, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, args []string) (*hangar.Provider, error) {
		return p.Provider(ctx, hangar.ProviderName(args[0]))
	}), c.printProvider)
}

func (c commands) printProvider(p *hangar.Provider) error {
	rows := [][]string{
		{"name", string(p.Name)},
		{"display name", p.DisplayName},
		{"base URL", p.BaseURL},
		{"client id", p.ClientID},
		{"redirect URIs", strings.Join(p.RedirectURIs, " ")},
		{"webhook URL", p.WebhookURL},
		{"plans", strings.Join(p.Plans, ", ")},
		{"extensions", fmt.Sprintf("%d of %d, %d per organization", p.Extensions, p.Limits.Extensions, p.Limits.PerOrg)},
		{"webhooks", fmt.Sprintf("%d per minute", p.Limits.Webhooks)},
	}
	if p.Terms != nil {
		rows = append(rows, []string{"terms", p.Terms.URL + " (" + p.Terms.Version + ")"})
	}
	if p.PlatformApp != "" {
		rows = append(rows, []string{"App", string(p.PlatformApp)})
	}
	if !p.RotationEnds.IsZero() {
		rows = append(rows, []string{"old secrets until", p.RotationEnds.Format(time.RFC3339)})
	}
	return c.PrintTable(rows)
}

func newProvidersUpdateCommand(c commands) *cobra.Command {
	var f settingsFlags
	cmd := &cobra.Command{
		Use: "update NAME", Short: "Change the settings of a provider that flags name", Args: cobra.ExactArgs(1), ValidArgsFunction: c.completeProvider,
	}
	f.add(cmd)
	cmd.Flags().StringVar(&f.baseURL, "base-url", "", "URL of the provider's server")
	return cli.Answering(c.Invocation, cmd, func(cmd *cobra.Command, args []string) (*hangar.Provider, error) {
		p, err := c.Connect()
		if err != nil {
			return nil, err
		}
		name := hangar.ProviderName(args[0])
		before, err := p.Provider(cmd.Context(), name)
		if err != nil {
			return nil, err
		}
		return p.UpdateProvider(cmd.Context(), name, f.update(cmd, before.ProviderSettings))
	}, c.printProvider)
}

func newProvidersRotateCommand(c commands) *cobra.Command {
	var secrets []string
	var overlap time.Duration
	cmd := &cobra.Command{
		Use: "rotate NAME", Short: "Create new secrets for a provider, which are shown once", Args: cobra.ExactArgs(1), ValidArgsFunction: c.completeProvider,
		Long: "Create new secrets for a provider, which are shown once. Old ones stay valid for the time of --overlap. During\n" +
			"this time the platform signs requests with the old secret, so that you can configure the new one at the provider.",
	}
	cmd.Flags().StringSliceVar(&secrets, "secret", nil, "the secret to replace: client, request or webhook (repeatable; default all)")
	cmd.Flags().DurationVar(&overlap, "overlap", hangar.DefaultRotationOverlap, "how long old secrets stay valid")
	cli.CompleteFlag(cmd, "secret", cli.Texts(hangar.ProviderSecrets())...)
	return cli.AnsweringAs(c.Invocation, cmd, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, args []string) (*hangar.NewProvider, error) {
		during := hangar.Duration(overlap)
		return p.RotateProvider(ctx, hangar.ProviderName(args[0]), hangar.ProviderRotate{Secrets: *named[hangar.ProviderSecret](secrets), Overlap: &during})
	}), viewSecrets, c.printSecrets)
}

func newProvidersRemoveCommand(c commands) *cobra.Command {
	var yes, force bool
	cmd := &cobra.Command{
		Use: "remove NAME", Aliases: []string{"rm", "delete"}, Short: "Remove a provider", Args: cobra.ExactArgs(1), ValidArgsFunction: c.completeProvider,
	}
	cli.YesFlag(cmd, &yes)
	cmd.Flags().BoolVar(&force, "force", false, "also remove its extensions, without asking the provider to delete them")
	cmd.RunE = c.Connected(func(ctx context.Context, p *client.Client, args []string) error {
		if err := c.ConfirmUnless(yes, "Remove provider %s?", args[0]); err != nil {
			return err
		}
		if err := p.RemoveProvider(ctx, hangar.ProviderName(args[0]), force); err != nil {
			return err
		}
		return c.Sayf("Removed provider %s.", args[0])
	})
	return cmd
}
