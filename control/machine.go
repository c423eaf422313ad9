package control

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/placement"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/control/vault"
	"github.com/hangar-platform/hangar/internal/connlimit"
	"github.com/hangar-platform/hangar/internal/finish"
)

// Machines implements hangar.MachineService.
type Machines struct {
	store        state.Store
	tenants      *tenants.Directory
	hosts        *hosts
	rows         *Rows
	reservations *reservations
	secrets      *vault.AppSecrets
	execs        *connlimit.Count[hangar.OrgID]
	log          *slog.Logger
	now          func() time.Time
}

var _ hangar.MachineService = (*Machines)(nil)

const (
	listTimeout = 5 * time.Second // for one host of several to answer a list
	createTries = 3               // attempts, each after another caller has released the reservation

	// Commands that run at once, in Machines of one organization and of all. This server may have
	// 8 MiB of the output of each in memory.
	orgExecs = 64
	allExecs = 256

	hostOK          = "ok"
	hostUnreachable = "unreachable" // shown as the host status of its Machines
)

// CreateMachine implements hangar.MachineService.
func (m *Machines) CreateMachine(ctx context.Context, app hangar.AppName, in hangar.MachineCreate) (*hangar.Machine, error) {
	rec, item, err := m.tenants.App(ctx, app, hangar.ActionCreate)
	if err != nil {
		return nil, err
	}
	if in.Name != "" {
		if err := checkMachineName(in.Name); err != nil {
			return nil, err
		}
	}
	if err := checkConfig(&in.Config); err != nil {
		return nil, err
	}
	if err := hangar.CheckLeaseTTL(in.LeaseTTL); err != nil {
		return nil, err
	}
	secrets, err := m.secrets.For(ctx, rec, in.SkipSecrets, in.MinSecretsVersion)
	if err != nil {
		return nil, err
	}
	hosts, err := m.machineHosts(ctx, rec, &in)
	if err != nil {
		return nil, err
	}
	// The creation continues if the caller disconnects: otherwise it would be unknown whether the
	// host has the Machine.
	ctx, cancel := finish.Within(ctx, createTimeout)
	defer cancel()
	for try := 1; ; try++ {
		made, err := m.create(ctx, rec, in, secrets, hosts)
		switch {
		case err == nil:
			m.markDeployed(ctx, rec, item)
			return made, nil
		case !errors.Is(err, errLost):
			return nil, pinned(err, in.Config.Mounts)
		case try == createTries:
			return nil, &hangar.Error{Code: hangar.CodeUnavailable, Message: "The machine could not be reserved, try again", Err: err}
		}
	}
}

func checkConfig(c *hangar.MachineConfig) error {
	if err := c.Normalize(); err != nil {
		return err
	}
	return c.Validate()
}

// create reserves a Machine and offers it to hosts in turn, the best bid first. It returns errLost,
// having undone everything, if another caller has released the reservation.
func (m *Machines) create(
	ctx context.Context, app tenants.AppRecord, in hangar.MachineCreate, secrets hangar.SecretValues, hosts []hangar.Host,
) (*hangar.Machine, error) {
	id := hangar.NewMachineID()
	defer m.reservations.begin(id)()
	load, err := m.reservations.load(ctx, app.ID, hosts)
	if err != nil {
		return nil, err
	}
	ask := hangar.MachineAsk{App: app.ID, Guest: *in.Config.Guest, Image: in.Config.ImageName()}
	market := placement.New(hosts, load, string(id), ask, m.hosts.bid)
	var r *heldReservation
	for host := range market.Hosts(ctx) {
		switch {
		case r == nil:
			r, err = m.reservations.reserve(ctx, app, id, in.Name, host.ID, guestQuotas(in.Config.Guest))
		case r.Host != host.ID:
			err = m.reservations.rewrite(ctx, r, func(r *reservation) { r.Host = host.ID })
		}
		if err != nil {
			return nil, err
		}
		agent, err := m.hosts.agent(host.ID)
		if err != nil {
			market.Refuse(host.ID, err)
			continue
		}
		made, err := agent.CreateMachine(ctx, hangar.MachineSpec{
			ID: id, Name: r.Name, App: app.Name, AppID: app.ID, Org: app.Org, OrgID: app.OrgID, Network: app.NetworkID, Region: in.Region,
			Config: in.Config, AnyRegistry: tenants.Administrator(ctx), Secrets: secrets, SkipLaunch: in.SkipLaunch, Cordoned: in.SkipServiceRegistration, LeaseTTL: in.LeaseTTL,
		})
		if err != nil {
			if hangar.NoRoom(err) {
				market.Refuse(host.ID, err)
				continue
			}
			made, err = m.afterFailure(ctx, agent, r, err)
		}
		if err != nil {
			return nil, err
		}
		return made, m.confirm(ctx, agent, r)
	}
	if r != nil {
		m.reservations.release(ctx, r)
	}
	return nil, market.Err()
}

