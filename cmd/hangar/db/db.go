// Package db has the commands about replicated databases in an App's Machines.
package db

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/internal/durable"
)

const about = `See and change replicated databases of hangar-db nodes in an App's Machines.

The commands reach the nodes through the API, as hangar proxy does, so the nodes need no public port. The
token must allow the action control.`

// defaultPort is the port on which a node serves HTTP.
const defaultPort = 20202

// commands make the commands of the package.
type commands struct {
	*cli.Invocation

	port int
}

// NewCommand makes `hangar db`.
func NewCommand(inv *cli.Invocation) *cobra.Command {
	c := &commands{Invocation: inv}
	cmd := cli.Group("db", "See and change replicated databases", "databases")
	cmd.Long = about
	cmd.PersistentFlags().IntVar(&c.port, "port", defaultPort, "port on which the nodes serve HTTP")
	cmd.AddCommand(c.newStatus(), c.newPromote(), c.newHandoff(), c.newExport(), c.newImport(), c.newRestore())
	return cmd
}

// started returns the started Machines of an App.
func (c *commands) started(ctx context.Context, app string) (*client.Client, []*hangar.Machine, error) {
	p, err := c.Connect()
	if err != nil {
		return nil, nil, err
	}
	machines, err := c.StartedMachines(ctx, p, hangar.AppName(app), cli.MachineChoice{})
	return p, machines, err
}

func (c *commands) newStatus() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "status APP",
		Short:             "Show the nodes in an App's Machines",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.CompleteApp,
	}
	return cli.Listing(c.Invocation, cmd, func(cmd *cobra.Command, args []string) ([]*status, error) {
		p, machines, err := c.started(cmd.Context(), args[0])
		if err != nil {
			return nil, err
		}
		all := ask(cmd.Context(), p, machines, c.port)
		closeAll(all)
		return all, nil
	}, cli.Table[*status]{
		Head:  []string{"MACHINE", "NAME", "REGION", "ROLE", "PRIMARY", "CAPTURE", "DATABASES"},
		Row:   func(_ time.Time, s *status) []string { return s.row() },
		Names: "the ids of the Machines",
	})
}

func (s *status) row() []string {
	row := []string{string(s.Machine), s.Name, string(s.Region)}
	if s.Node == nil {
		return append(row, "no node", "", "", cli.Short(s.Error, 60))
	}
	role, of := "replica", ""
	switch {
	case s.Node.IsPrimary:
		role = "primary"
	case s.Node.Primary != nil:
		of = s.Node.Primary.Hostname
	default:
		role = "replica, not connected"
	}
	var databases []string
	for _, d := range s.Node.Databases {
		text := d.Name + "@" + cmp.Or(strings.TrimLeft(d.TXID, "0"), "0")
		if d.Diverged {
			text += " (differs)"
		}
		databases = append(databases, text)
	}
	return append(row, role, of, s.Node.Capture, strings.Join(databases, ", "))
}

func (c *commands) newPromote() *cobra.Command {
	return &cobra.Command{
		Use:               "promote APP MACHINE",
		Short:             "Make the node of a Machine the primary, by a hand-off from the current one",
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: c.CompleteMachine,
		RunE: c.OnMachine(func(ctx context.Context, p *client.Client, m *hangar.Machine) error {
			n := newNode(p, m, c.port)
			defer n.close()
			if _, err := n.change(ctx, "/promote", nil); err != nil {
				return err
			}
			return c.Sayf("Machine %s is the primary.", m.ID)
		}),
	}
}

func (c *commands) newHandoff() *cobra.Command {
	return &cobra.Command{
		Use:               "handoff APP [MACHINE]",
		Short:             "Make the node of a Machine the primary, or any candidate",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: c.CompleteMachine,
		RunE: func(cmd *cobra.Command, args []string) error {
			p, machines, err := c.started(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			query := url.Values{}
			if len(args) > 1 {
				m, err := cli.FindMachine(cmd.Context(), p, hangar.AppName(args[0]), args[1])
				if err != nil {
					return err
				}
				query.Set("nodeID", string(m.ID))
			}
			all := ask(cmd.Context(), p, machines, c.port)
			defer closeAll(all)
			n, err := primary(hangar.AppName(args[0]), all)
			if err != nil {
				return err
			}
			to, err := n.change(cmd.Context(), "/handoff", query)
			if err != nil {
				return err
			}
			return c.Sayf("%s is the primary.", cmp.Or(to, query.Get("nodeID"), "Another node"))
		},
	}
}

// onNode calls work with the node of a Machine, or with the primary if machine is empty.
func (c *commands) onNode(ctx context.Context, app, machine string, work func(*client.Client, *node) error) error {
	if machine != "" {
		p, m, err := c.OneMachine(ctx, []string{app, machine})
		if err != nil {
			return err
		}
		n := newNode(p, m, c.port)
		defer n.close()
		return work(p, n)
	}
	p, machines, err := c.started(ctx, app)
	if err != nil {
		return err
	}
	all := ask(ctx, p, machines, c.port)
	defer closeAll(all)
	n, err := primary(hangar.AppName(app), all)
	if err != nil {
		return err
	}
	return work(p, n)
}

// machineFlag adds --machine to a command.
func (c *commands) machineFlag(cmd *cobra.Command, to *string) {
	cmd.Flags().StringVar(to, "machine", "", "the node of this Machine (default the primary)")
	_ = cmd.RegisterFlagCompletionFunc("machine", func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return c.CompleteMachine(cmd, args[:min(1, len(args))], prefix)
	})
}

