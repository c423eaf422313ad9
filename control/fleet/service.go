package fleet

import (
	"cmp"
	"context"
	"crypto/subtle"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
)

// token is what is kept of one.
type token struct {
	hangar.JoinToken
	Digest  []byte `json:"digest"`             // SHA-256 of its text
	UsedKey []byte `json:"used_key,omitempty"` // SHA-256 of the public key of the server that has used it
}

func tokenKey(id hangar.JoinTokenID) string { return tokensPrefix + string(id) }

func administrator(ctx context.Context) error {
	return tenants.NeedAdministrator(ctx, "see and change hosts")
}

func hostNotFound(id hangar.HostID) error {
	return hangar.Errorf(hangar.CodeNotFound, "", "Could not find host %q", string(id))
}

// Hosts implements hangar.HostService.
func (f *Fleet) Hosts(ctx context.Context) ([]hangar.Host, error) {
	if err := administrator(ctx); err != nil {
		return nil, err
	}
	hosts, err := f.All(ctx)
	f.addHeard(hosts)
	return hosts, err
}

// addHeard adds to hosts when they were last heard of; this one hears itself.
func (f *Fleet) addHeard(hosts []hangar.Host) {
	if f.cfg.Heard == nil {
		return
	}
	heard := f.cfg.Heard()
	for i := range hosts {
		hosts[i].MeshHandshake = heard[hosts[i].ID]
		if hosts[i].ID == f.cfg.Self.ID && hosts[i].MeshKey != "" {
			hosts[i].MeshHandshake = f.cfg.Now().UTC()
		}
	}
}

// How many hosts are asked at once for what they have left, and how long each may take to answer.
const (
	roomsAtOnce = 32
	roomTimeout = 2 * time.Second
)

// HostUsage implements hangar.HostService.
func (f *Fleet) HostUsage(ctx context.Context) ([]hangar.HostUsage, error) {
	hosts, err := f.Hosts(ctx)
	if err != nil {
		return nil, err
	}
	usage := make([]hangar.HostUsage, len(hosts))
	var group errgroup.Group
	group.SetLimit(roomsAtOnce)
	for i, h := range hosts {
		group.Go(func() (err error) {
			usage[i], err = f.usage(ctx, h)
			return err
		})
	}
	return usage, group.Wait()
}

// usage is how much of a host is used. A host that does not answer is no error.
func (f *Fleet) usage(ctx context.Context, h hangar.Host) (hangar.HostUsage, error) {
	u := hangar.HostUsage{Host: h}
	machines, volumes, err := f.published(ctx, h.ID)
	if err != nil {
		return u, err
	}
	u.Machines, u.Volumes = len(machines), len(volumes)
	if f.cfg.Room == nil {
		return u, nil
	}
	asking, cancel := context.WithTimeout(ctx, roomTimeout)
	defer cancel()
	room, err := f.cfg.Room(asking, h.ID)
	if err != nil {
		f.cfg.Log.DebugContext(ctx, "a host does not say what it has left", "host", h.ID, "error", err)
		return u, ctx.Err()
	}
	u.Reached, u.Memory, u.MemoryPromised = true, room.Memory, room.Memory-room.Free
	u.VolumesPromised, u.VolumesFree = room.VolumesPromised, max(0, room.Volumes)
	return u, nil
}

// Host implements hangar.HostService.
func (f *Fleet) Host(ctx context.Context, id hangar.HostID) (hangar.Host, error) {
	if err := administrator(ctx); err != nil {
		return hangar.Host{}, err
	}
	h, err := f.find(ctx, id)
	one := []hangar.Host{h.Host}
	f.addHeard(one)
	return one[0], err
}

func (f *Fleet) find(ctx context.Context, id hangar.HostID) (known, error) {
	hosts, err := f.read(ctx)
	if err != nil {
		return known{}, err
	}
	h, ok := hosts[id]
	if !ok {
		return known{}, hostNotFound(id)
	}
	return h, nil
}

