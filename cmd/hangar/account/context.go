package account

import (
	"cmp"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

const contextLong = `A context is a platform at which ` + "`hangar login`" + ` has signed in: its URL, its certificate
authority and a token. Commands use the context in use, unless --context, --url or --dir, or
HANGAR_CONTEXT, HANGAR_URL or HANGAR_DIR name another platform. The context called local is
the daemon of this server, which needs no login. Exit code 3: there is no such context.`

// NewContextCommand makes `hangar context`.
func NewContextCommand(inv *cli.Invocation) *cobra.Command {
	c := commands{inv}
	cmd := cli.Group("context", "Choose between the platforms at which you are signed in", "contexts")
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

func viewContext(x cli.SavedContext, inUse bool) contextView {
	v := contextView{Name: x.Name, URL: x.URL, InUse: inUse, Org: x.Org, Insecure: x.Insecure}
	switch {
	case x.Keyring:
		v.TokenIn = "keyring"
	case x.Token != "":
		v.TokenIn = "file"
	}
	v.SignedIn = v.TokenIn != ""
	var err error
	if v.CA, err = x.Authority(); err != nil {
		v.CA = "damaged"
	}
	return v
}

func newContextListCommand(c commands) *cobra.Command {
	return cli.Listing(c.Invocation, &cobra.Command{
		Use: "list", Short: "List the contexts", Example: "  hangar context list", Args: cobra.NoArgs,
	}, func(*cobra.Command, []string) ([]contextView, error) {
		all, err := c.Contexts()
		if err != nil {
			return nil, err
		}
		current := c.ContextInUse(all)
		var views []contextView
		if dir, err := c.DataDir(); err == nil && cli.LocalURL(dir) != "" {
			views = append(views, contextView{Name: cli.LocalContext, URL: cli.LocalURL(dir), InUse: current == cli.LocalContext, SignedIn: true, TokenIn: "file"})
		}
		for _, x := range all.Contexts {
			views = append(views, viewContext(x, x.Name == current))
		}
		return views, nil
	}, cli.Table[contextView]{
		Head: []string{"IN USE", "NAME", "URL", "ORG", "TOKEN"},
		Row: func(_ time.Time, v contextView) []string {
			mark := ""
			if v.InUse {
				mark = "*"
			}
			return []string{mark, v.Name, v.URL, string(v.Org), cmp.Or(v.TokenIn, "signed out")}
		},
		Names: "names", Named: 1, Hint: "No contexts yet. Sign in: hangar login https://api.example.com",
	})
}

func newContextUseCommand(c commands) *cobra.Command {
	return &cobra.Command{
		Use:               "use CONTEXT",
		Short:             "Make commands use a context",
		Example:           "  hangar context use api.example.com\n  hangar context use local        # the daemon of this server",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.CompleteContext,
		RunE: func(_ *cobra.Command, args []string) error {
			err := c.ChangeContexts(func(all *cli.Contexts) error {
				if args[0] == cli.LocalContext {
					all.Current = ""
					return nil
				}
				x, err := all.Find(args[0])
				if err != nil {
					return err
				}
				all.Current = x.Name
				return nil
			})
			if err != nil {
				return err
			}
			fmt.Fprintf(c.Stdout, "Commands use %s from now on.\n", args[0])
			for _, name := range []string{"HANGAR_URL", "HANGAR_CONTEXT", "HANGAR_DIR"} {
				if c.Getenv(name) != "" {
					fmt.Fprintf(c.Stderr, "%s is set, and takes precedence.\n", name)
				}
			}
			return nil
		},
	}
}

func newContextShowCommand(c commands) *cobra.Command {
	return cli.Answering(c.Invocation, &cobra.Command{
		Use:               "show [CONTEXT]",
		Short:             "Show a context, by default the one in use, without its token",
		Example:           "  hangar context show\n  hangar context show lab --json",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: c.CompleteContext,
	}, func(_ *cobra.Command, args []string) (view contextView, err error) {
		all, err := c.Contexts()
		if err != nil {
			return view, err
		}
		x, err := c.ChosenContext(&all, args)
		if err != nil {
			return view, err
		}
		return viewContext(*x, x.Name == c.ContextInUse(all)), nil
	}, func(v contextView) error {
		insecure := ""
		if v.Insecure {
			insecure = "plain HTTP is allowed"
		}
		return c.PrintFields([]cli.Field{
			{"name", v.Name},
			{"url", v.URL},
			{"in use", cli.YesNo(v.InUse)},
			{"org", string(v.Org)},
			{"token", cmp.Or(v.TokenIn, "signed out")},
			{"authority", v.CA},
			{"insecure", insecure},
		})
	})
}

func newContextRemoveCommand(c commands) *cobra.Command {
	return &cobra.Command{
		Use:               "remove CONTEXT",
		Aliases:           []string{"rm"},
		Short:             "Remove a context with its token",
		Long:              "Remove a context with its token from this computer. The token stays valid: `hangar tokens revoke` revokes it.",
		Example:           "  hangar context remove lab",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.CompleteContext,
		RunE: func(_ *cobra.Command, args []string) error {
			wasUsed := false
			err := c.ChangeContexts(func(all *cli.Contexts) error {
				x, err := all.Find(args[0])
				if err != nil {
					return err
				}
				if err := c.ForgetToken(x); err != nil {
					return err
				}
				wasUsed = all.Current == x.Name
				all.Remove(x.Name)
				return nil
			})
			if err != nil {
				return err
			}
			fmt.Fprintf(c.Stdout, "Context %s is removed.\n", args[0])
			if wasUsed {
				fmt.Fprintln(c.Stderr, "It was in use. Commands now use the daemon of this server. Choose another: hangar context use CONTEXT")
			}
			return nil
		},
	}
}
