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
)

// NewCommand makes `hangar image`.
func NewCommand(c *cli.Invocation) *cobra.Command {
	cmd := cli.Group("image", "Push, list and remove images", "images")
	cmd.AddCommand(newPushCommand(c), newListCommand(c), newRemoveCommand(c))
	return cmd
}

// digestWidth is how much of a digest a table shows; enough to be unique.
const digestWidth = 12

func newListCommand(c *cli.Invocation) *cobra.Command {
	f := cli.ListFlags{Name: 2}
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the images that the server holds unpacked", Args: cobra.NoArgs,
		RunE: c.Connected(func(ctx context.Context, p *client.Client, _ []string) error {
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
			return c.PrintList(f, cli.OrEmpty(images), rows, "No images yet. A Machine pulls its own; push one: hangar image push DIR|BINARY|TAR NAME")
		}),
	}
	f.Add(cmd, "digests")
	return cmd
}

func newRemoveCommand(c *cli.Invocation) *cobra.Command {
	return &cobra.Command{
		Use:     "remove IMAGE...",
		Aliases: []string{"rm"},
		Short:   "Free the space of images that no Machine uses",
		Long:    "Free the space of images, named by digest, by its first digits or by reference as `hangar image list` shows them.",
		Args:    cobra.MinimumNArgs(1),
		RunE: c.Connected(func(ctx context.Context, p *client.Client, args []string) error {
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
