package api

import (
	"net/http"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
	"github.com/hangar-platform/hangar/api/view"
)

// pairWish is the body of a write of one pair.
type pairWish struct {
	Value     *string  `json:"value" schema:"required"`
	UpdatedAt *instant `json:"updated_at"`
}

// metadataWish is the body of a write of several pairs. A value that is null or
// empty removes its key.
type metadataWish struct {
	Metadata  map[string]*string `json:"metadata" schema:"required"`
	Version   hangar.InstanceID  `json:"machine_version"`
	UpdatedAt *instant           `json:"updated_at"`
}

func (s *server) metadataRoutes() {
	const metadata, key = machine + "/metadata", machine + "/metadata/{key}"
	const conflict, state = http.StatusConflict, http.StatusPreconditionFailed
	const newer = "`updated_at` says when the writer decided; of two writes of a key, the newer one stays."
	const text = " `machine_version` must be the Machine's, when it is given. " + newer
	wish := metadataWish{Metadata: map[string]*string{"role": new("web"), "old": nil}}

	s.handle("GET "+metadata, s.getMetadata, operation{
		ID: "getMetadata", Self: true, Tag: "Metadata", Summary: "Get the metadata of a Machine",
		Answer: map[string]string{"role": "web"},
	})
	s.handle("PUT "+metadata, s.replaceMetadata, operation{
		ID: "replaceMetadata", Self: true, Tag: "Metadata", Summary: "Replace the metadata of a Machine",
		Text:    "Keys that are not named are removed." + text,
		Lenient: true, Body: wish, Status: http.StatusNoContent, Errors: []int{conflict, state},
	})
	s.handle("PATCH "+metadata, s.mergeMetadata, operation{
		ID: "mergeMetadata", Self: true, Tag: "Metadata", Summary: "Change some keys of the metadata",
		Text:    "A value that is null or empty removes its key; keys that are not named stay." + text,
		Lenient: true, Body: wish, Status: http.StatusNoContent, Errors: []int{conflict, state},
	})
	s.handle("GET "+key, s.getMetadataKey, operation{
		ID: "getMetadataKey", Self: true, Tag: "Metadata", Summary: "Get a value of the metadata",
		Answer: view.MetadataValue{Value: "web"},
	})
	s.handle("POST "+key, s.setMetadataKey, operation{
		ID: "setMetadataKey", Self: true, Tag: "Metadata", Summary: "Set a value of the metadata", Text: newer,
		Lenient: true, Body: pairWish{Value: new("web")}, Status: http.StatusNoContent, Errors: []int{conflict, state},
	})
	s.handle("DELETE "+key, s.removeMetadataKey, operation{
		ID: "removeMetadataKey", Self: true, Tag: "Metadata", Summary: "Remove a key of the metadata", Text: "May be repeated.",
		Status: http.StatusNoContent, Errors: []int{conflict, state},
	})
}

func (s *server) getMetadata(r *http.Request) (answer, error) {
	pairs, err := s.metadata(r)
	if err != nil {
		return answer{}, err
	}
	if pairs == nil {
		pairs = map[string]string{}
	}
	return ok(pairs)
}

func (s *server) getMetadataKey(r *http.Request) (answer, error) {
	pairs, err := s.metadata(r)
	if err != nil {
		return answer{}, err
	}
	key := r.PathValue("key")
	value, found := pairs[key]
	if !found {
		return answer{}, hangar.Errorf(hangar.CodeNotFound, "", "metadata key %q not found", input.Clip(key))
	}
	return ok(view.MetadataValue{Value: value})
}

func (s *server) metadata(r *http.Request) (map[string]string, error) {
	ref, err := machineRef(r)
	if err != nil {
		return nil, err
	}
	return s.Machines.MachineMetadata(r.Context(), ref)
}

func (s *server) setMetadataKey(r *http.Request) (answer, error) {
	ref, err := machineRef(r)
	if err != nil {
		return answer{}, err
	}
	in, err := input.Decode[pairWish](r)
	if err != nil {
		return answer{}, err
	}
	if in.Value == nil {
		return answer{}, input.Invalid("value", "is required: a text")
	}
	return noContent(s.Machines.SetMachineMetadata(r.Context(), ref, hangar.MetadataPair{
		Key: r.PathValue("key"), Value: *in.Value, UpdatedAt: in.UpdatedAt.time(),
	}))
}

func (s *server) removeMetadataKey(r *http.Request) (answer, error) {
	ref, err := machineRef(r)
	if err != nil {
		return answer{}, err
	}
	return noContent(s.Machines.RemoveMachineMetadata(r.Context(), ref, r.PathValue("key")))
}

func (s *server) replaceMetadata(r *http.Request) (answer, error) {
	ref, in, err := decodeMetadata(r)
	if err != nil {
		return answer{}, err
	}
	return noContent(s.Machines.ReplaceMachineMetadata(r.Context(), ref, in))
}

func (s *server) mergeMetadata(r *http.Request) (answer, error) {
	ref, in, err := decodeMetadata(r)
	if err != nil {
		return answer{}, err
	}
	return noContent(s.Machines.MergeMachineMetadata(r.Context(), ref, in))
}

func decodeMetadata(r *http.Request) (hangar.MachineRef, hangar.MetadataWrite, error) {
	ref, err := machineRef(r)
	if err != nil {
		return ref, hangar.MetadataWrite{}, err
	}
	in, err := input.Decode[metadataWish](r)
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

// noContent is the answer of what succeeds without a word.
func noContent(err error) (answer, error) { return answer{status: http.StatusNoContent}, err }

// instant is updated_at in the body of a request: RFC 3339, and maybe missing.
type instant struct{ time.Time }

// UnmarshalJSON names the property when the text is no time.
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
