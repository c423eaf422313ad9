package control

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
)

// The keys of the state, but for those of package auth. Names and ids cannot hold a slash, so
// that a prefix that ends with one selects exactly the things of one App, organization or
// host. What an App or organization has is found by its id: the next one of the same name
// meets nothing of it.
const (
	orgsPrefix         = "/orgs/"           // <org>
	networksPrefix     = "/networks/"       // <id of the org>/<network>
	appsPrefix         = "/apps/"           // <app>
	reservationsPrefix = "/machines/"       // <id of the app>/<id>
	namesPrefix        = "/machine-names/"  // <id of the app>/<name>
	hostsPrefix        = "/hosts/"          // <host>/machines/<id>
	volumesPrefix      = "/volumes/"        // <id of the app>/<id>, also of Apps that were destroyed
	credentialsPrefix  = "/registries/"     // <registry>
	secretsPrefix      = "/secrets/"        // <id of the app>
	peersPrefix        = "/peers/"          // <id of the org>/<name>
	peerKeysPrefix     = "/peer-keys/"      // <public key in hexadecimal>
	addressesPrefix    = "/addresses/"      // <id of the app>/<address>
	ownersPrefix       = "/address-owners/" // <address>
	hostnamesPrefix    = "/hostnames/"      // <hostname, its labels from the right: com.example.www>
	certificatesPrefix = "/certificates/"   // <hostname>, what was uploaded
	archivePrefix      = "/archive/"        // what the archive of snapshots needs, see ArchivePassword
	archivePasswordKey = archivePrefix + "password"
	sealKey            = "/seal"           // see vault
	usagePrefix        = "/usage/"         // <id of the organization>, see ledger
	volumeClaimsPrefix = "/volume-claims/" // <id of the volume>, see volumeClaim
	appCounter         = "/counters/apps"
	networkCounter     = "/counters/networks"
	orgCounter         = "/counters/orgs"
	peerCounter        = "/counters/peers"
	hostnameCounter    = "/counters/hostnames"
	addressCounters    = "/counters/addresses/" // v4, v6 or the number of a network
)

func orgKey(org hangar.OrgSlug) string { return orgsPrefix + string(org) }

func networkKey(org hangar.OrgID, name string) string {
	return networksPrefix + string(org) + "/" + name
}
func appKey(app hangar.AppName) string { return appsPrefix + string(app) }

func reservationKey(ref hangar.MachineRef) string {
	return reservationsPrefix + string(ref.AppID) + "/" + string(ref.ID)
}

func nameKey(app hangar.AppID, name string) string {
	return namesPrefix + string(app) + "/" + name
}

func volumeKey(ref hangar.VolumeRef) string {
	return volumesPrefix + string(ref.AppID) + "/" + string(ref.ID)
}

func rowsPrefix(host hangar.HostID) string { return hostsPrefix + string(host) + "/machines/" }

func rowKey(host hangar.HostID, id hangar.MachineID) string { return rowsPrefix(host) + string(id) }

// parseRowKey is the inverse of rowKey.
func parseRowKey(key string) (hangar.HostID, hangar.MachineID, bool) {
	host, id, ok := strings.Cut(strings.TrimPrefix(key, hostsPrefix), "/machines/")
	return hangar.HostID(host), hangar.MachineID(id), ok && hangar.MachineID(id).Valid()
}

// orgRecord is an organization as the state keeps it.
type orgRecord struct {
	hangar.Org
	Deleting bool          `json:"deleting,omitempty"` // it takes no Apps and tokens any more, and goes
	Quotas   hangar.Quotas `json:"quotas,omitempty"`   // that an administrator has set
}

// networkRecord binds a name to a number: it outlives the Apps and goes with the
// organization. The number is never given to another network.
type networkRecord struct {
	ID hangar.NetworkID `json:"id"`
}

// appRecord is an App as the state keeps it.
type appRecord struct {
	ID        hangar.AppID     `json:"id"`
	Name      hangar.AppName   `json:"name"`
	NumericID uint64           `json:"numeric_id"`
	Org       hangar.OrgSlug   `json:"org"`
	OrgID     hangar.OrgID     `json:"org_id"`
	Network   string           `json:"network"`
	NetworkID hangar.NetworkID `json:"network_id"`
	CreatedAt time.Time        `json:"created_at"`
	Deployed  bool             `json:"deployed,omitempty"` // a Machine was created
	Deleting  bool             `json:"deleting,omitempty"` // its destruction was decided and is finished at all events
}

// ref names a Machine of the App; without an id, all of them in reservationKey.
func (r *appRecord) ref(id hangar.MachineID) hangar.MachineRef {
	return hangar.MachineRef{App: r.Name, AppID: r.ID, ID: id}
}

