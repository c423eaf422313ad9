package control

import (
	"fmt"
	"strings"

	"github.com/hangar-platform/hangar"
)

const maxNameLength = 63 // of a DNS label, which names of Apps become

// nameFault says what is wrong with the name of an App or Machine, or nothing.
func nameFault(name string) string {
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

// checkAppName answers in the words that existing clients show.
func checkAppName(name hangar.AppName) error {
	if fault := nameFault(string(name)); fault != "" {
		return hangar.Errorf(hangar.CodeInvalid, hangar.ReasonBadName, "Validation failed: Name %s", fault)
	}
	return nil
}

func checkMachineName(name string) error {
	if fault := nameFault(name); fault != "" {
		return hangar.Errorf(hangar.CodeInvalid, hangar.ReasonBadConfig, "invalid_argument: invalid name: %s", fault)
	}
	return nil
}

// checkNetworkName: letters, digits and dashes, starting with a letter.
func checkNetworkName(name string) error {
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

// machineName makes up a name such as "calm-river-4182".
func machineName() string {
	return fmt.Sprintf("%s-%s-%04d", adjectives[randomN(len(adjectives))], nouns[randomN(len(nouns))], 1+randomN(9999))
}

var adjectives = strings.Fields(`
	aged amber autumn bitter black blue bold brave bright broad calm clear cold cool crimson damp dark dawn deep
	dry dusty early empty falling fragrant frosty gentle golden green hidden holy icy late lingering little lively
	long lucky misty morning muddy mute nameless noisy odd old patient plain polished proud purple quick quiet
	rapid red restless rough round royal shy silent small snowy soft solitary sparkling spring still summer sweet
	tight tiny twilight vast wandering weathered white wild winter wispy withered young`)

var nouns = strings.Fields(`
	bird boat bonus breeze brook bush butterfly canyon cherry cliff cloud coral dawn dew dream dust feather field
	fire firefly flower fog forest frog frost garden glade glitter grass harbor haze heart hill island lake leaf
	limit log meadow moon morning mountain night paper pebble pine pond rain reef resonance rice river sea shadow
	shape silence sky smoke snow snowflake sound star stone stream sun sunset surf term thunder tree truth union
	valley violet voice water waterfall wave wildflower wind wood`)
