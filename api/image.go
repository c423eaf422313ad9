package api

import (
	"net/http"
	"regexp"
)

var digestPattern = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

func (s *server) listImages(r *http.Request) (answer, error) {
	images, err := s.Images.Images(r.Context())
	if err != nil {
		return answer{}, err
	}
	return ok(orEmpty(images))
}

func (s *server) removeImage(r *http.Request) (answer, error) {
	digest := r.PathValue("digest")
	if !digestPattern.MatchString(digest) {
		return answer{}, invalid("digest", "%q is not sha256: and 64 hexadecimal digits", clip(digest))
	}
	if err := s.Images.RemoveImage(r.Context(), digest); err != nil {
		return answer{}, err
	}
	return answer{status: http.StatusNoContent}, nil
}
