// Package alert has the commands about alerts.
package alert

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

// commands make the commands of one invocation.
type commands struct{ *cli.Invocation }

// NewCommand makes `hangar alerts`.
func NewCommand(inv *cli.Invocation) *cobra.Command {
	c := commands{inv}
	cmd := cli.Group("alerts", "Set and see alerts about metrics", "alert")
	cmd.AddCommand(newSetCommand(c), newListCommand(c), newShowCommand(c), newTestCommand(c), newRemoveCommand(c))
	return cmd
}

// alertOrg adds --org to a command. The returned function returns the organization once the command is connected.
func (c commands) alertOrg(cmd *cobra.Command) func() hangar.OrgSlug {
	var org string
	cmd.Flags().StringVar(&org, "org", "", "organization (default that of the context, or personal)")
	return func() hangar.OrgSlug { return c.OrgOr(org) }
}

const setLong = `Set the rules of an organization. FILE is a rule file of Prometheus or vmalert, and - is
standard input. Alerts of unchanged rules continue.

Receivers, and how alerts are grouped, are in a separate file. Without --receivers, they are
not changed:

  receivers:
    - name: ops
      match: {severity: page}
      webhook: {url: https://example.com/alerts, secret_file: webhook.secret}
    - name: mail
      email: {to: [ops@example.com]}
  grouping:
    group_by: [alertname, app]
    repeat_interval: 12h

A secret is the value of secret, or the content of secret_file. Without either, the receiver
keeps its present secret.`

func newSetCommand(c commands) *cobra.Command {
	var receivers string
	cmd := &cobra.Command{
		Use: "set FILE", Short: "Set the rules and the receivers", Long: setLong, Args: cobra.ExactArgs(1),
		Example: "  hangar alerts test rules.yml && hangar alerts set rules.yml --receivers receivers.yml",
	}
	org := c.alertOrg(cmd)
	cmd.Flags().StringVar(&receivers, "receivers", "", "file with receivers and grouping")
	return cli.Answering(c.Invocation, cmd, func(cmd *cobra.Command, args []string) (made hangar.AlertConfig, err error) {
		in, err := c.readAlerts(args[0], receivers)
		if err != nil {
			return made, err
		}
		p, err := c.Connect()
		if err != nil {
			return made, err
		}
		if receivers == "" {
			before, err := p.AlertConfig(cmd.Context(), org())
			if err != nil && hangar.ReasonOf(err) != hangar.ReasonAlertsNotFound {
				return made, err
			}
			in.Receivers, in.Grouping = before.Receivers, before.Grouping
		}
		return p.SetAlerts(cmd.Context(), org(), in)
	}, func(made hangar.AlertConfig) error {
		if len(made.Receivers) == 0 {
			fmt.Fprintln(c.Stderr, "There are no receivers, so no notifications are sent. See `hangar alerts set --help`.")
		}
		return c.Sayf("The rules are set. See their alerts: hangar alerts list")
	})
}

// readAlerts reads the files of `alerts set`. Without the second one, there are no receivers.
func (c commands) readAlerts(rules, receivers string) (config hangar.AlertConfig, err error) {
	text, err := c.readRules(rules)
	if err != nil {
		return config, err
	}
	if receivers != "" {
		if config, err = readReceivers(receivers); err != nil {
			return config, fmt.Errorf("read %s: %w", receivers, err)
		}
	}
	config.Rules = text
	return config, nil
}

func (c commands) readRules(path string) (string, error) {
	// One byte more than allowed, so that the server refuses a longer file.
	text, err := c.ReadFile(path, hangar.MaxAlertRulesBytes+1)
	return string(text), err
}

// receiversFile is the content of the file of --receivers. A secret may be in another file.
type receiversFile struct {
	Receivers []struct {
		hangar.AlertReceiver
		Webhook *struct {
			hangar.AlertWebhook
			SecretFile string `json:"secret_file"`
		} `json:"webhook"`
	} `json:"receivers"`
	Grouping hangar.AlertGrouping `json:"grouping"`
}

func readReceivers(path string) (config hangar.AlertConfig, err error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return config, err
	}
	// Decoded through JSON, so that the file has the keys and the checks of the API.
	var tree any
	if err := yaml.Unmarshal(raw, &tree); err != nil {
		return config, err
	}
	if raw, err = json.Marshal(tree); err != nil {
		return config, err
	}
	var in receiversFile
	decoder := json.NewDecoder(strings.NewReader(string(raw)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&in); err != nil {
		return config, err
	}
	config.Grouping = in.Grouping
	for _, r := range in.Receivers {
		one := r.AlertReceiver
		if w := r.Webhook; w != nil {
			one.Webhook = &w.AlertWebhook
			if w.SecretFile != "" {
				file := w.SecretFile
				if !filepath.IsAbs(file) {
					file = filepath.Join(filepath.Dir(path), file)
				}
				secret, err := os.ReadFile(file)
				if err != nil {
					return config, err
				}
				one.Webhook.Secret = hangar.NewSensitive(strings.TrimRight(string(secret), "\r\n"))
			}
		}
		config.Receivers = append(config.Receivers, one)
	}
	return config, nil
}

