package host

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/image"
)

// Images implements hangar.ImageService.
func (a *Agent) Images(context.Context) ([]hangar.Image, error) {
	list, err := a.o.Images.List()
	if err != nil {
		return nil, err
	}
	used := a.ImagesInUse()
	for i := range list {
		list[i].InUse = used[list[i].Ref.Digest]
	}
	slices.SortFunc(list, func(x, y hangar.Image) int { return strings.Compare(x.Ref.String(), y.Ref.String()) })
	return list, nil
}

// Resolve implements hangar.ImageAgent.
func (a *Agent) Resolve(ctx context.Context, who hangar.ImagePuller, ref string) (*hangar.ResolvedImage, error) {
	return a.o.Images.Inspect(ctx, image.Puller(who), ref)
}

// ImagesInUse returns the digests that Machines need to start again.
func (a *Agent) ImagesInUse() map[string]bool { return a.machines.ImagesInUse() }

// ImageUsage implements hangar.ImageAgent.
func (a *Agent) ImageUsage(ctx context.Context, org hangar.OrgID) (hangar.ImageUsage, error) {
	return a.o.Images.Usage(ctx, org)
}

// RemoveOrg implements hangar.ImageAgent.
func (a *Agent) RemoveOrg(ctx context.Context, org hangar.OrgID) error {
	return a.o.Images.RemoveOrg(ctx, org)
}

// RemoveImage implements hangar.ImageService.
func (a *Agent) RemoveImage(ctx context.Context, digest string) error {
	if a.ImagesInUse()[digest] {
		return hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonWrongState, "image %s is used by a machine", digest)
	}
	err := a.o.Images.Remove(ctx, digest)
	if errors.Is(err, image.ErrNotFound) {
		return hangar.Errorf(hangar.CodeNotFound, hangar.ReasonImageNotFound, "image not found: %s", digest)
	}
	return err
}
