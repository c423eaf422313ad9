package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

const rotateKeyLong = `Replace the key with which the platform encrypts secrets, while it runs: make a new
key, encrypt everything with it, and drop the old one. Backups of the data directory
that are older hold the old key, and open only what they hold themselves.

When it is interrupted, both keys stay in use, and the next start of the daemon, or
the next run of this command, goes on. Only an administrator may do this.`

func newSecretsRotateKeyCommand(c *cli) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "rotate-key",
		Short: "Replace the key that secrets are encrypted with",
		Long:  rotateKeyLong,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := c.connect()
			if err != nil {
				return err
			}
			done, err := p.RotateEncryptionKey(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return c.printJSON(done)
			}
			fmt.Fprintf(c.stdout, "The key is replaced; %d values were encrypted anew. Back up keyset.json of the data directory.\n", done.Resealed)
			return nil
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}