// afterFailure finds out whether a failed creation has made the Machine. A host that refused has
// not; one that failed is asked. If its answer was lost, it may still be at work: that it has no
// Machine yet proves nothing, and the reservation stays until Run settles it.
func (m *Machines) afterFailure(ctx context.Context, agent hangar.MachineAgent, r *heldReservation, failure error) (*hangar.Machine, error) {
	switch hangar.CodeOf(failure) {
	case hangar.CodeUnavailable, hangar.CodeTimeout, hangar.CodeInternal:
	default:
		m.reservations.release(ctx, r)
		return nil, failure
	}
	asking, cancel := finish.Within(ctx, listTimeout)
	defer cancel()
	made, err := agent.Machine(asking, r.ref())
	switch {
	case err == nil:
		return made, nil
	case hangar.ReasonOf(err) == hangar.ReasonMachineNotFound && !unreachable(failure):
		m.reservations.release(ctx, r)
	default:
		m.log.Warn("outcome of a creation is unknown", keyApp, r.app, keyMachine, r.ID, keyHost, r.Host, keyError, failure)
		marking, cancel := finish.Within(ctx, undoTimeout)
		defer cancel()
		if err := m.reservations.rewrite(marking, r, func(r *reservation) { r.Unanswered = true }); err != nil {
			m.log.Warn("reservation may be released too early", keyApp, r.app, keyMachine, r.ID, keyError, err)
		}
		m.reservations.unfinished.signal()
	}
	return nil, failure
}

// confirm marks the reservation of a Machine that its host has created as lasting. If another caller
// released the reservation meanwhile, it destroys the Machine and returns errLost.
func (m *Machines) confirm(ctx context.Context, agent hangar.MachineAgent, r *heldReservation) error {
	err := m.reservations.rewrite(ctx, r, func(r *reservation) { r.Confirmed = true })
	if errors.Is(err, errLost) {
		ctx, cancel := finish.Within(ctx, undoTimeout)
		defer cancel()
		if made, err := agent.Machine(ctx, r.ref()); err == nil && gone(made.State) {
			return nil // it was destroyed already, which released the reservation
		}
		if err := agent.DestroyMachine(platform(ctx), r.ref(), hangar.MachineDestroy{Force: true}); err != nil {
			m.log.Error("machine without a reservation was not destroyed", keyApp, r.app, keyMachine, r.ID, keyHost, r.Host, keyError, err)
		}
	}
	return err
}

// markDeployed records, with the first Machine of an App, that the App had one. A failure is only
// logged: an App with Machines counts as deployed without the mark.
func (m *Machines) markDeployed(ctx context.Context, rec tenants.AppRecord, item state.Item) {
	if rec.Deployed {
		return
	}
	rec.Deployed = true
	put, err := state.Write(item.Key, rec)
	if err == nil {
		_, err = m.store.Txn(ctx, state.Txn{If: []state.Compare{state.Unchanged(item)}, Then: []state.Op{put}})
	}
	if err != nil && !errors.Is(err, state.ErrConflict) {
		m.log.Warn("app was not marked as deployed", keyApp, rec.Name, keyError, err)
	}
}

// Machines implements hangar.MachineService. Machines of hosts that cannot be
// reached are shown as they were published, with the host status "unreachable".
func (m *Machines) Machines(ctx context.Context, app hangar.AppName, filter hangar.MachineFilter) ([]*hangar.Machine, error) {
	rec, _, err := m.tenants.AppIf(ctx, hangar.MachineRef{App: app}, func(p hangar.Principal, t hangar.Target) bool {
		return p.Reaches(hangar.ActionRead, t)
	})
	if err != nil {
		return nil, err
	}
	list, err := m.machinesOf(ctx, rec, filter)
	if err != nil {
		return nil, err
	}
	return visible(ctx, rec, list)
}

