package deploy

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/cmd/hangar/deploy/appconfig"
)

// NewReleasesCommand makes `hangar releases`.
func NewReleasesCommand(inv *cli.Invocation) *cobra.Command {
	c := commands{inv}
	cmd := cli.Group("releases", "List releases, and roll back", "release")
	cmd.AddCommand(newReleaseListCommand(c), newReleaseShowCommand(c), newRollbackCommand(c))
	return cmd
}

func newReleaseListCommand(c commands) *cobra.Command {
	cmd := &cobra.Command{Use: "list APP", Short: "List releases, the newest first", Args: cobra.ExactArgs(1), ValidArgsFunction: c.CompleteApp}
	var limit int
	cmd.Flags().IntVar(&limit, "limit", 0, "maximum number of releases (default all)")
	return cli.Listing(c.Invocation, cmd, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, args []string) ([]*hangar.Release, error) {
		return p.Releases(ctx, hangar.AppName(args[0]), limit)
	}), cli.Table[*hangar.Release]{
		Head: []string{"VERSION", "STATUS", "STRATEGY", "IMAGE", "USER", "REASON", "DATE"},
		Row: func(now time.Time, r *hangar.Release) []string {
			return []string{"v" + strconv.Itoa(r.Version), string(r.Status), string(r.Strategy), r.Image, r.User, r.Reason, cli.Ago(now, r.CreatedAt)}
		},
		Names: "the versions", Named: 0, Hint: "App %s has no releases: hangar deploy",
	})
}

// parseVersion parses 12 and v12.
func parseVersion(text string) (int, error) {
	n, err := strconv.Atoi(strings.TrimPrefix(text, "v"))
	if err != nil || n < 1 {
		return 0, cli.UsageErrorf("%.40q is not the version of a release, such as 12", text)
	}
	return n, nil
}

func newReleaseShowCommand(c commands) *cobra.Command {
	cmd := &cobra.Command{
		Use: "show APP [VERSION]", Short: "Show a release", Args: cobra.RangeArgs(1, 2), ValidArgsFunction: c.CompleteApp,
		Long: "Show a release: what was deployed, which user deployed it, and its result. The default is the current release.",
	}
	return cli.Answering(c.Invocation, cmd, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, args []string) (*hangar.Release, error) {
		app := hangar.AppName(args[0])
		if len(args) == 1 {
			return p.CurrentRelease(ctx, app)
		}
		version, err := parseVersion(args[1])
		if err != nil {
			return nil, err
		}
		list, err := p.Releases(ctx, app, 0)
		if err != nil {
			return nil, err
		}
		at := slices.IndexFunc(list, func(r *hangar.Release) bool { return r.Version == version })
		if at < 0 {
			return nil, cli.WithHint(hangar.ReleaseNotFound(), "see `hangar releases list "+args[0]+"`")
		}
		return list[at], nil
	}), func(r *hangar.Release) error {
		return c.PrintFields([]cli.Field{
			{"version", "v" + strconv.Itoa(r.Version)},
			{"status", string(r.Status)},
			{"strategy", string(r.Strategy)},
			{"image", r.Image},
			{"user", r.User},
			{"reason", r.Reason},
			{"description", r.Description},
			{"created", r.CreatedAt.Format(time.RFC3339)},
			{"metadata", string(r.Metadata)},
			{"definition", string(r.Definition)},
		})
	})
}

func newRollbackCommand(c commands) *cobra.Command {
	var (
		f   flags
		yes bool
	)
	cmd := &cobra.Command{
		Use: "rollback APP VERSION", Short: "Deploy a former release again", Args: cobra.ExactArgs(2), ValidArgsFunction: c.CompleteApp,
		Long: "Deploy the image and the configuration of a former release as a new one. Its release command does not run\n" +
			"unless --release-command is given. Machines receive the current secrets.",
		Example: "  hangar releases rollback web 12",
	}
	f.add(cmd)
	run := false
	cmd.Flags().BoolVar(&run, "release-command", false, "run its release command, too")
	_ = cmd.Flags().MarkHidden("skip-release-command")
	_ = cmd.Flags().MarkHidden("rollback")
	cli.YesFlag(cmd, &yes)
	cmd.RunE = c.Connected(func(ctx context.Context, p *client.Client, args []string) error {
		version, err := parseVersion(args[1])
		if err != nil {
			return err
		}
		if !f.dryRun {
			if err := c.ConfirmUnless(yes, "Deploy release v%d of App %s again?", version, args[0]); err != nil {
				return err
			}
		}
		f.skipRelease = !run
		return c.rollBack(ctx, p, &f, hangar.AppName(args[0]), version)
	})
	return cmd
}

// newNotOfferedCommand returns a hidden command for a feature of the public platform that this one does not
// offer. It prints what to do instead.
func newNotOfferedCommand(name, text, instead string, aliases ...string) *cobra.Command {
	return &cobra.Command{
		Use: name, Aliases: aliases, Short: "Not offered: " + text, Hidden: true, DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error {
			return cli.WithHint(hangar.Errorf(hangar.CodeUnimplemented, hangar.ReasonUnsupported, "%s", text), instead)
		},
	}
}

// NotOffered returns the hidden commands for features that are not offered.
func NotOffered() []*cobra.Command {
	var list []*cobra.Command
	for _, names := range [][]string{{"postgres", "mpg", "pg"}, {"redis"}, {"billing"}, {"gpu", "gpus"}, {"consul"}} {
		text, instead := appconfig.NotOffered(names[0])
		list = append(list, newNotOfferedCommand(names[0], text, instead, names[1:]...))
	}
	return list
}
