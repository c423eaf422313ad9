package api

import (
	"net/http"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
	"github.com/hangar-platform/hangar/api/router"
	"github.com/hangar-platform/hangar/api/view"
)

// pairRequest is the body of a write of one pair.
type pairRequest struct {
	Value     *string  `json:"value" schema:"required"`
	UpdatedAt *instant `json:"updated_at"`
}

// metadataRequest is the body of a write of several pairs. A value that is null or
// empty removes its key.
type metadataRequest struct {
	Metadata  map[string]*string `json:"metadata" schema:"required"`
	Version   hangar.InstanceID  `json:"machine_version"`
	UpdatedAt *instant           `json:"updated_at"`
}

func (s *server) metadataRoutes() {
	const metadata, key = machine + "/metadata", machine + "/metadata/{key}"
	const conflict, state = http.StatusConflict, http.StatusPreconditionFailed
	const newer = "`updated_at` says when the writer decided; of two writes of a key, the newer one stays."
	const text = " `machine_version` must be the Machine's, when it is given. " + newer
	body := metadataRequest{Metadata: map[string]*string{"role": new("web"), "old": nil}}

	s.Handle("GET "+metadata, s.getMetadata, router.Operation{
		ID: "getMetadata", Self: true, Tag: "Metadata", Summary: "Get metadata",
		Answer: map[string]string{"role": "web"},
	})
	s.Handle("PUT "+metadata, s.replaceMetadata, router.Operation{
		ID: "replaceMetadata", Self: true, Tag: "Metadata", Summary: "Replace metadata",
		Text:    "Keys that are not named are removed." + text,
		Lenient: true, Body: body, Status: http.StatusNoContent, Errors: []int{conflict, state},
	})
	s.Handle("PATCH "+metadata, s.mergeMetadata, router.Operation{
		ID: "mergeMetadata", Self: true, Tag: "Metadata", Summary: "Update metadata",
		Text:    "A value that is null or empty removes its key; keys that are not named stay." + text,
		Lenient: true, Body: body, Status: http.StatusNoContent, Errors: []int{conflict, state},
	})
	s.Handle("GET "+key, s.getMetadataKey, router.Operation{
		ID: "getMetadataKey", Self: true, Tag: "Metadata", Summary: "Get a metadata key",
		Answer: view.MetadataValue{Value: "web"},
	})
	s.Handle("POST "+key, s.setMetadataKey, router.Operation{
		ID: "setMetadataKey", Self: true, Tag: "Metadata", Summary: "Set a metadata key", Text: newer,
		Lenient: true, Body: pairRequest{Value: new("web")}, Status: http.StatusNoContent, Errors: []int{conflict, state},
	})
	s.Handle("DELETE "+key, s.removeMetadataKey, router.Operation{
		ID: "removeMetadataKey", Self: true, Tag: "Metadata", Summary: "Delete a metadata key", Text: "May be repeated.",
		Status: http.StatusNoContent, Errors: []int{conflict, state},
	})
}

func (s *server) getMetadata(r *http.Request) (router.Answer, error) {
	pairs, err := s.metadata(r)
	if err != nil {
		return router.Answer{}, err
	}
	if pairs == nil {
		pairs = map[string]string{}
	}
	return router.OK(pairs)
}

func (s *server) getMetadataKey(r *http.Request) (router.Answer, error) {
	pairs, err := s.metadata(r)
	if err != nil {
		return router.Answer{}, err
	}
	key := r.PathValue("key")
	value, found := pairs[key]
	if !found {
		return router.Answer{}, hangar.Errorf(hangar.CodeNotFound, "", "metadata key %q not found", input.Clip(key))
	}
	return router.OK(view.MetadataValue{Value: value})
}

func (s *server) metadata(r *http.Request) (map[string]string, error) {
	ref, err := machineRef(r)
	if err != nil {
		return nil, err
	}
	return s.Machines.MachineMetadata(r.Context(), ref)
}

func (s *server) setMetadataKey(r *http.Request) (router.Answer, error) {
	ref, err := machineRef(r)
	if err != nil {
		return router.Answer{}, err
	}
	in, err := input.Decode[pairRequest](r)
	if err != nil {
		return router.Answer{}, err
	}
	if in.Value == nil {
		return router.Answer{}, input.Invalid("value", "is required: a text")
	}
	return router.NoContent(s.Machines.SetMachineMetadata(r.Context(), ref, hangar.MetadataPair{
		Key: r.PathValue("key"), Value: *in.Value, UpdatedAt: in.UpdatedAt.time(),
	}))
}

func (s *server) removeMetadataKey(r *http.Request) (router.Answer, error) {
	ref, err := machineRef(r)
	if err != nil {
		return router.Answer{}, err
	}
	return router.NoContent(s.Machines.RemoveMachineMetadata(r.Context(), ref, r.PathValue("key")))
}

func (s *server) replaceMetadata(r *http.Request) (router.Answer, error) {
	ref, in, err := decodeMetadata(r)
	if err != nil {
		return router.Answer{}, err
	}
	return router.NoContent(s.Machines.ReplaceMachineMetadata(r.Context(), ref, in))
}

func (s *server) mergeMetadata(r *http.Request) (router.Answer, error) {
	ref, in, err := decodeMetadata(r)
	if err != nil {
		return router.Answer{}, err
	}
	return router.NoContent(s.Machines.MergeMachineMetadata(r.Context(), ref, in))
}

func decodeMetadata(r *http.Request) (hangar.MachineRef, hangar.MetadataWrite, error) {
	ref, err := machineRef(r)
	if err != nil {
		return ref, hangar.MetadataWrite{}, err
	}
	in, err := input.Decode[metadataRequest](r)
	if err == nil && in.Metadata == nil {
		err = input.Invalid("metadata", "is required: an object whose values are texts, or null to remove a key")
	}
	if err != nil {
		return ref, hangar.MetadataWrite{}, err
	}
	write := hangar.MetadataWrite{Pairs: make(map[string]string, len(in.Metadata)), Version: in.Version, UpdatedAt: in.UpdatedAt.time()}
	for k, v := range in.Metadata {
		if write.Pairs[k] = ""; v != nil {
			write.Pairs[k] = *v
		}
	}
	return ref, write, nil
}

// instant is updated_at in the body of a request, in RFC 3339. It may be empty.
type instant struct{ time.Time }

// UnmarshalJSON answers an error that names the property.
func (i *instant) UnmarshalJSON(b []byte) error {
	var t time.Time
	if string(b) == `""` {
		return nil
	}
	if err := t.UnmarshalJSON(b); err != nil {
		return input.Invalid("updated_at", "%s is not a time such as \"2006-01-02T15:04:05Z\"", input.Clip(string(b)))
	}
	i.Time = t
	return nil
}

func (i *instant) time() time.Time {
	if i == nil {
		return time.Time{}
	}
	return i.Time
}
