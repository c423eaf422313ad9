// Package plan decides in which order a deploy changes the Machines of an App.
//
// It is pure: from the existing Machines, the wanted ones and a strategy it makes stages, which run one
// after another. The next plan continues a deploy that ended at any point: it only checks a Machine that
// is up to date, completes or removes a half of a blue-green pair, and removes temporary Machines of an
// earlier deploy.
package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/hangar-platform/hangar"
)

// Machine describes an existing Machine to a plan.
type Machine struct {
	ID       hangar.MachineID
	Group    string
	State    hangar.MachineState
	Cordoned bool
	Standby  bool // waits for the failure of others
	Current  bool // config, image and secrets are those of the target
	// Crashed says that the program ended unexpectedly. The Machine is started, while other stopped
	// Machines stay stopped.
	Crashed   bool
	Temporary bool             // created for one deploy: a canary, or a release command
	Replaces  hangar.MachineID // the blue Machine that this green one replaces, or AnyBlue
	Retired   bool             // a deploy has begun to remove it
	Spare     bool             // removed before others if there are too many
}

// AnyBlue is Replaces of a green Machine without a blue one.
const AnyBlue hangar.MachineID = "none"

// runs reports whether the Machine can serve requests, apart from being cordoned.
func (m *Machine) runs() bool {
	switch m.State {
	case hangar.MachineStarted, hangar.MachineStarting, hangar.MachineCreated, hangar.MachineRestarting, hangar.MachineReplacing:
		return true
	default:
		return false
	}
}

// Group is the target of a process group.
type Group struct {
	Name     string
	Count    int  // number of Machines; -1: the current number, at least one
	Standbys int  // number of additional standby Machines
	Volumes  bool // each Machine has its own volumes
	// Unavailable returns how many of n Machines may be unavailable at a time, at least one.
	Unavailable func(n int) int
}

// Target is the target of a plan.
type Target struct {
	Strategy       hangar.ReleaseStrategy
	Groups         []Group
	ReleaseCommand bool
}

// Kind says what a step does.
type Kind string

// The kinds of steps.
const (
	Release  Kind = "release command" // runs the release command
	Create   Kind = "create"
	Update   Kind = "update"
	Start    Kind = "start"
	Await    Kind = "check" // waits until the Machine is healthy
	Uncordon Kind = "uncordon"
	Retire   Kind = "retire" // marks the Machine for removal, and cordons it
	Stop     Kind = "stop"
	Destroy  Kind = "destroy"
)

// Step is one step of a plan.
type Step struct {
	Kind    Kind             `json:"step"`
	Group   string           `json:"group,omitempty"`
	Machine hangar.MachineID `json:"machine,omitempty"` // empty: the one of Slot
	// Slot names a Machine that the plan creates, e.g. "web/1".
	Slot     string           `json:"slot,omitempty"`
	Await    bool             `json:"await,omitempty"`    // also wait until the Machine is healthy
	Start    bool             `json:"start,omitempty"`    // also start the Machine, which was not started
	Cordoned bool             `json:"cordoned,omitempty"` // create a cordoned Machine
	Canary   bool             `json:"canary,omitempty"`   // create a Machine only for this deploy
	Standby  bool             `json:"standby,omitempty"`  // the Machine waits for the failure of others
	Replaces hangar.MachineID `json:"replaces,omitempty"` // the blue Machine of the green one to create
}

// String describes the step.
func (s Step) String() string {
	text := string(s.Kind)
	if s.Kind == Release {
		return "run the release command"
	}
	switch {
	case s.Canary:
		text += " a canary of " + s.Group
	case s.Standby && s.Slot != "":
		text += " a standby of " + s.Group
	case s.Replaces != "" && s.Replaces != AnyBlue:
		text += fmt.Sprintf(" a Machine of %s that replaces %s", s.Group, s.Replaces)
	case s.Slot != "" && s.Kind == Create:
		text += " a Machine of " + s.Group
	case s.Slot != "":
		text += " the new Machine " + s.Slot
	default:
		text += fmt.Sprintf(" Machine %s of %s", s.Machine, s.Group)
	}
	if s.Cordoned {
		text += ", cordoned"
	}
	if s.Await {
		text += ", and wait for its checks"
	}
	return text
}

