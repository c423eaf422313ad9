package control

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/internal/ippool"
)

// routePatience bounds how long an answer waits for the edge to follow. What was decided
// stands whether or not it does in time.
const routePatience = 5 * time.Second

// AddressPools are the public addresses that Apps may get.
type AddressPools struct {
	Shared netip.Addr // IPv4, for all Apps that want it; not valid: there is none
	V4, V6 ippool.Pool
}

// Contains reports whether Apps may get an address.
func (p AddressPools) Contains(a netip.Addr) bool {
	return a == p.Shared || p.V4.Contains(a) || p.V6.Contains(a)
}

// Addresses implements hangar.AddressService. An address is two records that come and go
// together: one below its App, with all there is to know, and, unless it is the shared one,
// one by the address itself, so that no other App can get it.
type Addresses struct{ *Control }

var _ hangar.AddressService = (*Addresses)(nil)

// addressRecord is an address as the state keeps it.
type addressRecord struct {
	hangar.Address
	AppID hangar.AppID `json:"app_id"`
}

// ownerRecord says whose an address is.
type ownerRecord struct {
	App hangar.AppID `json:"app_id"`
}

// sharedName stands for the address in the key of the shared one, which is another one when
// the operator says so.
const sharedName = "shared"

func addressesOf(app hangar.AppID) string { return addressesPrefix + string(app) + "/" }

func addressKey(app hangar.AppID, a *hangar.Address) string {
	if a.Kind == hangar.AddressSharedV4 {
		return addressesOf(app) + sharedName
	}
	return addressesOf(app) + a.IP.String()
}

func ownerKey(ip netip.Addr) string { return ownersPrefix + ip.String() }

// Addresses implements hangar.AddressService.
func (s *Addresses) Addresses(ctx context.Context, app hangar.AppName) ([]hangar.Address, error) {
	rec, _, err := s.app(ctx, app, hangar.ActionRead)
	if err != nil {
		return nil, err
	}
	return s.addressList(ctx, rec.ID)
}

// addressList returns the addresses of an App, sorted, without those that cannot be read.
func (c *Control) addressList(ctx context.Context, app hangar.AppID) ([]hangar.Address, error) {
	items, _, err := state.All(ctx, c.store, addressesOf(app), false)
	if err != nil {
		return nil, stateError(err)
	}
	list := make([]hangar.Address, 0, len(items))
	for _, item := range items {
		a, err := parseAddress(item)
		if err != nil {
			c.log.Error("address skipped", keyKey, item.Key, keyError, err)
			continue
		}
		list = append(list, c.current(a))
	}
	slices.SortFunc(list, hangar.CompareAddresses)
	return list, nil
}

// current is an address as it is now: the operator may have chosen another shared one.
func (c *Control) current(a hangar.Address) hangar.Address {
	if a.Kind == hangar.AddressSharedV4 && c.pools.Shared.IsValid() {
		a.IP = c.pools.Shared
	}
	return a
}

// parseAddress reads the record of an address. One that does not belong where it is is as
// unreadable as one that is no JSON.
func parseAddress(item state.Item) (hangar.Address, error) {
	rec, err := decode[addressRecord](item)
	switch {
	case err != nil:
		return rec.Address, err
	case !slices.Contains(hangar.AddressKinds(), rec.Kind):
		return rec.Address, fmt.Errorf("unknown kind %q", rec.Kind)
	case !rec.IP.IsValid() || addressKey(rec.AppID, &rec.Address) != item.Key:
		return rec.Address, fmt.Errorf("record of address %s of app %q", rec.IP, rec.AppID)
	default:
		return rec.Address, nil
	}
}

// AllocateAddress implements hangar.AddressService.
func (s *Addresses) AllocateAddress(ctx context.Context, app hangar.AppName, in hangar.AddressCreate) (*hangar.Address, error) {
	for {
		rec, item, err := s.app(ctx, app, hangar.ActionWrite)
		if err != nil {
			return nil, err
		}
		if rec.Deleting {
			return nil, hangar.AppNotFound()
		}
		wish := in // of an App that is destroyed and made again meanwhile, something else follows
		if err := wish.Complete(rec.Org, rec.Network); err != nil {
			return nil, err
		}
		made, revision, err := s.tryAllocate(ctx, rec, item, wish)
		if errors.Is(err, state.ErrConflict) {
			continue
		}
		if err != nil {
			return nil, stateError(err)
		}
		s.awaitRoute(ctx, rec.ID, revision)
		return &made, nil
	}
}

