package daemon

import (
	"context"
	"fmt"

	"github.com/hangar-platform/hangar"
)

// quotaDefaults are the limits of organizations that have none of their own: what the
// operator says, or else a share of what the server has.
func quotaDefaults(ctx context.Context, cfg *Config, self hangar.Host, room func(context.Context) (hangar.HostRoom, error), v4, v6 uint64) (hangar.Quotas, error) {
	given, err := hangar.ParseQuotas(cfg.Quotas)
	if err != nil {
		return nil, fmt.Errorf("--quota: %w", err)
	}
	now, err := room(ctx)
	if err != nil {
		return nil, err
	}
	const many = 1 << 40
	size := hangar.ServerSize{
		MemoryMB: now.Memory >> 20, CPUs: int64(float64(self.CPUs) * cfg.CPUOvercommit), VolumeGB: now.Volumes>>30 + now.VolumesPromised>>30,
		IPv4: int64(min(v4, many)), IPv6: int64(min(v6, many)),
	}
	return hangar.DefaultQuotas(size).With(given), nil
}