func (c *commands) newExport() *cobra.Command {
	var machine, name string
	cmd := &cobra.Command{
		Use:               "export APP FILE",
		Short:             "Copy a database to a new local file",
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: c.CompleteApp,
		RunE: func(cmd *cobra.Command, args []string) error {
			file := args[1]
			of := cmp.Or(name, filepath.Base(file))
			return c.onNode(cmd.Context(), args[0], machine, func(_ *client.Client, n *node) error {
				resp, err := n.call(cmd.Context(), http.MethodGet, "/export", url.Values{"name": {of}}, nil)
				if err != nil {
					return err
				}
				defer resp.Body.Close()
				if _, err := durable.CopyNew(file, resp.Body); err != nil {
					return err
				}
				return c.Sayf("Exported %s of Machine %s to %s, at %s.", of, n.machine.ID, file, resp.Header.Get("Hangar-Db-Position"))
			})
		},
	}
	c.machineFlag(cmd, &machine)
	cmd.Flags().StringVar(&name, "name", "", "name of the database (default that of the file)")
	return cmd
}

func (c *commands) newImport() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:               "import APP FILE",
		Short:             "Import a local SQLite file as a database",
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: c.CompleteApp,
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := os.Open(args[1])
			if err != nil {
				return err
			}
			defer f.Close()
			as := cmp.Or(name, filepath.Base(args[1]))
			return c.onNode(cmd.Context(), args[0], "", func(_ *client.Client, n *node) error {
				resp, err := n.call(cmd.Context(), http.MethodPost, "/import", url.Values{"name": {as}}, f)
				if err != nil {
					return err
				}
				defer resp.Body.Close()
				return c.Sayf("Imported %s as %s of App %s, at %s.", args[1], as, args[0], resp.Header.Get("Hangar-Db-Position"))
			})
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "name of the database (default that of the file)")
	return cmd
}

const restoreLong = `Restore a database to its state at a time, from the backup of the App's nodes.

The program hangar-db in the Machine restores the state, with its configuration and credentials there, and imports
it as one transaction, which replicas and clients see like any other.`

func (c *commands) newRestore() *cobra.Command {
	var name, at, config, as string
	cmd := &cobra.Command{
		Use:               "restore APP",
		Short:             "Restore a database to its state at a time",
		Long:              restoreLong,
		Example:           "  hangar db restore shop --name app.db --at 90m\n  hangar db restore shop --name app.db --at 2026-03-01T12:00:00Z --as old.db",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.CompleteApp,
		RunE: func(cmd *cobra.Command, args []string) error {
			if at == "" {
				return cli.UsageErrorf("--at is missing: a time such as 2026-03-01T12:00:00Z, or 90m for 90 minutes ago")
			}
			return c.onNode(cmd.Context(), args[0], "", func(p *client.Client, n *node) error {
				command := []string{
					hangar.DatabaseProgram, "restore", "--config", config, "--at", at, "--db", name, "--import", cmp.Or(as, name),
					"--url", fmt.Sprintf("http://localhost:%d", c.port),
				}
				result, err := p.ExecMachine(cmd.Context(), n.machine.Ref(), hangar.ExecRequest{Command: command}, hangar.ExecStreams{Stdout: c.Stdout, Stderr: c.Stderr})
				if err != nil {
					return cli.NotRunError{Err: err}
				}
				if result.ExitCode != 0 {
					return cli.ExitStatus(result.ExitCode)
				}
				return nil
			})
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&name, "name", "", "name of the database")
	fs.StringVar(&at, "at", "", "time, such as 2026-03-01T12:00:00Z, or a duration before now, such as 90m")
	fs.StringVar(&as, "as", "", "name of the database that receives the content (default the same)")
	fs.StringVar(&config, "config", "/etc/litefs.yml", "configuration file of the node, in the Machine")
	_ = cmd.MarkFlagRequired("name")
	return cmd
}
