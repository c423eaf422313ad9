package extensions

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/provider"
)

// phase is what is to be done with an extension next.
//
//	create ──► await ──► live ◄──► change
//	   │         │         │          │
//	   ├─► failed ◄┘       │          │        retried: create, or await if the provider has made it
//	   ▼                   ▼          ▼
//	destroy ──────────────────────────────► no record
type phase string

const (
	phaseCreate  phase = "create"  // POST it; the provider may have received that already
	phaseAwait   phase = "await"   // the provider has made it, under an id: GET it until it is ready, then set secrets
	phaseLive    phase = "live"    // GET it once a day
	phaseChange  phase = "change"  // PATCH it
	phaseFailed  phase = "failed"  // nothing, until a user retries or destroys it
	phaseDestroy phase = "destroy" // DELETE it until the provider confirms that
)

// record is the stored form of an extension.
type record struct {
	ID       hangar.ExtensionID  `json:"id"`
	Provider hangar.ProviderName `json:"provider"`
	Org      hangar.OrgID        `json:"org_id"`
	OrgSlug  hangar.OrgSlug      `json:"org_slug"`
	// App and AppName are empty for an extension that the provider has made by itself.
	App     hangar.AppID   `json:"app_id,omitempty"`
	AppName hangar.AppName `json:"app_name,omitempty"`
	// Body is sent to the provider, the same with every attempt.
	Body      provider.Provision `json:"body"`
	Network   string             `json:"network,omitempty"` // in which Body.IPAddress is
	NetworkID hangar.NetworkID   `json:"network_id,omitempty"`

	Phase phase     `json:"phase"`
	Since time.Time `json:"since"` // of the phase
	// Sent says that the provider may have received a POST. It is journaled before the first one.
	Sent bool `json:"sent,omitempty"`
	// Remote is the provider's id; empty until an answer has contained it.
	Remote    string   `json:"remote,omitempty"`
	Pending   bool     `json:"pending,omitempty"` // the provider has only accepted the POST
	Silent    bool     `json:"silent,omitempty"`  // the provider has no GET: the extension was ready with its POST
	Overwrite bool     `json:"overwrite,omitempty"`
	Before    *choices `json:"before,omitempty"` // what a change replaces

	Secrets     []string                   `json:"secrets,omitempty"` // names
	PlatformApp hangar.AppName             `json:"platform_app_name,omitempty"`
	Status      string                     `json:"status,omitempty"` // the provider's word
	Plan        string                     `json:"plan,omitempty"`   // the provider's name of it
	Usage       map[string]json.RawMessage `json:"usage,omitempty"`
	Error       string                     `json:"error,omitempty"`
	CheckedAt   time.Time                  `json:"checked_at,omitzero"`
	EventAt     provider.Timestamp         `json:"event_at,omitzero"` // of the newest webhook
	CreatedAt   time.Time                  `json:"created_at"`
	UpdatedAt   time.Time                  `json:"updated_at"`
}

// choices are the settings that the customer chooses and may change.
type choices struct {
	Plan          string   `json:"plan,omitempty"`
	PrimaryRegion string   `json:"primary_region,omitempty"`
	ReadRegions   []string `json:"read_regions,omitempty"`
}

func (r *record) choices() choices {
	return choices{Plan: r.Body.Plan, PrimaryRegion: r.Body.PrimaryRegion, ReadRegions: r.Body.ReadRegions}
}

func (r *record) choose(w choices) {
	r.Body.Plan, r.Body.PrimaryRegion, r.Body.ReadRegions = w.Plan, w.PrimaryRegion, w.ReadRegions
}

// foreign reports whether the provider has made the extension by itself.
func (r *record) foreign() bool { return r.App == "" }

// enter sets the phase.
func (r *record) enter(p phase, now time.Time) {
	r.Phase, r.Since, r.UpdatedAt = p, now.UTC(), now.UTC().Truncate(time.Second)
}

// ref identifies a record.
type ref struct {
	Org hangar.OrgID       `json:"org"`
	ID  hangar.ExtensionID `json:"id"`
}

func (r *record) ref() ref { return ref{r.Org, r.ID} }

func (r ref) key() string { return state.ExtensionsPrefix + string(r.Org) + "/" + string(r.ID) }

func (r ref) configKey() string {
	return state.ExtensionConfigPrefix + string(r.Org) + "/" + string(r.ID)
}

func nameKey(name string) string { return state.ExtensionNamesPrefix + name }

func resourceKey(name hangar.ProviderName, remote string) string {
	return state.ResourcesPrefix + string(name) + "/" + url.PathEscape(remote)
}

// refOf parses the key of a record.
func refOf(key string) (ref, bool) {
	org, id, ok := strings.Cut(strings.TrimPrefix(key, state.ExtensionsPrefix), "/")
	return ref{hangar.OrgID(org), hangar.ExtensionID(id)}, ok && org != "" && id != ""
}

