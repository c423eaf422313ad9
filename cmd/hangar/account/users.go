package account

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

const aboutUsers = `Invite, list and remove the people who use a platform.

A user is an admin or a member of organizations. Members do everything with Apps and what is
in them; admins manage the organization, too. An invitation is a code, which you give to the
person: with it, ` + "`hangar login URL --email ADDRESS --code -`" + ` sets a password and signs in.`

// NewUsersCommand makes `hangar users`.
func NewUsersCommand(inv *cli.Invocation) *cobra.Command {
	c := commands{inv}
	cmd := cli.Group("users", "Invite, list and remove people", "user")
	cmd.Long = aboutUsers
	cmd.AddCommand(
		newUsersInviteCommand(c), newUsersInvitationsCommand(c), newUsersCancelCommand(c), newUsersAcceptCommand(c),
		newUsersListCommand(c), newUsersShowCommand(c), newUsersUpdateCommand(c), newUsersRemoveCommand(c), newUsersPasswordCommand(c),
	)
	return cmd
}

func orgFlag(c commands, cmd *cobra.Command, org *string, usage string) {
	cmd.Flags().StringVar(org, "org", "", usage)
	_ = cmd.RegisterFlagCompletionFunc("org", c.CompleteOrg) // the flag exists
}

func newUsersInviteCommand(c commands) *cobra.Command {
	var in hangar.UserInvite
	var org, role string
	cmd := &cobra.Command{
		Use:   "invite EMAIL",
		Short: "Invite a user; the last word printed is the code",
		Long: `Invite a user to an organization, or with --platform only to the platform. The code is shown
once: send it to the person over a channel that you trust. It expires after a week. An earlier
invitation of the same address to the same organization is cancelled.`,
		Example: "  hangar users invite ann@example.com --org acme\n  hangar users invite boss@example.com --platform --admin",
		Args:    cobra.ExactArgs(1), ValidArgsFunction: cobra.NoFileCompletions,
	}
	var platform bool
	orgFlag(c, cmd, &org, "organization (default yours)")
	flags := cmd.Flags()
	flags.StringVar(&role, "role", "", "role in the organization: admin or member (default member)")
	flags.BoolVar(&platform, "platform", false, "invite to the platform, and to no organization")
	flags.BoolVar(&in.Admin, "admin", false, "invite as an administrator of the platform")
	cli.CompleteFlag(cmd, "role", cli.Texts(hangar.Roles())...)
	return cli.AnsweringAs(c.Invocation, cmd, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, args []string) (*hangar.NewInvitation, error) {
		in.Email, in.Role = args[0], hangar.Role(role)
		if !platform {
			var err error
			if in.Org, err = c.ownOrg(ctx, p, org); err != nil {
				return nil, err
			}
		} else if org != "" {
			return nil, cli.UsageErrorf("--org and --platform exclude each other")
		}
		return p.InviteUser(ctx, in)
	}), viewInvitation, func(made *hangar.NewInvitation) error {
		to := "the platform"
		if made.Org != "" {
			to = fmt.Sprintf("%s as %s", made.Org, made.Role)
		}
		fmt.Fprintf(c.Stderr, "%s is invited to %s until %s. Give the code to no one else:\n", made.Email, to, made.ExpiresAt.Format(time.RFC3339))
		return c.Sayf("%s", made.Code)
	})
}

// viewInvitation returns a new invitation with its code, for JSON.
func viewInvitation(made *hangar.NewInvitation) any {
	return struct {
		hangar.Invitation
		Code string `json:"code"`
	}{made.Invitation, made.Code}
}

// ownOrg returns the organization of the flag, or that of the context, or the only one of the user.
func (c commands) ownOrg(ctx context.Context, p *client.Client, flag string) (hangar.OrgSlug, error) {
	if flag != "" {
		return hangar.OrgSlug(flag), nil
	}
	if c.Used.Org != "" {
		return c.Used.Org, nil
	}
	orgs, err := p.Orgs(ctx)
	if err != nil {
		return "", err
	}
	if len(orgs) != 1 {
		return "", cli.WithHint(cli.UsageErrorf("which organization?"), "name it with --org")
	}
	return orgs[0].Slug, nil
}

func newUsersInvitationsCommand(c commands) *cobra.Command {
	var org string
	var platform bool
	cmd := &cobra.Command{Use: "invitations", Short: "List invitations that are not accepted yet", Args: cobra.NoArgs}
	orgFlag(c, cmd, &org, "organization (default yours)")
	cmd.Flags().BoolVar(&platform, "platform", false, "only invitations to the platform without an organization")
	return cli.Listing(c.Invocation, cmd, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, _ []string) ([]*hangar.Invitation, error) {
		slug := hangar.OrgSlug("")
		if !platform {
			var err error
			if slug, err = c.ownOrg(ctx, p, org); err != nil {
				return nil, err
			}
		}
		return p.Invitations(ctx, slug)
	}), cli.Table[*hangar.Invitation]{
		Head: []string{"ID", "EMAIL", "ROLE", "BY", "UNTIL"},
		Row: func(_ time.Time, i *hangar.Invitation) []string {
			return []string{string(i.ID), i.Email, string(i.Role), i.InvitedBy, i.ExpiresAt.Format(time.RFC3339)}
		},
		Names: "ids",
	})
}

