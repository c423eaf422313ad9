package control

import (
	"context"
	"errors"
	"maps"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
)

// OrgQuotas implements hangar.OrgService.
func (o *Orgs) OrgQuotas(ctx context.Context, org hangar.OrgSlug) ([]hangar.QuotaStatus, error) {
	p, err := tenants.Caller(ctx)
	if err != nil {
		return nil, err
	}
	if _, _, err := o.tenants.Org(ctx, p, org, hangar.ActionRead); err != nil {
		return nil, err
	}
	rec, _, err := o.tenants.AnyOrg(ctx, org)
	if err != nil {
		return nil, err
	}
	return o.quotas(ctx, &rec)
}

func (o *Orgs) quotas(ctx context.Context, org *tenants.OrgRecord) ([]hangar.QuotaStatus, error) {
	used, _, err := o.ledger.Usage(ctx, org.ID)
	if err != nil {
		return nil, state.HangarError(err)
	}
	limits, err := o.ledger.Limits(org)
	if err != nil {
		return nil, err
	}
	used = used.With(hangar.Quotas{hangar.QuotaImageMB: o.imageMB(ctx, org.ID)})
	destroyed := hangar.Quotas{}
	rows, err := o.rows.destroyedVolumes(ctx, org.ID)
	if err != nil {
		return nil, err
	}
	for _, row := range rows {
		destroyed[hangar.QuotaVolumes]++
		destroyed[hangar.QuotaVolumeGB] += int64(row.Volume.SizeGB)
	}
	list := []hangar.QuotaStatus{}
	for _, key := range hangar.QuotaKeys() {
		limit, limited := limits[key]
		if !limited {
			limit = hangar.QuotaUnlimited
		}
		_, own := org.Quotas[key]
		list = append(list, hangar.QuotaStatus{Key: key, Used: used[key], Limit: limit, Destroyed: destroyed[key], Set: own})
	}
	return list, nil
}

// imageMB returns the usage of an organization's images on the host where it is largest, in MiB:
// the quota applies to each host. A host that does not answer is left out.
func (o *Orgs) imageMB(ctx context.Context, org hangar.OrgID) int64 {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	var most int64
	for _, a := range askAll(o.hosts, o.hosts.agents.Known(), func(a hangar.Agent) (hangar.ImageUsage, error) { return a.ImageUsage(ctx, org) }) {
		if a.err != nil {
			o.log.WarnContext(ctx, "images of an organization are not measured", keyHost, a.host, keyError, a.err)
			continue
		}
		most = max(most, a.value.Stored+a.value.Uploads+a.value.Unpacked)
	}
	return most >> 20
}

// SetOrgQuotas implements hangar.OrgService.
func (o *Orgs) SetOrgQuotas(
	ctx context.Context, org hangar.OrgSlug, limits hangar.Quotas, reset []hangar.QuotaKey,
) ([]hangar.QuotaStatus, error) {
	p, err := tenants.Caller(ctx)
	if err != nil {
		return nil, err
	}
	if _, _, err := o.tenants.Org(ctx, p, org, hangar.ActionWrite); err != nil {
		return nil, err
	}
	if err := tenants.NeedAdministrator(ctx, "change the quotas of organizations"); err != nil {
		return nil, err
	}
	if err := limits.Validate(); err != nil {
		return nil, err
	}
	for _, key := range reset {
		if err := (hangar.Quotas{key: 0}).Validate(); err != nil {
			return nil, err
		}
	}
	for {
		rec, item, err := o.tenants.AnyOrg(ctx, org)
		if err != nil {
			return nil, err
		}
		rec.Quotas = rec.Quotas.With(limits)
		for _, key := range reset {
			delete(rec.Quotas, key)
		}
		put, err := state.Write(item.Key, rec)
		if err != nil {
			return nil, err
		}
		_, err = o.store.Txn(ctx, state.Txn{If: []state.Compare{state.Unchanged(item)}, Then: []state.Op{put}})
		if err == nil {
			return o.quotas(ctx, &rec)
		}
		if !errors.Is(err, state.ErrConflict) {
			return nil, state.HangarError(err)
		}
	}
}

// guestQuotas returns what a Machine of a size counts against quotas.
func guestQuotas(g *hangar.Guest) hangar.Quotas {
	q := hangar.Quotas{hangar.QuotaMachines: 1}
	if g != nil {
		q[hangar.QuotaMemory], q[hangar.QuotaCPUs] = int64(g.Memory()), int64(g.CPUs)
	}
	return q
}

// larger returns the larger of each amount.
func larger(a, b hangar.Quotas) hangar.Quotas {
	most := maps.Clone(a)
	for key, n := range b {
		most[key] = max(most[key], n)
	}
	return most
}