// target is a Machine of the App or, without an id, the App itself.
func (r *appRecord) target(id hangar.MachineID) hangar.Target {
	return hangar.Target{Org: r.Org, OrgID: r.OrgID, App: r.Name, AppID: r.ID, Machine: id}
}

// orgTarget is an organization as a whole.
func orgTarget(org hangar.Org) hangar.Target { return hangar.Target{Org: org.Slug, OrgID: org.ID} }

// reservation says which host owns a Machine. It lives from before the Machine is
// made until it is destroyed.
type reservation struct {
	ID   hangar.MachineID `json:"id"`
	Name string           `json:"name"`
	Host hangar.HostID    `json:"host"`
	// Confirmed is set once the host has recorded the Machine. A reservation
	// without it may be all that a crash left; whoever releases such a one makes its
	// creator, if that one is still alive, undo what it did.
	Confirmed bool      `json:"confirmed,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	// OrgID is the organization that Counts is counted for, until the Machine is destroyed.
	OrgID  hangar.OrgID  `json:"org_id,omitempty"`
	Counts hangar.Quotas `json:"counts,omitempty"`
	// Version is the one that Counts is of, once an update has changed the size: what was
	// published of earlier ones says nothing. See updating.
	Version hangar.InstanceID `json:"version,omitempty"`
}

// nameRecord says which Machine has a name.
type nameRecord struct {
	ID hangar.MachineID `json:"id"`
}

// read returns the record at a key, or state.ErrNotFound.
func read[T any](ctx context.Context, s state.Store, key string) (T, state.Item, error) {
	var v T
	item, err := s.Get(ctx, key)
	if err != nil {
		return v, item, err
	}
	v, err = decode[T](item)
	return v, item, err
}

// decode returns the record of an item, which others may share: it must not be
// changed below its fields.
func decode[T any](item state.Item) (T, error) {
	v, err := state.Parse(item, func(value []byte) (v T, err error) {
		err = json.Unmarshal(value, &v)
		return v, err
	})
	if err != nil {
		return v, &hangar.Error{
			Code: hangar.CodeInternal, Message: "A record of the cluster state cannot be read",
			Err: fmt.Errorf("record %s: %w", item.Key, err),
		}
	}
	return v, nil
}

// write returns the operation that stores a record.
func write(key string, v any) (state.Op, error) {
	b, err := hangar.EncodeStored(v)
	if err != nil {
		return state.Op{}, fmt.Errorf("encode record %s: %w", key, err)
	}
	return state.Put(key, b), nil
}

// next returns the number after a counter's, and what claims it in a transaction.
func (c *Control) next(ctx context.Context, counter string) (uint64, state.Compare, state.Op, error) {
	item, err := c.store.Get(ctx, counter)
	cond, n := state.Absent(counter), uint64(0)
	switch {
	case err == nil:
		cond = state.Unchanged(item)
		if n, err = strconv.ParseUint(string(item.Value), 10, 64); err != nil {
			return 0, cond, state.Op{}, fmt.Errorf("counter %s: %w", counter, err)
		}
	case !errors.Is(err, state.ErrNotFound):
		return 0, cond, state.Op{}, err
	}
	n++
	return n, cond, state.Put(counter, strconv.AppendUint(nil, n, 10)), nil
}

// network returns the number of an organization's network and, if it is a new
// one, what binds it in a transaction.
func (c *Control) network(ctx context.Context, org hangar.OrgID, name string) (hangar.NetworkID, state.Txn, error) {
	key := networkKey(org, name)
	known, _, err := read[networkRecord](ctx, c.store, key)
	if err == nil {
		return known.ID, state.Txn{}, nil
	}
	if !errors.Is(err, state.ErrNotFound) {
		return 0, state.Txn{}, err
	}
	n, unclaimed, claim, err := c.next(ctx, networkCounter)
	if err != nil {
		return 0, state.Txn{}, err
	}
	if n > math.MaxUint32 {
		return 0, state.Txn{}, hangar.Errorf(hangar.CodeExhausted, "", "No network numbers are left")
	}
	id := hangar.NetworkID(n)
	bind, err := write(key, networkRecord{ID: id})
	return id, state.Txn{If: []state.Compare{state.Absent(key), unclaimed}, Then: []state.Op{bind, claim}}, err
}

// randomID is an opaque id of 16 characters of a-z and 0-9.
func randomID() string {
	const letters = "0123456789abcdefghijklmnopqrstuvwxyz"
	b := make([]byte, 16)
	for i := range b {
		b[i] = letters[randomN(len(letters))]
	}
	return string(b)
}

// randomN returns a number from 0 to n-1 that nobody can predict.
func randomN(n int) int {
	v, err := rand.Int(rand.Reader, big.NewInt(int64(n)))
	if err != nil {
		panic(err) // crypto/rand.Reader aborts the program before it would fail
	}
	return int(v.Int64())
}
