package app

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
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

// NewServicesCommand makes `hangar services`.
func NewServicesCommand(c *cli.Invocation) *cobra.Command {
	cmd := cli.Group("services", "See how the edge serves the ports of Apps", "service")
	cmd.AddCommand(newServicesListCommand(c))
	return cmd
}

// servedPort is a public port or range of ports of an App, with the Machines that serve it with the
// same settings.
type servedPort struct {
	Protocol     string                     `json:"protocol"`
	First        int                        `json:"start_port"`
	Last         int                        `json:"end_port"`
	Handlers     []string                   `json:"handlers"`
	InternalPort int                        `json:"internal_port"`
	Autostart    bool                       `json:"autostart"`
	Autostop     hangar.AutostopMode        `json:"autostop"`
	Idle         *hangar.Duration           `json:"autostop_after,omitempty"`
	MinRunning   int                        `json:"min_machines_running"`
	Limits       *hangar.ServiceConcurrency `json:"concurrency,omitempty"`
	Machines     []hangar.MachineID         `json:"machines"`
}

// servedPorts returns the ports that Machines serve, sorted by protocol and port.
func servedPorts(machines []*hangar.Machine) []servedPort {
	ports := []servedPort{}
	at := map[string]int{}
	for _, m := range machines {
		for i := range m.Config.Services {
			s := &m.Config.Services[i]
			for k := range s.Ports {
				port := servedPort{
					Protocol: s.Protocol, Handlers: cli.OrEmpty(s.Ports[k].Handlers), InternalPort: s.InternalPort, Autostart: m.Config.Autostarts(s, len(machines) == 1),
					Autostop: s.AutostopMode(), Idle: s.AutostopAfter, Limits: s.Concurrency,
				}
				port.First, port.Last = s.Ports[k].Range()
				if s.MinMachinesRunning != nil {
					port.MinRunning = *s.MinMachinesRunning
				}
				key := strings.Join(port.cells(), "\x00")
				n, ok := at[key]
				if !ok {
					n = len(ports)
					at[key], ports = n, append(ports, port)
				}
				ports[n].Machines = append(ports[n].Machines, m.ID)
			}
		}
	}
	slices.SortStableFunc(ports, func(a, b servedPort) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.First, b.First), cmp.Compare(a.Last, b.Last))
	})
	return ports
}

// cells returns the row of the table, without the Machines.
func (p *servedPort) cells() []string {
	public := strconv.Itoa(p.First)
	if p.Last != p.First {
		public += "-" + strconv.Itoa(p.Last)
	}
	stop := string(p.Autostop)
	if p.Idle != nil && p.Autostop != hangar.AutostopOff {
		stop += " after " + time.Duration(*p.Idle).String()
	}
	start := "no"
	if p.Autostart {
		start = "yes"
	}
	return []string{
		public + "/" + p.Protocol, strings.Join(p.Handlers, "+"), strconv.Itoa(p.InternalPort), start, stop, strconv.Itoa(p.MinRunning), limitsText(p.Limits),
	}
}

// limitsText formats limits as in "soft 20, hard 50 requests".
func limitsText(l *hangar.ServiceConcurrency) string {
	if l == nil {
		return ""
	}
	var parts []string
	if l.SoftLimit > 0 {
		parts = append(parts, fmt.Sprintf("soft %d", l.SoftLimit))
	}
	if l.HardLimit > 0 {
		parts = append(parts, fmt.Sprintf("hard %d", l.HardLimit))
	}
	if len(parts) == 0 {
		return ""
	}
	return strings.Join(parts, ", ") + " " + cmp.Or(l.Type, "connections")
}

func newServicesListCommand(c *cli.Invocation) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "list APP", Aliases: []string{"ls"}, Short: "List the public ports of an App, and where it is served",
		Args: cobra.ExactArgs(1), ValidArgsFunction: c.CompleteApp,
		RunE: c.Connected(func(ctx context.Context, p *client.Client, args []string) error {
			app, err := p.App(ctx, hangar.AppName(args[0]))
			if err != nil {
				return err
			}
			machines, err := p.Machines(ctx, app.Name, hangar.MachineFilter{})
			if err != nil {
				return err
			}
			ports := servedPorts(machines)
			if asJSON {
				return c.PrintJSON(ports)
			}
			if len(ports) == 0 {
				fmt.Fprintf(c.Stderr, "No services. Services come from the config of a Machine, such as: hangar machine run %s IMAGE --port 80:8080\n", app.Name)
				return nil
			}
			addresses, err := p.Addresses(ctx, app.Name)
			if err != nil {
				return err
			}
			rows := [][]string{{"PORT", "HANDLERS", "INTERNAL", "AUTOSTART", "AUTOSTOP", "MIN", "LIMITS", "MACHINES"}}
			for i := range ports {
				rows = append(rows, append(ports[i].cells(), strconv.Itoa(len(ports[i].Machines))))
			}
			if err := c.PrintTable(rows); err != nil {
				return err
			}
			fmt.Fprintln(c.Stdout)
			return c.PrintFields(answersAt(app, addresses))
		}),
	}
	cli.JSONFlag(cmd, &asJSON)
	return cmd
}

// answersAt returns the addresses at which an App is served.
func answersAt(app *hangar.App, addresses []hangar.Address) []cli.Field {
	var public, private []string
	for _, a := range addresses {
		if a.Kind == hangar.AddressPrivateV6 {
			private = append(private, fmt.Sprintf("%s, as %s.flycast in network %s", a.IP, app.Name, a.Network))
		} else {
			public = append(public, a.IP.String())
		}
	}
	fields := []cli.Field{{"public", "no: the App has no public address; hangar ips allocate " + string(app.Name) + " --shared"}}
	if len(public) > 0 {
		fields = []cli.Field{{"public", app.URL}, {"addresses", strings.Join(public, ", ")}}
	}
	for _, text := range private {
		fields = append(fields, cli.Field{"private", text})
	}
	return fields
}
