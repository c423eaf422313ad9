// Package image has the commands about images and the registries that they come from.
package image

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/internal/ociimage"
)

// NewCommand makes `hangar image`.
func NewCommand(c *cli.Invocation) *cobra.Command {
	cmd := cli.Group("image", "Push, list and remove images", "images")
	cmd.AddCommand(newPushCommand(c), newListCommand(c), newRemoveCommand(c))
	return cmd
}

// digestWidth is how many digits of a digest a table shows.
const digestWidth = 12

func newListCommand(c *cli.Invocation) *cobra.Command {
	f := cli.ListFlags{Name: 2}
	var pushed bool
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the unpacked images on the server, or with --pushed those in its registry", Args: cobra.NoArgs,
		RunE: c.Connected(func(ctx context.Context, p *client.Client, _ []string) error {
			if pushed {
				return listPushed(ctx, c, f)
			}
			images, err := p.Images(ctx)
			if err != nil {
				return err
			}
			now := time.Now()
			rows := [][]string{{"REPOSITORY", "TAG", "DIGEST", "SIZE", "IN USE", "USED"}}
			for _, x := range images {
				digest := x.Ref.Digest
				if !f.Quiet {
					digest = cli.Short(strings.TrimPrefix(digest, "sha256:"), digestWidth)
				}
				rows = append(rows, []string{
					x.Ref.Registry + "/" + x.Ref.Repository, x.Ref.Tag, digest,
					cli.Bytes(x.SizeBytes), cli.YesNo(x.InUse), cli.Ago(now, x.LastUsed),
				})
			}
			return c.PrintList(f, cli.OrEmpty(images), rows, "No images yet. Machines pull their images; push one: hangar image push DIR|BINARY|TAR NAME")
		}),
	}
	f.Add(cmd, "digests")
	cmd.Flags().BoolVar(&pushed, "pushed", false, "list the tags in the platform's own registry that you may read")
	return cmd
}

// listPushed prints the tags of the platform's own registry.
func listPushed(ctx context.Context, c *cli.Invocation, f cli.ListFlags) error {
	at, err := c.Endpoint()
	if err != nil {
		return err
	}
	host, err := cli.RegistryHost(at.URL)
	if err != nil {
		return err
	}
	tags, err := ociimage.List(ctx, host, at.Registry())
	if err != nil {
		return err
	}
	rows := [][]string{{"REPOSITORY", "TAG", "DIGEST"}}
	for _, x := range tags {
		digest := x.Digest
		if !f.Quiet {
			digest = cli.Short(strings.TrimPrefix(digest, "sha256:"), digestWidth)
		}
		rows = append(rows, []string{x.Repository, x.Tag, digest})
	}
	return c.PrintList(f, cli.OrEmpty(tags), rows, "No images were pushed yet: hangar image push DIR|BINARY|TAR NAME")
}

// removePushed removes tags from the platform's own registry.
func removePushed(ctx context.Context, c *cli.Invocation, org string, names []string) error {
	at, err := c.Endpoint()
	if err != nil {
		return err
	}
	org = string(c.OrgOr(org))
	for _, name := range names {
		ref, err := cli.RegistryReference(at.URL, org, strings.TrimPrefix(name, org+"/"))
		if err != nil {
			return err
		}
		err = ociimage.Delete(ctx, ref, at.Registry())
		if hangar.CodeOf(err) == hangar.CodeNotFound {
			return cli.WithHint(hangar.Errorf(hangar.CodeNotFound, "", "there is no image %q in the registry", name), "see `hangar image list --pushed`")
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(c.Stdout, "%s is removed from the registry. Machines that use it keep their copy.\n", name)
	}
	return nil
}

func newRemoveCommand(c *cli.Invocation) *cobra.Command {
	var (
		pushed bool
		org    string
	)
	cmd := &cobra.Command{
		Use:     "remove IMAGE...",
		Aliases: []string{"rm"},
		Short:   "Remove unpacked images that no Machine uses, or pushed tags",
		Long: "Remove unpacked images, named by digest, by its first digits or by reference as `hangar image list` shows them.\n" +
			"With --pushed, remove tags from the platform's own registry, NAME[:TAG] as for `hangar image push`. Their space is freed later.",
		Example: "  hangar image remove 3f1c0a9b2d4e\n  hangar image remove --pushed api:v1 api:v2",
		Args:    cobra.MinimumNArgs(1),
		RunE: c.Connected(func(ctx context.Context, p *client.Client, args []string) error {
			if pushed {
				return removePushed(ctx, c, org, args)
			}
			images, err := p.Images(ctx)
			if err != nil {
				return err
			}
			for _, name := range args {
				image, err := findImage(images, name)
				if err != nil {
					return err
				}
				err = p.RemoveImage(ctx, image.Ref.Digest)
				if hangar.CodeOf(err) == hangar.CodeFailedPrecondition {
					return cli.WithHint(err, "destroy the Machines that use it first; see `hangar machine list`")
				}
				if err != nil {
					return err
				}
				fmt.Fprintf(c.Stdout, "Image %s is removed (%s)\n", image.Ref, cli.Bytes(image.SizeBytes))
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(&pushed, "pushed", false, "remove tags from the platform's own registry")
	cmd.Flags().StringVar(&org, "org", "", "with --pushed, organization that owns the images (default that of the context, or personal)")
	return cmd
}

// minDigestDigits is the shortest abbreviation of a digest, so that other names do not match by accident.
const minDigestDigits = 6

// findImage returns the only image with a reference, a digest or its first digits.
func findImage(images []hangar.Image, name string) (hangar.Image, error) {
	var found []hangar.Image
	digits := strings.TrimPrefix(name, "sha256:")
	for _, x := range images {
		names := []string{
			x.Ref.String(), x.Ref.Digest,
			x.Ref.Registry + "/" + x.Ref.Repository + ":" + x.Ref.Tag, cli.ImageText(x.Ref, ""),
		}
		byDigits := len(digits) >= minDigestDigits && strings.HasPrefix(x.Ref.Digest, "sha256:"+digits)
		for _, n := range names {
			byDigits = byDigits || n == name
		}
		if byDigits {
			found = append(found, x)
		}
	}
	switch len(found) {
	case 0:
		return hangar.Image{}, cli.WithHint(hangar.Errorf(hangar.CodeNotFound, "", "there is no image %q", name), "see `hangar image list`")
	case 1:
		return found[0], nil
	}
	return hangar.Image{}, cli.UsageErrorf("%q means %d images: use the digest", name, len(found))
}
