package client

import (
	"context"
	"net/http"
	"time"

	"github.com/hangar-platform/hangar"
)

// leaseAnswer is how the API writes a lease.
type leaseAnswer struct {
	Data struct {
		hangar.Lease
		ExpiresAt int64 `json:"expires_at"` // Unix seconds
	} `json:"data"`
}

// AcquireLease implements hangar.MachineLeaser.
func (c *Client) AcquireLease(ctx context.Context, ref hangar.MachineRef, in hangar.LeaseAcquire) (hangar.Lease, error) {
	body := map[string]any{"description": in.Description}
	if in.TTL != 0 {
		body["ttl"] = wholeSeconds(in.TTL)
	}
	to := post(machinePath(ref, "lease"))
	to.in = body
	return c.lease(ctx, to)
}

// MachineLease implements hangar.MachineLeaser.
func (c *Client) MachineLease(ctx context.Context, ref hangar.MachineRef) (hangar.Lease, error) {
	return c.lease(ctx, get(machinePath(ref, "lease")))
}

func (c *Client) lease(ctx context.Context, in call) (hangar.Lease, error) {
	var out leaseAnswer
	if err := c.do(ctx, in, &out); err != nil {
		return hangar.Lease{}, err
	}
	lease := out.Data.Lease
	lease.ExpiresAt = time.Unix(out.Data.ExpiresAt, 0).UTC()
	return lease, nil
}

// ReleaseLease implements hangar.MachineLeaser.
func (c *Client) ReleaseLease(ctx context.Context, ref hangar.MachineRef) error {
	return c.do(ctx, call{method: http.MethodDelete, path: machinePath(ref, "lease")}, nil)
}

// wholeSeconds rounds a time to live to whole seconds, away from zero, so that one that is out of
// bounds stays so.
func wholeSeconds(d time.Duration) int64 {
	seconds := int64(d / time.Second)
	switch rest := d % time.Second; {
	case rest > 0:
		seconds++
	case rest < 0:
		seconds--
	}
	return seconds
}