// resource is the record of a provider's id: the extension that it belongs to.
type resource struct {
	ref
	// Gone is when the provider has deleted it. Until is when the record may be removed: from then
	// on, webhooks about it are refused as too old.
	Gone  provider.Timestamp `json:"gone,omitempty"`
	Until time.Time          `json:"until,omitzero"`
}

// found is a record with the item that it was read from.
type found struct {
	record
	item state.Item
}

// read returns a record, or state.ErrNotFound.
func (s *shared) read(ctx context.Context, at ref) (found, error) {
	rec, item, err := state.Read[record](ctx, s.Store, at.key())
	return found{rec, item}, err
}

// ofOrg returns the extensions of an organization that can be read.
func (s *shared) ofOrg(ctx context.Context, org hangar.OrgID) ([]found, error) {
	items, _, err := state.All(ctx, s.Store, state.ExtensionsPrefix+string(org)+"/", false)
	if err != nil {
		return nil, state.HangarError(err)
	}
	list := make([]found, 0, len(items))
	for _, item := range items {
		rec, err := state.Decode[record](item)
		if err != nil {
			s.Log.Error("extension skipped", keyKey, item.Key, keyError, err)
			continue
		}
		list = append(list, found{rec, item})
	}
	return list, nil
}

// errStale says that a record has changed since it was read.
var errStale = errors.New("the extension was changed meanwhile")

// put journals the record after a step.
func (s *shared) put(ctx context.Context, f found, next record) error {
	return s.commit(ctx, f, &next, state.Txn{})
}

// commit replaces the record by next, or removes it if next is nil, within a transaction. It
// returns errStale if a compared record has changed.
func (s *shared) commit(ctx context.Context, f found, next *record, txn state.Txn) error {
	op, err := operation(f, next)
	if err != nil {
		return err
	}
	txn.If, txn.Then = append(txn.If, state.Unchanged(f.item)), append(txn.Then, op)
	_, err = s.Store.Txn(ctx, txn)
	return stale(err)
}

func operation(f found, next *record) (state.Op, error) {
	if next == nil {
		return state.Delete(f.item.Key), nil
	}
	return state.Write(f.item.Key, *next)
}

func stale(err error) error {
	if errors.Is(err, state.ErrConflict) {
		return errStale
	}
	return state.HangarError(err)
}

// view returns the extension as the API shows it.
func (r *record) view() *hangar.Extension {
	e := &hangar.Extension{
		ID: r.ID, Name: r.Body.Name, Provider: r.Provider, App: r.AppName, Org: r.OrgSlug, User: hangar.UserID(r.Body.UserID),
		Plan: cmp.Or(r.Plan, r.Body.Plan), PrimaryRegion: hangar.Region(r.Body.PrimaryRegion), Status: r.status(), Error: r.Error,
		IP: r.Body.IPAddress, PlatformApp: r.PlatformApp, ProviderID: r.Remote, Secrets: append([]string{}, r.Secrets...), Usage: r.Usage,
		CheckedAt: r.CheckedAt, CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt,
	}
	for _, region := range r.Body.ReadRegions {
		e.ReadRegions = append(e.ReadRegions, hangar.Region(region))
	}
	return e
}

func (r *record) status() hangar.ExtensionStatus {
	switch r.Phase {
	case phaseCreate, phaseAwait:
		return hangar.ExtensionProvisioning
	case phaseFailed:
		return hangar.ExtensionError
	case phaseDestroy:
		return hangar.ExtensionDestroying
	default:
		return hangar.ExtensionStatus(cmp.Or(r.Status, provider.StatusReady))
	}
}

// Bounds of what a provider may say about a resource.
const (
	maxWord = 64 // bytes of a status or plan
	maxName = 255
)

// learn copies what the provider says about an extension, as far as it is within the bounds. It
// returns false if some of it was not.
func (r *record) learn(of provider.Resource, now time.Time) bool {
	fits := true
	for field, said := range map[*string]string{&r.Status: of.Status, &r.Plan: of.Plan} {
		switch {
		case said == "":
		case len(said) <= maxWord && printable(said):
			*field = said
		default:
			fits = false
		}
	}
	size := 0
	for name, value := range of.Extra {
		size += len(name) + len(value)
	}
	if size <= hangar.MaxExtensionUsage {
		r.Usage = of.Extra
	} else {
		fits = false
	}
	r.CheckedAt = now.UTC().Truncate(time.Second)
	return fits
}

// address is the extension's address in the customer's private network.
func (r *record) address() netip.Addr { return r.Body.IPAddress }

func sortByName(list []*hangar.Extension) {
	slices.SortFunc(list, func(a, b *hangar.Extension) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(string(a.ID), string(b.ID)))
	})
}
