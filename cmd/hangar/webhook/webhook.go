// Package webhook has the commands for webhooks.
package webhook

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

// commands make the commands of one invocation.
type commands struct{ *cli.Invocation }

const about = `Have the events of Machines sent to your own server.

A webhook is a URL to which the platform POSTs every event of an organization's Machines: a
CloudEvent in binary mode, signed with a secret. A failed delivery is retried for 24
hours; then it is a dead letter, which can be resent.`

// NewCommand returns `hangar webhooks`.
func NewCommand(inv *cli.Invocation) *cobra.Command {
	c := commands{inv}
	cmd := cli.Group("webhooks", "Send events of Machines to your server", "webhook")
	cmd.Long = about
	cmd.AddCommand(
		newCreateCommand(c), newListCommand(c), newShowCommand(c), newUpdateCommand(c), newRotateCommand(c), newPingCommand(c), newRemoveCommand(c),
		newDeliveriesCommand(c), newResendCommand(c),
	)
	return cmd
}

// filter has the values of --events and --app.
type filter struct {
	events, apps []string
	original     bool
}

func (f *filter) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringSliceVar(&f.events, "events", nil, "types of events to send, such as start,exit, or all")
	flags.StringSliceVar(&f.apps, "app", nil, "Apps whose events to send, or all")
	flags.BoolVar(&f.original, "original-names", false, "types begin with "+hangar.MachineEventTypes.Original+" instead of "+hangar.MachineEventTypes.Neutral)
	cli.CompleteFlag(cmd, "events", cli.Texts(hangar.EventTypes())...)
}

// all is the value of --events and --app for no restriction.
const all = "all"

// list converts the value of a flag; empty for all.
func list[T ~string](texts []string) []T {
	out := []T{}
	for _, text := range texts {
		if text != all {
			out = append(out, T(text))
		}
	}
	return out
}

func newCreateCommand(c commands) *cobra.Command {
	var f filter
	cmd := &cobra.Command{
		Use: "create ORG URL", Short: "Create a webhook; the last word printed is its secret",
		Long: `Create a webhook. The secret is shown only once. Configure your server with it, to verify that
requests come from the platform.`,
		Example: "  hangar webhooks create acme https://example.com/machine-events --events start,exit",
		Args:    cobra.ExactArgs(2), ValidArgsFunction: c.CompleteOrg,
	}
	f.flags(cmd)
	return cli.Answering(c.Invocation, cmd, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, args []string) (hangar.WebhookSecret, error) {
		return p.CreateWebhook(ctx, hangar.OrgSlug(args[0]), hangar.WebhookCreate{
			URL: args[1], Events: list[hangar.EventType](f.events), Apps: list[hangar.AppName](f.apps), OriginalNames: f.original,
		})
	}), func(made hangar.WebhookSecret) error {
		fmt.Fprintf(c.Stderr, "Created webhook %s. Test it with hangar webhooks ping. Its secret, which is not shown again:\n", made.ID)
		return c.Sayf("%s", made.Secret)
	})
}

func newListCommand(c commands) *cobra.Command {
	cmd := &cobra.Command{Use: "list ORG", Aliases: []string{"ls"}, Short: "List webhooks", Args: cobra.ExactArgs(1), ValidArgsFunction: c.CompleteOrg}
	return cli.Answering(c.Invocation, cmd, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, args []string) ([]hangar.Webhook, error) {
		return p.Webhooks(ctx, hangar.OrgSlug(args[0]))
	}), func(hooks []hangar.Webhook) error {
		if len(hooks) == 0 {
			fmt.Fprintln(c.Stderr, "No webhooks.")
			return nil
		}
		rows := [][]string{{"ID", "EVENTS", "APPS", "STATUS", "WAITING", "DEAD", "URL"}}
		for _, w := range hooks {
			rows = append(rows, []string{
				string(w.ID), eventsText(w), appsText(w), statusText(w.Status), strconv.Itoa(w.Status.Waiting), strconv.Itoa(w.Status.Dead), w.URL,
			})
		}
		return c.PrintTable(rows)
	})
}

func joined[T ~string](texts []T) string { return strings.Join(cli.Texts(texts), ",") }

func eventsText(w hangar.Webhook) string {
	if len(w.Events) == 0 {
		return all
	}
	return joined(w.Events)
}

func appsText(w hangar.Webhook) string {
	switch {
	case w.Apps == nil:
		return all
	case len(w.Apps) == 0:
		return "none"
	}
	return joined(w.Apps)
}

func statusText(s hangar.WebhookStatus) string {
	switch {
	case s.Failing:
		return "failing"
	case s.Error != "" && s.FailedAt.After(s.DeliveredAt):
		return "retrying"
	}
	return "ok"
}

// failureText describes why an attempt failed.
func failureText(e hangar.DeliveryError, status int) string {
	if status != 0 {
		return "HTTP " + strconv.Itoa(status)
	}
	return strings.ReplaceAll(string(e), "_", " ")
}

