package deploy

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/cmd/hangar/deploy/build"
	"github.com/hangar-platform/hangar/cmd/hangar/deploy/rollout"
	"github.com/hangar-platform/hangar/internal/ociimage"
	"github.com/hangar-platform/hangar/internal/random"
)

// tagOfBuild begins the tags of images that deploys build. Existing clients do not look for newer images with such
// tags.
const tagOfBuild = "deployment-"

// imageOf returns the named image, or builds and pushes the image of the Dockerfile. It returns "" if there is neither.
func (c commands) imageOf(ctx context.Context, p *client.Client, f *flags, o *rollout.Options, dir string) (string, error) {
	b := o.File.Build
	if f.image != "" || b != nil && b.Image != "" || b.Packs() {
		return f.image, nil
	}
	spec := build.Spec{Dir: dir, Args: map[string]string{}}
	if b != nil {
		spec.Dockerfile, spec.Target = b.Dockerfile, b.Target
		for name, value := range b.Args {
			spec.Args[name] = string(value)
		}
		if spec.Dockerfile != "" && !filepath.IsAbs(spec.Dockerfile) {
			beside := dir
			if f.file != "" {
				beside = filepath.Dir(f.file)
			}
			spec.Dockerfile = filepath.Join(beside, spec.Dockerfile)
		}
	}
	if _, err := os.Stat(spec.File()); spec.Dockerfile == "" && errors.Is(err, os.ErrNotExist) {
		return "", nil
	} else if err != nil {
		return "", err
	}
	app, err := p.App(ctx, o.App)
	if err != nil {
		return "", about(o.App, err)
	}
	at, err := c.Endpoint()
	if err != nil {
		return "", err
	}
	spec.Tag = string(o.App) + ":" + tagOfBuild + random.ID()
	to, err := cli.RegistryReference(at.URL, string(app.Org.Slug), spec.Tag)
	if err != nil {
		return "", err
	}
	shown, err := cli.ImageReference(ctx, at, to)
	if err != nil || f.dryRun { // a plan needs no build
		return shown, err
	}
	image, err := c.build(ctx, p, f, app.Org.Slug, spec)
	if err != nil {
		return "", err
	}
	defer image.Close()
	bar := c.Progress()
	digest, err := ociimage.Push(ctx, image, to, at.Registry(), func(done, total int64) { bar.Update("pushing "+spec.Tag, done, total) })
	bar.Close()
	if err != nil {
		return "", err
	}
	return shown + "@" + digest.String(), nil
}

// build builds an image, on this computer if it has a program for that, and otherwise in a Machine.
func (c commands) build(ctx context.Context, p *client.Client, f *flags, org hangar.OrgSlug, spec build.Spec) (*ociimage.Image, error) {
	if f.localOnly || !f.remoteOnly && build.Here() {
		return build.Image(ctx, spec, c.Stderr)
	}
	image, err := build.Remote(ctx, p, org, build.Builder{Image: f.builder}, spec, c.Stderr)
	if hangar.CodeOf(err) == hangar.CodeForbidden {
		return nil, cli.WithHint(err, "a Machine that builds images belongs to the organization: use a token of the organization, or build here with docker, podman or buildah")
	}
	return image, err
}

// about adds advice about an App that does not exist.
func about(app hangar.AppName, err error) error {
	if hangar.ReasonOf(err) == hangar.ReasonAppNotFound {
		return cli.WithHint(err, "create it first: hangar apps create "+string(app))
	}
	return err
}
