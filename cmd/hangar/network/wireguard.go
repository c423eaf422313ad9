package network

import (
	"cmp"
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

// NewWireguardCommand returns `hangar wireguard`.
func NewWireguardCommand(inv *cli.Invocation) *cobra.Command {
	c := commands{inv}
	cmd := cli.Group("wireguard", "Connect computers to private networks through WireGuard", "wg")
	cmd.AddCommand(newWireguardCreateCommand(c), newWireguardListCommand(c), newWireguardRemoveCommand(c))
	return cmd
}

const wireguardCreateLong = `Add a computer to a private network of an organization, and print its WireGuard
configuration. The computer reaches the Machines and peers of that network by
their addresses and by their names below .internal, the Apps that are served in
it, and the platform's DNS and API; nothing else.

The private key is generated on this computer, never sent, and printed once. With
--public-key no key is generated: add the matching private key to the configuration.`

const wireguardCreateExample = `  hangar wireguard create personal laptop -o hangar.conf
  sudo wg-quick up ./hangar.conf
  hangar wireguard create acme --network staging > staging.conf`

// wireguardCreate is the input of `wireguard create`.
type wireguardCreate struct {
	org       string // empty: that of the context
	peer      hangar.PeerCreate
	publicKey string // empty: generate a key pair
	output    string // name of a file; empty: standard output
	asJSON    bool
}

func newWireguardCreateCommand(c commands) *cobra.Command {
	var in wireguardCreate
	cmd := &cobra.Command{
		Use:               "create [ORG] [NAME]",
		Short:             "Add a computer, and print its WireGuard configuration",
		Long:              wireguardCreateLong,
		Example:           wireguardCreateExample,
		Args:              cobra.MaximumNArgs(2),
		ValidArgsFunction: c.CompleteOrg,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				in.org = args[0]
			}
			if len(args) == 2 {
				in.peer.Name = args[1]
			}
			return c.createPeer(cmd.Context(), in)
		},
	}
	cmd.Flags().StringVar(&in.peer.Network, "network", "", "the private network to reach (default the organization's own)")
	cmd.Flags().StringVar(&in.publicKey, "public-key", "", "public key of an existing key pair")
	cmd.Flags().StringVarP(&in.output, "output", "o", "", "write the configuration to a new file that only its owner can read")
	cli.JSONFlag(cmd, &in.asJSON)
	return cmd
}

func (c commands) createPeer(ctx context.Context, in wireguardCreate) (err error) {
	var private string
	if in.publicKey == "" {
		private, in.peer.PublicKey, err = newKeyPair()
	} else if in.peer.PublicKey, err = hangar.ParsePeerKey(in.publicKey); err != nil {
		err = cli.UsageErrorf("--public-key: %w", err)
	}
	if err != nil {
		return err
	}
	var file *os.File
	var made *hangar.NewPeer
	if in.output != "" { // before the peer is created, in case the file cannot be
		if file, err = createPrivate(in.output); err != nil {
			return err
		}
		defer func() {
			err = errors.Join(err, file.Close())
			if made == nil {
				err = errors.Join(err, os.Remove(in.output))
			}
		}()
	}
	p, err := c.Connect()
	if err != nil {
		return err
	}
	if made, err = p.CreatePeer(ctx, c.OrgOr(in.org), in.peer); err != nil {
		return err
	}
	remove := fmt.Sprintf("hangar wireguard remove %s %s", made.Org, made.Name)
	config := quickConfig(made, private)
	if file != nil {
		if _, err := file.WriteString(config); err != nil {
			return cli.WithHint(err, "remove the peer, and create it again: "+remove)
		}
		config = ""
	}
	switch {
	case in.asJSON:
		err = c.PrintJSON(struct {
			*hangar.NewPeer
			Config string `json:"config,omitempty"`
		}{made, config})
	case file != nil:
		return c.Sayf("Created peer %s of %s. Next: sudo wg-quick up %s", made.Name, made.Org, in.output)
	default:
		_, err = io.WriteString(c.Stdout, config)
		fmt.Fprintf(c.Stderr, "Created peer %s of %s. The configuration is printed only once. To remove the peer: %s\n", made.Name, made.Org, remove)
	}
	if config != "" {
		err = cli.WithHint(err, "the configuration is lost: remove the peer, and create it again: "+remove)
	}
	return err
}

