package client

import (
	"context"
	"net/http"
	"time"

	"github.com/hangar-platform/hangar"
)

// metadataRequest is the body of a write of several pairs.
type metadataRequest struct {
	Metadata  map[string]*string `json:"metadata"`
	Version   hangar.InstanceID  `json:"machine_version,omitempty"`
	UpdatedAt time.Time          `json:"updated_at,omitzero"`
}

// MachineMetadata implements hangar.MachineTagger.
func (c *Client) MachineMetadata(ctx context.Context, ref hangar.MachineRef) (map[string]string, error) {
	var out map[string]string
	if err := c.do(ctx, get(machinePath(ref, "metadata")), &out); err != nil {
		return nil, err
	}
	return out, nil
}

// SetMachineMetadata implements hangar.MachineTagger.
func (c *Client) SetMachineMetadata(ctx context.Context, ref hangar.MachineRef, in hangar.MetadataPair) error {
	if !isSegment(in.Key) {
		return hangar.Errorf(hangar.CodeInvalid, hangar.ReasonBadConfig, "invalid metadata: the key %q cannot be a part of a path", in.Key)
	}
	to := post(machinePath(ref, "metadata", in.Key))
	to.in = struct {
		Value     string    `json:"value"`
		UpdatedAt time.Time `json:"updated_at,omitzero"`
	}{in.Value, in.UpdatedAt}
	return c.do(ctx, to, nil)
}

// RemoveMachineMetadata implements hangar.MachineTagger.
func (c *Client) RemoveMachineMetadata(ctx context.Context, ref hangar.MachineRef, key string) error {
	if !isSegment(key) {
		return c.MergeMachineMetadata(ctx, ref, hangar.MetadataWrite{Pairs: map[string]string{key: ""}})
	}
	return c.do(ctx, call{method: http.MethodDelete, path: machinePath(ref, "metadata", key)}, nil)
}

// ReplaceMachineMetadata implements hangar.MachineTagger.
func (c *Client) ReplaceMachineMetadata(ctx context.Context, ref hangar.MachineRef, in hangar.MetadataWrite) error {
	return c.do(ctx, call{method: http.MethodPut, path: machinePath(ref, "metadata"), in: requestOf(in)}, nil)
}

// MergeMachineMetadata implements hangar.MachineTagger.
func (c *Client) MergeMachineMetadata(ctx context.Context, ref hangar.MachineRef, in hangar.MetadataWrite) error {
	return c.do(ctx, call{method: http.MethodPatch, path: machinePath(ref, "metadata"), in: requestOf(in)}, nil)
}

func requestOf(in hangar.MetadataWrite) metadataRequest {
	body := metadataRequest{Metadata: make(map[string]*string, len(in.Pairs)), Version: in.Version, UpdatedAt: in.UpdatedAt}
	for k, v := range in.Pairs {
		if body.Metadata[k] = nil; v != "" {
			body.Metadata[k] = &v
		}
	}
	return body
}

// isSegment reports whether a text can be a segment of a path. Others disappear when the path is
// cleaned.
func isSegment(text string) bool { return text != "" && text != "." && text != ".." }