// UpdateHost implements hangar.HostService.
func (f *Fleet) UpdateHost(ctx context.Context, id hangar.HostID, in hangar.HostUpdate) (hangar.Host, error) {
	if err := administrator(ctx); err != nil {
		return hangar.Host{}, err
	}
	if in.Labels != nil {
		if err := checkLabels(*in.Labels); err != nil {
			return hangar.Host{}, err
		}
	}
	for {
		h, err := f.find(ctx, id)
		if err != nil {
			return hangar.Host{}, err
		}
		next := h.record
		next.State = h.stored
		if in.Cordoned != nil {
			next.Cordoned = *in.Cordoned
		}
		if in.Labels != nil {
			next.Labels = maps.Clone(*in.Labels)
		}
		put, err := state.Write(hostKey(id), next)
		if err != nil {
			return hangar.Host{}, err
		}
		_, err = f.cfg.Store.Txn(ctx, state.Txn{If: []state.Compare{state.Unchanged(h.item)}, Then: []state.Op{put}})
		if errors.Is(err, state.ErrConflict) {
			continue
		}
		next.State = h.State
		return next.Host, state.HangarError(err)
	}
}

func checkLabels(labels map[string]string) error {
	if len(labels) > hangar.MaxHostLabels {
		return hangar.Errorf(hangar.CodeInvalid, "", "invalid labels: a host has at most %d", hangar.MaxHostLabels)
	}
	for k, v := range labels {
		if k == "" || len(k) > hangar.MaxHostLabelBytes || len(v) > hangar.MaxHostLabelBytes || !utf8.ValidString(k+v) || strings.ContainsFunc(k+v, func(r rune) bool { return r < ' ' }) {
			return hangar.Errorf(hangar.CodeInvalid, "", "invalid labels: a name and a value are text of at most %d bytes, and a name is not empty", hangar.MaxHostLabelBytes)
		}
	}
	return nil
}

// RemoveHost implements hangar.HostService. A step that has succeeded is not repeated: a call
// continues where a failed one has stopped.
func (f *Fleet) RemoveHost(ctx context.Context, id hangar.HostID, in hangar.HostRemoval) error {
	if err := administrator(ctx); err != nil {
		return err
	}
	if err := f.mayRemove(ctx, id, in.Force); err != nil {
		return err
	}
	h, err := f.beginRemoval(ctx, id)
	if err != nil {
		return err
	}
	if err := f.retract(ctx, id); err != nil {
		return err
	}
	if f.cfg.Vacate != nil {
		if err := f.cfg.Vacate(ctx, h.Host, len(h.Key) > 0); err != nil {
			return &hangar.Error{Code: hangar.CodeUnavailable, Message: "The host could not be removed from the cluster state; try again to go on", Err: err}
		}
	}
	_, err = f.cfg.Store.Txn(ctx, state.Txn{
		If: []state.Compare{state.Absent(aliveKey(id))}, Then: []state.Op{state.Delete(hostKey(id))},
	})
	if errors.Is(err, state.ErrConflict) {
		return hangar.Errorf(hangar.CodeConflict, "", "host %s has come back, and ends again: try again to go on", id)
	}
	if err == nil {
		f.cfg.Log.Warn("a host was removed", "host", id, "name", h.Name)
	}
	return state.HangarError(err)
}

// mayRemove refuses the removal of a host that lives, and without force that of one that has something.
func (f *Fleet) mayRemove(ctx context.Context, id hangar.HostID, force bool) error {
	h, err := f.find(ctx, id)
	if err != nil {
		return err
	}
	if h.State == hangar.HostAlive {
		return f.isAlive(id)
	}
	machines, volumes, err := f.held(ctx, id)
	if err == nil && len(machines)+len(volumes) > 0 && !force {
		err = hangar.Errorf(hangar.CodeConflict, "", "host %s has %d Machines and %d volumes, which are lost if it is removed by force", id, len(machines), len(volumes))
	}
	return err
}

