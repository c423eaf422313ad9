package secret

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

// NewKeysCommand returns `hangar secretkeys`.
func NewKeysCommand(inv *cli.Invocation) *cobra.Command {
	c := commands{Invocation: inv}
	cmd := cli.Group("secretkeys", "Manage the keys with which Apps encrypt and sign", "secretkey")
	cmd.AddCommand(newKeysListCommand(c), newKeysGenerateCommand(c), newKeysSetCommand(c), newKeysDeleteCommand(c))
	return cmd
}

func newKeysListCommand(c commands) *cobra.Command {
	var types []string
	cmd := &cobra.Command{
		Use:               "list APP",
		Short:             "List secret keys",
		Long:              "List the secret keys of an App. The public key is in base64; a symmetric key has none. The value is not shown.",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.CompleteApp,
	}
	cmd.Flags().StringSliceVar(&types, "type", nil, "only keys of these types")
	cli.CompleteFlag(cmd, "type", cli.Texts(hangar.SecretKeyTypes())...)
	return cli.Listing(c.Invocation, cmd, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, args []string) ([]hangar.SecretKey, error) {
		var q hangar.SecretKeyQuery
		for _, t := range types {
			q.Types = append(q.Types, hangar.SecretKeyType(t))
		}
		return p.SecretKeys(ctx, hangar.AppName(args[0]), q)
	}), cli.Table[hangar.SecretKey]{
		Head: []string{"NAME", "TYPE", "UPDATED", "PUBLIC KEY"},
		Row: func(now time.Time, k hangar.SecretKey) []string {
			return []string{k.Name, string(k.Type), cli.Ago(now, k.UpdatedAt), base64.StdEncoding.EncodeToString(k.PublicKey)}
		},
		Names: "names", Hint: "No secret keys. Create one: hangar secretkeys generate %s NAME TYPE",
	})
}

// completeSecretKeyType completes APP NAME TYPE.
func (c commands) completeSecretKeyType(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 2 {
		return cli.Texts(hangar.SecretKeyTypes()), cobra.ShellCompDirectiveNoFileComp
	}
	return c.CompleteApp(cmd, args, prefix)
}

const generateKeyLong = `Generate a random secret key of an App. The key never leaves the platform: programs
encrypt, decrypt, sign and verify through the API. A key with the same name is replaced, and
data encrypted with it is lost.

  es256, nacl_sign               sign; the public key suffices to verify
  hs256, hs384, hs512, nacl_auth sign and verify
  nacl_box                       decrypt; the public key suffices to encrypt
  nacl_secretbox, xaes256gcm     encrypt and decrypt, the second with associated data`

func newKeysGenerateCommand(c commands) *cobra.Command {
	return cli.Answering(c.Invocation, &cobra.Command{
		Use:               "generate APP NAME TYPE",
		Aliases:           []string{"create"},
		Short:             "Generate a secret key",
		Long:              generateKeyLong,
		Example:           "  hangar secretkeys generate hello sessions xaes256gcm",
		Args:              cobra.ExactArgs(3),
		ValidArgsFunction: c.completeSecretKeyType,
	}, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, args []string) (madeKeyOutput, error) {
		key, version, err := p.GenerateSecretKey(ctx, secretKeyArg(args), hangar.SecretKeyType(args[2]))
		return madeKeyOutput{args[0], key, version}, err
	}), c.printMadeKey)
}

func secretKeyArg(args []string) hangar.SecretKeyRef {
	return hangar.SecretKeyRef{App: hangar.AppName(args[0]), Name: args[1]}
}

// madeKeyOutput is the JSON output.
type madeKeyOutput struct {
	app string
	hangar.SecretKey
	Version int `json:"version"`
}

func (c commands) printMadeKey(key madeKeyOutput) error {
	fmt.Fprintf(c.Stdout, "Secret key %s is set; the secrets of App %s are at version %d.\n", key.Name, key.app, key.Version)
	if key.PublicKey == nil {
		return nil
	}
	return c.Sayf("Its public key: %s", base64.StdEncoding.EncodeToString(key.PublicKey))
}

func newKeysSetCommand(c commands) *cobra.Command {
	return cli.Answering(c.Invocation, &cobra.Command{
		Use:   "set APP NAME TYPE < FILE",
		Short: "Set a secret key to bytes of your own",
		Long: "Set or replace a secret key of an App. Standard input has its bytes in base64. The type of the key determines\n" +
			"their format: see docs/api.md.",
		Example:           "  openssl rand -base64 32 | hangar secretkeys set hello tickets hs256",
		Args:              cobra.ExactArgs(3),
		ValidArgsFunction: c.completeSecretKeyType,
	}, func(cmd *cobra.Command, args []string) (made madeKeyOutput, err error) {
		value, err := c.readKey()
		if err != nil {
			return made, err
		}
		p, err := c.Connect()
		if err != nil {
			return made, err
		}
		key, version, err := p.SetSecretKey(cmd.Context(), secretKeyArg(args), hangar.SecretKeySet{Type: hangar.SecretKeyType(args[2]), Value: value})
		return madeKeyOutput{args[0], key, version}, err
	}, c.printMadeKey)
}

// readKey reads a key from standard input. Its errors do not contain any of the input.
func (c commands) readKey() (hangar.Sensitive, error) {
	raw, err := io.ReadAll(io.LimitReader(c.Stdin, maxSecretsInput))
	if err != nil {
		return hangar.Sensitive{}, fmt.Errorf("read standard input: %w", err)
	}
	value, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(raw)))
	if err != nil {
		return hangar.Sensitive{}, cli.UsageErrorf("standard input is not base64 with padding")
	}
	return hangar.NewSensitive(string(value)), nil
}

func newKeysDeleteCommand(c commands) *cobra.Command {
	return &cobra.Command{
		Use:               "delete APP NAME",
		Aliases:           []string{"rm", "remove"},
		Short:             "Remove a secret key",
		Long:              "Remove a secret key of an App. Data encrypted with it is lost.",
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: c.CompleteApp,
		RunE: c.Connected(func(ctx context.Context, p *client.Client, args []string) error {
			version, err := p.DeleteSecretKey(ctx, secretKeyArg(args))
			if err != nil {
				return err
			}
			return c.Sayf("Secret key %s is removed; the secrets of App %s are at version %d.", args[1], args[0], version)
		}),
	}
}