// createPrivate creates a file that only its owner can read.
func createPrivate(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		err = cli.UsageErrorf("-o %s: the file exists", name)
	}
	return f, err
}

// newKeyPair generates the key pair of a peer.
func newKeyPair() (private string, public hangar.PeerKey, err error) {
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return "", "", err
	}
	encode := base64.StdEncoding.EncodeToString
	return encode(key.Bytes()), hangar.PeerKey(encode(key.PublicKey().Bytes())), nil
}

// peerMTU is the largest packet that fits into a WireGuard packet over IPv6 on an Ethernet, in bytes.
const peerMTU = 1420

// peerKeepalive keeps the mapping in NAT routers open, in seconds.
const peerKeepalive = 15

// quickConfig returns a configuration for wg-quick(8) and the WireGuard apps.
func quickConfig(p *hangar.NewPeer, private string) string {
	key := "PrivateKey = " + private
	if private == "" {
		key = "# PrivateKey = the one that belongs to " + string(p.PublicKey)
	}
	return strings.Join([]string{
		"# " + p.Name + ", " + string(p.Org) + ", network " + p.Network,
		"[Interface]",
		key,
		"Address = " + p.Prefix().String(),
		"DNS = " + p.Nameserver().String(),
		"MTU = " + strconv.Itoa(peerMTU),
		"",
		"[Peer]",
		"PublicKey = " + string(p.GatewayKey),
		"AllowedIPs = " + hangar.NetworkPrefix(p.Address).String(),
		"Endpoint = " + net.JoinHostPort(p.EndpointIP, strconv.Itoa(int(p.EndpointPort))),
		"PersistentKeepalive = " + strconv.Itoa(peerKeepalive),
		"",
	}, "\n")
}

func newWireguardListCommand(c commands) *cobra.Command {
	var f cli.ListFlags
	cmd := &cobra.Command{
		Use: "list [ORG]", Aliases: []string{"ls"}, Short: "List the computers that may connect, and when they did last",
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: c.CompleteOrg,
		RunE: c.Connected(func(ctx context.Context, p *client.Client, args []string) error {
			org := c.OrgOr(strings.Join(args, "")) // at most one
			list, err := p.Peers(ctx, org)
			if err != nil {
				return err
			}
			now := time.Now()
			rows := [][]string{{"NAME", "ADDRESS", "NETWORK", "HANDSHAKE", "RECEIVED", "SENT"}}
			for _, peer := range list {
				rows = append(rows, []string{
					peer.Name, peer.Address.String(), peer.Network, cmp.Or(cli.Ago(now, peer.Handshake), "never"),
					cli.Bytes(int64(peer.Received)), cli.Bytes(int64(peer.Sent)),
				})
			}
			return c.PrintList(f, cli.OrEmpty(list), rows, fmt.Sprintf("No peers yet. Add a computer: hangar wireguard create %s NAME", org))
		}),
	}
	f.Add(cmd, "names")
	return cmd
}

func newWireguardRemoveCommand(c commands) *cobra.Command {
	return &cobra.Command{
		Use: "remove ORG NAME", Aliases: []string{"rm", "delete"}, Short: "Cut a computer off, at once",
		Args: cobra.ExactArgs(2), ValidArgsFunction: c.completePeer,
		RunE: c.Connected(func(ctx context.Context, p *client.Client, args []string) error {
			if err := p.RemovePeer(ctx, hangar.OrgSlug(args[0]), args[1]); err != nil {
				return err
			}
			return c.Sayf("Removed peer %s of %s.", args[1], args[0])
		}),
	}
}

// completePeer completes ORG and then the names of its peers.
func (c commands) completePeer(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	switch len(args) {
	case 0:
		return c.CompleteOrg(cmd, args, prefix)
	case 1:
	default:
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.Complete(cmd, func(ctx context.Context, p *client.Client) (names []string, err error) {
		peers, err := p.Peers(ctx, hangar.OrgSlug(args[0]))
		for _, peer := range peers {
			names = append(names, fmt.Sprintf("%s\t%s, network %s", peer.Name, peer.Address, peer.Network))
		}
		return names, err
	})
}
