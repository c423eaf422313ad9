package graphql

import (
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/graphql/execute"
	"github.com/hangar-platform/hangar/api/input"
)

// liveWithin is how long ago the last handshake of a peer that is connected may be: WireGuard makes a
// new one every two minutes while there is traffic, and rejects sessions after three.
const liveWithin = 3 * time.Minute

func definePeer(s *schema) {
	type peer = *hangar.PeerStatus
	execute.Define(s, "WireGuardPeer", fields[peer]{
		"id":            field(func(p peer) string { return p.Name }),
		"name":          field(func(p peer) string { return p.Name }),
		"pubkey":        field(func(p peer) hangar.PeerKey { return p.PublicKey }),
		"region":        func(q *query, _ peer, _ args) (any, error) { return q.Services.Region, nil },
		"peerip":        field(func(p peer) string { return p.Address.String() }),
		"network":       field(func(p peer) string { return p.Network }),
		"gatewayStatus": field(func(p peer) peer { return p }),
	})
	execute.Define(s, "WireGuardPeerStatus", fields[peer]{
		"endpoint":      null[peer],
		"lastHandshake": field(func(p peer) time.Time { return p.Handshake }),
		"rx":            field(func(p peer) uint64 { return p.Received }),
		"tx":            field(func(p peer) uint64 { return p.Sent }),
		"added":         field(func(p peer) time.Time { return p.CreatedAt }),
		"live":          field(func(p peer) bool { return !p.Handshake.IsZero() && time.Since(p.Handshake) < liveWithin }),
	})
}

func addPeer(q *query, in args) (payload, error) {
	of, err := slug(q, in.Text("organizationId"))
	if err != nil {
		return nil, err
	}
	request := hangar.PeerCreate{Name: in.Text("name"), Network: in.Text("network"), PublicKey: hangar.PeerKey(in.Text("pubkey"))}
	made, err := called(q, func() (*hangar.NewPeer, error) { return q.Services.Peers.CreatePeer(q, of, request) })
	if err != nil {
		return nil, err
	}
	endpoint := made.EndpointIP
	if endpoint == "" {
		endpoint = q.Services.host
	}
	return payload{"peerip": made.Address.String(), "endpointip": endpoint, "pubkey": made.GatewayKey}, nil
}

func removePeer(q *query, in args) (payload, error) {
	of, err := org(q, in.Text("organizationId"))
	if err != nil {
		return nil, err
	}
	return payload{"organization": of}, q.Services.Peers.RemovePeer(q, of.Slug, in.Text("name"))
}

// maxPeerIPs bounds the addresses in one request.
const maxPeerIPs = 1000

func validatePeers(q *query, in args) (payload, error) {
	asked := in.Texts("peerIps")
	if len(asked) > maxPeerIPs {
		return nil, input.Invalid("peerIps", "has %d entries, more than %d", len(asked), maxPeerIPs)
	}
	all, err := called(q, func() ([]*hangar.Org, error) { return q.Services.Orgs.Orgs(q) })
	if err != nil {
		return nil, err
	}
	there := map[string]bool{}
	for _, o := range all {
		peers, err := peersOf(q, o)
		switch hangar.CodeOf(err) {
		case "":
		case hangar.CodeForbidden, hangar.CodeNotFound: // the caller may not see its peers
			continue
		default:
			return nil, err
		}
		for _, p := range peers {
			there[p.Address.String()] = true
		}
	}
	valid, invalid := []string{}, []string{}
	for _, ip := range asked {
		if there[ip] {
			valid = append(valid, ip)
		} else {
			invalid = append(invalid, ip)
		}
	}
	return payload{"validPeerIps": valid, "invalidPeerIps": invalid}, nil
}

func issueCertificate(q *query, in args) (payload, error) {
	of, err := slug(q, in.Text("organizationId"))
	if err != nil {
		return nil, err
	}
	request := hangar.SSHCertificateCreate{Principals: in.Texts("principals"), PublicKey: in.Text("publicKey"), SourceAddress: in.Text("sourceAddress")}
	for _, name := range in.Texts("appNames") {
		request.Apps = append(request.Apps, hangar.AppName(name))
	}
	if request.ValidHours, _, err = in.Int("validHours"); err != nil {
		return nil, err
	}
	made, err := called(q, func() (*hangar.SSHCertificate, error) { return q.Services.SSH.IssueSSHCertificate(q, of, request) })
	if err != nil {
		return nil, err
	}
	return payload{"certificate": made.Certificate, "key": orNull(made.PrivateKey.Reveal())}, nil
}
