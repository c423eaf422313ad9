package control

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/ledger"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/internal/random"
)

// peerPatience bounds how long an answer waits for the gateway to follow. The change is stored in
// any case.
const peerPatience = 5 * time.Second

// peerRecord is a peer in the state. A second record, peerKeyRecord, which is written
// and removed with it, keeps its key unique.
type peerRecord struct {
	hangar.Peer
	OrgID hangar.OrgID `json:"org_id"`
}

// peerKeyRecord is the record of a public key: the peer that it belongs to.
type peerKeyRecord struct {
	Org  hangar.OrgID `json:"org_id"`
	Name string       `json:"name"`
}

func peersOf(org hangar.OrgID) string { return state.PeersPrefix + string(org) + "/" }

// peerKey has names in lower case: peers are found by DNS, which ignores case.
func peerKey(org hangar.OrgID, name string) string { return peersOf(org) + strings.ToLower(name) }

// peerNameFault says what is wrong with the name of a peer; empty: nothing. Capitals are allowed, because existing
// clients use the name of the computer.
func peerNameFault(name string) string { return tenants.NameFault(strings.ToLower(name)) }

func publicKeyKey(key hangar.PeerKey) string {
	raw := key.Bytes()
	return state.PeerKeysPrefix + hex.EncodeToString(raw[:])
}

// Peers implements hangar.PeerService.
type Peers struct {
	store   state.Store
	tenants *tenants.Directory
	ledger  *ledger.Ledger
	gateway hangar.PeerHost // nil: there is none
	log     *slog.Logger
	now     func() time.Time
}

var _ hangar.PeerService = (*Peers)(nil)

// CreatePeer implements hangar.PeerService. The gateway is opened first, so that one
// which cannot listen leaves no unusable peer.
func (s *Peers) CreatePeer(ctx context.Context, org hangar.OrgSlug, in hangar.PeerCreate) (*hangar.NewPeer, error) {
	p, err := tenants.Caller(ctx)
	if err != nil {
		return nil, err
	}
	if _, _, err := s.tenants.Org(ctx, p, org, hangar.ActionWrite); err != nil {
		return nil, err
	}
	in.Network = cmp.Or(in.Network, hangar.DefaultNetwork)
	if err := checkPeer(in); err != nil {
		return nil, err
	}
	if s.gateway == nil {
		return nil, hangar.Errorf(hangar.CodeFailedPrecondition, "", "WireGuard is switched off on this server, by --wireguard of its daemon")
	}
	gateway, err := s.gateway.OpenGateway(ctx)
	if err != nil {
		return nil, err
	}
	for {
		of, item, err := s.tenants.Org(ctx, p, org, hangar.ActionWrite)
		if err != nil {
			return nil, err
		}
		made, err := s.tryCreatePeer(ctx, of, item, in)
		if errors.Is(err, state.ErrConflict) {
			continue
		}
		if err != nil {
			return nil, state.HangarError(err)
		}
		s.await(ctx, made.PublicKey, &made)
		return &hangar.NewPeer{Peer: made, PeerGateway: gateway}, nil
	}
}

// await waits until the gateway has followed: a peer that connects too early retries only after
// five seconds.
func (s *Peers) await(ctx context.Context, key hangar.PeerKey, peer *hangar.Peer) {
	ctx, cancel := context.WithTimeout(ctx, peerPatience)
	defer cancel()
	var p hangar.Peer
	if peer != nil {
		p = *peer
	}
	if err := s.gateway.AwaitPeer(ctx, key, p.Address); err != nil {
		s.log.WarnContext(ctx, "gateway does not follow yet", keyPeer, string(key), keyError, err)
	}
}

func checkPeer(in hangar.PeerCreate) error {
	if in.Name != "" {
		if fault := peerNameFault(in.Name); fault != "" {
			return hangar.Errorf(hangar.CodeInvalid, "", "invalid name: %s", fault)
		}
	}
	if tenants.CheckNetworkName(in.Network) != nil {
		return hangar.Errorf(hangar.CodeInvalid, "", "invalid network: %.80q is not the name of a network", in.Network)
	}
	_, err := hangar.ParsePeerKey(string(in.PublicKey))
	return err
}

