package app

import (
	"fmt"
	"io"
	"iter"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

const logsLong = `Show the newest lines of the log of an App, or of one of its Machines, oldest first.

With --edge, show the requests that the edge serves from now on: client, request, host, status, bytes of the body, ` +
	`time, Machine and request id. Such lines are not stored. A reader that does not keep up misses some, and sees how many.`

// logsFlags are the flags of `hangar logs`.
type logsFlags struct {
	follow, asJSON, bare, edge bool
	limit                      int
	region                     string
}

// NewLogsCommand makes `hangar logs`.
func NewLogsCommand(c *cli.Invocation) *cobra.Command {
	var f logsFlags
	cmd := &cobra.Command{
		Use:               "logs APP [MACHINE]",
		Aliases:           []string{"log"},
		Short:             "Show the output of Machines",
		Long:              logsLong,
		Example:           "  hangar logs -f hello\n  hangar logs hello --edge --json | jq .edge.status",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: c.CompleteMachine,
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := c.Connect()
			if err != nil {
				return err
			}
			app := hangar.AppName(args[0])
			query := hangar.LogQuery{Region: hangar.Region(f.region), Limit: f.limit}
			if len(args) == 2 {
				query.Instance = hangar.MachineID(args[1])
				// A destroyed Machine has no name, but its lines can be read by its id.
				if !query.Instance.Valid() {
					m, err := cli.FindMachine(cmd.Context(), p, app, args[1])
					if err != nil {
						return err
					}
					query.Instance = m.ID
				}
			}
			if f.edge {
				query.Edge = true
				entries := p.FollowLogs(cmd.Context(), app, query)
				if cmd.Flags().Changed("limit") {
					entries = firstEntries(entries, f.limit)
				}
				return printAll(entries, f.printer(c))
			}
			if f.follow {
				return printAll(p.FollowLogs(cmd.Context(), app, query), f.printer(c))
			}
			page, err := p.Logs(cmd.Context(), app, query)
			if err != nil {
				return err
			}
			print := f.printer(c)
			for _, e := range page.Entries {
				if err := print(e); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVarP(&f.follow, "follow", "f", false, "continue with new lines as they are written")
	cmd.Flags().IntVarP(&f.limit, "limit", "n", hangar.DefaultLogLimit, "show at most this many lines")
	cmd.Flags().BoolVar(&f.edge, "edge", false, "follow the requests at the edge; -n: stop after so many lines")
	cmd.Flags().StringVar(&f.region, "region", "", "only Machines in this region")
	cmd.Flags().BoolVar(&f.bare, "bare", false, "print messages only, as they were written")
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "print one JSON object per line")
	return cmd
}

// printer returns how to print an entry.
func (f *logsFlags) printer(c *cli.Invocation) func(hangar.LogEntry) error {
	switch {
	case f.asJSON:
		return func(e hangar.LogEntry) error { return c.PrintJSONLine(e) }
	case f.bare:
		return func(e hangar.LogEntry) error {
			return c.Sayf("%s", e.Message)
		}
	default:
		return func(e hangar.LogEntry) error { return printEntry(c.Stdout, e) }
	}
}

// firstEntries ends after the n-th entry.
func firstEntries(entries iter.Seq2[hangar.LogEntry, error], n int) iter.Seq2[hangar.LogEntry, error] {
	return func(yield func(hangar.LogEntry, error) bool) {
		if n <= 0 {
			return
		}
		left := n
		for e, err := range entries {
			if left--; !yield(e, err) || left == 0 {
				return
			}
		}
	}
}

func printAll(entries iter.Seq2[hangar.LogEntry, error], print func(hangar.LogEntry) error) error {
	for e, err := range entries {
		if err != nil {
			return err
		}
		if err := print(e); err != nil {
			return err
		}
	}
	return nil
}

// printEntry writes an entry as a line of text.
func printEntry(out io.Writer, e hangar.LogEntry) error {
	if e.Edge != nil {
		_, err := fmt.Fprintf(out, "%s %s\n", e.Time.UTC().Format("2006-01-02T15:04:05.000Z"), e.Message)
		return err
	}
	_, err := fmt.Fprintf(out, "%s %s %s %s[%s] %s\n",
		e.Time.UTC().Format("2006-01-02T15:04:05.000Z"), e.Instance, e.Region, e.Provider, e.Level, e.Message)
	return err
}
