package hangar

import (
	"context"
	"fmt"
	"net/mail"
	"slices"
	"strings"
	"time"
)

// UserID identifies a user permanently: 16 characters of a-z and 0-9, or UserAdmin. It reveals nothing
// about the person, and no other user ever gets it.
type UserID string

// UserAdmin is the user of a server's own token. It always exists. It is an administrator of the
// platform and of every organization, and has no e-mail address and no password.
const UserAdmin UserID = "admin"

// UserRef names a user: an id, or an e-mail address.
type UserRef string

// InvitationID identifies an invitation. Invitations of the same address to the same organization have
// the same id.
type InvitationID string

// Role is the role of a user in an organization.
type Role string

// The roles. Both allow everything with the Apps of the organization and what is in them.
const (
	RoleAdmin  Role = "admin"  // everything in the organization, its members included
	RoleMember Role = "member" // Apps may be created; the organization itself is read only
)

// Roles lists every role.
func Roles() []Role { return []Role{RoleAdmin, RoleMember} }

// roleMemberActions are what RoleMember allows on the organization itself.
const roleMemberActions = ActionRead | ActionCreate | ActionMetrics

// Validate answers CodeInvalid for an unknown role.
func (r Role) Validate() error {
	if !slices.Contains(Roles(), r) {
		return Errorf(CodeInvalid, "", "invalid role: %.40q is none of %v", string(r), Roles())
	}
	return nil
}

// The limits of users.
const (
	MaxEmail       = 254 // bytes of an e-mail address (RFC 5321, section 4.5.3.1)
	MinPassword    = 12  // bytes
	MaxPassword    = 256 // bytes
	MaxMemberships = 50  // organizations of one user
	MaxSignIns     = 20  // tokens of one user that come from signing in; beyond them, the oldest ends

	SignInLifetime        = 30 * 24 * time.Hour // of a token that comes from signing in
	InvitationLifetime    = 7 * 24 * time.Hour
	PasswordResetLifetime = 24 * time.Hour
)

// Membership is the role of a user in one organization.
type Membership struct {
	OrgID OrgID   `json:"org_id"`
	Org   OrgSlug `json:"org_slug"`
	Role  Role    `json:"role"`
}

// User is a person who uses the platform.
type User struct {
	ID    UserID `json:"id"`
	Name  string `json:"name"`
	Email string `json:"email,omitempty"` // UserAdmin has none
	// Memberships are those in organizations whose members the caller may see, sorted by slug.
	Memberships []Membership `json:"organizations"`
	CreatedAt   time.Time    `json:"created_at"`
	// The following is shown only to the user and to administrators of the platform.
	Admin bool `json:"admin,omitempty"` // an administrator of the platform
	// CustomerAddress is an e-mail address for third parties. It stays the same and reveals nothing
	// about the user.
	CustomerAddress string    `json:"customer_address,omitempty"`
	LastSignIn      time.Time `json:"last_sign_in_at,omitzero"` // zero: never
}

// Role returns the role of the user in an organization; false: the user is not a member.
func (u *User) Role(org OrgID) (Role, bool) {
	for _, m := range u.Memberships {
		if m.OrgID == org {
			return m.Role, true
		}
	}
	return "", false
}

// UserFilter selects users. The zero value selects all, for administrators of the platform.
type UserFilter struct {
	Org             OrgSlug // its members
	CustomerAddress string  // the user who has it; for administrators of the platform
}

// UserUpdate changes the fields that are not nil.
type UserUpdate struct {
	Name  *string `json:"name,omitempty"`  // 1 to 100 printable characters
	Admin *bool   `json:"admin,omitempty"` // for administrators of the platform
}

// UserInvite is the request to make a person a user, or a member of an organization.
type UserInvite struct {
	Email string  `json:"email" schema:"required"`
	Org   OrgSlug `json:"org_slug,omitempty"` // empty: none, which is for administrators of the platform
	Role  Role    `json:"role,omitempty"`     // in Org; empty: RoleMember
	Admin bool    `json:"admin,omitempty"`    // as an administrator of the platform; with an empty Org
}

// Validate checks an invitation. It answers CodeInvalid, naming the field.
func (in UserInvite) Validate() error {
	if err := CheckEmail(in.Email); err != nil {
		return err
	}
	switch {
	case in.Org == "" && in.Role != "":
		return Errorf(CodeInvalid, "", "invalid role: is for an invitation to an organization, and there is no org_slug")
	case in.Org != "" && in.Admin:
		return Errorf(CodeInvalid, "", "invalid admin: is for an invitation to the platform, without org_slug")
	case in.Role != "":
		return in.Role.Validate()
	default:
		return nil
	}
}

// Invitation waits for a person to accept it with its code, which only its creator has seen.
type Invitation struct {
	ID        InvitationID `json:"id"`
	Email     string       `json:"email"`
	Org       OrgSlug      `json:"org_slug,omitempty"` // empty: to the platform alone
	Role      Role         `json:"role,omitempty"`
	Admin     bool         `json:"admin,omitempty"`
	InvitedBy string       `json:"invited_by"` // the subject of its creator
	CreatedAt time.Time    `json:"created_at"`
	ExpiresAt time.Time    `json:"expires_at"`
}

// NewInvitation is a new invitation with its code.
type NewInvitation struct {
	Invitation
	Code string // it cannot be shown again
}

// PasswordReset is a code with which a user may set another password.
type PasswordReset struct {
	Code      string    `json:"code"`
	ExpiresAt time.Time `json:"expires_at"`
}

// PasswordChange replaces the password of a user.
type PasswordChange struct {
	Current Sensitive `json:"current" schema:"required"`
	New     Sensitive `json:"new" schema:"required"`
}

