package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"
)

// streams are where an invocation prints, and what it asks a person or a script.
type streams struct {
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
}

// jsonFlag gives a command --json.
func jsonFlag(cmd *cobra.Command, p *bool) {
	cmd.Flags().BoolVar(p, "json", false, "print JSON")
}

// quietFlag gives a command --quiet.
func quietFlag(cmd *cobra.Command, p *bool, what string) {
	cmd.Flags().BoolVarP(p, "quiet", "q", false, "print only "+what)
}

// printJSON writes one indented document.
func (s *streams) printJSON(v any) error {
	enc := json.NewEncoder(s.stdout)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// printTable writes aligned columns. The first row is their header.
func (s *streams) printTable(rows [][]string) error {
	w := tabwriter.NewWriter(s.stdout, 0, 0, 3, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			if cell == "" {
				row[i] = "-"
			}
		}
		// The last cell ends without a tab, so that lines have no trailing blanks.
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	return w.Flush()
}

// listFlags are those of a command that lists, and which column of its table has the names.
type listFlags struct {
	asJSON, quiet bool
	name          int
}

func (f *listFlags) add(cmd *cobra.Command, names string) {
	jsonFlag(cmd, &f.asJSON)
	quietFlag(cmd, &f.quiet, names)
}

// printList writes a list: as JSON, only its names, or as a table, of which the first row is
// the header. For an empty list, a hint stands in for the table.
func (s *streams) printList(f listFlags, list any, rows [][]string, hint string) error {
	switch {
	case f.asJSON:
		return s.printJSON(list)
	case f.quiet:
		for _, row := range rows[1:] {
			fmt.Fprintln(s.stdout, row[f.name])
		}
		return nil
	case len(rows) == 1 && hint != "":
		fmt.Fprintln(s.stderr, hint)
		return nil
	}
	return s.printTable(rows)
}

// field is one line of a description: a name and a value.
type field [2]string

// printFields writes "name  value" lines, leaving out empty values.
func (s *streams) printFields(fields []field) error {
	w := tabwriter.NewWriter(s.stdout, 0, 0, 3, ' ', 0)
	for _, f := range fields {
		if f[1] != "" {
			fmt.Fprintf(w, "%s\t%s\n", f[0], f[1])
		}
	}
	return w.Flush()
}

// confirmUnless asks a person who has not said yes already, as confirm does.
func (s *streams) confirmUnless(yes bool, format string, args ...any) error {
	if yes {
		return nil
	}
	return s.confirm(format, args...)
}

// confirm asks a person; where nobody can answer, the command line counts as the
// answer.
func (s *streams) confirm(format string, args ...any) error {
	if !isTerminal(s.stdin) || !isTerminal(s.stderr) {
		return nil
	}
	fmt.Fprintf(s.stderr, format+" [y/N] ", args...)
	line, err := bufio.NewReader(s.stdin).ReadString('\n')
	if err != nil && line == "" {
		return exitStatus(exitFailed)
	}
	if answer := strings.ToLower(strings.TrimSpace(line)); answer == "y" || answer == "yes" {
		return nil
	}
	fmt.Fprintln(s.stderr, "Nothing was changed.")
	return exitStatus(exitFailed)
}

// ago is how long before now t was, for people.
func ago(now, t time.Time) string {
	if t.IsZero() {
		return ""
	}
	d := now.Sub(t)
	switch {
	case d < time.Second:
		return "just now"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds ago", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm ago", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh ago", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd ago", int(d.Hours()/24))
	}
}

// brief rounds a duration to what a person cares for.
func brief(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	default:
		return d.Round(time.Second).String()
	}
}

// bytes is a size in binary units.
func bytes(n int64) string { return units.BytesSize(float64(n)) }

// percent is a share of one core.
func percent(share float64) string { return fmt.Sprintf("%.1f%%", math.Max(share, 0)*100) }

// short cuts text to n characters.
func short(text string, n int) string {
	runes := []rune(text)
	if len(runes) <= n {
		return text
	}
	return string(runes[:n-1]) + "…"
}
