package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
)

func newImageCommand(c *cli) *cobra.Command {
	cmd := group("image", "Push, list and remove images", "images")
	cmd.AddCommand(newImagePushCommand(c), newImageListCommand(c), newImageRemoveCommand(c))
	return cmd
}

// digestWidth is how much of a digest a table shows; enough to be unique.
const digestWidth = 12

func newImageListCommand(c *cli) *cobra.Command {
	f := listFlags{name: 2}
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the images that the server holds unpacked", Args: cobra.NoArgs,
		RunE: c.connected(func(ctx context.Context, p *client.Client, _ []string) error {
			images, err := p.Images(ctx)
			if err != nil {
				return err
			}
			now := time.Now()
			rows := [][]string{{"REPOSITORY", "TAG", "DIGEST", "SIZE", "IN USE", "USED"}}
			for _, x := range images {
				digest := x.Ref.Digest
				if !f.quiet {
					digest = short(strings.TrimPrefix(digest, "sha256:"), digestWidth)
				}
				rows = append(rows, []string{
					x.Ref.Registry + "/" + x.Ref.Repository, x.Ref.Tag, digest,
					bytes(x.SizeBytes), yesNo(x.InUse), ago(now, x.LastUsed),
				})
			}
			return c.printList(f, orEmpty(images), rows, "No images yet. A Machine pulls its own; push one: hangar image push DIR|BINARY|TAR NAME")
		}),
	}
	f.add(cmd, "digests")
	return cmd
}

func newImageRemoveCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:     "remove IMAGE...",
		Aliases: []string{"rm"},
		Short:   "Free the space of images that no Machine uses",
		Long:    "Free the space of images, named by digest, by its first digits or by reference as `hangar image list` shows them.",
		Args:    cobra.MinimumNArgs(1),
		RunE: c.connected(func(ctx context.Context, p *client.Client, args []string) error {
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
					return withHint(err, "destroy the Machines that use it first; see `hangar machine list`")
				}
				if err != nil {
					return err
				}
				fmt.Fprintf(c.stdout, "Image %s is removed (%s)\n", image.Ref, bytes(image.SizeBytes))
			}
			return nil
		}),
	}
}

// minDigestDigits keeps an abbreviation from meaning something by accident.
const minDigestDigits = 6

// findImage finds the one image that a person named.
func findImage(images []hangar.Image, name string) (hangar.Image, error) {
	var found []hangar.Image
	digits := strings.TrimPrefix(name, "sha256:")
	for _, x := range images {
		names := []string{
			x.Ref.String(), x.Ref.Digest,
			x.Ref.Registry + "/" + x.Ref.Repository + ":" + x.Ref.Tag, imageText(x.Ref, ""),
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
		return hangar.Image{}, withHint(hangar.Errorf(hangar.CodeNotFound, "", "there is no image %q", name), "see `hangar image list`")
	case 1:
		return found[0], nil
	}
	return hangar.Image{}, usageErrorf("%q means %d images: use the digest", name, len(found))
}