func newUsersCancelCommand(c commands) *cobra.Command {
	return &cobra.Command{
		Use: "cancel INVITATION...", Short: "Cancel invitations", Args: cobra.MinimumNArgs(1),
		RunE: c.Connected(func(ctx context.Context, p *client.Client, args []string) error {
			for _, id := range args {
				if err := p.CancelInvitation(ctx, hangar.InvitationID(id)); err != nil {
					return err
				}
				fmt.Fprintf(c.Stdout, "Invitation %s is cancelled.\n", id)
			}
			return nil
		}),
	}
}

func newUsersAcceptCommand(c commands) *cobra.Command {
	cmd := &cobra.Command{
		Use: "accept [CODE]", Short: "Accept an invitation as the signed-in user", Args: cobra.MaximumNArgs(1), ValidArgsFunction: cobra.NoFileCompletions,
		Long: `Accept an invitation as the signed-in user. The command prompts for the code, or with - reads it from
standard input. An argument is visible to every user of this computer.`,
	}
	return cli.Answering(c.Invocation, cmd, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, args []string) (*hangar.User, error) {
		if len(args) == 1 && args[0] != "-" {
			return p.AcceptInvitation(ctx, hangar.NewSensitive(args[0]))
		}
		code, err := c.ReadSecret(len(args) == 1, "code", "hangar users accept - < FILE", "Code of the invitation: ")
		if err != nil {
			return nil, err
		}
		return p.AcceptInvitation(ctx, code)
	}), c.showUser)
}

// rolesOf describes the roles of a user.
func rolesOf(u *hangar.User) string {
	var roles []string
	for _, m := range u.Memberships {
		roles = append(roles, fmt.Sprintf("%s of %s", m.Role, m.Org))
	}
	if u.Admin {
		roles = append([]string{"administrator"}, roles...)
	}
	return strings.Join(roles, ", ")
}

func newUsersListCommand(c commands) *cobra.Command {
	var org string
	cmd := &cobra.Command{
		Use: "list", Short: "List the members of an organization, or all users", Args: cobra.NoArgs,
		Long: "List the members of an organization. Without --org, all users are listed, which only administrators of the platform may do.",
	}
	orgFlag(c, cmd, &org, "organization")
	return cli.Listing(c.Invocation, cmd, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, _ []string) ([]*hangar.User, error) {
		return p.Users(ctx, hangar.UserFilter{Org: hangar.OrgSlug(org)})
	}), cli.Table[*hangar.User]{
		Head: []string{"ID", "EMAIL", "NAME", "ROLES"},
		Row: func(_ time.Time, u *hangar.User) []string {
			return []string{string(u.ID), u.Email, u.Name, rolesOf(u)}
		},
		Names: "ids",
	})
}

func newUsersShowCommand(c commands) *cobra.Command {
	cmd := &cobra.Command{
		Use: "show [USER]", Short: "Show a user by id or address, by default yourself", Args: cobra.MaximumNArgs(1), ValidArgsFunction: cobra.NoFileCompletions,
	}
	return cli.Answering(c.Invocation, cmd, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, args []string) (*hangar.User, error) {
		if len(args) == 0 {
			return p.CurrentUser(ctx)
		}
		return p.User(ctx, hangar.UserRef(args[0]))
	}), c.showUser)
}

func (c commands) showUser(u *hangar.User) error {
	fields := []cli.Field{{"Id", string(u.ID)}, {"Email", u.Email}, {"Name", u.Name}, {"Roles", rolesOf(u)}}
	if u.CustomerAddress != "" {
		fields = append(fields, cli.Field{"For third parties", u.CustomerAddress})
	}
	if !u.LastSignIn.IsZero() {
		fields = append(fields, cli.Field{"Last sign-in", cli.Ago(time.Now(), u.LastSignIn)})
	}
	return c.PrintFields(fields)
}

