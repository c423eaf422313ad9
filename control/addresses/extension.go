package addresses

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
)

// The address of an extension is in a network of its customer, and is served by an App of its
// provider. It is reserved before that App is known. It counts against no quota but that of
// extensions, and neither the customer nor the provider can release it.

// ofExtension is the extension whose address an item is; empty: it is an App's own.
func ofExtension(item state.Item) hangar.ExtensionID {
	rec, err := state.Decode[addressRecord](item)
	if err != nil {
		return "" // Parse says so
	}
	return rec.Extension
}

// Reserve finds an address in the network of an App for an extension of it, and what reserves it in a
// transaction.
func (r *Records) Reserve(ctx context.Context, app tenants.AppRecord, extension hangar.ExtensionID) (netip.Addr, state.Txn, error) {
	made := hangar.Address{Kind: hangar.AddressPrivateV6}
	txn, err := r.nextPrivate(ctx, app, app.Network, &made)
	if err != nil {
		return netip.Addr{}, txn, err
	}
	put, err := state.Write(ownerKey(made.IP), ownerRecord{Extension: extension})
	txn.If, txn.Then = append(txn.If, state.Absent(put.Key)), append(txn.Then, put)
	return made.IP, txn, err
}

// Serve returns what makes an App of a provider serve the address that is reserved for an extension
// in a network of the customer.
func (r *Records) Serve(
	app tenants.AppRecord, item state.Item, extension hangar.ExtensionID, ip netip.Addr, network string, id hangar.NetworkID,
) (state.Txn, error) {
	a := hangar.Address{
		IP: ip, Kind: hangar.AddressPrivateV6, App: app.Name, Network: network, NetworkID: id, CreatedAt: r.now().UTC().Truncate(time.Second),
	}
	put, err := state.Write(addressKey(app.ID, &a), addressRecord{Address: a, AppID: app.ID, Extension: extension})
	if err != nil {
		return state.Txn{}, err
	}
	own, err := state.Write(ownerKey(ip), ownerRecord{App: app.ID, Extension: extension})
	return state.Txn{If: []state.Compare{state.Unchanged(item)}, Then: []state.Op{put, own}}, err
}

// Release returns what removes the address of an extension. Its App may be gone.
func (r *Records) Release(ctx context.Context, extension hangar.ExtensionID, ip netip.Addr) (state.Txn, error) {
	owner, item, err := state.Read[ownerRecord](ctx, r.store, ownerKey(ip))
	if errors.Is(err, state.ErrNotFound) || err == nil && owner.Extension != extension {
		return state.Txn{}, nil
	}
	if err != nil {
		return state.Txn{}, err
	}
	txn := state.Txn{If: []state.Compare{state.Unchanged(item)}, Then: []state.Op{state.Delete(item.Key)}}
	if owner.App != "" {
		txn.Then = append(txn.Then, state.Delete(addressesOf(owner.App)+ip.String()))
	}
	return txn, nil
}
