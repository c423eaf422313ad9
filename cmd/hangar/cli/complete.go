package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
)

// completionPatience bounds how long a shell waits for names. With a slow platform, nothing is
// completed.
const completionPatience = 2 * time.Second

// Complete completes with the words that list returns. A tab separates a word from its description.
func (c *Invocation) Complete(cmd *cobra.Command, list func(context.Context, *client.Client) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completionPatience)
	defer cancel()
	p, err := c.Connect()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	words, err := list(ctx, p)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}

// CompleteApp completes the first argument with the names of Apps.
func (c *Invocation) CompleteApp(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.Complete(cmd, func(ctx context.Context, p *client.Client) (names []string, err error) {
		apps, err := p.Apps(ctx, hangar.AppFilter{})
		for _, a := range apps {
			names = append(names, fmt.Sprintf("%s\t%d Machines", a.Name, a.MachineCount))
		}
		return names, err
	})
}

// CompleteMachine completes APP and then the ids of its Machines.
func (c *Invocation) CompleteMachine(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return c.CompleteApp(cmd, args, prefix)
	}
	return c.Complete(cmd, func(ctx context.Context, p *client.Client) (ids []string, err error) {
		machines, err := p.Machines(ctx, hangar.AppName(args[0]), hangar.MachineFilter{})
		for _, m := range machines {
			ids = append(ids, fmt.Sprintf("%s\t%s, %s", m.ID, m.Name, m.State))
		}
		return ids, err
	})
}

// CompleteOrg completes the first argument with the slugs of organizations.
func (c *Invocation) CompleteOrg(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.Complete(cmd, func(ctx context.Context, p *client.Client) (slugs []string, err error) {
		orgs, err := p.Orgs(ctx)
		for _, o := range orgs {
			slugs = append(slugs, string(o.Slug)+"\t"+o.Name)
		}
		return slugs, err
	})
}

// CompleteContext completes the first argument with the names of contexts.
func (t *Target) CompleteContext(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return t.completeContextFlag(cmd, args, prefix)
}

// completeContextFlag completes --context.
func (t *Target) completeContextFlag(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	all, err := t.Contexts()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	words := []string{LocalContext + "\tthe daemon of this server"}
	for _, x := range all.Contexts {
		words = append(words, x.Name+"\t"+x.URL)
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}
