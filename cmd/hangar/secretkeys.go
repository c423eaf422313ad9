package main

import (
	"encoding/base64"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
)

func newSecretKeysCommand(c *cli) *cobra.Command {
	cmd := group("secretkeys", "Keep keys that the platform encrypts and signs with", "secretkey")
	cmd.AddCommand(newSecretKeysListCommand(c), newSecretKeysGenerateCommand(c), newSecretKeysSetCommand(c), newSecretKeysDeleteCommand(c))
	return cmd
}

func newSecretKeysListCommand(c *cli) *cobra.Command {
	var (
		f     listFlags
		types []string
	)
	cmd := &cobra.Command{
		Use:               "list APP",
		Aliases:           []string{"ls"},
		Short:             "List secret keys",
		Long:              "List the secret keys of an App. The public key is in base64; a symmetric key has none. The value is not shown.",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.completeApp,
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := c.connect()
			if err != nil {
				return err
			}
			var q hangar.SecretKeyQuery
			for _, t := range types {
				q.Types = append(q.Types, hangar.SecretKeyType(t))
			}
			list, err := p.SecretKeys(cmd.Context(), hangar.AppName(args[0]), q)
			if err != nil {
				return err
			}
			now := time.Now()
			rows := [][]string{{"NAME", "TYPE", "UPDATED", "PUBLIC KEY"}}
			for _, k := range list {
				rows = append(rows, []string{k.Name, string(k.Type), ago(now, k.UpdatedAt), base64.StdEncoding.EncodeToString(k.PublicKey)})
			}
			return c.printList(f, orEmpty(list), rows, fmt.Sprintf("No secret keys. Make one: hangar secretkeys generate %s NAME TYPE", args[0]))
		},
	}
	cmd.Flags().StringSliceVar(&types, "type", nil, "only keys of these types")
	_ = cmd.RegisterFlagCompletionFunc("type", cobra.FixedCompletions(secretKeyTypes(), cobra.ShellCompDirectiveNoFileComp))
	f.add(cmd, "names")
	return cmd
}

func secretKeyTypes() []string {
	var names []string
	for _, t := range hangar.SecretKeyTypes() {
		names = append(names, string(t))
	}
	return names
}

// completeSecretKeyType completes APP NAME TYPE.
func (c *cli) completeSecretKeyType(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 2 {
		return secretKeyTypes(), cobra.ShellCompDirectiveNoFileComp
	}
	return c.completeApp(cmd, args, prefix)
}

const generateKeyLong = `Make a secret key of an App of random bytes, which stay in the platform: programs have it
encrypt, decrypt, sign and verify over the API. A key of the same name is replaced, and
what only that one decrypts is lost.

  es256, nacl_sign               sign; everybody who has the public key can verify
  hs256, hs384, hs512, nacl_auth sign and verify
  nacl_box                       decrypt what everybody who has the public key can encrypt
  nacl_secretbox, xaes256gcm     encrypt and decrypt, the second with associated data`

func newSecretKeysGenerateCommand(c *cli) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:               "generate APP NAME TYPE",
		Aliases:           []string{"create"},
		Short:             "Make a secret key",
		Long:              generateKeyLong,
		Example:           "  hangar secretkeys generate hello sessions xaes256gcm",
		Args:              cobra.ExactArgs(3),
		ValidArgsFunction: c.completeSecretKeyType,
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := c.connect()
			if err != nil {
				return err
			}
			key, version, err := p.GenerateSecretKey(cmd.Context(), secretKeyArg(args), hangar.SecretKeyType(args[2]))
			if err != nil {
				return err
			}
			return c.printMadeKey(args[0], key, version, asJSON)
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func secretKeyArg(args []string) hangar.SecretKeyRef {
	return hangar.SecretKeyRef{App: hangar.AppName(args[0]), Name: args[1]}
}

// madeKeyOutput is what --json prints.
type madeKeyOutput struct {
	hangar.SecretKey
	Version int `json:"version"`
}

func (c *cli) printMadeKey(app string, key hangar.SecretKey, version int, asJSON bool) error {
	if asJSON {
		return c.printJSON(madeKeyOutput{key, version})
	}
	fmt.Fprintf(c.stdout, "Secret key %s is there; the secrets of App %s are at version %d.\n", key.Name, app, version)
	if key.PublicKey != nil {
		fmt.Fprintf(c.stdout, "Its public key: %s\n", base64.StdEncoding.EncodeToString(key.PublicKey))
	}
	return nil
}

func newSecretKeysSetCommand(c *cli) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "set APP NAME TYPE < FILE",
		Short: "Set a secret key to bytes of one's own",
		Long: "Set a secret key of an App, or replace it. Standard input has its bytes in base64. Which there have to be\n" +
			"follows from the type: see docs/api.md.",
		Example:           "  openssl rand -base64 32 | hangar secretkeys set hello tickets hs256",
		Args:              cobra.ExactArgs(3),
		ValidArgsFunction: c.completeSecretKeyType,
		RunE: func(cmd *cobra.Command, args []string) error {
			value, err := c.readKey()
			if err != nil {
				return err
			}
			p, err := c.connect()
			if err != nil {
				return err
			}
			key, version, err := p.SetSecretKey(cmd.Context(), secretKeyArg(args), hangar.SecretKeySet{Type: hangar.SecretKeyType(args[2]), Value: value})
			if err != nil {
				return err
			}
			return c.printMadeKey(args[0], key, version, asJSON)
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

// readKey reads key material from standard input. Its errors do not repeat any of it.
func (c *cli) readKey() (hangar.Sensitive, error) {
	raw, err := io.ReadAll(io.LimitReader(c.stdin, maxSecretsInput))
	if err != nil {
		return hangar.Sensitive{}, fmt.Errorf("read standard input: %w", err)
	}
	value, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(raw)))
	if err != nil {
		return hangar.Sensitive{}, usageErrorf("standard input is not base64 with padding")
	}
	return hangar.NewSensitive(string(value)), nil
}

func newSecretKeysDeleteCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:               "delete APP NAME",
		Aliases:           []string{"rm", "remove"},
		Short:             "Take a secret key away",
		Long:              "Take a secret key of an App away. What only it decrypts is lost.",
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: c.completeApp,
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := c.connect()
			if err != nil {
				return err
			}
			version, err := p.DeleteSecretKey(cmd.Context(), secretKeyArg(args))
			if err != nil {
				return err
			}
			fmt.Fprintf(c.stdout, "Secret key %s is gone; the secrets of App %s are at version %d.\n", args[1], args[0], version)
			return nil
		},
	}
}
