package metric

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

// defaultTopInterval is the time between two refreshes.
const (
	defaultTopInterval = 5 * time.Second
	minTopInterval     = time.Second
)

func newTopCommand(c commands) *cobra.Command {
	var (
		org, order string
		interval   time.Duration
		once       bool
		asJSON     bool
	)
	cmd := &cobra.Command{
		Use: "top [APP]", Short: "Show which Machines use most, again and again", Args: cobra.MaximumNArgs(1), ValidArgsFunction: c.CompleteApp,
		Long: "Show the started Machines of an organization, or of an App, the busiest first: processors in use, memory, requests, traffic. " +
			"The view is refreshed until q is pressed; c, m, r and n sort by processors, memory, requests and name. " +
			"Without a terminal, it is printed once.",
		Example: "  hangar metrics top\n  hangar metrics top web --sort memory\n  hangar metrics top --json | jq '.[0].machine'",
		RunE: func(cmd *cobra.Command, args []string) error {
			if orders[order] == nil {
				return cli.UsageErrorf("--sort must be one of %s", strings.Join(slices.Sorted(maps.Keys(orders)), ", "))
			}
			if interval < minTopInterval {
				return cli.UsageErrorf("--interval must be at least %s", minTopInterval)
			}
			p, err := c.Connect()
			if err != nil {
				return err
			}
			app := ""
			if len(args) > 0 {
				app = args[0]
			}
			q, err := c.metricsQuery(cmd.Context(), p, org, app)
			if err != nil {
				return err
			}
			t := top{c: c, p: p, query: q, order: order, interval: interval}
			out, shown := cli.Terminal(c.Stdout)
			if asJSON || once || !shown || !cli.IsTerminal(c.Stdin) {
				return t.once(cmd.Context(), asJSON)
			}
			return t.live(cmd.Context(), out)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&org, "org", "", "organization (default that of APP, else of the context, or personal)")
	flags.StringVar(&order, "sort", "cpu", "order: cpu, memory or requests, the highest first, or name")
	flags.DurationVar(&interval, "interval", defaultTopInterval, "time between two refreshes")
	flags.BoolVar(&once, "once", false, "print it once")
	cli.JSONFlag(cmd, &asJSON)
	cli.CompleteFlag(cmd, "sort", slices.Sorted(maps.Keys(orders))...)
	return cmd
}

// top is a live table of Machines. It is a tea.Model.
type top struct {
	c        commands
	p        *client.Client
	query    client.MetricsQuery
	order    string
	interval time.Duration

	ctx    context.Context //nolint:containedctx // of the program, whose commands get no other
	rows   []usage
	at     time.Time
	err    error
	width  int
	height int
}

// topAnswer is the result of one query for the rows.
type topAnswer struct {
	rows []usage
	at   time.Time
	err  error
}

// topAgain tells the model to query again.
type topAgain struct{}

func (t top) once(ctx context.Context, asJSON bool) error {
	rows, err := usages(ctx, t.p, t.query)
	if err != nil {
		return err
	}
	sortUsages(rows, t.order)
	return t.c.PrintList(cli.ListFlags{AsJSON: asJSON}, rows, usageTable(rows), "No Machine is started, or none has been measured yet.")
}

func (t top) live(ctx context.Context, out *os.File) error {
	t.ctx = ctx
	_, err := tea.NewProgram(t, tea.WithContext(ctx), tea.WithInput(t.c.Stdin), tea.WithOutput(out)).Run()
	if errors.Is(err, tea.ErrInterrupted) || ctx.Err() != nil {
		return cli.ExitStatus(cli.ExitInterrupted)
	}
	return err
}

// Init implements tea.Model.
func (t top) Init() tea.Cmd { return t.ask }

func (t top) ask() tea.Msg {
	rows, err := usages(t.ctx, t.p, t.query)
	return topAnswer{rows, time.Now(), err}
}

// Update implements tea.Model.
func (t top) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		t.width, t.height = msg.Width, msg.Height
	case topAgain:
		return t, t.ask
	case topAnswer:
		if t.err = msg.err; msg.err == nil {
			t.rows, t.at = msg.rows, msg.at
		}
		return t, tea.Tick(t.interval, func(time.Time) tea.Msg { return topAgain{} })
	case tea.KeyPressMsg:
		switch msg.String() {
		case "q", "esc":
			return t, tea.Quit
		case "ctrl+c":
			return t, tea.Interrupt
		case "c":
			t.order = "cpu"
		case "m":
			t.order = "memory"
		case "r":
			t.order = "requests"
		case "n":
			t.order = "name"
		}
	}
	return t, nil
}

// View implements tea.Model.
func (t top) View() tea.View {
	var b strings.Builder
	what := "organization " + string(t.query.Org)
	if len(t.query.Apps) > 0 {
		what = string(t.query.Apps[0])
	}
	state := "…"
	if !t.at.IsZero() {
		state = t.at.Format(time.TimeOnly)
	}
	fmt.Fprintf(&b, "%s · %d started · by %s · %s · c m r n sort, q quits\n", what, len(t.rows), t.order, state)
	if t.err != nil {
		fmt.Fprintf(&b, "%s\n", t.err)
	}
	b.WriteByte('\n')
	rows := slices.Clone(t.rows)
	sortUsages(rows, t.order)
	out := cli.Streams{Stdout: &b}
	_ = out.PrintTable(usageTable(rows)) // a strings.Builder never fails
	view := tea.NewView(fit(b.String(), t.width, t.height))
	view.AltScreen = true
	return view
}

// fit cuts text to the size of a window.
func fit(text string, width, height int) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if height > 0 && len(lines) > height {
		lines = lines[:height]
	}
	for i, line := range lines {
		if width > 0 {
			lines[i] = cli.Short(line, width)
		}
	}
	return strings.Join(lines, "\n")
}
