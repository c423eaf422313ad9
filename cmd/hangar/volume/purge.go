package volume

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

func newPurgeCommand(c *commands) *cobra.Command {
	var (
		all, yes bool
		org      string
	)
	cmd := &cobra.Command{
		Use:   "purge [ID...]",
		Short: "Remove destroyed volumes permanently",
		Long: "Remove destroyed volumes of an organization before their 24 hours are over. They can no longer be undeleted, and the space\n" +
			"they use of quotas and of the server is free. Their Apps may be destroyed. Snapshots are kept until their retention ends.\n" +
			"`hangar volumes list --destroyed` lists destroyed volumes.",
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return cli.UsageErrorf("give ids of destroyed volumes, or --all")
			}
			for _, id := range args {
				if !hangar.VolumeID(id).Valid() {
					return cli.UsageErrorf("%q is not the id of a volume; see `hangar volumes list --destroyed`", id)
				}
			}
			p, err := c.Connect()
			if err != nil {
				return err
			}
			slug := c.OrgOr(org)
			ids := make([]hangar.VolumeID, 0, len(args))
			for _, id := range args {
				ids = append(ids, hangar.VolumeID(id))
			}
			if all {
				volumes, err := p.DestroyedVolumes(cmd.Context(), slug)
				if err != nil {
					return err
				}
				for _, v := range volumes {
					ids = append(ids, v.ID)
				}
			}
			if len(ids) == 0 {
				fmt.Fprintln(c.Stderr, "No destroyed volumes.")
				return nil
			}
			if err := c.ConfirmUnless(yes, "Remove %s of organization %s permanently?", cli.Plural(len(ids), "destroyed volume", "destroyed volumes"), slug); err != nil {
				return err
			}
			var failed []error
			for _, id := range ids {
				v, err := p.PurgeVolume(cmd.Context(), slug, id)
				if err != nil {
					failed = append(failed, err)
					continue
				}
				fmt.Fprintf(c.Stdout, "Purged volume %s (%s, %s) of App %s.\n", v.ID, v.Name, cli.GB(v.SizeGB), v.App)
			}
			return errors.Join(failed...)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "all destroyed volumes of the organization")
	cmd.Flags().StringVar(&org, "org", "", "organization of the volumes (default that of the context, or personal)")
	cli.YesFlag(cmd, &yes)
	return cmd
}