// tryAllocate returns state.ErrConflict when something that was looked at changed.
func (s *Addresses) tryAllocate(
	ctx context.Context, app appRecord, appItem state.Item, in hangar.AddressCreate,
) (hangar.Address, state.Revision, error) {
	made := hangar.Address{
		Kind: in.Kind, App: app.Name, Region: in.Region, Service: in.Service, CreatedAt: s.now().UTC().Truncate(time.Second),
	}
	if in.Kind == hangar.AddressSharedV4 {
		if !s.pools.Shared.IsValid() {
			return made, 0, noPool("shared IPv4 address", "--shared-ipv4")
		}
		made.IP = s.pools.Shared
		item, err := s.store.Get(ctx, addressKey(app.ID, &made))
		if err == nil {
			if made, err = parseAddress(item); err == nil {
				return s.current(made), item.Revision, nil
			}
		}
		if !errors.Is(err, state.ErrNotFound) {
			return made, 0, err
		}
	}
	keys, _, err := state.All(ctx, s.store, addressesOf(app.ID), true)
	if err != nil {
		return made, 0, err
	}
	if len(keys) >= hangar.MaxAddresses {
		return made, 0, hangar.Errorf(hangar.CodeExhausted, "", "The app %q has %d addresses, which is the most there may be", app.Name, len(keys))
	}
	txn, err := s.choose(ctx, app, in.Network, &made)
	if err != nil {
		return made, 0, err
	}
	put, err := write(addressKey(app.ID, &made), addressRecord{made, app.ID})
	if err != nil {
		return made, 0, err
	}
	txn.If = append(txn.If, state.Unchanged(appItem), state.Absent(put.Key))
	txn.Then = append(txn.Then, put)
	org, err := s.orgOfApp(ctx, app)
	if err != nil {
		return made, 0, err
	}
	if err := s.ledger.charge(ctx, org, addressQuotas(made.Kind), &txn); err != nil {
		return made, 0, err
	}
	revision, err := s.store.Txn(ctx, txn)
	return made, revision, err
}

// addressQuotas are what an address counts. The shared one is the same for all.
func addressQuotas(kind hangar.AddressKind) hangar.Quotas {
	switch kind {
	case hangar.AddressV4:
		return hangar.Quotas{hangar.QuotaAddressesV4: 1}
	case hangar.AddressV6:
		return hangar.Quotas{hangar.QuotaAddressesV6: 1}
	case hangar.AddressPrivateV6:
		return hangar.Quotas{hangar.QuotaAddressesPrivate: 1}
	case hangar.AddressSharedV4:
	}
	return nil
}

func noPool(what, flag string) error {
	return hangar.Errorf(hangar.CodeFailedPrecondition, "", "This server has no %s to give; its operator sets one by %s", what, flag)
}

// choose finds a free address of the kind, and what claims it in a transaction.
func (s *Addresses) choose(ctx context.Context, app appRecord, network string, made *hangar.Address) (state.Txn, error) {
	switch made.Kind {
	case hangar.AddressV4:
		return s.chooseFrom(ctx, app.ID, s.pools.V4, "pool of IPv4 addresses", "--ipv4-pool", made)
	case hangar.AddressV6:
		return s.chooseFrom(ctx, app.ID, s.pools.V6, "pool of IPv6 addresses", "--ipv6-pool", made)
	case hangar.AddressPrivateV6:
		return s.choosePrivate(ctx, app, network, made)
	case hangar.AddressSharedV4:
	}
	return state.Txn{}, nil
}

// maxTries bounds how many addresses of a pool are looked at that are not free.
const maxTries = 1 << 17

// chooseFrom takes the first free address behind the one that was given last, so that one
// that was released is not soon somebody else's.
func (s *Addresses) chooseFrom(ctx context.Context, app hangar.AppID, pool ippool.Pool, what, flag string, made *hangar.Address) (state.Txn, error) {
	size := pool.Size()
	if size == 0 {
		return state.Txn{}, noPool(what, flag)
	}
	key := addressCounters + string(made.Kind)
	last, unclaimed, err := s.cursor(ctx, key)
	if err != nil {
		return state.Txn{}, err
	}
	for try := range min(size, maxTries) {
		number := (last + try) % size
		ip := pool.At(number)
		if ip == s.pools.Shared {
			continue
		}
		_, err := s.store.Get(ctx, ownerKey(ip))
		if errors.Is(err, state.ErrNotFound) {
			made.IP = ip
			txn, err := owned(app, made)
			txn.If, txn.Then = append(txn.If, unclaimed), append(txn.Then, state.Put(key, strconv.AppendUint(nil, number+1, 10)))
			return txn, err
		}
		if err != nil {
			return state.Txn{}, err
		}
	}
	return state.Txn{}, hangar.Errorf(hangar.CodeExhausted, "", "No address of the %s of this server is free", what)
}

// cursor reads a number; 0 if there is none yet. One that cannot be read is as good.
func (s *Addresses) cursor(ctx context.Context, key string) (uint64, state.Compare, error) {
	item, err := s.store.Get(ctx, key)
	if errors.Is(err, state.ErrNotFound) {
		return 0, state.Absent(key), nil
	}
	n, fault := strconv.ParseUint(string(item.Value), 10, 64)
	if err == nil && fault != nil {
		s.log.Warn("counter of addresses begins anew", keyKey, key, keyError, fault)
	}
	return n, state.Unchanged(item), err
}

// owned is what makes an address an App's.
func owned(app hangar.AppID, a *hangar.Address) (state.Txn, error) {
	put, err := write(ownerKey(a.IP), ownerRecord{app})
	return state.Txn{If: []state.Compare{state.Absent(put.Key)}, Then: []state.Op{put}}, err
}