// machinesOf lists the reserved Machines of an App and, with filter.IncludeDestroyed, destroyed
// ones.
func (m *Machines) machinesOf(ctx context.Context, rec tenants.AppRecord, filter hangar.MachineFilter) ([]*hangar.Machine, error) {
	byHost, err := m.reservations.byHost(ctx, rec.ID)
	if err != nil {
		return nil, err
	}
	if filter.IncludeDestroyed {
		byHost = m.andOthers(byHost)
	}
	lists := make([][]*hangar.Machine, len(byHost))
	var group errgroup.Group
	group.SetLimit(askedAtOnce)
	for i, ids := range byHost {
		group.Go(func() (err error) {
			lists[i], err = m.listHost(ctx, rec.ID, ids.host, ids.machines, filter)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	list := append([]*hangar.Machine{}, slices.Concat(lists...)...)
	slices.SortFunc(list, byID)
	return list, nil
}

// hostMachines are the Machines that are reserved on a host.
type hostMachines struct {
	host     hangar.HostID
	machines map[hangar.MachineID]struct{}
}

func (s *reservations) byHost(ctx context.Context, app hangar.AppID) ([]hostMachines, error) {
	items, _, err := state.All(ctx, s.store, state.ReservationKey(hangar.MachineRef{AppID: app}), false)
	if err != nil {
		return nil, state.HangarError(err)
	}
	var hosts []hostMachines
	for _, item := range items {
		r, err := state.Decode[reservation](item)
		if err != nil {
			s.log.Error("reservation skipped", keyKey, item.Key, keyError, err)
			continue
		}
		i := slices.IndexFunc(hosts, func(h hostMachines) bool { return h.host == r.Host })
		if i < 0 {
			i = len(hosts)
			hosts = append(hosts, hostMachines{host: r.Host, machines: map[hangar.MachineID]struct{}{}})
		}
		hosts[i].machines[r.ID] = struct{}{}
	}
	return hosts, nil
}

// andOthers adds the hosts without a reservation, which may have destroyed Machines of the App.
func (m *Machines) andOthers(hosts []hostMachines) []hostMachines {
	for _, h := range m.hosts.agents.Known() {
		if !slices.ContainsFunc(hosts, func(known hostMachines) bool { return known.host == h.ID }) {
			hosts = append(hosts, hostMachines{host: h.ID})
		}
	}
	return hosts
}

func (m *Machines) listHost(
	ctx context.Context, app hangar.AppID, host hangar.HostID, ids map[hangar.MachineID]struct{}, filter hangar.MachineFilter,
) ([]*hangar.Machine, error) {
	agent, err := m.hosts.agent(host)
	if err == nil {
		bounded, cancel := context.WithTimeout(ctx, listTimeout)
		defer cancel()
		var list []*hangar.Machine
		if list, err = agent.Machines(bounded, app, filter); err == nil {
			return slices.DeleteFunc(list, func(m *hangar.Machine) bool { _, ok := ids[m.ID]; return !ok && !gone(m.State) }), nil
		}
	}
	if !unreachable(err) || ctx.Err() != nil {
		return nil, err
	}
	var list []*hangar.Machine
	for id := range ids {
		row, err := m.rows.row(ctx, host, id)
		switch {
		case errors.Is(err, state.ErrNotFound), hangar.ReasonOf(err) == hangar.ReasonRecordDamaged:
		case err != nil:
			return nil, state.HangarError(err)
		case row.Machine.AppID == app && filter.Matches(&row.Machine):
			row.Machine.HostStatus = hostUnreachable
			list = append(list, &row.Machine)
		}
	}
	return list, nil
}

// visible leaves out the Machines of an App that the caller may not read.
func visible(ctx context.Context, app tenants.AppRecord, list []*hangar.Machine) ([]*hangar.Machine, error) {
	p, err := tenants.Caller(ctx)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list, func(m *hangar.Machine) bool {
		return !p.May(hangar.ActionRead, app.Target(m.ID))
	}), nil
}