func newUsersUpdateCommand(c commands) *cobra.Command {
	var name, org, role string
	var admin bool
	cmd := &cobra.Command{
		Use: "update USER", Short: "Change the name of a user, or a role", Args: cobra.ExactArgs(1), ValidArgsFunction: cobra.NoFileCompletions,
		Example: "  hangar users update ann@example.com --org acme --role admin\n  hangar users update ann@example.com --name 'Ann Example'",
	}
	flags := cmd.Flags()
	flags.StringVar(&name, "name", "", "display name")
	orgFlag(c, cmd, &org, "organization of --role (default yours)")
	flags.StringVar(&role, "role", "", "role in the organization: admin or member")
	flags.BoolVar(&admin, "admin", false, "whether the user is an administrator of the platform")
	cli.CompleteFlag(cmd, "role", cli.Texts(hangar.Roles())...)
	return cli.Answering(c.Invocation, cmd, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, args []string) (user *hangar.User, err error) {
		ref := hangar.UserRef(args[0])
		var in hangar.UserUpdate
		if flags.Changed("name") {
			in.Name = &name
		}
		if flags.Changed("admin") {
			in.Admin = &admin
		}
		if in == (hangar.UserUpdate{}) && role == "" {
			return nil, cli.UsageErrorf("nothing to change: use --name, --role or --admin")
		}
		if in != (hangar.UserUpdate{}) {
			if user, err = p.UpdateUser(ctx, ref, in); err != nil {
				return nil, err
			}
		}
		if role == "" {
			return user, nil
		}
		slug, err := c.ownOrg(ctx, p, org)
		if err != nil {
			return nil, err
		}
		return p.SetMember(ctx, slug, ref, hangar.Role(role))
	}), c.showUser)
}

func newUsersRemoveCommand(c commands) *cobra.Command {
	var org string
	var yes bool
	cmd := &cobra.Command{
		Use: "remove USER", Aliases: []string{"rm"}, Short: "Remove a user from an organization, or altogether",
		Long: `Remove a user from an organization. Tokens that the user has created there are revoked at once.
Without --org the user is removed altogether, which only administrators of the platform may do.`,
		Args: cobra.ExactArgs(1), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.Connected(func(ctx context.Context, p *client.Client, args []string) error {
			ref := hangar.UserRef(args[0])
			if org == "" {
				if err := c.ConfirmUnless(yes, "Remove user %s with all memberships and tokens permanently?", ref); err != nil {
					return err
				}
				if err := p.RemoveUser(ctx, ref); err != nil {
					return err
				}
				return c.Sayf("User %s is removed.", ref)
			}
			if err := c.ConfirmUnless(yes, "Remove user %s from organization %s?", ref, org); err != nil {
				return err
			}
			if err := p.RemoveMember(ctx, hangar.OrgSlug(org), ref); err != nil {
				return err
			}
			return c.Sayf("User %s is no longer a member of %s.", ref, org)
		}),
	}
	orgFlag(c, cmd, &org, "organization to remove the user from")
	cli.YesFlag(cmd, &yes)
	return cmd
}

func newUsersPasswordCommand(c commands) *cobra.Command {
	var fromStdin bool
	cmd := &cobra.Command{
		Use:   "password [USER]",
		Short: "Change your password, or create a code with which a user sets a new one",
		Long: `Change your password, which ends all sign-ins with the old one. The command prompts for the current
and the new password, or with --password-stdin reads them as two lines of standard input.

With USER, and as an administrator of the platform, create a code with which the user sets a new
password, by ` + "`hangar login URL --email ADDRESS --code -`" + `. The code expires after a day.`,
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.Connected(func(ctx context.Context, p *client.Client, args []string) error {
			if len(args) > 0 {
				reset, err := p.ResetPassword(ctx, hangar.UserRef(args[0]))
				if err != nil {
					return err
				}
				fmt.Fprintf(c.Stderr, "Until %s a password can be set with this code. Give it to no one else:\n", reset.ExpiresAt.Format(time.RFC3339))
				return c.Sayf("%s", reset.Code)
			}
			in, err := c.readPasswords(fromStdin)
			if err != nil {
				return err
			}
			if err := p.SetPassword(ctx, in); err != nil {
				return err
			}
			return c.Sayf("The password is changed. Sign in again: hangar login --email ADDRESS")
		}),
	}
	cmd.Flags().BoolVar(&fromStdin, "password-stdin", false, "read the current and the new password, a line each, from standard input")
	return cmd
}

// twoLines returns the two lines of standard input, which what names.
func twoLines(text hangar.Sensitive, what string) (first, second hangar.Sensitive, err error) {
	before, after, two := strings.Cut(text.Reveal(), "\n")
	if !two {
		return first, second, cli.UsageErrorf("--password-stdin needs two lines: %s", what)
	}
	return hangar.NewSensitive(strings.TrimSuffix(before, "\r")), hangar.NewSensitive(after), nil
}

// readPasswords reads the current and the new password.
func (c commands) readPasswords(fromStdin bool) (in hangar.PasswordChange, err error) {
	const pipe = "hangar users password --password-stdin < FILE"
	in.Current, err = c.ReadSecret(fromStdin, "password", pipe, "Current password: ")
	if err != nil {
		return in, err
	}
	if fromStdin {
		in.Current, in.New, err = twoLines(in.Current, "the current password and the new one")
		return in, err
	}
	if in.New, err = c.ReadSecret(false, "password", pipe, "New password: "); err != nil {
		return in, err
	}
	again, err := c.ReadSecret(false, "password", pipe, "New password again: ")
	if err == nil && again.Reveal() != in.New.Reveal() {
		err = cli.UsageErrorf("the new passwords differ")
	}
	return in, err
}
