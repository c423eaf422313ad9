package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
)

// completionPatience bounds how long a shell waits for names; a slow platform
// completes nothing rather than hang the prompt.
const completionPatience = 2 * time.Second

// completeApp completes the first argument with the names of Apps.
func (c *cli) completeApp(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionPatience)
	defer cancel()
	p, err := c.connect()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	apps, err := p.Apps(ctx, hangar.AppFilter{})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for _, a := range apps {
		names = append(names, fmt.Sprintf("%s\t%d Machines", a.Name, a.MachineCount))
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeMachine completes APP and then the ids of its Machines.
func (c *cli) completeMachine(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return c.completeApp(cmd, args, prefix)
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionPatience)
	defer cancel()
	p, err := c.connect()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	machines, err := p.Machines(ctx, hangar.AppName(args[0]), hangar.MachineFilter{})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var ids []string
	for _, m := range machines {
		ids = append(ids, fmt.Sprintf("%s\t%s, %s", m.ID, m.Name, m.State))
	}
	return ids, cobra.ShellCompDirectiveNoFileComp
}

// completeMetadataKey completes APP, MACHINE and then the keys of its metadata.
func (c *cli) completeMetadataKey(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) < 2 {
		return c.completeMachine(cmd, args, prefix)
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionPatience)
	defer cancel()
	_, m, err := c.oneMachine(ctx, args[:2])
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var keys []string
	for k, v := range m.Config.Metadata {
		keys = append(keys, fmt.Sprintf("%s\t%s", k, short(v, 40)))
	}
	slices.Sort(keys)
	return keys, cobra.ShellCompDirectiveNoFileComp
}

// completeState completes the states that a Machine can be waited into.
func completeState(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	names := []string{string(hangar.WaitSettled)}
	for _, s := range hangar.MachineStates() {
		names = append(names, string(s))
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
