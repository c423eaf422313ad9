package extensions

import (
	"context"
	"errors"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
)

// EndApp begins to destroy the extensions of an App that is being deleted. The rest of that needs
// no record of the App.
func (p *Provisioner) EndApp(ctx context.Context, org hangar.OrgID, app hangar.AppID) error {
	return p.end(ctx, org, func(r *record) bool { return r.App == app })
}

// EndOrg begins to destroy all extensions of an organization, also those that providers have made
// by themselves.
func (p *Provisioner) EndOrg(ctx context.Context, org hangar.OrgID) error {
	return p.end(ctx, org, func(*record) bool { return true })
}

func (p *Provisioner) end(ctx context.Context, org hangar.OrgID, which func(*record) bool) error {
	all, err := p.ofOrg(ctx, org)
	if err != nil {
		return err
	}
	for _, f := range all {
		for which(&f.record) && f.Phase != phaseDestroy {
			err := p.beginDestroy(ctx, f, "")
			if err == nil {
				break
			}
			if !errors.Is(err, errStale) {
				return err
			}
			if f, err = p.read(ctx, f.ref()); errors.Is(err, state.ErrNotFound) {
				break
			} else if err != nil {
				return state.HangarError(err)
			}
		}
	}
	return nil
}

// ForgetProvider removes all extensions of a provider that is being removed, with the secrets that
// they have set.
func (p *Provisioner) ForgetProvider(ctx context.Context, name hangar.ProviderName) error {
	items, _, err := state.All(ctx, p.Store, state.ExtensionsPrefix, false)
	if err != nil {
		return state.HangarError(err)
	}
	for _, item := range items {
		rec, err := state.Decode[record](item)
		if err != nil {
			p.Log.Error("extension skipped", keyKey, item.Key, keyError, err)
			continue
		}
		if rec.Provider != name {
			continue
		}
		// The next call removes an extension that has changed meanwhile.
		if err := p.drop(ctx, found{rec, item}); err != nil && !errors.Is(err, errStale) {
			return err
		}
	}
	return nil
}
