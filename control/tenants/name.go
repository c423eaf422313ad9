package tenants

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/hangar-platform/hangar"
)

const maxNameLength = 63 // of a DNS label, which names of Apps become

// NameFault says what is wrong with the name of an App or Machine, or nothing.
func NameFault(name string) string {
	switch {
	case name == "":
		return "can't be blank"
	case len(name) > maxNameLength:
		return fmt.Sprintf("is too long (maximum is %d characters)", maxNameLength)
	case strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "":
		return "may only contain numbers, lowercase letters and dashes"
	case name[0] == '-' || name[len(name)-1] == '-':
		return "may not start or end with a dash"
	default:
		return ""
	}
}

// CheckAppName refuses what cannot be the name of an App: CodeInvalid, ReasonBadName. It answers in the words that existing clients show.
func CheckAppName(name hangar.AppName) error {
	if fault := NameFault(string(name)); fault != "" {
		return hangar.Errorf(hangar.CodeInvalid, hangar.ReasonBadName, "Validation failed: Name %s", fault)
	}
	return nil
}

// CheckNetworkName refuses with CodeInvalid what cannot be the name of a network: letters,
// digits and dashes, starting with a letter.
func CheckNetworkName(name string) error {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	switch {
	case len(name) > maxNameLength:
		return hangar.Errorf(hangar.CodeInvalid, "", "Validation failed: Network is too long (maximum is %d characters)", maxNameLength)
	case strings.Trim(name, letters+"0123456789-") != "" || !strings.ContainsRune(letters, rune(name[0])):
		return hangar.Errorf(hangar.CodeInvalid, "", "Validation failed: Network may only contain letters, numbers and dashes, and must start with a letter")
	default:
		return nil
	}
}

const maxTitle = 100 // characters of the name of an organization, or of a token

// TitleFault says what is wrong with a name that is for people, or nothing.
func TitleFault(title string) string {
	switch {
	case utf8.RuneCountInString(title) > maxTitle:
		return "is too long (maximum is 100 characters)"
	case !utf8.ValidString(title) || strings.ContainsFunc(title, func(r rune) bool { return !unicode.IsPrint(r) }):
		return "may only contain printable characters"
	case strings.TrimSpace(title) != title:
		return "may not begin or end with a blank"
	default:
		return ""
	}
}