func newShowCommand(c commands) *cobra.Command {
	cmd := &cobra.Command{Use: "show ORG WEBHOOK", Short: "Show a webhook", Args: cobra.ExactArgs(2), ValidArgsFunction: c.CompleteOrg}
	return cli.Answering(c.Invocation, cmd, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, args []string) (hangar.Webhook, error) {
		return p.Webhook(ctx, hangar.OrgSlug(args[0]), hangar.WebhookID(args[1]))
	}), c.print)
}

func (c commands) print(w hangar.Webhook) error {
	now, s := time.Now(), w.Status
	rows := [][]string{{"ID", string(w.ID)}, {"URL", w.URL}, {"Events", eventsText(w)}, {"Apps", appsText(w)}, {"Status", statusText(s)}}
	if w.OriginalNames {
		rows = append(rows, []string{"Types", hangar.MachineEventTypes.Original + "*"})
	}
	if !w.SecretChangesAt.IsZero() {
		rows = append(rows, []string{"New secret signs from", w.SecretChangesAt.Format(time.RFC3339)})
	}
	waiting := strconv.Itoa(s.Waiting)
	if !s.WaitingSince.IsZero() {
		waiting += ", the oldest since " + cli.Ago(now, s.WaitingSince)
	}
	rows = append(rows, []string{"Waiting", waiting}, []string{"Dead", strconv.Itoa(s.Dead)})
	if s.Dropped > 0 {
		rows = append(rows, []string{"Lost", strconv.FormatUint(s.Dropped, 10)})
	}
	if !s.DeliveredAt.IsZero() {
		rows = append(rows, []string{"Delivered", cli.Ago(now, s.DeliveredAt)})
	}
	if !s.FailedAt.IsZero() {
		rows = append(rows, []string{"Failed", cli.Ago(now, s.FailedAt) + ": " + failureText(s.Error, s.HTTPStatus)})
	}
	return c.PrintTable(rows)
}

func newUpdateCommand(c commands) *cobra.Command {
	var f filter
	var target string
	cmd := &cobra.Command{
		Use: "update ORG WEBHOOK", Short: "Change a webhook", Args: cobra.ExactArgs(2), ValidArgsFunction: c.CompleteOrg,
		Long:    "Change a webhook. Settings without a flag stay the same. Waiting events are sent to the new URL at once.",
		Example: "  hangar webhooks update acme wh_0f4b8m2xq7k1d9zs --events all --app web,worker",
	}
	f.flags(cmd)
	cmd.Flags().StringVar(&target, "to", "", "the new URL")
	return cli.Answering(c.Invocation, cmd, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, args []string) (hangar.Webhook, error) {
		var in hangar.WebhookUpdate
		flags := cmd.Flags()
		if flags.Changed("to") {
			in.URL = &target
		}
		if flags.Changed("events") {
			events := list[hangar.EventType](f.events)
			in.Events = &events
		}
		if flags.Changed("app") {
			apps := list[hangar.AppName](f.apps)
			in.Apps = &apps
		}
		if flags.Changed("original-names") {
			in.OriginalNames = &f.original
		}
		if in == (hangar.WebhookUpdate{}) {
			return hangar.Webhook{}, cli.UsageErrorf("nothing to change: give a flag")
		}
		return p.UpdateWebhook(ctx, hangar.OrgSlug(args[0]), hangar.WebhookID(args[1]), in)
	}), c.print)
}

func newRotateCommand(c commands) *cobra.Command {
	var overlap time.Duration
	cmd := &cobra.Command{
		Use: "rotate ORG WEBHOOK", Short: "Replace the secret; the last word printed is the new one", Args: cobra.ExactArgs(2), ValidArgsFunction: c.CompleteOrg,
		Long: `Replace the secret. The new one is shown only once. The old secret still signs until the end of the
overlap: configure your server to accept both, and remove the old one afterwards.`,
	}
	cmd.Flags().DurationVar(&overlap, "overlap", hangar.DefaultWebhookOverlap, "how long the old secret still signs")
	return cli.Answering(c.Invocation, cmd, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, args []string) (hangar.WebhookSecret, error) {
		d := hangar.Duration(overlap)
		return p.RotateWebhook(ctx, hangar.OrgSlug(args[0]), hangar.WebhookID(args[1]), hangar.WebhookRotate{Overlap: &d})
	}), func(made hangar.WebhookSecret) error {
		from := "from now on"
		if !made.SecretChangesAt.IsZero() {
			from = "from " + made.SecretChangesAt.Format(time.RFC3339) + " on"
		}
		fmt.Fprintf(c.Stderr, "Requests are signed with the new secret %s. It is not shown again:\n", from)
		return c.Sayf("%s", made.Secret)
	})
}

