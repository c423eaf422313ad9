package hangar

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"iter"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// Peer is a computer that is on a private network through WireGuard.
type Peer struct {
	Name      string     `json:"name"` // unique in the organization
	Org       OrgSlug    `json:"org_slug"`
	Network   string     `json:"network"`    // its name
	NetworkID NetworkID  `json:"network_id"` // its number
	Address   netip.Addr `json:"peerip"`     // see PeerAddress
	PublicKey PeerKey    `json:"public_key"`
	Host      HostID     `json:"host"` // whose gateway lets it in
	CreatedAt time.Time  `json:"created_at"`
}

// Prefix holds all addresses of the peer.
func (p *Peer) Prefix() netip.Prefix { return netip.PrefixFrom(p.Address, peerBits) }

// PeerGateway is how a peer reaches its gateway, in the words of the public platform.
type PeerGateway struct {
	EndpointIP   string  `json:"endpointip"` // an address or a name; empty: the address of the API
	EndpointPort uint16  `json:"endpoint_port"`
	GatewayKey   PeerKey `json:"pubkey"` // its public key
}

// PeerTraffic is what a gateway has seen of a peer since its daemon started.
type PeerTraffic struct {
	Handshake time.Time `json:"latest_handshake,omitzero"` // zero: none yet
	Received  uint64    `json:"rx_bytes"`                  // from the peer
	Sent      uint64    `json:"tx_bytes"`                  // to the peer
}

// NewPeer is a new peer, with what it needs to connect.
type NewPeer struct {
	Peer
	PeerGateway
}

// PeerStatus is a peer and its traffic.
type PeerStatus struct {
	Peer
	PeerTraffic
}

// PeerCreate is the request for a peer.
type PeerCreate struct {
	Name      string  // at most 63 letters, digits and dashes, unique regardless of case; empty: PeerInteractive and some letters
	Network   string  // empty: DefaultNetwork
	PublicKey PeerKey // that no other peer of the platform has
}

// PeerInteractive is the prefix of generated peer names. The name server does not list such peers.
const PeerInteractive = "interactive-"

// MaxPeers is how many peers an organization may have.
const MaxPeers = 1000

// PeerKey is a WireGuard key: 32 bytes in base64, as wg(8) prints them.
type PeerKey string

// ParsePeerKey reads a public key. It answers CodeInvalid and names the field
// public_key.
func ParsePeerKey(text string) (PeerKey, error) {
	if text == "" {
		return "", Errorf(CodeInvalid, "", "invalid public_key: is required")
	}
	raw, err := base64.StdEncoding.Strict().DecodeString(text)
	switch {
	case err != nil || strings.ContainsAny(text, "\r\n"):
		return "", Errorf(CodeInvalid, "", "invalid public_key: %.60q is not base64", text)
	case len(raw) != 32:
		return "", Errorf(CodeInvalid, "", "invalid public_key: has %d bytes, must have 32", len(raw))
	case [32]byte(raw) == [32]byte{}:
		return "", Errorf(CodeInvalid, "", "invalid public_key: is all zero")
	}
	return PeerKey(text), nil
}

// Bytes are the 32 bytes of a key that ParsePeerKey returned.
func (k PeerKey) Bytes() (b [32]byte) {
	raw, _ := base64.StdEncoding.DecodeString(string(k))
	copy(b[:], raw)
	return b
}

const (
	// MaxPeerNumber is the exclusive upper bound of the numbers of peers.
	MaxPeerNumber = 1 << 36

	peerBits = 120       // the leading bits of an address that all addresses of a peer share
	peerMark = 0xa << 36 // in a 40-bit number: above those of all Machines, whose 32 bits are below 0xa0000000
)

// PeerAddress is the address of a peer: fdaa, the network, the host whose gateway lets
// it in, a000:0 and up for its number, and 2; all addresses that share the first 120
// bits are the peer's. Addresses of different networks, hosts or numbers below
// MaxPeerNumber differ, and none is a Machine's. It is the zero Addr when host is not 8
// hexadecimal characters.
func PeerAddress(network NetworkID, host HostID, number uint64) netip.Addr {
	h, err := strconv.ParseUint(string(host), 16, 32)
	if err != nil || len(host) != 8 {
		return netip.Addr{}
	}
	number |= peerMark
	a := [16]byte{0: 0xfd, 1: 0xaa, 15: 2}
	binary.BigEndian.PutUint32(a[2:], uint32(network))
	binary.BigEndian.PutUint32(a[6:], uint32(h))
	binary.BigEndian.PutUint32(a[10:], uint32(number>>8))
	a[14] = byte(number)
	return netip.AddrFrom16(a)
}

// NetworkPrefix holds every address of the private network that address is on.
func NetworkPrefix(address netip.Addr) netip.Prefix {
	return netip.PrefixFrom(address, 48).Masked()
}

// Nameserver is ServicesAddress as the peer reaches it. A peer can reach only addresses of its own
// network.
func (p *Peer) Nameserver() netip.Addr {
	a, n := ServicesAddress.As16(), p.Address.As16()
	copy(a[:6], n[:6])
	return netip.AddrFrom16(a)
}

// PeerService keeps the WireGuard peers of organizations. It answers CodeNotFound with
// ReasonOrgNotFound for an organization that the caller does not see.
type PeerService interface {
	// CreatePeer returns once the gateway lets the peer in. It answers CodeInvalid for a bad name, key
	// or network, for a name that exists (ReasonNameTaken) and for a key that a peer has,
	// CodeFailedPrecondition where WireGuard is switched off, CodeExhausted beyond MaxPeers, and
	// CodeUnavailable when the gateway cannot listen.
	CreatePeer(ctx context.Context, org OrgSlug, in PeerCreate) (*NewPeer, error)
	// Peers are sorted by name.
	Peers(ctx context.Context, org OrgSlug) ([]PeerStatus, error)
	// RemovePeer cuts a peer off. It answers CodeNotFound with ReasonPeerNotFound, and may be repeated
	// until then.
	RemovePeer(ctx context.Context, org OrgSlug, name string) error
}

// PeerFeed is how gateways and the name server learn of peers.
type PeerFeed interface {
	// WatchPeers yields all peers of all organizations, and again whenever one was made
	// or removed, until ctx ends. A peer that cannot be read is left out. After an error
	// the caller starts again.
	WatchPeers(ctx context.Context) iter.Seq2[[]Peer, error]
}

// PeerHost is a host's gateway as control sees it.
type PeerHost interface {
	// GatewayHost is the host that it is on.
	GatewayHost() HostID
	// OpenGateway makes the gateway listen, if it does not yet. It answers
	// CodeFailedPrecondition where it is switched off, and CodeUnavailable.
	OpenGateway(ctx context.Context) (PeerGateway, error)
	// AwaitPeer returns once the gateway lets in a peer of that key and address. Without an address, it
	// returns once the gateway lets in no peer of that key.
	AwaitPeer(ctx context.Context, key PeerKey, address netip.Addr) error
	// PeerTraffic is what the gateway has seen of each peer.
	PeerTraffic() map[PeerKey]PeerTraffic
}
