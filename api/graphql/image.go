package graphql

import (
	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/graphql/execute"
	"github.com/hangar-platform/hangar/api/input"
)

// resolveImage finds out what a reference stands for. A reference that no registry knows is null,
// which is what clients understand.
func resolveImage(q *query, a *hangar.App, in args) (any, error) {
	ref := in.Text("ref")
	if len(ref) > input.MaxText {
		return nil, input.Invalid("ref", "has %d bytes, more than %d", len(ref), input.MaxText)
	}
	found, err := called(q, func() (*hangar.ResolvedImage, error) { return q.Services.Images.ResolveImage(q, a.Name, ref) })
	if hangar.ReasonOf(err) == hangar.ReasonImageNotFound {
		return nil, nil //nolint:nilnil // null
	}
	return found, err
}

// imageDetails is the image of the App's first Machine.
func imageDetails(q *query, a *hangar.App, _ args) (any, error) {
	list, err := machinesOf(q, a)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	return list[0].ImageRef, nil
}

func defineImage(s *schema) {
	type image = *hangar.ResolvedImage
	execute.Define(s, "Image", fields[image]{
		"id":                 field(func(i image) string { return i.Ref.Digest }),
		"ref":                field(func(i image) string { return i.Ref.String() }),
		"registry":           field(func(i image) string { return i.Ref.Registry }),
		"repository":         field(func(i image) string { return i.Ref.Repository }),
		"tag":                field(func(i image) *string { return orNull(i.Ref.Tag) }),
		"digest":             field(func(i image) string { return i.Ref.Digest }),
		"compressedSize":     field(func(i image) int64 { return min(i.Size, 1<<31-1) }),
		"compressedSizeFull": field(func(i image) int64 { return i.Size }),
		"label":              field(func(i image) map[string]string { return i.Ref.Labels }),
	})
	execute.Define(s, "ImageVersion", fields[hangar.ImageRef]{
		"registry":   field(func(r hangar.ImageRef) string { return r.Registry }),
		"repository": field(func(r hangar.ImageRef) string { return r.Repository }),
		"tag":        field(func(r hangar.ImageRef) string { return r.Tag }),
		"version":    null[hangar.ImageRef],
		"digest":     field(func(r hangar.ImageRef) string { return r.Digest }),
	})
}

// orNull returns a text, or nil if it is empty.
func orNull[T ~string](text T) *T {
	if text == "" {
		return nil
	}
	return &text
}