// Stage has steps that run concurrently.
type Stage []Step

// Plan has the stages of a deploy.
type Plan struct {
	Stages []Stage  `json:"stages"`
	Notes  []string `json:"notes,omitempty"`
}

// Changes reports whether the plan has steps other than checks.
func (p *Plan) Changes() bool {
	for _, stage := range p.Stages {
		if slices.ContainsFunc(stage, func(s Step) bool { return s.Kind != Await }) {
			return true
		}
	}
	return false
}

// Make makes a plan. It fails if the strategy is impossible for a group.
func Make(machines []Machine, target Target) (*Plan, error) {
	b := builder{target: target, here: map[hangar.MachineID]Machine{}}
	for _, m := range machines {
		b.here[m.ID] = m
	}
	for _, m := range machines {
		known := slices.ContainsFunc(target.Groups, func(g Group) bool { return g.Name == m.Group })
		switch {
		case m.Temporary && !b.usefulCanary(&m) || !known && m.Cordoned && !m.Retired:
			b.first = append(b.first, Step{Kind: Destroy, Group: m.Group, Machine: m.ID})
		case m.Temporary:
		case !known:
			b.retire(&m)
		}
	}
	for _, g := range target.Groups {
		if err := b.group(g, machines); err != nil {
			return nil, err
		}
	}
	return b.plan(), nil
}

// canarySlot follows the name of a group in the slot of its canary.
const canarySlot = "/canary"

// builder collects the steps of all groups, in the order of a deploy.
type builder struct {
	target Target
	here   map[hangar.MachineID]Machine

	notes     []string
	first     Stage   // removals before everything else
	create    Stage   // new Machines, and checks of those that are up to date
	uncordon  Stage   // of the Machines that create has checked
	batches   []Stage // updates
	last      Stage   // updates of Machines that are not started
	late      Stage   // uncordons Machines that batches and last have updated
	standbys  Stage
	retired   Stage // Machines to be removed
	stop      Stage
	destroyed Stage
}

// plan joins the stages.
func (b *builder) plan() *Plan {
	p := &Plan{Notes: b.notes}
	stages := []Stage{b.first, b.create, b.uncordon}
	stages = append(stages, b.batches...)
	stages = append(stages, b.last, b.late, b.retired, b.stop, b.destroyed, b.standbys)
	for _, stage := range stages {
		if len(stage) > 0 {
			p.Stages = append(p.Stages, stage)
		}
	}
	if b.target.ReleaseCommand && p.Changes() {
		at := 0
		if len(b.first) > 0 {
			at = 1
		}
		p.Stages = slices.Insert(p.Stages, at, Stage{{Kind: Release}})
	}
	return p
}

// retire takes a Machine out of service, and then removes it.
func (b *builder) retire(m *Machine) {
	if m.runs() && !m.Standby {
		b.retired = append(b.retired, Step{Kind: Retire, Group: m.Group, Machine: m.ID})
	}
	if m.runs() {
		b.stop = append(b.stop, Step{Kind: Stop, Group: m.Group, Machine: m.ID})
	}
	b.destroyed = append(b.destroyed, Step{Kind: Destroy, Group: m.Group, Machine: m.ID})
}

// usefulCanary reports whether a temporary Machine is a canary of this target.
func (b *builder) usefulCanary(m *Machine) bool {
	return b.target.Strategy == hangar.StrategyCanary && m.Current && m.runs() && !m.Cordoned
}