func newPingCommand(c commands) *cobra.Command {
	cmd := &cobra.Command{
		Use: "ping ORG WEBHOOK", Short: "Send a test event, and print the result", Args: cobra.ExactArgs(2), ValidArgsFunction: c.CompleteOrg,
	}
	return cli.Judging(c.Invocation, cmd, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, args []string) (hangar.WebhookPing, error) {
		return p.PingWebhook(ctx, hangar.OrgSlug(args[0]), hangar.WebhookID(args[1]))
	}), func(ping hangar.WebhookPing) error {
		took := time.Duration(ping.Took).Round(time.Millisecond)
		if !ping.Delivered {
			_, err := fmt.Fprintf(c.Stderr, "The event was not accepted after %s: %s\n", took, failureText(ping.Error, ping.HTTPStatus))
			return err
		}
		return c.Sayf("The event was accepted after %s: HTTP %d", took, ping.HTTPStatus)
	}, func(ping hangar.WebhookPing) error {
		if !ping.Delivered {
			return cli.ExitStatus(cli.ExitFailed)
		}
		return nil
	})
}

func newRemoveCommand(c commands) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use: "remove ORG WEBHOOK", Aliases: []string{"rm", "delete"}, Short: "Remove a webhook, and what waits for it", Args: cobra.ExactArgs(2),
		ValidArgsFunction: c.CompleteOrg,
	}
	cli.YesFlag(cmd, &yes)
	cmd.RunE = c.Connected(func(ctx context.Context, p *client.Client, args []string) error {
		if err := c.ConfirmUnless(yes, "Remove webhook %s of organization %s?", args[1], args[0]); err != nil {
			return err
		}
		if err := p.RemoveWebhook(ctx, hangar.OrgSlug(args[0]), hangar.WebhookID(args[1])); err != nil {
			return err
		}
		return c.Sayf("Removed webhook %s.", args[1])
	})
	return cmd
}

func newDeliveriesCommand(c commands) *cobra.Command {
	var q hangar.DeliveryQuery
	var state string
	cmd := &cobra.Command{
		Use: "deliveries ORG WEBHOOK", Aliases: []string{"log"}, Short: "List deliveries, the newest first", Args: cobra.ExactArgs(2), ValidArgsFunction: c.CompleteOrg,
		Long: `List the deliveries that wait, the dead letters, which were given up, and the last deliveries that
succeeded.`,
		Example: "  hangar webhooks deliveries acme wh_0f4b8m2xq7k1d9zs --state dead",
	}
	cmd.Flags().StringVar(&state, "state", "", "only deliveries in this state: waiting, delivered or dead")
	cmd.Flags().IntVar(&q.Limit, "limit", 100, "maximum number of deliveries, up to 1000")
	cli.CompleteFlag(cmd, "state", cli.Texts(hangar.DeliveryStates())...)
	return cli.Answering(c.Invocation, cmd, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, args []string) ([]hangar.WebhookDelivery, error) {
		q.State = hangar.DeliveryState(state)
		return p.WebhookDeliveries(ctx, hangar.OrgSlug(args[0]), hangar.WebhookID(args[1]), q)
	}), func(deliveries []hangar.WebhookDelivery) error {
		if len(deliveries) == 0 {
			fmt.Fprintln(c.Stderr, "No deliveries.")
			return nil
		}
		now := time.Now()
		rows := [][]string{{"ID", "STATE", "EVENT", "APP", "MACHINE", "AGE", "ATTEMPTS", "LAST ANSWER"}}
		for _, d := range deliveries {
			rows = append(rows, []string{
				string(d.ID), string(d.State), string(d.Type), string(d.App), string(d.Machine), cli.Ago(now, d.CreatedAt), strconv.Itoa(d.Attempts), answerText(d),
			})
		}
		return c.PrintTable(rows)
	})
}

// answerText describes the result of the last attempt.
func answerText(d hangar.WebhookDelivery) string {
	text := ""
	if d.Attempts > 0 {
		text = failureText(d.Error, d.HTTPStatus)
	}
	if d.Reason != "" && d.Reason != hangar.DeathExpired {
		text = strings.TrimSpace(text + " (" + strings.ReplaceAll(string(d.Reason), "_", " ") + ")")
	}
	return text
}

func newResendCommand(c commands) *cobra.Command {
	cmd := &cobra.Command{
		Use: "resend ORG WEBHOOK DELIVERY", Short: "Send an event again", Args: cobra.ExactArgs(3), ValidArgsFunction: c.CompleteOrg,
		Long: "Resend an event that failed or was delivered recently. It is added to the end of the queue.",
	}
	return cli.Answering(c.Invocation, cmd, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, args []string) (hangar.WebhookDelivery, error) {
		return p.ResendDelivery(ctx, hangar.OrgSlug(args[0]), hangar.WebhookID(args[1]), hangar.DeliveryID(args[2]))
	}), func(made hangar.WebhookDelivery) error { return c.Sayf("Delivery %s is queued.", made.ID) })
}