func (f *Fleet) isAlive(id hangar.HostID) error {
	return hangar.Errorf(hangar.CodeConflict, "", "host %s is alive: stop its daemon first; it is suspect %s after that", id, f.cfg.TTL)
}

// beginRemoval keeps a host from coming back, unless it lives: otherwise it would go on without what is
// removed of it.
func (f *Fleet) beginRemoval(ctx context.Context, id hangar.HostID) (known, error) {
	for {
		h, err := f.find(ctx, id)
		switch {
		case err != nil:
			return h, err
		case h.State == hangar.HostAlive:
			return h, f.isAlive(id)
		case h.Removing:
			return h, nil
		}
		next := h.record
		next.State, next.Removing = h.stored, true
		put, err := state.Write(hostKey(id), next)
		if err != nil {
			return h, err
		}
		_, err = f.cfg.Store.Txn(ctx, state.Txn{If: []state.Compare{state.Unchanged(h.item), state.Absent(aliveKey(id))}, Then: []state.Op{put}})
		if !errors.Is(err, state.ErrConflict) {
			return h, state.HangarError(err)
		}
	}
}

// published is what a host has published.
func (f *Fleet) published(ctx context.Context, id hangar.HostID) (machines map[hangar.MachineID]uint64, volumes map[hangar.VolumeRef]uint64, err error) {
	if machines, err = f.cfg.Rows.PublishedMachines(ctx, id); err == nil {
		volumes, err = f.cfg.Rows.PublishedVolumes(ctx, id)
	}
	return machines, volumes, err
}