// The numbers of private addresses in a network begin at a random one, so that those of
// several platforms on one server, each of which has a network 1, are not the same. Any
// that was released stays unused.
const (
	flycastStarts = 1 << 31
	flycastShift  = 16
)

func (s *Addresses) choosePrivate(ctx context.Context, app appRecord, network string, made *hangar.Address) (state.Txn, error) {
	if checkNetworkName(network) != nil {
		return state.Txn{}, hangar.Errorf(hangar.CodeInvalid, "", "invalid network: %.80q is not the name of a network", network)
	}
	rec, networkItem, err := read[networkRecord](ctx, s.store, networkKey(app.OrgID, network))
	if errors.Is(err, state.ErrNotFound) {
		return state.Txn{}, hangar.Errorf(hangar.CodeInvalid, "", "invalid network: the organization %q has no network %q; an app makes one", app.Org, network)
	}
	if err != nil {
		return state.Txn{}, err
	}
	key := addressCounters + strconv.FormatUint(uint64(rec.ID), 10)
	number, unclaimed, err := s.cursor(ctx, key)
	if err != nil {
		return state.Txn{}, err
	}
	if number == 0 {
		number = uint64(randomN(flycastStarts)) << flycastShift
	}
	number++
	made.Network, made.NetworkID, made.IP = network, rec.ID, hangar.FlycastAddress(rec.ID, number)
	txn, err := owned(app.ID, made)
	txn.If = append(txn.If, unclaimed, state.Unchanged(networkItem))
	txn.Then = append(txn.Then, state.Put(key, strconv.AppendUint(nil, number, 10)))
	return txn, err
}

// ReleaseAddress implements hangar.AddressService.
func (s *Addresses) ReleaseAddress(ctx context.Context, app hangar.AppName, ip netip.Addr) error {
	for {
		rec, _, err := s.app(ctx, app, hangar.ActionWrite)
		if err != nil {
			return err
		}
		item, found, err := s.find(ctx, rec.ID, ip.Unmap())
		if err != nil {
			return stateError(err)
		}
		if !found {
			return hangar.Errorf(hangar.CodeNotFound, hangar.ReasonAddressNotFound, "Could not find IP address %q of app %q", ip, app)
		}
		revision, err := s.removeAddress(ctx, rec.OrgID, item, removalOfAddress(item))
		if errors.Is(err, state.ErrConflict) {
			continue
		}
		if err != nil {
			return stateError(err)
		}
		s.awaitRoute(ctx, rec.ID, revision)
		return nil
	}
}

// find returns the record of an address of an App.
func (s *Addresses) find(ctx context.Context, app hangar.AppID, ip netip.Addr) (state.Item, bool, error) {
	items, _, err := state.All(ctx, s.store, addressesOf(app), false)
	if err != nil {
		return state.Item{}, false, err
	}
	for _, item := range items {
		if a, err := parseAddress(item); err == nil && s.current(a).IP == ip {
			return item, true, nil
		}
	}
	return state.Item{}, false, nil
}

// removalOfAddress is the transaction that removes an address. One that cannot be read goes
// by its key.
func removalOfAddress(item state.Item) state.Txn {
	txn := state.Txn{If: []state.Compare{state.Unchanged(item)}, Then: []state.Op{state.Delete(item.Key)}}
	if name := item.Key[strings.LastIndexByte(item.Key, '/')+1:]; name != sharedName {
		txn.Then = append(txn.Then, state.Delete(ownersPrefix+name))
	}
	return txn
}

// forgetAddresses removes all addresses of an App that is marked.
func (c *Control) forgetAddresses(ctx context.Context, app hangar.AppID, marked state.Item) error {
	rec, err := decode[appRecord](marked)
	if err != nil {
		return err
	}
	items, _, err := state.All(ctx, c.store, addressesOf(app), false)
	if err != nil {
		return err
	}
	for _, item := range items {
		txn := removalOfAddress(item)
		txn.If = append(txn.If, state.Unchanged(marked))
		if _, err := c.removeAddress(ctx, rec.OrgID, item, txn); err != nil {
			return err
		}
	}
	return nil
}

// removeAddress runs the transaction that removes an address, which counts no more.
func (c *Control) removeAddress(ctx context.Context, org hangar.OrgID, item state.Item, txn state.Txn) (state.Revision, error) {
	var counted hangar.Quotas
	if a, err := parseAddress(item); err == nil {
		counted = addressQuotas(a.Kind)
	}
	return c.ledger.giveBack(ctx, org, counted, txn)
}

// awaitRoute lets the edge follow before the caller is answered, whose next request is to
// find what was just made.
func (c *Control) awaitRoute(ctx context.Context, app hangar.AppID, revision state.Revision) {
	if c.routes == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, routePatience)
	defer cancel()
	if err := c.routes.AwaitRoute(ctx, app, uint64(revision)); err != nil {
		c.log.WarnContext(ctx, "edge does not follow yet", keyApp, app, keyError, err)
	}
}
