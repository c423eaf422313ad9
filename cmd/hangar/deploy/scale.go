package deploy

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/cmd/hangar/deploy/appconfig"
	"github.com/hangar-platform/hangar/cmd/hangar/deploy/rollout"
)

const scaleLong = `Change how many Machines an App has, and how large they are. Each change is a release: the current one with
another number or size, in the order of its strategy, without its release command. Other Machines are not
changed.

The next deploy uses the numbers and sizes of its file. [scale] sets numbers, which without it
do not change; [[vm]] sets sizes. ` + "`hangar app-config save`" + ` writes the file of the current release.`

// NewScaleCommand makes `hangar scale`.
func NewScaleCommand(inv *cli.Invocation) *cobra.Command {
	c := commands{inv}
	cmd := cli.Group("scale", "Change the number and the size of an App's Machines")
	cmd.Long = scaleLong
	cmd.AddCommand(newScaleCountCommand(c), newScaleVMCommand(c), newScaleMemoryCommand(c), newScaleShowCommand(c))
	return cmd
}

// addScaling adds the flags of scaling to a command.
func (f *flags) addScaling(cmd *cobra.Command, group *string) {
	fs := cmd.Flags()
	fs.StringVarP(group, "group", "g", "", "process group (default app, or the first by name)")
	fs.DurationVar(&f.patience, "wait-timeout", 0, "time that a Machine has to become healthy (default that of the file, or 5m)")
	fs.DurationVar(&f.waitLease, "wait-lease", 0, "how long to wait for another command that holds a Machine")
	fs.DurationVar(&f.settling, "smoke-time", defaultSettling, "how long a program has to run to count as healthy; 0: not at all")
	fs.BoolVar(&f.dryRun, "dry-run", false, "print the plan, and change nothing")
	fs.BoolVar(&f.takeOver, "take-over", false, "continue although another deploy seems to be in progress")
	fs.BoolVar(&f.asJSON, "json", false, "print events as lines of JSON; with --dry-run, the plan")
	f.skipRelease = true
}

// scaled is the current release of an App, with its changes.
type scaled struct {
	app hangar.AppName
	o   rollout.Options
}

// file returns the file to change.
func (s *scaled) file() *appconfig.File { return s.o.File }

// group returns the named group, or the default one.
func (s *scaled) group(named string) (string, error) {
	name := cmp.Or(named, s.file().DefaultGroup())
	if groups := s.file().Groups(); !slices.Contains(groups, name) {
		return "", cli.UsageErrorf("App %s has no process group %q: one of %s", s.app, name, strings.Join(groups, ", "))
	}
	return name, nil
}

// scaling reads the current release.
func (c commands) scaling(ctx context.Context, p *client.Client, f *flags, name string) (*scaled, error) {
	s := &scaled{app: hangar.AppName(name)}
	now, err := p.CurrentRelease(ctx, s.app)
	if hangar.ReasonOf(err) == hangar.ReasonReleaseNotFound || err == nil && len(now.Definition) == 0 {
		return nil, cli.WithHint(hangar.ReleaseNotFound(), fmt.Sprintf(
			"App %s was not deployed from a file: deploy it with `hangar deploy`, or see `hangar machine run` and `hangar machine update`", name))
	}
	if err != nil {
		return nil, err
	}
	if s.o, err = f.options(); err != nil {
		return nil, err
	}
	// One of the two files is changed later.
	s.o.Scaling = &rollout.Scaling{Version: now.Version}
	for _, file := range []**appconfig.File{&s.o.File, &s.o.Scaling.File} {
		if *file, _, err = appconfig.ParseDefinition(fmt.Sprintf("release v%d", now.Version), now.Definition); err != nil {
			return nil, err
		}
	}
	s.o.App, s.o.Image, s.o.Reason = s.app, now.Image, "scale"
	return s, nil
}

