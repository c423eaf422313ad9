package api

import (
	"net/http"
	"regexp"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
	"github.com/hangar-platform/hangar/api/router"
	"github.com/hangar-platform/hangar/api/view"
)

func (s *server) imageRoutes() {
	s.Handle("GET /v1/images", s.listImages, router.Operation{
		ID: "listImages", Tag: "Images", Summary: "List images", Text: "Sorted by reference.",
		Answer: []hangar.Image{{Ref: exampleImage, SizeBytes: 52 << 20, InUse: true, LastUsed: exampleTime}},
	})
	s.Handle("DELETE /v1/images/{digest}", s.removeImage, router.Operation{
		ID: "removeImage", Tag: "Images", Summary: "Remove an image", Text: "An image that a Machine uses is refused.",
		Status: http.StatusNoContent, Errors: []int{http.StatusPreconditionFailed},
	})
}

var digestPattern = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

func (s *server) listImages(r *http.Request) (router.Answer, error) {
	images, err := s.Images.Images(r.Context())
	if err != nil {
		return router.Answer{}, err
	}
	views := make([]hangar.Image, 0, len(images))
	for _, i := range images {
		i.Ref = view.OfImageRef(i.Ref)
		views = append(views, i)
	}
	return router.OK(views)
}

func (s *server) removeImage(r *http.Request) (router.Answer, error) {
	digest := r.PathValue("digest")
	if !digestPattern.MatchString(digest) {
		return router.Answer{}, input.Invalid("digest", "%q is not sha256: and 64 hexadecimal digits", input.Clip(digest))
	}
	return router.NoContent(s.Images.RemoveImage(r.Context(), digest))
}
