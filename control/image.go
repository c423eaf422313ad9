package control

import (
	"context"
	"slices"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/tenants"
)

// Images implements hangar.ImageService and hangar.ImageResolver over all hosts. Images that hosts hold belong to no
// organization, so only an administrator sees or removes them.
type Images struct {
	hosts   *hosts
	tenants *tenants.Directory
}

var (
	_ hangar.ImageService  = (*Images)(nil)
	_ hangar.ImageResolver = (*Images)(nil)
)

// ResolveImage implements hangar.ImageResolver: the first host that can be reached asks.
func (i *Images) ResolveImage(ctx context.Context, name hangar.AppName, ref string) (*hangar.ResolvedImage, error) {
	app, _, err := i.tenants.App(ctx, name, hangar.ActionWrite)
	if err != nil {
		return nil, err
	}
	who := hangar.ImagePuller{Org: app.OrgID, Slug: app.Org, AnyRegistry: tenants.Administrator(ctx)}
	err = hangar.Errorf(hangar.CodeUnavailable, "", "no host can be reached that could ask the registry")
	for _, host := range i.hosts.agents.Known() {
		agent, unreachable := i.hosts.agent(host.ID)
		if unreachable != nil {
			continue
		}
		found, failed := agent.Resolve(ctx, who, ref)
		if failed == nil || hangar.CodeOf(failed) != hangar.CodeUnavailable {
			return found, failed
		}
		err = hangar.Errorf(hangar.CodeUnavailable, hangar.ReasonOf(failed), "%w", failed)
	}
	return nil, err
}

func imagesAllowed(ctx context.Context) error {
	return tenants.NeedAdministrator(ctx, "see or remove the images of hosts")
}

// Images implements hangar.ImageService. An image that several hosts have is
// listed once.
func (i *Images) Images(ctx context.Context) ([]hangar.Image, error) {
	if err := imagesAllowed(ctx); err != nil {
		return nil, err
	}
	all, err := reached(i.hosts, askAll(i.hosts, i.hosts.agents.Known(), func(a hangar.Agent) ([]hangar.Image, error) { return a.Images(ctx) }))
	if err != nil {
		return nil, err
	}
	images := map[string]hangar.Image{}
	for _, image := range slices.Concat(all...) {
		if known, ok := images[image.Ref.String()]; ok {
			image.InUse = image.InUse || known.InUse
			if known.LastUsed.After(image.LastUsed) {
				image.LastUsed = known.LastUsed
			}
		}
		images[image.Ref.String()] = image
	}
	list := make([]hangar.Image, 0, len(images))
	for _, image := range images {
		list = append(list, image)
	}
	slices.SortFunc(list, func(a, b hangar.Image) int { return strings.Compare(a.Ref.String(), b.Ref.String()) })
	return list, nil
}

// RemoveImage implements hangar.ImageService, on every host that has the image
// and can be reached.
func (i *Images) RemoveImage(ctx context.Context, digest string) error {
	if err := imagesAllowed(ctx); err != nil {
		return err
	}
	missing := hangar.Errorf(hangar.CodeNotFound, hangar.ReasonImageNotFound, "image not found: %s", digest)
	removed, err := reached(i.hosts, askAll(i.hosts, i.hosts.agents.Known(), func(a hangar.Agent) (bool, error) {
		err := a.RemoveImage(ctx, digest)
		if hangar.CodeOf(err) == hangar.CodeNotFound {
			return false, nil
		}
		return true, err
	}))
	if err != nil || slices.Contains(removed, true) {
		return err
	}
	return missing
}
