package api

import (
	"net/http"
	"regexp"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
	"github.com/hangar-platform/hangar/api/view"
)

func (s *server) imageRoutes() {
	s.handle("GET /v1/images", s.listImages, operation{
		ID: "listImages", Tag: "Images", Summary: "List the images that this server holds", Text: "Sorted by reference.",
		Answer: []hangar.Image{{Ref: exampleImage, SizeBytes: 52 << 20, InUse: true, LastUsed: exampleTime}},
	})
	s.handle("DELETE /v1/images/{digest}", s.removeImage, operation{
		ID: "removeImage", Tag: "Images", Summary: "Free an image", Text: "An image that a Machine uses is refused.",
		Status: http.StatusNoContent, Errors: []int{http.StatusPreconditionFailed},
	})
}

var digestPattern = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

func (s *server) listImages(r *http.Request) (answer, error) {
	images, err := s.Images.Images(r.Context())
	if err != nil {
		return answer{}, err
	}
	views := make([]hangar.Image, 0, len(images))
	for _, i := range images {
		i.Ref = view.OfImageRef(i.Ref)
		views = append(views, i)
	}
	return ok(views)
}

func (s *server) removeImage(r *http.Request) (answer, error) {
	digest := r.PathValue("digest")
	if !digestPattern.MatchString(digest) {
		return answer{}, input.Invalid("digest", "%q is not sha256: and 64 hexadecimal digits", input.Clip(digest))
	}
	if err := s.Images.RemoveImage(r.Context(), digest); err != nil {
		return answer{}, err
	}
	return answer{status: http.StatusNoContent}, nil
}
