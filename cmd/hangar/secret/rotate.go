package secret

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

const rotateKeyLong = `Replace the key with which the platform encrypts secrets, while it runs: generate a new
key, encrypt everything with it, and drop the old one. Older backups of the data directory
contain the old key, which cannot decrypt newer data.

If the command is interrupted, both keys stay in use until the next start of the daemon or
the next run of this command completes the rotation. Only an administrator may do this. If
the platform has several servers, it is refused: each of them keeps the keys in its own file.`

func newRotateKeyCommand(c commands) *cobra.Command {
	return cli.Answering(c.Invocation, &cobra.Command{
		Use: "rotate-key", Short: "Replace the key that secrets are encrypted with", Long: rotateKeyLong, Args: cobra.NoArgs,
	}, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, _ []string) (hangar.KeyRotation, error) {
		return p.RotateEncryptionKey(ctx)
	}), func(done hangar.KeyRotation) error {
		return c.Sayf("The key is replaced; %d values were re-encrypted. Back up keyset.json of the data directory.", done.Resealed)
	})
}
