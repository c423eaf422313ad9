package volume

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

func newListCommand(c *commands) *cobra.Command {
	var (
		f              cli.ListFlags
		all, destroyed bool
		org            string
	)
	cmd := &cobra.Command{
		Use:               "list [APP]",
		Aliases:           []string{"ls"},
		Short:             "List the volumes of an App, of an organization, or of all Apps",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: c.completeVolumesApp,
		RunE: func(cmd *cobra.Command, args []string) error {
			if org != "" && (len(args) > 0 || c.app != "") {
				return cli.UsageErrorf("name an App or an organization with --org, not both")
			}
			p, err := c.Connect()
			if err != nil {
				return err
			}
			if destroyed && (len(args) > 0 || c.app != "") {
				return cli.UsageErrorf("--destroyed needs --org, and no App")
			}
			var volumes []*hangar.Volume
			if destroyed {
				all = true
				volumes, err = p.DestroyedVolumes(cmd.Context(), c.OrgOr(org))
			} else {
				volumes, err = c.listVolumes(cmd.Context(), p, args, hangar.OrgSlug(org))
			}
			if err != nil {
				return err
			}
			hint := "No volumes. Create one: hangar volumes create APP NAME"
			if destroyed {
				hint = "No destroyed volumes."
			}
			if !all {
				n := len(volumes)
				volumes = slices.DeleteFunc(volumes, func(v *hangar.Volume) bool { return !kept(v) })
				if hidden := n - len(volumes); hidden > 0 {
					hint = fmt.Sprintf("No volumes except %s that can be undeleted: add --all", cli.Plural(hidden, "destroyed one", "destroyed ones"))
				}
			}
			return c.PrintList(f, volumesJSON(volumes), volumeRows(volumes), hint)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "also destroyed ones that can still be undeleted")
	cmd.Flags().BoolVar(&destroyed, "destroyed", false, "only destroyed ones, including those of destroyed Apps; purge them to free their space")
	cmd.Flags().StringVar(&org, "org", "", "the volumes of all Apps of this organization")
	f.Add(cmd, "ids")
	return cmd
}

// orgVolumesPage is the number of an organization's volumes per request.
const orgVolumesPage = 500

func (c *commands) listVolumes(ctx context.Context, p *client.Client, args []string, org hangar.OrgSlug) ([]*hangar.Volume, error) {
	if org != "" {
		var all []*hangar.Volume
		for after := hangar.VolumeID(""); ; {
			page, err := p.OrgVolumes(ctx, org, after, orgVolumesPage)
			if err != nil {
				return nil, err
			}
			all = append(all, page...)
			if len(page) < orgVolumesPage {
				return all, nil
			}
			after = page[len(page)-1].ID
		}
	}
	if len(args) > 0 || c.app != "" {
		app, err := c.theApp(args)
		if err != nil {
			return nil, err
		}
		return p.Volumes(ctx, app)
	}
	apps, err := p.Apps(ctx, hangar.AppFilter{})
	if err != nil {
		return nil, err
	}
	var all []*hangar.Volume
	for _, app := range apps {
		found, err := p.Volumes(ctx, app.Name)
		// The App may have been destroyed since it was listed.
		if err != nil && hangar.CodeOf(err) != hangar.CodeNotFound {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// volumeOutput is the JSON output for a volume, with the names of the API.
type volumeOutput struct {
	*hangar.Volume
	hangar.VolumeUsage
	BytesUsed     int64             `json:"bytes_used"`
	BytesTotal    int64             `json:"bytes_total"`
	AttachedTo    *hangar.MachineID `json:"attached_machine_id"`
	UndeleteUntil time.Time         `json:"undelete_until,omitzero"`

	// The API does not have these.
	Usage           any `json:"usage,omitempty"`
	AttachedMachine any `json:"attached_machine,omitempty"`
}

func volumeJSON(v *hangar.Volume) volumeOutput {
	out := volumeOutput{Volume: v, VolumeUsage: v.Usage, BytesUsed: v.Usage.Used(), BytesTotal: v.Usage.Total()}
	if v.AttachedMachine != "" {
		out.AttachedTo = &v.AttachedMachine
	}
	if undeletable(v) {
		out.UndeleteUntil = v.DestroyedAt.Add(hangar.VolumeGrace)
	}
	return out
}

func volumesJSON(volumes []*hangar.Volume) []volumeOutput {
	list := make([]volumeOutput, 0, len(volumes))
	for _, v := range volumes {
		list = append(list, volumeJSON(v))
	}
	return list
}

func volumeRows(volumes []*hangar.Volume) [][]string {
	now := time.Now()
	rows := [][]string{{"ID", "NAME", "APP", "STATE", "SIZE", "USED", "REGION", "ZONE", "ENCRYPTED", "MACHINE", "CREATED"}}
	for _, v := range volumes {
		rows = append(rows, []string{
			string(v.ID), v.Name, string(v.App), volumeStateText(now, v), cli.GB(v.SizeGB), usedText(v), string(v.Region), v.Zone,
			cli.YesNo(v.Encrypted), string(v.AttachedMachine), cli.Ago(now, v.CreatedAt),
		})
	}
	return rows
}

func volumeStateText(now time.Time, v *hangar.Volume) string {
	text := string(v.State)
	switch {
	case v.State == hangar.VolumeRestoring && v.Filling.Progress.Total > 0:
		text += fmt.Sprintf(" (%d%%)", v.Filling.Progress.Done*100/v.Filling.Progress.Total)
	case v.State == hangar.VolumePendingDestroy && !v.DestroyedAt.IsZero():
		if left := v.DestroyedAt.Add(hangar.VolumeGrace).Sub(now); left > 0 {
			text += fmt.Sprintf(" (in %s)", left.Round(time.Minute))
		}
	}
	if v.HostStatus != "" && v.HostStatus != "ok" {
		text += " (host " + v.HostStatus + ")"
	}
	return text
}

// usedText returns how much of its file system a volume uses; empty before its first use.
func usedText(v *hangar.Volume) string {
	if v.Usage.Total() == 0 {
		return ""
	}
	return fmt.Sprintf("%s (%d%%)", cli.Bytes(v.Usage.Used()), v.Usage.Used()*100/v.Usage.Total())
}

func newShowCommand(c *commands) *cobra.Command {
	return cli.AnsweringAs(c.Invocation, &cobra.Command{
		Use: "show [APP] [VOLUME]", Aliases: []string{"status", "inspect"}, Short: "Show a volume",
		Args: cobra.MaximumNArgs(2), ValidArgsFunction: c.completeVolume,
	}, func(cmd *cobra.Command, args []string) (*hangar.Volume, error) {
		_, v, err := c.oneVolume(cmd.Context(), args, kept)
		return v, err
	}, volumeJSON, c.printVolume)
}

func (c *commands) printVolume(v *hangar.Volume) error {
	now := time.Now()
	snapshots := "on demand only"
	if v.AutoBackup {
		snapshots = "daily"
	}
	var filled, grows string
	switch {
	case v.Filling.Snapshot != "":
		filled = "from snapshot " + string(v.Filling.Snapshot)
	case v.Filling.Source != "":
		filled = "a copy of " + string(v.Filling.Source)
	}
	if v.NeedsRestart {
		grows = "when the Machine starts next"
	}
	fs := string(v.Wanted) + ", not created yet"
	if v.Usage.FSType != "" {
		fs = string(v.Usage.FSType)
	} else if v.Wanted == hangar.FSRaw {
		fs = "none (raw)"
	}
	return c.PrintFields([]cli.Field{
		{"ID", string(v.ID)},
		{"Name", v.Name},
		{"App", string(v.App)},
		{"State", volumeStateText(now, v)},
		{"Size", cli.GB(v.SizeGB)},
		{"File system", fs},
		{"Used", usedText(v)},
		{"File system grows", grows},
		{"Machine", string(v.AttachedMachine)},
		{"Encrypted", cli.YesNo(v.Encrypted)},
		{"Snapshots", fmt.Sprintf("%s, kept for %s", snapshots, cli.Plural(v.SnapshotRetention, "day", "days"))},
		{"Filled", filled},
		{"Region", string(v.Region)},
		{"Zone", v.Zone},
		{"Host", string(v.Host)},
		{"Created", cli.Ago(now, v.CreatedAt)},
		{"Changed", cli.Ago(now, v.UpdatedAt)},
	})
}

func newEventsCommand(c *commands) *cobra.Command {
	return cli.Listing(c.Invocation, &cobra.Command{
		Use: "events [APP] [VOLUME]", Short: "Show what happened to a volume, newest first",
		Args: cobra.MaximumNArgs(2), ValidArgsFunction: c.completeVolume,
	}, func(cmd *cobra.Command, args []string) ([]hangar.VolumeEvent, error) {
		p, v, err := c.oneVolume(cmd.Context(), args, kept)
		if err != nil {
			return nil, err
		}
		return p.VolumeEvents(cmd.Context(), v.Ref())
	}, cli.Table[hangar.VolumeEvent]{
		Head: []string{"TIME", "EVENT", "RESULT", "SOURCE", "OF", "DETAIL"},
		Row: func(_ time.Time, e hangar.VolumeEvent) []string {
			result := "ok"
			if e.Fault != "" {
				result = "FAILED"
			}
			return []string{
				time.UnixMilli(e.Timestamp).UTC().Format("2006-01-02T15:04:05.000Z"), string(e.Type), result, string(e.Source),
				cmp.Or(string(e.Machine), string(e.Snapshot)), cmp.Or(e.Fault, e.Text),
			}
		},
	})
}