// parseCounts parses 3, or web=2 worker=1.
func (s *scaled) parseCounts(words []string, group string) (map[string]int, error) {
	counts := map[string]int{}
	for _, word := range words {
		name, number, named := strings.Cut(word, "=")
		if !named {
			name, number = group, word
		}
		n, err := strconv.Atoi(number)
		if err != nil || n < 0 || n > appconfig.MaxMachines {
			return nil, cli.UsageErrorf("%.40q is not a number from 0 to %d", number, appconfig.MaxMachines)
		}
		if name, err = s.group(name); err != nil {
			return nil, err
		}
		if _, twice := counts[name]; twice {
			return nil, cli.UsageErrorf("the number of group %s is given twice", name)
		}
		counts[name] = n
	}
	return counts, nil
}

func newScaleCountCommand(c commands) *cobra.Command {
	var (
		f             flags
		group, region string
		yes           bool
	)
	cmd := &cobra.Command{
		Use: "count APP NUMBER|GROUP=NUMBER…", Short: "Change how many Machines process groups have", Args: cobra.MinimumNArgs(2), ValidArgsFunction: c.CompleteApp,
		Long: "Change how many Machines process groups have. New ones run the image of the current release and receive the\n" +
			"current secrets. Missing volumes are created, and volumes of removed Machines are kept. With --region the number\n" +
			"is that of the Machines in the region, and others are not changed.",
		Example: "  hangar scale count web 3\n  hangar scale count shop web=4 worker=1\n  hangar scale count web 2 --region fra",
	}
	f.addScaling(cmd, &group)
	cmd.Flags().StringVarP(&region, "region", "r", "", "count the Machines of this region, and change no others")
	cli.YesFlag(cmd, &yes)
	cmd.RunE = c.Connected(func(ctx context.Context, p *client.Client, args []string) error {
		s, err := c.scaling(ctx, p, &f, args[0])
		if err != nil {
			return err
		}
		counts, err := s.parseCounts(args[1:], group)
		if err != nil {
			return err
		}
		here, err := rollout.Active(ctx, p, s.app)
		if err != nil {
			return err
		}
		file := s.file()
		if file.Scale == nil {
			file.Scale = map[string]int{}
		}
		fewer := 0
		for name, n := range counts {
			has, elsewhere := 0, 0
			for _, m := range here {
				switch {
				case rollout.GroupOf(m) != name:
				case region != "" && string(m.Region) != region:
					elsewhere++
				default:
					has++
				}
			}
			file.Scale[name] = n + elsewhere
			fewer += max(0, has-n)
		}
		if fewer > 0 && !f.dryRun {
			if err := c.ConfirmUnless(yes, "Destroy %s of App %s?", cli.Plural(fewer, "Machine", "Machines"), s.app); err != nil {
				return err
			}
		}
		s.o.Scaling.Region = hangar.Region(region)
		s.o.Strategy = appconfig.Strategy(hangar.StrategyRolling) // other strategies would also replace unchanged Machines
		return c.deploy(ctx, p, &f, s.o)
	})
	return cmd
}

// resize deploys the current release with another size of one group.
func (c commands) resize(ctx context.Context, p *client.Client, f *flags, app, group string, change func(*appconfig.VM)) error {
	s, err := c.scaling(ctx, p, f, app)
	if err != nil {
		return err
	}
	if group, err = s.group(group); err != nil {
		return err
	}
	if err := s.file().Resize(group, change); err != nil {
		return cli.UsageError{Err: err}
	}
	return c.deploy(ctx, p, f, s.o)
}

func newScaleVMCommand(c commands) *cobra.Command {
	var (
		f             flags
		group, memory string
	)
	cmd := &cobra.Command{
		Use: "vm APP SIZE", Short: "Change the size of the Machines of a process group", Args: cobra.ExactArgs(2),
		Long:    "Change the size of the Machines of a process group: CPUs, and the memory that comes with them unless --memory is given.",
		Example: "  hangar scale vm web shared-cpu-2x\n  hangar scale vm shop performance-1x --memory 4gb --group worker",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return hangar.Presets(), cobra.ShellCompDirectiveNoFileComp
			}
			return c.CompleteApp(cmd, args, prefix)
		},
	}
	f.addScaling(cmd, &group)
	cmd.Flags().StringVar(&memory, "memory", "", "memory, such as 512mb or 2gb (default that of the size)")
	cmd.RunE = c.Connected(func(ctx context.Context, p *client.Client, args []string) error {
		amount := 0
		if memory != "" {
			var err error
			if amount, err = cli.ParseMemory(memory); err != nil {
				return err
			}
		}
		return c.resize(ctx, p, &f, args[0], group, func(vm *appconfig.VM) {
			vm.Size, vm.CPUs, vm.CPUKind, vm.Memory, vm.MemoryMB = args[1], 0, "", appconfig.Memory(amount), 0
		})
	})
	return cmd
}

