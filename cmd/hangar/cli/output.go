package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

// Streams are the standard streams of an invocation.
type Streams struct {
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
}

// output is the standard output of an invocation. The invocation fails with the first error of a write, so commands
// need not check each.
type output struct {
	io.Writer
	failed atomic.Pointer[error]
}

func (o *output) Write(b []byte) (int, error) {
	n, err := o.Writer.Write(b)
	if err != nil {
		o.failed.CompareAndSwap(nil, &err)
	}
	return n, err
}

// Sayf prints a line on standard output.
func (s *Streams) Sayf(format string, args ...any) error {
	_, err := fmt.Fprintf(s.Stdout, format+"\n", args...)
	return err
}

// PrintJSON writes one indented document.
func (s *Streams) PrintJSON(v any) error {
	enc := json.NewEncoder(s.Stdout)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// PrintJSONLine writes one JSON value on one line.
func (s *Streams) PrintJSONLine(v any) error {
	enc := json.NewEncoder(s.Stdout)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// PrintTable writes aligned columns. The first row is the header.
func (s *Streams) PrintTable(rows [][]string) error {
	w := tabwriter.NewWriter(s.Stdout, 0, 0, 3, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			if cell == "" {
				row[i] = "-"
			}
		}
		// No tab after the last cell, so that lines have no trailing blanks.
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	return w.Flush()
}

// ListFlags are the flags of a command that prints a list.
type ListFlags struct {
	AsJSON, Quiet bool
	Name          int // index of the column that --quiet prints
}

// Add adds --json and --quiet to a command. names describes what --quiet prints.
func (f *ListFlags) Add(cmd *cobra.Command, names string) {
	JSONFlag(cmd, &f.AsJSON)
	QuietFlag(cmd, &f.Quiet, names)
}

// PrintList writes a list as JSON, as names only, or as a table whose first row is the header. It writes
// the hint instead of an empty table.
func (s *Streams) PrintList(f ListFlags, list any, rows [][]string, hint string) error {
	switch {
	case f.AsJSON:
		return s.PrintJSON(list)
	case f.Quiet:
		for _, row := range rows[1:] {
			fmt.Fprintln(s.Stdout, row[f.Name])
		}
		return nil
	case len(rows) == 1 && hint != "":
		fmt.Fprintln(s.Stderr, hint)
		return nil
	}
	return s.PrintTable(rows)
}

// Field is a name and a value, on one line.
type Field [2]string

// PrintFields writes the fields that have a value, one per line.
func (s *Streams) PrintFields(fields []Field) error {
	w := tabwriter.NewWriter(s.Stdout, 0, 0, 3, ' ', 0)
	for _, f := range fields {
		if f[1] != "" {
			fmt.Fprintf(w, "%s\t%s\n", f[0], f[1])
		}
	}
	return w.Flush()
}

// OrEmpty returns an empty list for nil, so that its JSON is always an array.
func OrEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