// CodeUse sets a password with the code of an invitation or of a PasswordReset.
type CodeUse struct {
	Code     Sensitive `json:"code" schema:"required"`
	Name     string    `json:"name,omitempty"` // of a new user; empty: the part of the address before the @
	Password Sensitive `json:"password" schema:"required"`
}

// SignIn is who signs in, and with what.
type SignIn struct {
	Email    string    `json:"email" schema:"required"`
	Password Sensitive `json:"password" schema:"required"`
	Source   string    `json:"-"` // the client that signs in; sign-ins of one client do not delay those of others
}

// CheckEmail answers CodeInvalid unless email is an e-mail address of at most MaxEmail ASCII
// characters. Addresses that differ only in case are the same.
func CheckEmail(email string) error {
	bad := func(rule string) error { return Errorf(CodeInvalid, "", "invalid email: %s", rule) }
	switch a, err := mail.ParseAddress(email); {
	case email == "":
		return bad("is required")
	case len(email) > MaxEmail:
		return bad(fmt.Sprintf("has %d bytes, more than %d", len(email), MaxEmail))
	case strings.ContainsFunc(email, func(r rune) bool { return r <= ' ' || r > '~' || r == '/' || r == '"' }):
		return bad("has blanks, quotes, slashes or characters beyond ASCII")
	case err != nil || a.Name != "" || a.Address != email:
		return bad(fmt.Sprintf("%.80q is not an address such as ann@example.com", email))
	default:
		return nil
	}
}

// CheckPassword answers CodeInvalid, naming the field, for a password that is too short or too long.
func CheckPassword(field string, password Sensitive) error {
	if n := len(password.Reveal()); n < MinPassword || n > MaxPassword {
		return Errorf(CodeInvalid, "", "invalid %s: must have %d to %d bytes", field, MinPassword, MaxPassword)
	}
	return nil
}

// UserNotFound is the error for a user that does not exist, or that the caller may not see:
// CodeNotFound, ReasonUserNotFound.
func UserNotFound(ref UserRef) *Error {
	return Errorf(CodeNotFound, ReasonUserNotFound, "Could not find user %.100q", string(ref))
}

// UserService keeps users and their memberships. Administrators of the platform may do everything.
// Members of an organization are managed by its admins who have signed in, and by tokens that allow
// everything in it without end. Callers who may read the organization see them. Users see and change
// themselves. A user or an organization that the caller may not see answers CodeNotFound, like one that
// does not exist.
type UserService interface {
	// InviteUser makes an invitation, which replaces an earlier one of the address to the same
	// organization. It answers CodeInvalid for a bad request, and with ReasonNameTaken for the address
	// of an existing member or user. It answers CodeExhausted with ReasonQuota beyond the quota of
	// members and invitations.
	InviteUser(ctx context.Context, in UserInvite) (*NewInvitation, error)
	// Invitations are those to an organization, or those to the platform alone for an empty
	// slug, sorted by address.
	Invitations(ctx context.Context, org OrgSlug) ([]*Invitation, error)
	// CancelInvitation answers CodeNotFound with ReasonInvitationNotFound.
	CancelInvitation(ctx context.Context, id InvitationID) error
	// AcceptInvitation gives the user who has signed in what an invitation to the same e-mail address
	// grants. It answers CodeInvalid with ReasonCodeInvalid for a code that is unknown, used, expired
	// or another user's.
	AcceptInvitation(ctx context.Context, code Sensitive) (*User, error)
	// Users are sorted by e-mail address.
	Users(ctx context.Context, filter UserFilter) ([]*User, error)
	// User answers CodeNotFound with ReasonUserNotFound.
	User(ctx context.Context, ref UserRef) (*User, error)
	// CurrentUser is the user for whom the caller's token acts. It answers CodeNotFound with
	// ReasonUserNotFound for a token that belongs to no user.
	CurrentUser(ctx context.Context) (*User, error)
	// UpdateUser answers CodeFailedPrecondition for settings of UserAdmin that cannot change.
	UpdateUser(ctx context.Context, ref UserRef, in UserUpdate) (*User, error)
	// SetMember changes the role of a member. Administrators of the platform may make any user a
	// member.
	SetMember(ctx context.Context, org OrgSlug, ref UserRef, role Role) (*User, error)
	// RemoveMember ends a membership at once, and permanently all tokens that the user had through it.
	// Every user may leave.
	RemoveMember(ctx context.Context, org OrgSlug, ref UserRef) error
	// RemoveUser removes a user with all memberships and tokens. It is for administrators of the
	// platform, and answers CodeFailedPrecondition for UserAdmin.
	RemoveUser(ctx context.Context, ref UserRef) error
	// SetPassword changes the password of the user who has signed in, and ends all tokens that
	// came from signing in. It answers CodeForbidden with ReasonWrongPassword.
	SetPassword(ctx context.Context, in PasswordChange) error
	// ResetPassword makes a code with which the user may set another password. It is for
	// administrators of the platform.
	ResetPassword(ctx context.Context, ref UserRef) (*PasswordReset, error)
	// SignOut ends the tokens of the request that came from signing in. It answers CodeForbidden
	// when there are none.
	SignOut(ctx context.Context) error
}

// SignInService is for callers without a token: unlike the others, it requires no principal.
type SignInService interface {
	// SignIn makes a token that stands for a user. An unknown user and a wrong password both answer
	// CodeUnauthenticated, after the same work and in the same words.
	SignIn(ctx context.Context, in SignIn) (*NewToken, error)
	// UseCode sets a password, and creates the user of an invitation. It answers CodeInvalid with
	// ReasonCodeInvalid for a code that is unknown, used or expired. It answers CodeFailedPrecondition
	// for an invitation of an existing user, who has to accept it instead.
	UseCode(ctx context.Context, in CodeUse) (*User, error)
}