func newScaleMemoryCommand(c commands) *cobra.Command {
	var (
		f     flags
		group string
	)
	cmd := &cobra.Command{
		Use: "memory APP AMOUNT", Short: "Change the memory of the Machines of a process group", Args: cobra.ExactArgs(2), ValidArgsFunction: c.CompleteApp,
		Example: "  hangar scale memory web 512\n  hangar scale memory shop 2gb --group worker",
	}
	f.addScaling(cmd, &group)
	cmd.RunE = c.Connected(func(ctx context.Context, p *client.Client, args []string) error {
		amount, err := cli.ParseMemory(args[1])
		if err != nil {
			return err
		}
		return c.resize(ctx, p, &f, args[0], group, func(vm *appconfig.VM) { vm.Memory, vm.MemoryMB = appconfig.Memory(amount), 0 })
	})
	return cmd
}

// groupScale is how many Machines of one size a group has.
type groupScale struct {
	Group    string                `json:"group"`
	Count    int                   `json:"count"`
	Started  int                   `json:"started"`
	CPUKind  string                `json:"cpu_kind"`
	CPUs     int                   `json:"cpus"`
	MemoryMB int                   `json:"memory_mb"`
	Regions  map[hangar.Region]int `json:"regions"`
}

// scaleOf counts Machines by group and size.
func scaleOf(machines []*hangar.Machine) []*groupScale {
	type key struct {
		group, kind  string
		cpus, memory int
	}
	found := map[key]*groupScale{}
	for _, m := range machines {
		k := key{group: rollout.GroupOf(m)}
		if guest := m.Config.Guest; guest != nil {
			k.kind, k.cpus, k.memory = guest.CPUKind, guest.CPUs, guest.MemoryMB
		}
		one := found[k]
		if one == nil {
			one = &groupScale{Group: k.group, CPUKind: k.kind, CPUs: k.cpus, MemoryMB: k.memory, Regions: map[hangar.Region]int{}}
			found[k] = one
		}
		one.Count++
		one.Regions[m.Region]++
		if m.State == hangar.MachineStarted {
			one.Started++
		}
	}
	return slices.SortedFunc(maps.Values(found), func(x, y *groupScale) int {
		return cmp.Or(cmp.Compare(x.Group, y.Group), cmp.Compare(x.CPUKind, y.CPUKind), cmp.Compare(x.CPUs, y.CPUs), cmp.Compare(x.MemoryMB, y.MemoryMB))
	})
}

func newScaleShowCommand(c commands) *cobra.Command {
	cmd := &cobra.Command{
		Use: "show APP", Short: "Show the number and the size of an App's Machines", Args: cobra.ExactArgs(1), ValidArgsFunction: c.CompleteApp,
		Long: "Show the number and the size of the Machines that deploys have created, by process group, without standbys.",
	}
	return cli.Answering(c.Invocation, cmd, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, args []string) ([]*groupScale, error) {
		machines, err := rollout.Active(ctx, p, hangar.AppName(args[0]))
		return cli.OrEmpty(scaleOf(machines)), err
	}), func(list []*groupScale) error {
		rows := [][]string{{"GROUP", "COUNT", "STARTED", "CPUS", "MEMORY", "REGIONS"}}
		for _, s := range list {
			var regions []string
			for _, r := range slices.Sorted(maps.Keys(s.Regions)) {
				regions = append(regions, fmt.Sprintf("%s(%d)", r, s.Regions[r]))
			}
			rows = append(rows, []string{
				s.Group, strconv.Itoa(s.Count), strconv.Itoa(s.Started), fmt.Sprintf("%d %s", s.CPUs, s.CPUKind), fmt.Sprintf("%d MB", s.MemoryMB), strings.Join(regions, ", "),
			})
		}
		return c.PrintTable(rows)
	})
}
