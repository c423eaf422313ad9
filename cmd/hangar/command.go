package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
)

// getter is the part of a command that asks for what the command prints.
type getter[T any] func(cmd *cobra.Command, args []string) (T, error)

// asked gets what a call to the platform returns.
func asked[T any](c *cli, call func(ctx context.Context, p *client.Client, args []string) (T, error)) getter[T] {
	return func(cmd *cobra.Command, args []string) (T, error) {
		p, err := c.connect()
		if err != nil {
			return *new(T), err
		}
		return call(cmd.Context(), p, args)
	}
}

// askedOf gets what a call returns that is about the Machine of the arguments APP [MACHINE].
func askedOf[T any](c *cli, call func(context.Context, *client.Client, *hangar.Machine) (T, error)) getter[T] {
	return func(cmd *cobra.Command, args []string) (T, error) {
		p, m, err := c.oneMachine(cmd.Context(), args)
		if err != nil {
			return *new(T), err
		}
		return call(cmd.Context(), p, m)
	}
}

// connected is the work of a command that acts on the platform.
func (c *cli) connected(work func(ctx context.Context, p *client.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		p, err := c.connect()
		if err != nil {
			return err
		}
		return work(cmd.Context(), p, args)
	}
}

// answering completes a command that prints what get returns: with show, or as JSON.
func answering[T any](c *cli, cmd *cobra.Command, get getter[T], show func(T) error) *cobra.Command {
	return answeringAs(c, cmd, get, func(answer T) T { return answer }, show)
}

// answeringAs is answering for what looks different as JSON.
func answeringAs[T, J any](c *cli, cmd *cobra.Command, get getter[T], asJSON func(T) J, show func(T) error) *cobra.Command {
	var wanted bool
	jsonFlag(cmd, &wanted)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		answer, err := get(cmd, args)
		switch {
		case err != nil:
			return err
		case wanted:
			return c.printJSON(asJSON(answer))
		}
		return show(answer)
	}
	return cmd
}

// table is how a list is printed.
type table[T any] struct {
	head  []string
	row   func(now time.Time, item T) []string
	names string // what --quiet prints, which is the column named: without them there is no --quiet
	named int
	hint  string      // printed for an empty list; %s stands for the first argument
	json  func(T) any // nil: the items themselves
}

// listing completes a command that prints the list which get returns.
func listing[T any](c *cli, cmd *cobra.Command, get getter[[]T], t table[T]) *cobra.Command {
	f := listFlags{name: t.named}
	jsonFlag(cmd, &f.asJSON)
	if t.names != "" {
		quietFlag(cmd, &f.quiet, t.names)
	}
	if cmd.Name() == "list" {
		cmd.Aliases = []string{"ls"}
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		list, err := get(cmd, args)
		if err != nil {
			return err
		}
		hint := t.hint
		if len(args) > 0 {
			hint = strings.ReplaceAll(hint, "%s", args[0])
		}
		var out any = orEmpty(list)
		if t.json != nil {
			views := []any{}
			for _, item := range list {
				views = append(views, t.json(item))
			}
			out = views
		}
		return c.printList(f, out, t.rows(list), hint)
	}
	return cmd
}

// rows are those of the table, of which the first is its header.
func (t table[T]) rows(list []T) [][]string {
	now := time.Now()
	rows := [][]string{t.head}
	for _, item := range list {
		rows = append(rows, t.row(now, item))
	}
	return rows
}

// sayf prints a line on standard output.
func (s *streams) sayf(format string, args ...any) error {
	_, err := fmt.Fprintf(s.stdout, format+"\n", args...)
	return err
}

// yesFlag gives a command --yes.
func yesFlag(cmd *cobra.Command, p *bool) {
	cmd.Flags().BoolVarP(p, "yes", "y", false, "do not ask")
}