// settle resolves the pairs of blue and green Machines that a deploy has left. It returns the Machines of
// a group that stay, and removes the others.
func (b *builder) settle(g Group, machines []Machine) (actives, standbys []Machine) {
	gone := map[hangar.MachineID]bool{}
	for _, green := range machines {
		blue, paired := b.here[green.Replaces]
		if green.Group != g.Name || !paired || green.Temporary || green.Retired {
			continue
		}
		if green.Current || !green.Cordoned {
			gone[blue.ID] = true
		} else {
			gone[green.ID] = true
		}
	}
	for _, m := range machines {
		switch {
		case m.Group != g.Name || m.Temporary:
		case m.Retired:
			b.retire(&m)
		case gone[m.ID] && m.Replaces != "" && m.Cordoned:
			b.first = append(b.first, Step{Kind: Destroy, Group: g.Name, Machine: m.ID}) // never served requests
		case gone[m.ID]:
			b.retire(&m)
		case m.Standby:
			standbys = append(standbys, m)
		default:
			actives = append(actives, m)
		}
	}
	return actives, standbys
}

// rank orders the Machines of a group: those to keep come first.
func rank(m *Machine) int {
	switch {
	case m.runs() && !m.Cordoned && m.Current:
		return 0
	case m.runs() && !m.Cordoned:
		return 1
	case m.runs():
		return 2
	default:
		return 3
	}
}

func spare(m *Machine) int {
	if m.Spare {
		return 1
	}
	return 0
}

func (b *builder) group(g Group, machines []Machine) error {
	if b.target.Strategy == hangar.StrategyBlueGreen && g.Volumes {
		return hangar.Errorf(hangar.CodeInvalid, "", "strategy bluegreen: the Machines of group %s have volumes, which a second set of Machines cannot use at the same time", g.Name)
	}
	actives, standbys := b.settle(g, machines)
	slices.SortStableFunc(actives, func(x, y Machine) int {
		return cmp.Or(cmp.Compare(spare(&x), spare(&y)), cmp.Compare(rank(&x), rank(&y)), cmp.Compare(x.ID, y.ID))
	})
	count := g.Count
	if count < 0 {
		count = max(1, len(actives))
	}
	for len(actives) > count {
		b.retire(&actives[len(actives)-1])
		actives = actives[:len(actives)-1]
	}
	immediate := b.target.Strategy == hangar.StrategyImmediate
	blueGreen := b.target.Strategy == hangar.StrategyBlueGreen
	slots := 0
	slot := func() string {
		slots++
		return fmt.Sprintf("%s/%d", g.Name, slots)
	}
	if b.target.Strategy == hangar.StrategyCanary {
		b.canary(g, actives, machines)
	}
	for range count - len(actives) {
		s := Step{Kind: Create, Group: g.Name, Slot: slot(), Await: !immediate, Cordoned: blueGreen}
		if blueGreen {
			s.Replaces = AnyBlue
		}
		b.create = append(b.create, s)
		if blueGreen {
			b.uncordon = append(b.uncordon, Step{Kind: Uncordon, Group: g.Name, Slot: s.Slot})
		}
	}
	var running, crashed []Machine
	for _, m := range actives {
		if replaced := blueGreen && m.runs(); m.Cordoned && m.Replaces != "" && !m.Current && !replaced {
			b.late = append(b.late, Step{Kind: Uncordon, Group: g.Name, Machine: m.ID})
		}
		switch {
		case m.Current:
			b.right(&m, immediate)
		case blueGreen && m.runs():
			s := Step{Kind: Create, Group: g.Name, Slot: slot(), Await: true, Cordoned: true, Replaces: m.ID}
			b.create = append(b.create, s)
			b.uncordon = append(b.uncordon, Step{Kind: Uncordon, Group: g.Name, Slot: s.Slot})
			b.retire(&m)
		case m.runs():
			running = append(running, m)
		case m.Crashed || m.State == hangar.MachineFailed:
			crashed = append(crashed, m)
		default:
			b.last = append(b.last, Step{Kind: Update, Group: g.Name, Machine: m.ID})
		}
	}
	b.update(g, crashed, running, len(actives))
	b.standby(g, standbys, slot)
	return nil
}

