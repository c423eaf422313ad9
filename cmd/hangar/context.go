package main

import (
	"cmp"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
)

const contextLong = `A context is a platform that ` + "`hangar login`" + ` has signed in at: its URL, its authority and
a token. Commands use the one in use unless --context, --url or --dir, or HANGAR_CONTEXT,
HANGAR_URL or HANGAR_DIR say otherwise. The context called local is the daemon of this
server, which needs no login. Exit code 3: there is no such context.`

func newContextCommand(c *cli) *cobra.Command {
	cmd := group("context", "Choose between platforms that you have signed in at", "contexts")
	cmd.Long = contextLong
	cmd.AddCommand(newContextListCommand(c), newContextUseCommand(c), newContextShowCommand(c), newContextRemoveCommand(c))
	return cmd
}

// contextView is a context without its token.
type contextView struct {
	Name     string         `json:"name"`
	URL      string         `json:"url"`
	InUse    bool           `json:"in_use"`
	SignedIn bool           `json:"signed_in"`
	Org      hangar.OrgSlug `json:"org,omitempty"`
	TokenIn  string         `json:"token_in,omitempty"` // file or keyring
	CA       string         `json:"authority,omitempty"`
	Insecure bool           `json:"insecure,omitempty"`
}

func viewContext(x savedContext, inUse bool) contextView {
	v := contextView{Name: x.Name, URL: x.URL, InUse: inUse, Org: x.Org, Insecure: x.Insecure}
	switch {
	case x.Keyring:
		v.TokenIn = "keyring"
	case x.Token != "":
		v.TokenIn = "file"
	}
	v.SignedIn = v.TokenIn != ""
	var err error
	if v.CA, err = x.authority(); err != nil {
		v.CA = "damaged"
	}
	return v
}

// contextInUse is the context that commands without flags use; local: the daemon of this server.
func (t *target) contextInUse(all contexts) string {
	if t.getenv("HANGAR_URL") != "" {
		return ""
	}
	if name := t.getenv("HANGAR_CONTEXT"); name != "" {
		return name
	}
	if t.getenv("HANGAR_DIR") != "" {
		return localContext
	}
	return cmp.Or(all.Current, localContext)
}

func newContextListCommand(c *cli) *cobra.Command {
	return listing(c, &cobra.Command{
		Use: "list", Short: "List the contexts", Example: "  hangar context list", Args: cobra.NoArgs,
	}, func(*cobra.Command, []string) ([]contextView, error) {
		all, err := c.contexts()
		if err != nil {
			return nil, err
		}
		current := c.contextInUse(all)
		var views []contextView
		if dir, err := c.dataDir(); err == nil && localURL(dir) != "" {
			views = append(views, contextView{Name: localContext, URL: localURL(dir), InUse: current == localContext, SignedIn: true, TokenIn: "file"})
		}
		for _, x := range all.Contexts {
			views = append(views, viewContext(x, x.Name == current))
		}
		return views, nil
	}, table[contextView]{
		head: []string{"IN USE", "NAME", "URL", "ORG", "TOKEN"},
		row: func(_ time.Time, v contextView) []string {
			mark := ""
			if v.InUse {
				mark = "*"
			}
			return []string{mark, v.Name, v.URL, string(v.Org), cmp.Or(v.TokenIn, "signed out")}
		},
		names: "names", named: 1, hint: "No contexts yet. Sign in: hangar login https://api.example.com",
	})
}

func newContextUseCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:               "use CONTEXT",
		Short:             "Make commands use a context",
		Example:           "  hangar context use api.example.com\n  hangar context use local        # the daemon of this server",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.completeContext,
		RunE: func(_ *cobra.Command, args []string) error {
			err := c.changeContexts(func(all *contexts) error {
				if args[0] == localContext {
					all.Current = ""
					return nil
				}
				x, err := all.find(args[0])
				if err != nil {
					return err
				}
				all.Current = x.Name
				return nil
			})
			if err != nil {
				return err
			}
			fmt.Fprintf(c.stdout, "Commands use %s from now on.\n", args[0])
			for _, name := range []string{"HANGAR_URL", "HANGAR_CONTEXT", "HANGAR_DIR"} {
				if c.getenv(name) != "" {
					fmt.Fprintf(c.stderr, "%s is set, and wins.\n", name)
				}
			}
			return nil
		},
	}
}

func newContextShowCommand(c *cli) *cobra.Command {
	return answering(c, &cobra.Command{
		Use:               "show [CONTEXT]",
		Short:             "Show a context, by default the one in use, without its token",
		Example:           "  hangar context show\n  hangar context show lab --json",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: c.completeContext,
	}, func(_ *cobra.Command, args []string) (view contextView, err error) {
		all, err := c.contexts()
		if err != nil {
			return view, err
		}
		x, err := c.chosenContext(&all, args)
		if err != nil {
			return view, err
		}
		return viewContext(*x, x.Name == c.contextInUse(all)), nil
	}, func(v contextView) error {
		insecure := ""
		if v.Insecure {
			insecure = "plain HTTP is allowed"
		}
		return c.printFields([]field{
			{"name", v.Name},
			{"url", v.URL},
			{"in use", yesNo(v.InUse)},
			{"org", string(v.Org)},
			{"token", cmp.Or(v.TokenIn, "signed out")},
			{"authority", v.CA},
			{"insecure", insecure},
		})
	})
}

func newContextRemoveCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:               "remove CONTEXT",
		Aliases:           []string{"rm"},
		Short:             "Forget a context with its token",
		Long:              "Forget a context with its token, which itself stays valid: `hangar tokens revoke` ends it.",
		Example:           "  hangar context remove lab",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.completeContext,
		RunE: func(_ *cobra.Command, args []string) error {
			wasUsed := false
			err := c.changeContexts(func(all *contexts) error {
				x, err := all.find(args[0])
				if err != nil {
					return err
				}
				if err := c.forgetToken(x); err != nil {
					return err
				}
				wasUsed = all.Current == x.Name
				all.remove(x.Name)
				return nil
			})
			if err != nil {
				return err
			}
			fmt.Fprintf(c.stdout, "Context %s is removed.\n", args[0])
			if wasUsed {
				fmt.Fprintln(c.stderr, "It was in use; now it is the daemon of this server. Choose another: hangar context use CONTEXT")
			}
			return nil
		},
	}
}

// completeContext completes the first argument with the names of contexts.
func (t *target) completeContext(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return t.completeContextFlag(cmd, args, prefix)
}

// completeContextFlag completes --context.
func (t *target) completeContextFlag(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	all, err := t.contexts()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	words := []string{localContext + "\tthe daemon of this server"}
	for _, x := range all.Contexts {
		words = append(words, x.Name+"\t"+x.URL)
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}
