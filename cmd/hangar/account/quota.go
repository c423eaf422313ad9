package account

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

func newOrgsQuotaCommand(c commands) *cobra.Command {
	cmd := cli.Group("quota", "Show and change the limits of an organization", "quotas")
	cmd.AddCommand(newOrgsQuotaShowCommand(c), newOrgsQuotaSetCommand(c))
	return cmd
}

func newOrgsQuotaShowCommand(c commands) *cobra.Command {
	return cli.Answering(c.Invocation, &cobra.Command{
		Use:   "show SLUG",
		Short: "Show the limits of an organization, and what it uses",
		Long: "Show the limits of an organization, and what it uses. If there are destroyed volumes, another column shows what they use:\n" +
			"see `hangar volumes list --destroyed` and `hangar volumes purge`.",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.CompleteOrg,
	}, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, args []string) ([]hangar.QuotaStatus, error) {
		quotas, err := p.OrgQuotas(ctx, hangar.OrgSlug(args[0]))
		return cli.OrEmpty(quotas), err
	}), c.printQuotas)
}

func (c commands) printQuotas(quotas []hangar.QuotaStatus) error {
	rows := [][]string{{"QUOTA", "USED", "LIMIT", "FROM"}}
	destroyed := false
	for _, q := range quotas {
		destroyed = destroyed || q.Destroyed > 0
	}
	for _, q := range quotas {
		from := "default"
		if q.Set {
			from = "set"
		}
		row := []string{string(q.Key), strconv.FormatInt(q.Used, 10), hangar.FormatQuota(q.Limit), from}
		if destroyed {
			row = append(row, destroyedText(q))
		}
		rows = append(rows, row)
	}
	if destroyed {
		rows[0] = append(rows[0], "DESTROYED")
	}
	return c.PrintTable(rows)
}

// destroyedText formats how much of a quota destroyed volumes use.
func destroyedText(q hangar.QuotaStatus) string {
	if q.Destroyed == 0 {
		return ""
	}
	return strconv.FormatInt(q.Destroyed, 10)
}

func newOrgsQuotaSetCommand(c commands) *cobra.Command {
	return cli.Answering(c.Invocation, &cobra.Command{
		Use:   "set SLUG KEY=VALUE...",
		Short: "Change the limits of an organization",
		Long: `Change the limits of an organization. A value is a number, "unlimited", or "default",
which ` + "`hangar up --quota`" + ` or the size of the server decides. This needs an administrator's token.

An organization keeps what it already has beyond a lower limit, and gets no more.`,
		Example:           "  hangar orgs quota set acme memory_mb=16384 addresses_v4=8\n  hangar orgs quota set acme memory_mb=default",
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: c.completeQuota,
	}, func(cmd *cobra.Command, args []string) ([]hangar.QuotaStatus, error) {
		var pairs []string
		var reset []hangar.QuotaKey
		for _, pair := range args[1:] {
			if key, ok := strings.CutSuffix(pair, "=default"); ok {
				reset = append(reset, hangar.QuotaKey(key))
			} else {
				pairs = append(pairs, pair)
			}
		}
		limits, err := hangar.ParseQuotas(pairs)
		if err != nil {
			return nil, cli.UsageErrorf("%w", err)
		}
		p, err := c.Connect()
		if err != nil {
			return nil, err
		}
		quotas, err := p.SetOrgQuotas(cmd.Context(), hangar.OrgSlug(args[0]), limits, reset)
		return cli.OrEmpty(slices.DeleteFunc(quotas, func(q hangar.QuotaStatus) bool {
			_, set := limits[q.Key]
			return !set && !slices.Contains(reset, q.Key)
		})), err
	}, c.printQuotas)
}

// completeQuota completes the slug, and then keys.
func (c commands) completeQuota(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return c.CompleteOrg(cmd, args, toComplete)
	}
	var keys []string
	for _, key := range hangar.QuotaKeys() {
		keys = append(keys, string(key)+"=")
	}
	return keys, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}
