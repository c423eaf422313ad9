package control

import (
	"fmt"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/internal/random"
)

func checkMachineName(name string) error {
	if fault := tenants.NameFault(name); fault != "" {
		return hangar.Errorf(hangar.CodeInvalid, hangar.ReasonBadConfig, "invalid_argument: invalid name: %s", fault)
	}
	return nil
}

// machineName makes up a name such as "calm-river-4182".
func machineName() string {
	return fmt.Sprintf("%s-%s-%04d", adjectives[random.Below(len(adjectives))], nouns[random.Below(len(nouns))], 1+random.Below(9999))
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