// canary adds one Machine that tries the release during the rollout.
func (b *builder) canary(g Group, actives, machines []Machine) {
	changed := slices.ContainsFunc(actives, func(m Machine) bool { return !m.Current && m.runs() })
	for _, m := range machines {
		if m.Group == g.Name && m.Temporary && b.usefulCanary(&m) {
			b.create = append(b.create, Step{Kind: Await, Group: g.Name, Machine: m.ID})
			b.retire(&m)
			return
		}
	}
	switch {
	case !changed:
	case g.Volumes:
		b.notes = append(b.notes, fmt.Sprintf("group %s has volumes, so it is rolled out without a canary", g.Name))
	default:
		s := Step{Kind: Create, Group: g.Name, Slot: g.Name + canarySlot, Await: true, Canary: true}
		b.create = append(b.create, s)
		b.retired = append(b.retired, Step{Kind: Retire, Group: g.Name, Slot: s.Slot})
		b.stop = append(b.stop, Step{Kind: Stop, Group: g.Name, Slot: s.Slot})
		b.destroyed = append(b.destroyed, Step{Kind: Destroy, Group: g.Name, Slot: s.Slot})
	}
}

// right adds the steps after which a Machine that needs no update serves requests.
func (b *builder) right(m *Machine, immediate bool) {
	switch {
	case m.runs() && !immediate:
		b.create = append(b.create, Step{Kind: Await, Group: m.Group, Machine: m.ID})
	case m.Crashed || m.State == hangar.MachineFailed:
		b.create = append(b.create, Step{Kind: Start, Group: m.Group, Machine: m.ID, Start: true, Await: !immediate})
	}
	// Only a green Machine was cordoned by a deploy. One that a user has cordoned stays cordoned.
	if m.Cordoned && m.Replaces != "" {
		b.uncordon = append(b.uncordon, Step{Kind: Uncordon, Group: m.Group, Machine: m.ID})
	}
}

// update divides updates into batches: first the crashed Machines, which try the release, and then the running ones,
// some at a time. n is the number of Machines of the group.
func (b *builder) update(g Group, crashed, running []Machine, n int) {
	if b.target.Strategy == hangar.StrategyImmediate {
		for _, m := range slices.Concat(crashed, running) {
			b.create = append(b.create, Step{Kind: Update, Group: g.Name, Machine: m.ID, Start: !m.runs()})
		}
		b.create, b.last = append(b.create, b.last...), nil
		return
	}
	at := 0
	batch := func(list []Machine) {
		if len(list) == 0 {
			return
		}
		for len(b.batches) <= at {
			b.batches = append(b.batches, nil)
		}
		for _, m := range list {
			b.batches[at] = append(b.batches[at], Step{Kind: Update, Group: g.Name, Machine: m.ID, Await: true, Start: !m.runs()})
		}
		at++
	}
	batch(crashed)
	size := 1
	if g.Unavailable != nil && b.target.Strategy != hangar.StrategyRollingOne {
		size = max(1, g.Unavailable(n))
	}
	for part := range slices.Chunk(running, size) {
		batch(part)
	}
}

// standby adds the steps for standby Machines. They come last, when the Machines that they wait for exist.
func (b *builder) standby(g Group, here []Machine, slot func() string) {
	// The config of a standby lists the Machines that it waits for.
	ofGroup := func(s Step) bool {
		return s.Group == g.Name && !s.Canary && !strings.HasPrefix(s.Slot, g.Name+canarySlot)
	}
	others := slices.ContainsFunc(b.destroyed, ofGroup) || slices.ContainsFunc(b.create, func(s Step) bool { return s.Kind == Create && ofGroup(s) })
	for i, m := range here {
		switch {
		case i >= g.Standbys:
			b.destroyed = append(b.destroyed, Step{Kind: Destroy, Group: g.Name, Machine: m.ID})
		case !m.Current || others:
			b.standbys = append(b.standbys, Step{Kind: Update, Group: g.Name, Machine: m.ID, Standby: true})
		}
	}
	for range g.Standbys - len(here) {
		b.standbys = append(b.standbys, Step{Kind: Create, Group: g.Name, Slot: slot(), Standby: true})
	}
}
