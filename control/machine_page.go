package control

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
)

// minAsk is the minimum number of Machines that a host is asked for, so that a small page needs few
// requests even if the caller may see few of the host's Machines.
const minAsk = 100

// OrgMachines implements hangar.MachineService. Every host is asked for what fits on
// the page, and no more.
func (m *Machines) OrgMachines(ctx context.Context, org hangar.OrgSlug, q hangar.MachinePageQuery) (hangar.MachinePage, error) {
	p, of, err := m.tenants.OrgReader(ctx, org)
	if err != nil {
		return hangar.MachinePage{}, err
	}
	listing, err := q.Listing(m.now())
	if err != nil {
		return hangar.MachinePage{}, err
	}
	reserved, err := m.reservedAfter(ctx, p, of.ID, listing.After)
	if err != nil {
		return hangar.MachinePage{}, err
	}
	if q.IncludeDestroyed {
		for _, h := range m.hosts.agents.Known() { // destroyed Machines are known to hosts only
			reserved.onHost(h.ID)
		}
	}
	hosts := slices.Sorted(maps.Keys(reserved.byHost))
	pages := make([]hostPage, len(hosts))
	var group errgroup.Group
	group.SetLimit(askedAtOnce)
	for i, host := range hosts {
		group.Go(func() (err error) {
			pages[i], err = m.pageHost(ctx, of.ID, host, reserved, listing.After, q)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return hangar.MachinePage{}, err
	}
	var list []*hangar.Machine
	missed := []hangar.Region{}
	for _, host := range pages {
		list, missed = append(list, host.machines...), append(missed, host.missed...)
	}
	slices.SortFunc(list, byID)
	slices.Sort(missed)
	page := listing.Page(list, q.Limit)
	page.ErrorRegions = slices.Compact(missed)
	return page, nil
}

func byID(a, b *hangar.Machine) int { return strings.Compare(string(a.ID), string(b.ID)) }

// readable are the Machines of an organization that a caller may read.
type readable struct {
	p      hangar.Principal
	apps   map[hangar.AppID]tenants.AppRecord // those that have such Machines
	byHost map[hangar.HostID]map[hangar.MachineID]hangar.AppID
}

// onHost returns the Machines that are reserved on a host.
func (r *readable) onHost(id hangar.HostID) map[hangar.MachineID]hangar.AppID {
	if r.byHost[id] == nil {
		r.byHost[id] = map[hangar.MachineID]hangar.AppID{}
	}
	return r.byHost[id]
}

// has reports whether a Machine of a host is readable. A destroyed one has no reservation.
func (r *readable) has(host hangar.HostID, m *hangar.Machine) bool {
	if gone(m.State) {
		app, ok := r.apps[m.AppID]
		return ok && r.p.May(hangar.ActionRead, app.Target(m.ID))
	}
	app, ok := r.byHost[host][m.ID]
	return ok && app == m.AppID
}

// reservedAfter returns which Machines of an organization are reserved on which
// host: those after an id, those that p may read.
func (m *Machines) reservedAfter(ctx context.Context, p hangar.Principal, org hangar.OrgID, after hangar.MachineID) (*readable, error) {
	apps, err := m.tenants.AppsOf(ctx, org, func(item state.Item, err error) { m.log.Error("app skipped", keyKey, item.Key, keyError, err) })
	if err != nil {
		return nil, err
	}
	reached := map[hangar.AppID]tenants.AppRecord{}
	for _, rec := range apps {
		if p.Reaches(hangar.ActionRead, rec.Target("")) {
			reached[rec.ID] = rec
		}
	}
	found := &readable{p: p, apps: reached, byHost: map[hangar.HostID]map[hangar.MachineID]hangar.AppID{}}
	for _, rec := range reached {
		prefix := state.ReservationKey(rec.Ref(""))
		items, _, err := state.All(ctx, m.store, prefix, false)
		if err != nil {
			return nil, state.HangarError(err)
		}
		for _, item := range items {
			id := hangar.MachineID(strings.TrimPrefix(item.Key, prefix))
			if id <= after || !p.May(hangar.ActionRead, rec.Target(id)) {
				continue
			}
			r, err := state.Decode[reservation](item)
			if err != nil {
				m.log.Error("reservation skipped", keyKey, item.Key, keyError, err)
				continue
			}
			found.onHost(r.Host)[r.ID] = rec.ID
		}
	}
	return found, nil
}

// hostPage has the Machines of one host for a page: sorted, and one more than fits on the page if
// there is one. missed has the regions of Machines whose host could not be asked.
type hostPage struct {
	machines []*hangar.Machine
	missed   []hangar.Region
}

func (m *Machines) pageHost(
	ctx context.Context, org hangar.OrgID, host hangar.HostID, reserved *readable, after hangar.MachineID, q hangar.MachinePageQuery,
) (hostPage, error) {
	list, err := m.askPage(ctx, org, host, reserved, after, q)
	if err == nil || !unreachable(err) || ctx.Err() != nil {
		return hostPage{machines: list}, err
	}
	return m.publishedPage(ctx, host, reserved.byHost[host], q)
}

// askPage asks a host. The host may have Machines without a reservation, and is asked again for as
// many others.
func (m *Machines) askPage(
	ctx context.Context, org hangar.OrgID, host hangar.HostID, reserved *readable, after hangar.MachineID, q hangar.MachinePageQuery,
) ([]*hangar.Machine, error) {
	agent, err := m.hosts.agent(host)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	var list []*hangar.Machine
	for ask := max(q.Limit+1, minAsk); ; {
		got, err := agent.OrgMachines(ctx, org, after, ask, q.MachineFilter)
		if err != nil {
			return nil, err
		}
		for _, m := range got {
			if reserved.has(host, m) {
				list = append(list, m)
			}
		}
		if len(got) < ask || len(list) > q.Limit {
			return list, nil
		}
		after = got[len(got)-1].ID
	}
}

// publishedPage reads the rows of a host that cannot be reached.
func (m *Machines) publishedPage(
	ctx context.Context, host hangar.HostID, reserved map[hangar.MachineID]hangar.AppID, q hangar.MachinePageQuery,
) (hostPage, error) {
	var page hostPage
	for _, id := range slices.Sorted(maps.Keys(reserved)) {
		row, err := m.rows.row(ctx, host, id)
		found := &row.Machine
		switch {
		case errors.Is(err, state.ErrNotFound), hangar.ReasonOf(err) == hangar.ReasonRecordDamaged:
			continue
		case err != nil:
			return page, state.HangarError(err)
		case found.AppID != reserved[id]:
			continue
		}
		if !slices.Contains(page.missed, found.Region) {
			page.missed = append(page.missed, found.Region)
		}
		if q.Matches(found) {
			found.HostStatus = hostUnreachable
			page.machines = append(page.machines, found)
		}
		if len(page.machines) > q.Limit {
			break
		}
	}
	return page, nil
}
