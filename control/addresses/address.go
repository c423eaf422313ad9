// Package addresses gives Apps their public and private addresses.
//
// Promises. An address belongs to one App; a released one is not soon given to another. What
// an App has counts against the quotas of its organization, in the transaction that makes or
// removes it.
//
// Concurrency. All is safe for concurrent use, also by several processes that share a state.
//
// It does not route: the edge follows these records.
package addresses

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/ledger"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/internal/ippool"
	"github.com/hangar-platform/hangar/internal/random"
)

// routePatience bounds how long an answer waits for the edge to follow. What was decided
// stands whether or not it does in time.
const routePatience = 5 * time.Second

// Pools are the public addresses that Apps may get.
type Pools struct {
	Shared netip.Addr // IPv4, for all Apps that want it; not valid: there is none
	V4, V6 ippool.Pool
}

// Contains reports whether Apps may get an address.
func (p Pools) Contains(a netip.Addr) bool {
	return a == p.Shared || p.V4.Contains(a) || p.V6.Contains(a)
}

// Config is what Records need.
type Config struct {
	Store   state.Store
	Tenants *tenants.Directory // of the same state
	Ledger  *ledger.Ledger     // of the same state
	Pools   Pools
	Routes  hangar.RouteHost // the edge of this process; nil: there is none
	Log     *slog.Logger
	Now     func() time.Time
}

// Records are the addresses of Apps in the state. An address is two records that are written
// and removed together: one below its App, with everything about it, and, unless it is the
// shared one, one by the address itself, so that no other App can get it. The caller has
// checked access to the App.
type Records struct {
	store   state.Store
	tenants *tenants.Directory
	ledger  *ledger.Ledger
	pools   Pools
	routes  hangar.RouteHost
	log     *slog.Logger
	now     func() time.Time
}

// New returns the Records of a state.
func New(cfg Config) *Records {
	return &Records{
		store: cfg.Store, tenants: cfg.Tenants, ledger: cfg.Ledger, pools: cfg.Pools, routes: cfg.Routes, log: cfg.Log, now: cfg.Now,
	}
}

// Addresses implements hangar.AddressService.
type Addresses struct {
	tenants *tenants.Directory
	records *Records
}

var _ hangar.AddressService = (*Addresses)(nil)

// NewAddresses returns the service of Apps' addresses.
func NewAddresses(records *Records) *Addresses {
	return &Addresses{tenants: records.tenants, records: records}
}

// addressRecord is an address as the state keeps it.
type addressRecord struct {
	hangar.Address
	AppID hangar.AppID `json:"app_id"`
	// Extension is the one whose address it is; empty: it is the App's own.
	Extension hangar.ExtensionID `json:"extension,omitempty"`
}

// ownerRecord says whose an address is.
type ownerRecord struct {
	App       hangar.AppID       `json:"app_id,omitempty"` // empty: no App serves it yet
	Extension hangar.ExtensionID `json:"extension,omitempty"`
}

// sharedName stands for the address in the key of the shared one, which is another one when
// the operator says so.
const sharedName = "shared"

func addressesOf(app hangar.AppID) string { return state.AddressesPrefix + string(app) + "/" }

func addressKey(app hangar.AppID, a *hangar.Address) string {
	if a.Kind == hangar.AddressSharedV4 {
		return addressesOf(app) + sharedName
	}
	return addressesOf(app) + a.IP.String()
}

func ownerKey(ip netip.Addr) string { return state.OwnersPrefix + ip.String() }

// Addresses implements hangar.AddressService.
func (s *Addresses) Addresses(ctx context.Context, app hangar.AppName) ([]hangar.Address, error) {
	rec, _, err := s.tenants.App(ctx, app, hangar.ActionRead)
	if err != nil {
		return nil, err
	}
	return s.records.List(ctx, rec.ID)
}

// List returns the addresses of an App, sorted, without unreadable ones and those of extensions that
// it serves, which are in networks of others.
func (r *Records) List(ctx context.Context, app hangar.AppID) ([]hangar.Address, error) {
	items, _, err := state.All(ctx, r.store, addressesOf(app), false)
	if err != nil {
		return nil, state.HangarError(err)
	}
	list := make([]hangar.Address, 0, len(items))
	for _, item := range items {
		a, err := Parse(item)
		if err != nil {
			r.log.Error("address skipped", keyKey, item.Key, keyError, err)
			continue
		}
		if ofExtension(item) == "" {
			list = append(list, r.current(a))
		}
	}
	slices.SortFunc(list, hangar.CompareAddresses)
	return list, nil
}

// current is an address as it is now: the operator may have chosen another shared one.
func (r *Records) current(a hangar.Address) hangar.Address {
	if a.Kind == hangar.AddressSharedV4 && r.pools.Shared.IsValid() {
		a.IP = r.pools.Shared
	}
	return a
}

