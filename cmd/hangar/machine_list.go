package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
)

func newMachineListCommand(c *cli) *cobra.Command {
	var (
		f               listFlags
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
		ValidArgsFunction: c.completeApp,
		RunE: func(cmd *cobra.Command, args []string) error {
			if org != "" && len(args) > 0 {
				return usageErrorf("name an APP or an organization with --org, not both")
			}
			filter := hangar.MachineFilter{IncludeDestroyed: all}
			for _, r := range regions {
				filter.Regions = append(filter.Regions, hangar.Region(r))
			}
			var err error
			if filter.States, err = parseStates(states); err != nil {
				return err
			}
			if filter.Metadata, err = parsePairs("--metadata", metadata); err != nil {
				return err
			}
			p, err := c.connect()
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
			var list any = orEmpty(machines)
			if org != "" {
				list = listed(machines)
			}
			rows := machineRows(machines, org == "") // the listing of an organization has no checks
			return c.printList(f, list, rows, "No Machines. Run one: hangar machine run APP IMAGE")
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also destroyed ones")
	cmd.Flags().StringSliceVar(&states, "state", nil, "only Machines in these states, e.g. started,stopped")
	cmd.Flags().StringVar(&org, "org", "", "the Machines of all Apps of this organization")
	cmd.Flags().StringSliceVar(&regions, "region", nil, "only Machines in these regions")
	cmd.Flags().StringArrayVar(&metadata, "metadata", nil, "only Machines with this KEY=VALUE; may be repeated")
	f.add(cmd, "ids")
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
		// That an App was destroyed meanwhile is no error.
		if err != nil && hangar.CodeOf(err) != hangar.CodeNotFound {
			return nil, err
		}
		machines = append(machines, found...)
	}
	return machines, nil
}

// orgMachines lists the Machines of an organization, page by page.
func (c *cli) orgMachines(
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
			fmt.Fprintf(c.stderr, "Some hosts cannot be reached; what is listed of regions %v may be old.\n", page.ErrorRegions)
		}
		return machines, nil
	}
}

// listedMachine is a Machine as the listing of an organization has it: that says
// neither what its image was resolved to nor which host has it, so no key does.
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

// machineRows is the table of Machines, with or without their checks.
func machineRows(machines []*hangar.Machine, checks bool) [][]string {
	const checksColumn = 4
	now := time.Now()
	rows := [][]string{{"ID", "NAME", "APP", "STATE", "CHECKS", "REGION", "IMAGE", "ADDRESS", "CHANGED"}}
	for _, m := range machines {
		rows = append(rows, []string{
			string(m.ID), m.Name, string(m.App), stateText(m), checksText(m.Checks), string(m.Region), imageText(m.ImageRef, m.Config.ImageName()),
			addressText(m), ago(now, m.UpdatedAt),
		})
	}
	if !checks {
		for i := range rows {
			rows[i] = slices.Delete(rows[i], checksColumn, checksColumn+1)
		}
	}
	return rows
}

func stateText(m *hangar.Machine) string {
	text := string(m.State)
	if m.Cordoned {
		text += " (cordoned)"
	}
	if m.HostStatus != "" && m.HostStatus != "ok" {
		text += " (host " + m.HostStatus + ")"
	}
	return text
}

func addressText(m *hangar.Machine) string {
	if !m.PrivateIP.IsValid() {
		return ""
	}
	return m.PrivateIP.String()
}

// imageText is the shortest text that names an image to a person.
func imageText(ref hangar.ImageRef, asked string) string {
	if ref.Repository == "" {
		return short(asked, 40)
	}
	name := ref.Repository
	if strings.HasSuffix(ref.Registry, "docker.io") {
		name = strings.TrimPrefix(name, "library/")
	}
	if ref.Tag != "" {
		return short(name+":"+ref.Tag, 40)
	}
	return short(name+"@"+strings.TrimPrefix(ref.Digest, "sha256:"), 40)
}

func newMachineStatusCommand(c *cli) *cobra.Command {
	return answering(c, &cobra.Command{
		Use: "status APP [MACHINE]", Aliases: []string{"show", "inspect"}, Short: "Show a Machine and what happened to it",
		Args: cobra.RangeArgs(1, 2), ValidArgsFunction: c.completeMachine,
	}, askedOf(c, func(ctx context.Context, p *client.Client, m *hangar.Machine) (*hangar.Machine, error) {
		if len(m.Events) > 0 {
			return m, nil
		}
		return p.Machine(ctx, m.Ref()) // it was found in a listing, which has no events
	}), c.printStatus)
}