// tryCreatePeer returns state.ErrConflict if a record that it has read has changed.
func (s *Peers) tryCreatePeer(ctx context.Context, of hangar.Org, orgItem state.Item, in hangar.PeerCreate) (hangar.Peer, error) {
	org := of.Slug
	keys, _, err := state.All(ctx, s.store, peersOf(of.ID), true)
	if err != nil {
		return hangar.Peer{}, err
	}
	if len(keys) >= hangar.MaxPeers {
		return hangar.Peer{}, hangar.Errorf(hangar.CodeExhausted, "", "The organization %q has %d WireGuard peers, which is the most there may be", org, len(keys))
	}
	network, networkItem, err := state.Read[tenants.NetworkRecord](ctx, s.store, state.NetworkKey(of.ID, in.Network))
	if errors.Is(err, state.ErrNotFound) {
		return hangar.Peer{}, hangar.Errorf(hangar.CodeInvalid, "", "invalid network: the organization %q has no network %q; an app makes one", org, in.Network)
	}
	if err != nil {
		return hangar.Peer{}, err
	}
	name := cmp.Or(in.Name, hangar.PeerInteractive+random.ID()[:8])
	if err := s.vacant(ctx, of, name, in.PublicKey); err != nil {
		return hangar.Peer{}, err
	}
	number, unclaimed, claim, err := state.NextNumber(ctx, s.store, state.PeerCounter)
	if err != nil {
		return hangar.Peer{}, err
	}
	if number >= hangar.MaxPeerNumber {
		return hangar.Peer{}, hangar.Errorf(hangar.CodeExhausted, "", "No peer numbers are left")
	}
	peer := hangar.Peer{
		Name: name, Org: org, Network: in.Network, NetworkID: network.ID, Host: s.gateway.GatewayHost(),
		Address: hangar.PeerAddress(network.ID, s.gateway.GatewayHost(), number), PublicKey: in.PublicKey, CreatedAt: s.now().UTC().Truncate(time.Second),
	}
	put, err := state.Write(peerKey(of.ID, name), peerRecord{peer, of.ID})
	if err != nil {
		return peer, err
	}
	bind, err := state.Write(publicKeyKey(in.PublicKey), peerKeyRecord{Org: of.ID, Name: name})
	if err != nil {
		return peer, err
	}
	txn := state.Txn{
		If: []state.Compare{
			state.Unchanged(orgItem), state.Unchanged(networkItem), unclaimed, state.Absent(put.Key), state.Absent(bind.Key),
		},
		Then: []state.Op{put, bind, claim},
	}
	owner, err := state.Decode[tenants.OrgRecord](orgItem)
	if err != nil {
		return peer, err
	}
	if err := s.ledger.Charge(ctx, &owner, hangar.Quotas{hangar.QuotaPeers: 1}, &txn); err != nil {
		return peer, err
	}
	_, err = s.store.Txn(ctx, txn)
	return peer, err
}

// vacant answers CodeInvalid if an organization has a peer of a name, or any peer has a public key.
func (s *Peers) vacant(ctx context.Context, org hangar.Org, name string, key hangar.PeerKey) error {
	for _, of := range []struct {
		key   string
		taken error
	}{
		{peerKey(org.ID, name), hangar.Errorf(hangar.CodeInvalid, hangar.ReasonNameTaken, "invalid name: the organization %q has a peer %q already", org.Slug, name)},
		{publicKeyKey(key), hangar.Errorf(hangar.CodeInvalid, "", "invalid public_key: a peer has it already")},
	} {
		if _, err := s.store.Get(ctx, of.key); err == nil {
			return of.taken
		} else if !errors.Is(err, state.ErrNotFound) {
			return err
		}
	}
	return nil
}