func newListCommand(c commands) *cobra.Command {
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls", "status"}, Short: "List alerts, and errors of rules and receivers", Args: cobra.NoArgs}
	org := c.alertOrg(cmd)
	return cli.Answering(c.Invocation, cmd, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, _ []string) (hangar.AlertReport, error) {
		return p.Alerts(ctx, org())
	}), c.printAlerts)
}

// printAlerts prints the alerts, and on standard error the errors of rules and receivers.
func (c commands) printAlerts(report hangar.AlertReport) error {
	now := time.Now()
	for _, g := range report.Groups {
		if g.Error != "" {
			fmt.Fprintf(c.Stderr, "Rules: %s\n", g.Error)
		}
		for _, r := range g.Rules {
			if r.Error != "" {
				fmt.Fprintf(c.Stderr, "Group %s, rule %s: %s\n", g.Name, r.Name, r.Error)
			}
		}
	}
	for _, r := range report.Receivers {
		if r.Error != "" {
			fmt.Fprintf(c.Stderr, "Receiver %s, %s: %s\n", r.Name, cli.Ago(now, r.FailedAt), r.Error)
		}
	}
	if len(report.Alerts) == 0 {
		fmt.Fprintln(c.Stderr, "No alerts.")
		return nil
	}
	rows := [][]string{{"STATE", "ALERT", "SINCE", "VALUE", "LABELS"}}
	for _, a := range report.Alerts {
		since := a.ActiveAt
		if a.State == hangar.AlertResolved {
			since = a.ResolvedAt
		}
		rows = append(rows, []string{string(a.State), a.Name, cli.Ago(now, since), a.Value.String(), labelsText(a.Labels)})
	}
	return c.PrintTable(rows)
}

// labelsText formats the labels of an alert on one line, without its name.
func labelsText(labels map[string]string) string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		if name != hangar.AlertNameLabel {
			list = append(list, fmt.Sprintf("%s=%q", name, labels[name]))
		}
	}
	return strings.Join(list, " ")
}

func newShowCommand(c commands) *cobra.Command {
	cmd := &cobra.Command{Use: "show", Short: "Show the rules and the receivers", Args: cobra.NoArgs}
	org := c.alertOrg(cmd)
	return cli.Answering(c.Invocation, cmd, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, _ []string) (hangar.AlertConfig, error) {
		return p.AlertConfig(ctx, org())
	}), c.printAlertConfig)
}

// printAlertConfig prints a rule file that can be set again. The receivers are comments at its start.
func (c commands) printAlertConfig(config hangar.AlertConfig) error {
	for _, r := range config.Receivers {
		to := ""
		switch {
		case r.Webhook != nil:
			to = r.Webhook.URL
		case r.Email != nil:
			to = strings.Join(r.Email.To, ", ")
		}
		if len(r.Match) > 0 {
			to += "  if " + labelsText(r.Match)
		}
		fmt.Fprintf(c.Stdout, "# receiver %s: %s\n", r.Name, to)
	}
	g := config.Grouping.WithDefaults()
	fmt.Fprintf(c.Stdout, "# grouped by %s; waits %s, then every %s, repeated after %s\n", strings.Join(g.By, ", "), g.Wait, g.Interval, g.Repeat)
	_, err := io.WriteString(c.Stdout, config.Rules)
	return err
}

func newTestCommand(c commands) *cobra.Command {
	cmd := &cobra.Command{
		Use: "test FILE", Short: "Evaluate a rule file once, without saving it", Args: cobra.ExactArgs(1),
		Long: "Evaluate a rule file once, now, and print the alerts that it would raise. Nothing is saved and no\n" +
			"notification is sent. - is standard input.",
	}
	org := c.alertOrg(cmd)
	return cli.Judging(c.Invocation, cmd, func(cmd *cobra.Command, args []string) (report hangar.AlertReport, err error) {
		rules, err := c.readRules(args[0])
		if err != nil {
			return report, err
		}
		p, err := c.Connect()
		if err != nil {
			return report, err
		}
		return p.TestAlerts(cmd.Context(), org(), rules)
	}, c.printAlerts, func(report hangar.AlertReport) error {
		for _, g := range report.Groups {
			if slices.ContainsFunc(g.Rules, func(r hangar.AlertRule) bool { return r.Health != hangar.AlertHealthOK }) {
				return cli.ExitStatus(cli.ExitFailed)
			}
		}
		return nil
	})
}

func newRemoveCommand(c commands) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{Use: "remove", Aliases: []string{"rm", "delete"}, Short: "Remove the rules and the receivers", Args: cobra.NoArgs}
	org := c.alertOrg(cmd)
	cli.YesFlag(cmd, &yes)
	cmd.RunE = c.Connected(func(ctx context.Context, p *client.Client, _ []string) error {
		if err := c.ConfirmUnless(yes, "Remove all alerts of organization %s?", org()); err != nil {
			return err
		}
		if err := p.DeleteAlerts(ctx, org()); err != nil {
			return err
		}
		return c.Sayf("The alerts of organization %s are removed.", org())
	})
	return cmd
}