func (s *streams) printStatus(m *hangar.Machine) error {
	now := time.Now()
	var size string
	if g := m.Config.Guest; g != nil && g.MemoryMB > 0 {
		size = fmt.Sprintf("%d CPU (%s), %d MB memory", g.CPUs, cmp.Or(g.CPUKind, "shared"), g.MemoryMB)
	}
	fields := []field{
		{"ID", string(m.ID)},
		{"Name", m.Name},
		{"App", string(m.App)},
		{"State", stateText(m)},
		{"Image", m.ImageRef.String()},
		{"Size", size},
		{"Address", addressText(m)},
		{"Region", string(m.Region)},
		{"Host", string(m.Host)},
		{"Version", string(m.InstanceID)},
		{"Created", ago(now, m.CreatedAt)},
		{"Changed", ago(now, m.UpdatedAt)},
		{"Schedule", string(m.Config.Schedule)},
		{"Stands by for", joined(m.Config.Standbys)},
		{"Command", strings.Join(slices.Concat(m.Config.Init.Exec, m.Config.Init.Entrypoint, m.Config.Init.Cmd), " ")},
	}
	err := s.printFields(append(fields, mountFields(m)...))
	if err == nil && len(m.Checks) > 0 {
		fmt.Fprintln(s.stdout)
		err = s.printTable(healthRows([]*hangar.Machine{m}))
	}
	if err != nil || len(m.Events) == 0 {
		return err
	}
	fmt.Fprintln(s.stdout)
	return s.printEvents(m.Events)
}

func newMachineEventsCommand(c *cli) *cobra.Command {
	var (
		asJSON, follow bool
		limit          int
	)
	cmd := &cobra.Command{
		Use: "events APP [MACHINE]", Short: "Show what happened to a Machine, newest first",
		Args: cobra.RangeArgs(1, 2), ValidArgsFunction: c.completeMachine,
		RunE: c.onMachine(func(ctx context.Context, p *client.Client, m *hangar.Machine) error {
			if follow {
				for change, err := range p.WatchMachine(ctx, m.Ref()) {
					if err != nil {
						return err
					}
					if change.Event == nil {
						continue
					}
					if asJSON {
						err = c.printJSONLine(change.Event)
					} else {
						err = c.sayf("%s", strings.Join(eventRow(*change.Event), "  "))
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
				return c.printJSON(orEmpty(events))
			}
			return c.printEvents(events)
		}),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "print new events as they happen, until the Machine is destroyed")
	cmd.Flags().IntVarP(&limit, "limit", "n", 20, "show at most this many, up to 50")
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (s *streams) printEvents(events []hangar.Event) error {
	rows := [][]string{{"TIME", "EVENT", "STATUS", "SOURCE", "DETAIL"}}
	for _, e := range events {
		rows = append(rows, eventRow(e))
	}
	return s.printTable(rows)
}

func eventRow(e hangar.Event) []string {
	return []string{
		time.UnixMilli(e.Timestamp).UTC().Format("2006-01-02T15:04:05.000Z"), string(e.Type), e.Status, string(e.Source), eventDetail(e.Request),
	}
}

// exitText says in a phrase how a program ended.
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

// eventDetail says in a phrase what an event has beyond its type.
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

func newMachinePsCommand(c *cli) *cobra.Command {
	return listing(c, &cobra.Command{
		Use: "ps APP [MACHINE]", Short: "List the processes inside a Machine",
		Args: cobra.RangeArgs(1, 2), ValidArgsFunction: c.completeMachine,
	}, askedOf(c, func(ctx context.Context, p *client.Client, m *hangar.Machine) ([]hangar.Process, error) {
		return p.MachineProcesses(ctx, m.Ref())
	}), table[hangar.Process]{
		head: []string{"PID", "CPU", "MEMORY", "CPU TIME", "LISTENS", "COMMAND"},
		row: func(_ time.Time, x hangar.Process) []string {
			var listens []string
			for _, l := range x.ListenSockets {
				listens = append(listens, l.Proto+" "+l.Address)
			}
			return []string{
				strconv.Itoa(x.PID), percent(x.CPU), bytes(x.RSS), (time.Duration(x.RunMS+x.StartedMS) * time.Millisecond).String(),
				strings.Join(listens, ", "), short(x.Command, 60),
			}
		},
	})
}

// parseStates reads the names of states, which may be separated by commas.
func parseStates(names []string) ([]hangar.MachineState, error) {
	var states []hangar.MachineState
	for _, n := range names {
		s := hangar.MachineState(n)
		if s == "running" { // what people say
			s = hangar.MachineStarted
		}
		if !s.Valid() && s != hangar.WaitSettled {
			return nil, usageErrorf("unknown state %q: must be one of %v", n, hangar.MachineStates())
		}
		states = append(states, s)
	}
	return states, nil
}

// parsePairs reads KEY=VALUE arguments of a flag.
func parsePairs(flag string, pairs []string) (map[string]string, error) {
	if len(pairs) == 0 {
		return nil, nil
	}
	m := make(map[string]string, len(pairs))
	for _, pair := range pairs {
		k, v, ok := strings.Cut(pair, "=")
		if !ok || k == "" {
			return nil, usageErrorf("invalid %s %q: must be KEY=VALUE", flag, pair)
		}
		m[k] = v
	}
	return m, nil
}