// Peers implements hangar.PeerService.
func (s *Peers) Peers(ctx context.Context, org hangar.OrgSlug) ([]hangar.PeerStatus, error) {
	p, err := tenants.Caller(ctx)
	if err != nil {
		return nil, err
	}
	of, _, err := s.tenants.Org(ctx, p, org, hangar.ActionRead)
	if err != nil {
		return nil, err
	}
	peers, _, err := readPeers(ctx, s.store, peersOf(of.ID), s.log)
	if err != nil {
		return nil, state.HangarError(err)
	}
	var traffic map[hangar.PeerKey]hangar.PeerTraffic
	if s.gateway != nil && len(peers) > 0 {
		traffic = s.gateway.PeerTraffic()
	}
	list := make([]hangar.PeerStatus, len(peers))
	for i, peer := range peers {
		list[i] = hangar.PeerStatus{Peer: peer, PeerTraffic: traffic[peer.PublicKey]}
	}
	slices.SortFunc(list, func(a, b hangar.PeerStatus) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// RemovePeer implements hangar.PeerService.
func (s *Peers) RemovePeer(ctx context.Context, org hangar.OrgSlug, name string) error {
	p, err := tenants.Caller(ctx)
	if err != nil {
		return err
	}
	of, _, err := s.tenants.Org(ctx, p, org, hangar.ActionWrite)
	if err != nil {
		return err
	}
	missing := hangar.Errorf(hangar.CodeNotFound, hangar.ReasonPeerNotFound, "Could not find WireGuard peer %.80q of organization %q", name, org)
	if peerNameFault(name) != "" {
		return missing
	}
	for {
		item, err := s.store.Get(ctx, peerKey(of.ID, name))
		if errors.Is(err, state.ErrNotFound) {
			return missing
		}
		if err != nil {
			return state.HangarError(err)
		}
		txn := removalOf(item)
		if _, err = s.ledger.GiveBack(ctx, of.ID, hangar.Quotas{hangar.QuotaPeers: 1}, txn); errors.Is(err, state.ErrConflict) {
			continue
		}
		if err != nil {
			return state.HangarError(err)
		}
		if rec, err := state.Decode[peerRecord](item); err == nil && s.gateway != nil {
			s.await(ctx, rec.PublicKey, nil)
		}
		return nil
	}
}

// removalOf returns the transaction that removes a peer and, if its record can be read, the record
// of its key.
func removalOf(item state.Item) state.Txn {
	txn := state.Txn{If: []state.Compare{state.Unchanged(item)}, Then: []state.Op{state.Delete(item.Key)}}
	if rec, err := state.Decode[peerRecord](item); err == nil && peerFault(item.Key, &rec) == nil {
		txn.Then = append(txn.Then, state.Delete(publicKeyKey(rec.PublicKey)))
	}
	return txn
}

// removeAllOf removes the peers of an organization that is marked.
func (s *Peers) removeAllOf(ctx context.Context, org hangar.OrgID) error {
	items, _, err := state.All(ctx, s.store, peersOf(org), false)
	if err != nil {
		return err
	}
	for _, item := range items {
		if _, err := s.store.Txn(ctx, removalOf(item)); err != nil {
			return err
		}
	}
	return nil
}

// readPeers returns the peers below a prefix, without those that cannot be read, as
// of a revision.
func readPeers(ctx context.Context, store state.Store, prefix string, log *slog.Logger) ([]hangar.Peer, state.Revision, error) {
	items, revision, err := state.All(ctx, store, prefix, false)
	if err != nil {
		return nil, 0, err
	}
	peers := make([]hangar.Peer, 0, len(items))
	for _, item := range items {
		rec, err := state.Decode[peerRecord](item)
		if err == nil {
			err = peerFault(item.Key, &rec)
		}
		if err != nil {
			log.Error("peer skipped", keyKey, item.Key, keyError, err)
			continue
		}
		peers = append(peers, rec.Peer)
	}
	return peers, revision, nil
}

// peerFault says why a record is not the one of a peer at that key.
func peerFault(key string, p *peerRecord) error {
	if _, err := hangar.ParsePeerKey(string(p.PublicKey)); err != nil {
		return err
	}
	switch {
	case key != peerKey(p.OrgID, p.Name):
		return fmt.Errorf("record of peer %q of organization %q", p.Name, p.Org)
	case !p.Address.Is6() || hangar.NetworkPrefix(p.Address) != hangar.NetworkPrefix(hangar.PeerAddress(p.NetworkID, p.Host, 0)):
		return fmt.Errorf("address %s is not of network %d", p.Address, p.NetworkID)
	default:
		return nil
	}
}

// PeerRecords is the hangar.PeerFeed over the state, for gateways and the name server.
type PeerRecords struct {
	store state.Store
	log   *slog.Logger
}

var _ hangar.PeerFeed = (*PeerRecords)(nil)

// NewPeerRecords returns the PeerRecords of a state.
func NewPeerRecords(store state.Store, log *slog.Logger) *PeerRecords {
	return &PeerRecords{store: store, log: log}
}

// WatchPeers implements hangar.PeerFeed.
func (r *PeerRecords) WatchPeers(ctx context.Context) iter.Seq2[[]hangar.Peer, error] {
	return state.Snapshots(ctx, r.store, state.PeersPrefix, func(ctx context.Context) ([]hangar.Peer, state.Revision, error) {
		return readPeers(ctx, r.store, state.PeersPrefix, r.log)
	})
}
