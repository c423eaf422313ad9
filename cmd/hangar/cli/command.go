package cli

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
)

// Getter gets what a command prints.
type Getter[T any] func(cmd *cobra.Command, args []string) (T, error)

// Asked returns a Getter that calls the platform.
func Asked[T any](c *Invocation, call func(ctx context.Context, p *client.Client, args []string) (T, error)) Getter[T] {
	return func(cmd *cobra.Command, args []string) (T, error) {
		p, err := c.Connect()
		if err != nil {
			return *new(T), err
		}
		return call(cmd.Context(), p, args)
	}
}

// AskedOf returns a Getter that calls the platform about the Machine of the arguments APP [MACHINE].
func AskedOf[T any](c *Invocation, call func(context.Context, *client.Client, *hangar.Machine) (T, error)) Getter[T] {
	return func(cmd *cobra.Command, args []string) (T, error) {
		p, m, err := c.OneMachine(cmd.Context(), args)
		if err != nil {
			return *new(T), err
		}
		return call(cmd.Context(), p, m)
	}
}

// Connected returns the RunE of a command that acts on the platform.
func (c *Invocation) Connected(work func(ctx context.Context, p *client.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		p, err := c.Connect()
		if err != nil {
			return err
		}
		return work(cmd.Context(), p, args)
	}
}

// Answering completes a command that prints what get returns: with show, or as JSON.
func Answering[T any](c *Invocation, cmd *cobra.Command, get Getter[T], show func(T) error) *cobra.Command {
	return AnsweringAs(c, cmd, get, func(answer T) T { return answer }, show)
}

// Judging is Answering for a value that may mean a failure. The command ends with the error of judge after it has
// printed the value in either form.
func Judging[T any](c *Invocation, cmd *cobra.Command, get Getter[T], show, judge func(T) error) *cobra.Command {
	return answering(c, cmd, get, func(answer T) T { return answer }, show, judge)
}

// AnsweringAs is Answering for a value that has another form as JSON.
func AnsweringAs[T, J any](c *Invocation, cmd *cobra.Command, get Getter[T], asJSON func(T) J, show func(T) error) *cobra.Command {
	return answering(c, cmd, get, asJSON, show, func(T) error { return nil })
}

func answering[T, J any](c *Invocation, cmd *cobra.Command, get Getter[T], asJSON func(T) J, show, judge func(T) error) *cobra.Command {
	var wanted bool
	JSONFlag(cmd, &wanted)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		answer, err := get(cmd, args)
		switch {
		case err != nil:
			return err
		case wanted:
			err = c.PrintJSON(asJSON(answer))
		default:
			err = show(answer)
		}
		return cmp.Or(judge(answer), err)
	}
	return cmd
}

// Table is how a list is printed.
type Table[T any] struct {
	Head  []string
	Row   func(now time.Time, item T) []string
	Names string      // what --quiet prints, in its help; empty: there is no --quiet
	Named int         // index of the column that --quiet prints
	Hint  string      // printed for an empty list; %s stands for the first argument
	JSON  func(T) any // nil: the items themselves
}

// Listing completes a command that prints the list that get returns.
func Listing[T any](c *Invocation, cmd *cobra.Command, get Getter[[]T], t Table[T]) *cobra.Command {
	f := ListFlags{Name: t.Named}
	JSONFlag(cmd, &f.AsJSON)
	if t.Names != "" {
		QuietFlag(cmd, &f.Quiet, t.Names)
	}
	if cmd.Name() == "list" {
		cmd.Aliases = []string{"ls"}
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		list, err := get(cmd, args)
		if err != nil {
			return err
		}
		hint := t.Hint
		if len(args) > 0 {
			hint = strings.ReplaceAll(hint, "%s", args[0])
		}
		var out any = OrEmpty(list)
		if t.JSON != nil {
			views := []any{}
			for _, item := range list {
				views = append(views, t.JSON(item))
			}
			out = views
		}
		return c.PrintList(f, out, t.rows(list), hint)
	}
	return cmd
}

// rows returns the rows of the table. The first one is its header.
func (t Table[T]) rows(list []T) [][]string {
	now := time.Now()
	rows := [][]string{t.Head}
	for _, item := range list {
		rows = append(rows, t.Row(now, item))
	}
	return rows
}

// Group returns a command that only has subcommands: by itself it prints its help, and an unknown
// subcommand is a usage error.
func Group(use, short string, aliases ...string) *cobra.Command {
	return &cobra.Command{
		Use:     use,
		Short:   short,
		Aliases: aliases,
		Args:    NoSuchCommand,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
}

// NoSuchCommand refuses the arguments of a Group, and suggests a subcommand.
func NoSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	cmd.SuggestionsMinimumDistance = suggestedWithin
	err := UsageErrorf("unknown command %q for %q", args[0], cmd.CommandPath())
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		return WithHint(err, fmt.Sprintf("did you mean `%s %s`?", cmd.CommandPath(), strings.Join(near, "`, `"+cmd.CommandPath()+" ")))
	}
	return WithHint(err, fmt.Sprintf("`%s --help` lists the commands", cmd.CommandPath()))
}

// suggestedWithin is the edit distance up to which a command is suggested.
const suggestedWithin = 2