// held is what a host has published, and the Machines that are reserved on it.
func (f *Fleet) held(ctx context.Context, id hangar.HostID) (machines map[hangar.MachineID]hangar.MachineRef, volumes map[hangar.VolumeRef]uint64, err error) {
	published, volumes, err := f.published(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	reserved, err := f.cfg.Rows.ReservedMachines(ctx, id)
	machines = make(map[hangar.MachineID]hangar.MachineRef, len(published))
	for machine := range published {
		machines[machine] = hangar.MachineRef{ID: machine}
	}
	for _, ref := range reserved {
		machines[ref.ID] = ref
	}
	return machines, volumes, err
}

// retract removes the rows and the reservations of what a host has. No host could answer for a reservation
// that is left: it would keep its App from being destroyed.
func (f *Fleet) retract(ctx context.Context, id hangar.HostID) error {
	machines, volumes, err := f.held(ctx, id)
	if err != nil {
		return err
	}
	for _, machine := range machines {
		if err := f.cfg.Rows.RetractMachine(ctx, id, machine); err != nil {
			return err
		}
	}
	for volume := range volumes {
		if err := f.cfg.Rows.RetractVolume(ctx, id, volume); err != nil {
			return err
		}
	}
	return nil
}

// tokens reads the valid tokens, and removes expired ones. One that cannot be read, as of a newer version,
// stays.
func (f *Fleet) tokens(ctx context.Context) ([]token, error) {
	items, _, err := state.All(ctx, f.cfg.Store, tokensPrefix, false)
	if err != nil {
		return nil, state.HangarError(err)
	}
	var valid []token
	for _, item := range items {
		t, err := state.Decode[token](item)
		if err != nil {
			f.cfg.Log.Error("a token for joining cannot be read", "key", item.Key, "error", err)
			continue
		}
		if f.cfg.Now().Before(t.ExpiresAt) {
			valid = append(valid, t)
			continue
		}
		if _, err := f.cfg.Store.Txn(ctx, state.Txn{Then: []state.Op{state.Delete(item.Key)}}); err != nil {
			return nil, state.HangarError(err)
		}
	}
	return valid, nil
}

// maxNote is how long the note of a token may be, in bytes.
const maxNote = 200

// CreateJoinToken implements hangar.HostService.
func (f *Fleet) CreateJoinToken(ctx context.Context, in hangar.JoinTokenCreate) (hangar.NewJoinToken, error) {
	if err := administrator(ctx); err != nil {
		return hangar.NewJoinToken{}, err
	}
	ttl := time.Duration(cmp.Or(in.TTL, hangar.Duration(hangar.DefaultJoinTTL)))
	if ttl < time.Minute || ttl > hangar.MaxJoinTTL {
		return hangar.NewJoinToken{}, hangar.Errorf(hangar.CodeInvalid, "", "invalid ttl: must be from 1m to %s", hangar.MaxJoinTTL)
	}
	if len(in.Note) > maxNote || !utf8.ValidString(in.Note) {
		return hangar.NewJoinToken{}, hangar.Errorf(hangar.CodeInvalid, "", "invalid note: must be text of at most %d bytes", maxNote)
	}
	if f.cfg.NewToken == nil {
		return hangar.NewJoinToken{}, hangar.Errorf(hangar.CodeFailedPrecondition, "", "this server is alone: start it with `hangar up --cluster` so that others can join")
	}
	valid, err := f.tokens(ctx)
	if err != nil {
		return hangar.NewJoinToken{}, err
	}
	if len(valid) >= hangar.MaxJoinTokens {
		return hangar.NewJoinToken{}, hangar.Errorf(hangar.CodeExhausted, "", "there are %d tokens that have not expired: revoke some", len(valid))
	}
	id, text, digest := f.cfg.NewToken()
	now := f.cfg.Now().UTC().Truncate(time.Second)
	t := token{JoinToken: hangar.JoinToken{ID: id, Note: in.Note, Reusable: in.Reusable, CreatedAt: now, ExpiresAt: now.Add(ttl)}, Digest: digest}
	put, err := state.Write(tokenKey(id), t)
	if err != nil {
		return hangar.NewJoinToken{}, err
	}
	if _, err := f.cfg.Store.Txn(ctx, state.Txn{If: []state.Compare{state.Absent(tokenKey(id))}, Then: []state.Op{put}}); err != nil {
		return hangar.NewJoinToken{}, state.HangarError(err)
	}
	return hangar.NewJoinToken{JoinToken: t.JoinToken, Token: text, URL: f.cfg.JoinURL}, nil
}

// JoinTokens implements hangar.HostService.
func (f *Fleet) JoinTokens(ctx context.Context) ([]hangar.JoinToken, error) {
	if err := administrator(ctx); err != nil {
		return nil, err
	}
	valid, err := f.tokens(ctx)
	if err != nil {
		return nil, err
	}
	list := make([]hangar.JoinToken, 0, len(valid))
	for _, t := range valid {
		list = append(list, t.JoinToken)
	}
	slices.SortFunc(list, func(a, b hangar.JoinToken) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	return list, nil
}

// RevokeJoinToken implements hangar.HostService.
func (f *Fleet) RevokeJoinToken(ctx context.Context, id hangar.JoinTokenID) error {
	if err := administrator(ctx); err != nil {
		return err
	}
	item, err := f.cfg.Store.Get(ctx, tokenKey(id))
	if errors.Is(err, state.ErrNotFound) || errors.Is(err, state.ErrInvalid) {
		return hangar.Errorf(hangar.CodeNotFound, "", "Could not find join token %q", string(id))
	}
	if err == nil {
		_, err = f.cfg.Store.Txn(ctx, state.Txn{Then: []state.Op{state.Delete(item.Key)}})
	}
	return state.HangarError(err)
}

// BackupState implements hangar.HostService.
func (f *Fleet) BackupState(ctx context.Context) (hangar.StateBackup, error) {
	if err := administrator(ctx); err != nil {
		return hangar.StateBackup{}, err
	}
	if f.cfg.Backup == nil {
		return hangar.StateBackup{}, hangar.Errorf(hangar.CodeFailedPrecondition, "", "the cluster state is in an etcd of its own, which its operator backs up")
	}
	at := f.cfg.Now().UTC().Truncate(time.Second)
	path, size, err := f.cfg.Backup(ctx)
	if err != nil {
		return hangar.StateBackup{}, state.HangarError(err)
	}
	return hangar.StateBackup{Host: f.cfg.Self.ID, Path: path, Size: size, At: at}, nil
}

// errToken is the one answer to tokens that let no server in.
func errToken() error {
	return hangar.Errorf(hangar.CodeUnauthenticated, "", "the token is not valid: it was used, has expired, or was revoked")
}

// AdmitHost implements hangar.HostRegistrar.
func (f *Fleet) AdmitHost(ctx context.Context, a hangar.HostApplicant) error {
	if len(a.Name) > hangar.MaxHostNameBytes || !utf8.ValidString(a.Name) {
		return hangar.Errorf(hangar.CodeInvalid, "", "invalid name: must be text of at most %d bytes", hangar.MaxHostNameBytes)
	}
	for {
		err := f.admit(ctx, a)
		if !errors.Is(err, state.ErrConflict) {
			return state.HangarError(err)
		}
	}
}

func (f *Fleet) admit(ctx context.Context, a hangar.HostApplicant) error {
	t, item, err := state.Read[token](ctx, f.cfg.Store, tokenKey(a.Token))
	if errors.Is(err, state.ErrNotFound) {
		return errToken()
	}
	if err != nil {
		return err
	}
	if subtle.ConstantTimeCompare(t.Digest, a.Digest) != 1 || !f.cfg.Now().Before(t.ExpiresAt) {
		return errToken()
	}
	again := subtle.ConstantTimeCompare(t.UsedKey, a.Key) == 1
	if t.UsedBy != "" && !again {
		return errToken()
	}
	txn := state.Txn{If: []state.Compare{state.Unchanged(item)}}
	if !t.Reusable && !again {
		t.UsedBy, t.UsedKey = a.Host, a.Key
		put, err := state.Write(item.Key, t)
		if err != nil {
			return err
		}
		txn.Then = append(txn.Then, put)
	}
	rec, host, err := state.Read[record](ctx, f.cfg.Store, hostKey(a.Host))
	switch {
	case errors.Is(err, state.ErrNotFound):
		txn.If = append(txn.If, state.Absent(hostKey(a.Host)))
	case err != nil:
		return err
	case subtle.ConstantTimeCompare(rec.Key, a.Key) != 1 || len(rec.Key) == 0:
		return hangar.Errorf(hangar.CodeConflict, "", "host %s is one of the platform already, and this is another server: its data directory may be a copy; remove it and start with an empty one", a.Host)
	case rec.Removing:
		return hangar.Errorf(hangar.CodeConflict, "", "host %s is being removed: complete that first", a.Host)
	default:
		txn.If = append(txn.If, state.Unchanged(host))
	}
	hosts, err := f.read(ctx)
	if err != nil {
		return err
	}
	for id, h := range hosts {
		if id != a.Host && h.Address == a.Address {
			return hangar.Errorf(hangar.CodeConflict, "", "host %s has the address %s: give the server another --cluster-address, or remove that host if it is gone", id, a.Address)
		}
	}
	now := f.cfg.Now().UTC().Truncate(time.Second)
	put, err := state.Write(hostKey(a.Host), record{
		Host: hangar.Host{
			ID: a.Host, Name: a.Name, Address: a.Address, Region: rec.Region, CPUs: rec.CPUs, Memory: rec.Memory, Zone: rec.Zone,
			Labels: rec.Labels, Cordoned: rec.Cordoned, State: hangar.HostSuspect,
		},
		Key: a.Key, JoinedAt: now, Since: now,
	})
	if err != nil {
		return err
	}
	txn.Then = append(txn.Then, put)
	_, err = f.cfg.Store.Txn(ctx, txn)
	return err
}
