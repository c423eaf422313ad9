package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
)

// completionPatience bounds how long a shell waits for names; a slow platform
// completes nothing rather than hang the prompt.
const completionPatience = 2 * time.Second

// complete completes with the words that list returns, each with what it means after
// a tab.
func (c *cli) complete(cmd *cobra.Command, list func(context.Context, *client.Client) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completionPatience)
	defer cancel()
	p, err := c.connect()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	words, err := list(ctx, p)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}

// completeApp completes the first argument with the names of Apps.
func (c *cli) completeApp(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.complete(cmd, func(ctx context.Context, p *client.Client) (names []string, err error) {
		apps, err := p.Apps(ctx, hangar.AppFilter{})
		for _, a := range apps {
			names = append(names, fmt.Sprintf("%s\t%d Machines", a.Name, a.MachineCount))
		}
		return names, err
	})
}

// completeMachine completes APP and then the ids of its Machines.
func (c *cli) completeMachine(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return c.completeApp(cmd, args, prefix)
	}
	return c.complete(cmd, func(ctx context.Context, p *client.Client) (ids []string, err error) {
		machines, err := p.Machines(ctx, hangar.AppName(args[0]), hangar.MachineFilter{})
		for _, m := range machines {
			ids = append(ids, fmt.Sprintf("%s\t%s, %s", m.ID, m.Name, m.State))
		}
		return ids, err
	})
}

// completeOrg completes the first argument with the slugs of organizations.
func (c *cli) completeOrg(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.complete(cmd, func(ctx context.Context, p *client.Client) (slugs []string, err error) {
		orgs, err := p.Orgs(ctx)
		for _, o := range orgs {
			slugs = append(slugs, string(o.Slug)+"\t"+o.Name)
		}
		return slugs, err
	})
}

// completePeer completes ORG and then the names of its peers.
func (c *cli) completePeer(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	switch len(args) {
	case 0:
		return c.completeOrg(cmd, args, prefix)
	case 1:
	default:
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.complete(cmd, func(ctx context.Context, p *client.Client) (names []string, err error) {
		peers, err := p.Peers(ctx, hangar.OrgSlug(args[0]))
		for _, peer := range peers {
			names = append(names, fmt.Sprintf("%s\t%s, network %s", peer.Name, peer.Address, peer.Network))
		}
		return names, err
	})
}

// completeHostname completes APP and then its custom hostnames.
func (c *cli) completeHostname(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	switch len(args) {
	case 0:
		return c.completeApp(cmd, args, prefix)
	case 1:
	default:
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.complete(cmd, func(ctx context.Context, p *client.Client) (names []string, err error) {
		list, err := p.Certificates(ctx, hangar.AppName(args[0]))
		for _, cert := range list {
			names = append(names, fmt.Sprintf("%s\t%s", cert.Hostname, certificateSummary(cert)))
		}
		return names, err
	})
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
