package machine

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

func newListCommand(c commands) *cobra.Command {
	var (
		f               cli.ListFlags
		all             bool
		states, regions []string
		metadata        []string
		org             string
	)
	cmd := &cobra.Command{
		Use:               "list [APP]",
		Aliases:           []string{"ls"},
		Short:             "List the Machines of an App, of an organization, or of all Apps",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: c.CompleteApp,
		RunE: func(cmd *cobra.Command, args []string) error {
			if org != "" && len(args) > 0 {
				return cli.UsageErrorf("name an APP or an organization with --org, not both")
			}
			filter := hangar.MachineFilter{IncludeDestroyed: all}
			for _, r := range regions {
				filter.Regions = append(filter.Regions, hangar.Region(r))
			}
			var err error
			if filter.States, err = parseStates(states); err != nil {
				return err
			}
			if filter.Metadata, err = cli.ParsePairs("--metadata", metadata); err != nil {
				return err
			}
			p, err := c.Connect()
			if err != nil {
				return err
			}
			var machines []*hangar.Machine
			switch {
			case len(args) > 0:
				machines, err = p.Machines(cmd.Context(), hangar.AppName(args[0]), filter)
			case org != "":
				machines, err = c.orgMachines(cmd.Context(), p, hangar.OrgSlug(org), filter)
			default:
				machines, err = allMachines(cmd.Context(), p, filter)
			}
			if err != nil {
				return err
			}
			var list any = cli.OrEmpty(machines)
			if org != "" {
				list = listed(machines)
			}
			rows := cli.MachineRows(machines, org == "") // the listing of an organization has no checks
			return c.PrintList(f, list, rows, "No Machines. Run one: hangar machine run APP IMAGE")
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also destroyed ones")
	cmd.Flags().StringSliceVar(&states, "state", nil, "only Machines in these states, e.g. started,stopped")
	cmd.Flags().StringVar(&org, "org", "", "the Machines of all Apps of this organization")
	cmd.Flags().StringSliceVar(&regions, "region", nil, "only Machines in these regions")
	cmd.Flags().StringArrayVar(&metadata, "metadata", nil, "only Machines with this KEY=VALUE; may be repeated")
	f.Add(cmd, "ids")
	return cmd
}

// allMachines lists the Machines of every App.
func allMachines(ctx context.Context, p *client.Client, filter hangar.MachineFilter) ([]*hangar.Machine, error) {
	apps, err := p.Apps(ctx, hangar.AppFilter{})
	if err != nil {
		return nil, err
	}
	var machines []*hangar.Machine
	for _, app := range apps {
		found, err := p.Machines(ctx, app.Name, filter)
		// The App may have been destroyed meanwhile.
		if err != nil && hangar.CodeOf(err) != hangar.CodeNotFound {
			return nil, err
		}
		machines = append(machines, found...)
	}
	return machines, nil
}

// orgMachines lists the Machines of an organization, page by page.
func (c commands) orgMachines(
	ctx context.Context, p *client.Client, org hangar.OrgSlug, filter hangar.MachineFilter,
) ([]*hangar.Machine, error) {
	var machines []*hangar.Machine
	for q := (hangar.MachinePageQuery{MachineFilter: filter}); ; {
		page, err := p.OrgMachines(ctx, org, q)
		if err != nil {
			return nil, err
		}
		machines = append(machines, page.Machines...)
		if q.Cursor = page.Next; page.Next != "" {
			continue
		}
		if len(page.ErrorRegions) > 0 {
			fmt.Fprintf(c.Stderr, "Some hosts cannot be reached: Machines in regions %v may be out of date.\n", page.ErrorRegions)
		}
		return machines, nil
	}
}

// listedMachine is a Machine in the listing of an organization, which has neither the resolved image nor
// the host. Its JSON leaves out their keys.
type listedMachine struct {
	*hangar.Machine
	Host     string           `json:"host_id,omitempty"`
	ImageRef *hangar.ImageRef `json:"image_ref,omitempty"`
}

func listed(machines []*hangar.Machine) []listedMachine {
	list := make([]listedMachine, 0, len(machines))
	for _, m := range machines {
		list = append(list, listedMachine{Machine: m})
	}
	return list
}

func newStatusCommand(c commands) *cobra.Command {
	return cli.Answering(c.Invocation, &cobra.Command{
		Use: "status APP [MACHINE]", Aliases: []string{"show", "inspect"}, Short: "Show a Machine and what happened to it",
		Args: cobra.RangeArgs(1, 2), ValidArgsFunction: c.CompleteMachine,
	}, cli.AskedOf(c.Invocation, func(ctx context.Context, p *client.Client, m *hangar.Machine) (*hangar.Machine, error) {
		if len(m.Events) > 0 {
			return m, nil
		}
		return p.Machine(ctx, m.Ref()) // m is from a listing, which has no events
	}), c.printStatus)
}

func (c commands) printStatus(m *hangar.Machine) error {
	now := time.Now()
	var size string
	if g := m.Config.Guest; g != nil && g.MemoryMB > 0 {
		size = fmt.Sprintf("%d CPU (%s), %d MB memory", g.CPUs, cmp.Or(g.CPUKind, "shared"), g.MemoryMB)
	}
	fields := []cli.Field{
		{"ID", string(m.ID)},
		{"Name", m.Name},
		{"App", string(m.App)},
		{"State", cli.StateText(m)},
		{"Image", m.ImageRef.String()},
		{"Size", size},
		{"Address", cli.AddressText(m)},
		{"Region", string(m.Region)},
		{"Host", string(m.Host)},
		{"Version", string(m.InstanceID)},
		{"Created", cli.Ago(now, m.CreatedAt)},
		{"Changed", cli.Ago(now, m.UpdatedAt)},
		{"Schedule", string(m.Config.Schedule)},
		{"Stands by for", strings.Join(cli.Texts(m.Config.Standbys), ", ")},
		{"Command", strings.Join(slices.Concat(m.Config.Init.Exec, m.Config.Init.Entrypoint, m.Config.Init.Cmd), " ")},
	}
	err := c.PrintFields(append(fields, mountFields(m)...))
	if err == nil && len(m.Checks) > 0 {
		fmt.Fprintln(c.Stdout)
		err = c.PrintTable(healthRows([]*hangar.Machine{m}))
	}
	if err != nil || len(m.Events) == 0 {
		return err
	}
	fmt.Fprintln(c.Stdout)
	return c.printEvents(m.Events)
}

func newEventsCommand(c commands) *cobra.Command {
	var (
		asJSON, follow bool
		limit          int
	)
	cmd := &cobra.Command{
		Use: "events APP [MACHINE]", Short: "Show what happened to a Machine, newest first",
		Args: cobra.RangeArgs(1, 2), ValidArgsFunction: c.CompleteMachine,
		RunE: c.OnMachine(func(ctx context.Context, p *client.Client, m *hangar.Machine) error {
			if follow {
				for change, err := range p.WatchMachine(ctx, m.Ref()) {
					if err != nil {
						return err
					}
					if change.Event == nil {
						continue
					}
					if asJSON {
						err = c.PrintJSONLine(change.Event)
					} else {
						err = c.Sayf("%s", strings.Join(eventRow(*change.Event), "  "))
					}
					if err != nil {
						return err
					}
				}
				return nil
			}
			events, err := p.MachineEvents(ctx, m.Ref(), limit)
			if err != nil {
				return err
			}
			if asJSON {
				return c.PrintJSON(cli.OrEmpty(events))
			}
			return c.printEvents(events)
		}),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "print new events as they happen, until the Machine is destroyed")
	cmd.Flags().IntVarP(&limit, "limit", "n", 20, "show at most this many, up to 50")
	cli.JSONFlag(cmd, &asJSON)
	return cmd
}

func (c commands) printEvents(events []hangar.Event) error {
	rows := [][]string{{"TIME", "EVENT", "STATUS", "SOURCE", "DETAIL"}}
	for _, e := range events {
		rows = append(rows, eventRow(e))
	}
	return c.PrintTable(rows)
}

func eventRow(e hangar.Event) []string {
	return []string{
		time.UnixMilli(e.Timestamp).UTC().Format("2006-01-02T15:04:05.000Z"), string(e.Type), e.Status, string(e.Source), eventDetail(e.Request),
	}
}

// exitText describes how a program ended.
func exitText(x *hangar.ExitEvent) string {
	text := "exit code " + strconv.Itoa(x.ExitCode)
	if x.Signal > 0 {
		text += ", " + hangar.Signal(x.Signal).String()
	}
	if x.OOMKilled {
		text += ", out of memory"
	}
	if x.RequestedStop {
		text += ", as requested"
	}
	if x.Restarting {
		text += ", restarting"
	}
	return text
}

// eventDetail describes an event beyond its type.
func eventDetail(r *hangar.EventRequest) string {
	if r == nil {
		return ""
	}
	var parts []string
	if r.ExitEvent != nil {
		parts = append(parts, exitText(r.ExitEvent))
	}
	if r.RestartCount > 0 {
		parts = append(parts, "restart "+strconv.Itoa(r.RestartCount))
	}
	if run := r.Schedule; run != nil {
		parts = append(parts, scheduleText(run))
	}
	if r.ColdBoot != "" {
		parts = append(parts, "cold boot: "+r.ColdBoot)
	}
	if r.Error != "" {
		parts = append(parts, r.Error)
	}
	return strings.Join(parts, "; ")
}

func newPsCommand(c commands) *cobra.Command {
	return cli.Listing(c.Invocation, &cobra.Command{
		Use: "ps APP [MACHINE]", Short: "List the processes inside a Machine",
		Args: cobra.RangeArgs(1, 2), ValidArgsFunction: c.CompleteMachine,
	}, cli.AskedOf(c.Invocation, func(ctx context.Context, p *client.Client, m *hangar.Machine) ([]hangar.Process, error) {
		return p.MachineProcesses(ctx, m.Ref())
	}), cli.Table[hangar.Process]{
		Head: []string{"PID", "CPU", "MEMORY", "CPU TIME", "LISTENS", "COMMAND"},
		Row: func(_ time.Time, x hangar.Process) []string {
			var listens []string
			for _, l := range x.ListenSockets {
				listens = append(listens, l.Proto+" "+l.Address)
			}
			return []string{
				strconv.Itoa(x.PID), percent(x.CPU), cli.Bytes(x.RSS), (time.Duration(x.RunMS+x.StartedMS) * time.Millisecond).String(),
				strings.Join(listens, ", "), cli.Short(x.Command, 60),
			}
		},
	})
}

// parseStates parses names of states.
func parseStates(names []string) ([]hangar.MachineState, error) {
	var states []hangar.MachineState
	for _, n := range names {
		s := hangar.MachineState(n)
		if s == "running" { // a common name of it
			s = hangar.MachineStarted
		}
		if !s.Valid() && s != hangar.WaitSettled {
			return nil, cli.UsageErrorf("unknown state %q: must be one of %v", n, hangar.MachineStates())
		}
		states = append(states, s)
	}
	return states, nil
}

// percent formats a share of one core.
func percent(share float64) string { return fmt.Sprintf("%.1f%%", math.Max(share, 0)*100) }