// Parse reads the record of an address. One that does not belong where it is is as
// unreadable as one that is no JSON.
func Parse(item state.Item) (hangar.Address, error) {
	rec, err := state.Decode[addressRecord](item)
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
		rec, item, err := s.tenants.App(ctx, app, hangar.ActionWrite)
		if err != nil {
			return nil, err
		}
		if rec.Deleting {
			return nil, hangar.AppNotFound()
		}
		request := in // of an App that is destroyed and made again meanwhile, something else follows
		if err := request.Complete(rec.Org, rec.Network); err != nil {
			return nil, err
		}
		made, revision, err := s.records.tryAllocate(ctx, rec, item, request)
		if errors.Is(err, state.ErrConflict) {
			continue
		}
		if err != nil {
			return nil, state.HangarError(err)
		}
		s.records.AwaitRoute(ctx, rec.ID, revision)
		return &made, nil
	}
}

// tryAllocate returns state.ErrConflict when something that was looked at changed.
func (r *Records) tryAllocate(
	ctx context.Context, app tenants.AppRecord, appItem state.Item, in hangar.AddressCreate,
) (hangar.Address, state.Revision, error) {
	made := hangar.Address{
		Kind: in.Kind, App: app.Name, Region: in.Region, Service: in.Service, CreatedAt: r.now().UTC().Truncate(time.Second),
	}
	if in.Kind == hangar.AddressSharedV4 {
		if !r.pools.Shared.IsValid() {
			return made, 0, noPool("shared IPv4 address", "--shared-ipv4")
		}
		made.IP = r.pools.Shared
		item, err := r.store.Get(ctx, addressKey(app.ID, &made))
		if err == nil {
			if made, err = Parse(item); err == nil {
				return r.current(made), item.Revision, nil
			}
		}
		if !errors.Is(err, state.ErrNotFound) {
			return made, 0, err
		}
	}
	known, _, err := state.All(ctx, r.store, addressesOf(app.ID), false)
	if err != nil {
		return made, 0, err
	}
	known = slices.DeleteFunc(known, func(item state.Item) bool { return ofExtension(item) != "" })
	if len(known) >= hangar.MaxAddresses {
		return made, 0, hangar.Errorf(hangar.CodeExhausted, "", "The app %q has %d addresses, which is the most there may be", app.Name, len(known))
	}
	txn, err := r.choose(ctx, app, in.Network, &made)
	if err != nil {
		return made, 0, err
	}
	put, err := state.Write(addressKey(app.ID, &made), addressRecord{Address: made, AppID: app.ID})
	if err != nil {
		return made, 0, err
	}
	txn.If = append(txn.If, state.Unchanged(appItem), state.Absent(put.Key))
	txn.Then = append(txn.Then, put)
	org, err := r.tenants.OrgOfApp(ctx, app)
	if err != nil {
		return made, 0, err
	}
	if err := r.ledger.Charge(ctx, org, addressQuotas(made.Kind), &txn); err != nil {
		return made, 0, err
	}
	revision, err := r.store.Txn(ctx, txn)
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
func (r *Records) choose(ctx context.Context, app tenants.AppRecord, network string, made *hangar.Address) (state.Txn, error) {
	switch made.Kind {
	case hangar.AddressV4:
		return r.chooseFrom(ctx, app.ID, r.pools.V4, "pool of IPv4 addresses", "--ipv4-pool", made)
	case hangar.AddressV6:
		return r.chooseFrom(ctx, app.ID, r.pools.V6, "pool of IPv6 addresses", "--ipv6-pool", made)
	case hangar.AddressPrivateV6:
		return r.choosePrivate(ctx, app, network, made)
	case hangar.AddressSharedV4:
	}
	return state.Txn{}, nil
}

// maxTries bounds how many addresses of a pool are looked at that are not free.
const maxTries = 1 << 17

// chooseFrom takes the first free address after the one that was given last, so that a
// released one is not soon given to another App.
func (r *Records) chooseFrom(ctx context.Context, app hangar.AppID, pool ippool.Pool, what, flag string, made *hangar.Address) (state.Txn, error) {
	size := pool.Size()
	if size == 0 {
		return state.Txn{}, noPool(what, flag)
	}
	key := state.AddressCounters + string(made.Kind)
	last, unclaimed, err := r.cursor(ctx, key)
	if err != nil {
		return state.Txn{}, err
	}
	for try := range min(size, maxTries) {
		number := (last + try) % size
		ip := pool.At(number)
		if ip == r.pools.Shared {
			continue
		}
		_, err := r.store.Get(ctx, ownerKey(ip))
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
func (r *Records) cursor(ctx context.Context, key string) (uint64, state.Compare, error) {
	item, err := r.store.Get(ctx, key)
	if errors.Is(err, state.ErrNotFound) {
		return 0, state.Absent(key), nil
	}
	n, fault := strconv.ParseUint(string(item.Value), 10, 64)
	if err == nil && fault != nil {
		r.log.Warn("counter of addresses restarts", keyKey, key, keyError, fault)
	}
	return n, state.Unchanged(item), err
}

// owned is what makes an address an App's.
func owned(app hangar.AppID, a *hangar.Address) (state.Txn, error) {
	put, err := state.Write(ownerKey(a.IP), ownerRecord{App: app})
	return state.Txn{If: []state.Compare{state.Absent(put.Key)}, Then: []state.Op{put}}, err
}

// The numbers of private addresses in a network begin at a random one, so that those of
// several platforms on one server, each of which has a network 1, are not the same. Any
// that was released stays unused.
const (
	flycastStarts = 1 << 31
	flycastShift  = 16
)

func (r *Records) choosePrivate(ctx context.Context, app tenants.AppRecord, network string, made *hangar.Address) (state.Txn, error) {
	txn, err := r.nextPrivate(ctx, app, network, made)
	if err != nil {
		return txn, err
	}
	own, err := owned(app.ID, made)
	return state.Txn{If: append(txn.If, own.If...), Then: append(txn.Then, own.Then...)}, err
}

// nextPrivate finds an address in a network of an App's organization that nothing has had.
func (r *Records) nextPrivate(ctx context.Context, app tenants.AppRecord, network string, made *hangar.Address) (state.Txn, error) {
	if tenants.CheckNetworkName(network) != nil {
		return state.Txn{}, hangar.Errorf(hangar.CodeInvalid, "", "invalid network: %.80q is not the name of a network", network)
	}
	rec, networkItem, err := state.Read[tenants.NetworkRecord](ctx, r.store, state.NetworkKey(app.OrgID, network))
	if errors.Is(err, state.ErrNotFound) {
		return state.Txn{}, hangar.Errorf(hangar.CodeInvalid, "", "invalid network: the organization %q has no network %q; an app makes one", app.Org, network)
	}
	if err != nil {
		return state.Txn{}, err
	}
	key := state.AddressCounters + strconv.FormatUint(uint64(rec.ID), 10)
	number, unclaimed, err := r.cursor(ctx, key)
	if err != nil {
		return state.Txn{}, err
	}
	if number == 0 {
		number = uint64(random.Below(flycastStarts)) << flycastShift
	}
	number++
	made.Network, made.NetworkID, made.IP = network, rec.ID, hangar.FlycastAddress(rec.ID, number)
	return state.Txn{
		If: []state.Compare{unclaimed, state.Unchanged(networkItem)}, Then: []state.Op{state.Put(key, strconv.AppendUint(nil, number, 10))},
	}, nil
}

// ReleaseAddress implements hangar.AddressService.
func (s *Addresses) ReleaseAddress(ctx context.Context, app hangar.AppName, ip netip.Addr) error {
	for {
		rec, _, err := s.tenants.App(ctx, app, hangar.ActionWrite)
		if err != nil {
			return err
		}
		item, found, err := s.records.find(ctx, rec.ID, ip.Unmap())
		if err != nil {
			return state.HangarError(err)
		}
		if !found {
			return hangar.Errorf(hangar.CodeNotFound, hangar.ReasonAddressNotFound, "Could not find IP address %q of app %q", ip, app)
		}
		revision, err := s.records.remove(ctx, rec.OrgID, item, removalOfAddress(item))
		if errors.Is(err, state.ErrConflict) {
			continue
		}
		if err != nil {
			return state.HangarError(err)
		}
		s.records.AwaitRoute(ctx, rec.ID, revision)
		return nil
	}
}

// find returns the record of an address of an App.
func (r *Records) find(ctx context.Context, app hangar.AppID, ip netip.Addr) (state.Item, bool, error) {
	items, _, err := state.All(ctx, r.store, addressesOf(app), false)
	if err != nil {
		return state.Item{}, false, err
	}
	for _, item := range items {
		if a, err := Parse(item); err == nil && r.current(a).IP == ip && ofExtension(item) == "" {
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
		txn.Then = append(txn.Then, state.Delete(state.OwnersPrefix+name))
	}
	return txn
}

// Forget removes all addresses of an App that is marked.
func (r *Records) Forget(ctx context.Context, app hangar.AppID, marked state.Item) error {
	rec, err := state.Decode[tenants.AppRecord](marked)
	if err != nil {
		return err
	}
	items, _, err := state.All(ctx, r.store, addressesOf(app), false)
	if err != nil {
		return err
	}
	for _, item := range items {
		txn := removalOfAddress(item)
		txn.If = append(txn.If, state.Unchanged(marked))
		if _, err := r.remove(ctx, rec.OrgID, item, txn); err != nil {
			return err
		}
	}
	return nil
}

// remove runs the transaction that removes an address, which counts no more.
func (r *Records) remove(ctx context.Context, org hangar.OrgID, item state.Item, txn state.Txn) (state.Revision, error) {
	var counted hangar.Quotas
	if a, err := Parse(item); err == nil && ofExtension(item) == "" {
		counted = addressQuotas(a.Kind)
	}
	return r.ledger.GiveBack(ctx, org, counted, txn)
}

// AwaitRoute lets the edge follow what was written of the addresses or names of an App, before
// the caller is answered, whose next request is to find what was just made.
func (r *Records) AwaitRoute(ctx context.Context, app hangar.AppID, revision state.Revision) {
	if r.routes == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, routePatience)
	defer cancel()
	if err := r.routes.AwaitRoute(ctx, app, uint64(revision)); err != nil {
		r.log.WarnContext(ctx, "edge does not follow yet", keyApp, app, keyError, err)
	}
}
