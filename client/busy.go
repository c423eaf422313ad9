package client

import (
	"context"
	"net/http"
	"time"

	"github.com/hangar-platform/hangar"
)

// KeepMachineBusy implements hangar.MachineBusier.
func (c *Client) KeepMachineBusy(ctx context.Context, ref hangar.MachineRef, ttl time.Duration) (hangar.MachineBusy, error) {
	to := call{method: http.MethodDelete, path: machinePath(ref, "busy")}
	if ttl != 0 {
		to = post(machinePath(ref, "busy"))
		to.in = map[string]any{"ttl": ttl.String()}
	}
	var out hangar.MachineBusy
	err := c.do(ctx, to, &out)
	return out, err
}
