package hangar

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// QuotaKey names something that is limited for each organization.
type QuotaKey string

// The quotas of an organization.
const (
	QuotaApps             QuotaKey = "apps"
	QuotaMachines         QuotaKey = "machines"  // that are not destroyed, at rest or not
	QuotaMemory           QuotaKey = "memory_mb" // MiB of the guests of these Machines
	QuotaCPUs             QuotaKey = "cpus"      // of the guests of these Machines
	QuotaVolumes          QuotaKey = "volumes"   // destroyed ones count while they can be undeleted
	QuotaVolumeGB         QuotaKey = "volume_gb" // GiB of these volumes
	QuotaSnapshots        QuotaKey = "snapshots" // of volumes, destroyed ones included, until they expire
	QuotaAddressesV4      QuotaKey = "addresses_v4"
	QuotaAddressesV6      QuotaKey = "addresses_v6"
	QuotaAddressesPrivate QuotaKey = "addresses_private"
	QuotaImageMB          QuotaKey = "image_mb"  // MiB of its images on a host, pushed and unpacked; see ImageUsage
	QuotaHostnames        QuotaKey = "hostnames" // of all Apps, proven or not
	QuotaNetworks         QuotaKey = "networks"  // they stay when their Apps are destroyed
	QuotaTokens           QuotaKey = "tokens"    // expired ones count until they are revoked
	QuotaMembers          QuotaKey = "members"   // invitations included
	QuotaPeers            QuotaKey = "peers"
	QuotaSecrets          QuotaKey = "secrets"      // secret keys included
	QuotaSecretBytes      QuotaKey = "secret_bytes" // of their names and values
	QuotaExtensions       QuotaKey = "extensions"   // destroyed ones count until their providers confirm the deletion
)

// QuotaKeys lists every quota, in the order in which they are shown.
func QuotaKeys() []QuotaKey {
	return []QuotaKey{
		QuotaApps, QuotaMachines, QuotaMemory, QuotaCPUs, QuotaVolumes, QuotaVolumeGB, QuotaSnapshots, QuotaImageMB,
		QuotaAddressesV4, QuotaAddressesV6,
		QuotaAddressesPrivate, QuotaHostnames, QuotaNetworks, QuotaTokens, QuotaMembers, QuotaPeers, QuotaSecrets,
		QuotaSecretBytes, QuotaExtensions,
	}
}

// Quotas are amounts by key: limits, or what is used. The limit QuotaUnlimited means no limit.
type Quotas map[QuotaKey]int64

// QuotaUnlimited as a limit means no limit.
const QuotaUnlimited = -1

// maxQuota bounds a limit, so that sums do not overflow.
const maxQuota = 1 << 50

const unlimitedText = "unlimited"

// ParseQuotas reads limits as KEY=VALUE, where VALUE is a number from 0 on or "unlimited".
// It answers CodeInvalid, naming the key.
func ParseQuotas(pairs []string) (Quotas, error) {
	q := Quotas{}
	for _, pair := range pairs {
		key, text, ok := strings.Cut(pair, "=")
		if !ok {
			return nil, Errorf(CodeInvalid, "", "invalid quota %.80q: must be KEY=VALUE", pair)
		}
		n := int64(QuotaUnlimited)
		if text != unlimitedText {
			var err error
			if n, err = strconv.ParseInt(text, 10, 64); err != nil || n < 0 {
				return nil, Errorf(CodeInvalid, "", "invalid quota %.40s: %.40q is neither a number from 0 on nor %q", key, text, unlimitedText)
			}
		}
		q[QuotaKey(key)] = n
	}
	return q, q.Validate()
}

// Validate checks limits. It answers CodeInvalid, naming the key.
func (q Quotas) Validate() error {
	for _, key := range slices.Sorted(maps.Keys(q)) {
		switch n := q[key]; {
		case !slices.Contains(QuotaKeys(), key):
			return Errorf(CodeInvalid, "", "invalid quota %.40q: must be one of %v", string(key), QuotaKeys())
		case n < QuotaUnlimited || n > maxQuota:
			return Errorf(CodeInvalid, "", "invalid quota %s: %d must be from 0 to %d, or %d for no limit", key, n, int64(maxQuota), QuotaUnlimited)
		}
	}
	return nil
}

// Limit returns the limit of something, false if it has none.
func (q Quotas) Limit(key QuotaKey) (limit int64, ok bool) {
	limit, ok = q[key]
	return limit, ok && limit != QuotaUnlimited
}

// With returns q with the amounts of o in place of its own.
func (q Quotas) With(o Quotas) Quotas {
	all := maps.Clone(q)
	if all == nil {
		all = Quotas{}
	}
	maps.Copy(all, o)
	return all
}

// FormatQuota returns a limit as text for people.
func FormatQuota(n int64) string {
	if n == QuotaUnlimited {
		return unlimitedText
	}
	return strconv.FormatInt(n, 10)
}

// ServerSize is the size of a server, from which default quotas are computed.
type ServerSize struct {
	MemoryMB   int64 // promised to Machines
	CPUs       int64 // promised to Machines
	VolumeGB   int64 // of the disk of volumes
	IPv4, IPv6 int64 // addresses in the pools
}

// quotaShare is the part of a server that one organization may have, unless its operator
// says otherwise: a quarter.
const quotaShare = 4

// DefaultQuotas are the quotas of an organization on a server of a size. Limited resources are shared,
// with at least enough for one small App. The other numbers are generous.
func DefaultQuotas(s ServerSize) Quotas {
	share := func(all, least, most int64) int64 {
		if all <= 0 {
			return QuotaUnlimited // the server has none, and the refusal is to say that
		}
		return min(max(all/quotaShare, min(all, least)), most)
	}
	return Quotas{
		QuotaApps: 100, QuotaMachines: 200, QuotaHostnames: 500, QuotaNetworks: 100, QuotaTokens: 500, QuotaMembers: 200, QuotaPeers: 100,
		QuotaSecrets: 2000, QuotaSecretBytes: 4 << 20, QuotaVolumes: 100, QuotaSnapshots: 2000, QuotaAddressesPrivate: 200, QuotaExtensions: 100,
		QuotaMemory: share(s.MemoryMB, 1024, maxQuota), QuotaCPUs: share(s.CPUs, 4, maxQuota),
		QuotaImageMB:  share(s.VolumeGB<<10, 8<<10, 100<<10), // images are on the disk of volumes, or on one like it
		QuotaVolumeGB: share(s.VolumeGB, 3, maxQuota), QuotaAddressesV4: share(s.IPv4, 1, 1024), QuotaAddressesV6: share(s.IPv6, 1, 1024),
	}
}

// PersonalQuotas are the quotas of OrgPersonal, which belongs to the operator. It may use the whole
// server. Numbers are bounded only against programs that run wild.
func PersonalQuotas() Quotas {
	return Quotas{
		QuotaApps: 10_000, QuotaMachines: 200_000, QuotaHostnames: 50_000, QuotaNetworks: 10_000, QuotaTokens: 10_000, QuotaMembers: 10_000, QuotaPeers: MaxPeers,
		QuotaSecrets: 100_000, QuotaSecretBytes: 256 << 20, QuotaVolumes: 10_000, QuotaSnapshots: 200_000, QuotaAddressesPrivate: 10_000, QuotaExtensions: 1000,
		QuotaMemory: QuotaUnlimited, QuotaCPUs: QuotaUnlimited, QuotaVolumeGB: QuotaUnlimited, QuotaImageMB: QuotaUnlimited,
		QuotaAddressesV4: QuotaUnlimited, QuotaAddressesV6: QuotaUnlimited,
	}
}

// QuotaStatus is one quota of an organization.
type QuotaStatus struct {
	Key   QuotaKey `json:"key"`
	Used  int64    `json:"used"`
	Limit int64    `json:"limit"` // QuotaUnlimited: none
	// Destroyed is the part of Used that belongs to destroyed volumes which are not purged yet.
	Destroyed int64 `json:"destroyed,omitempty"`
	// Set says that the limit is the organization's own and not the server's default.
	Set bool `json:"set"`
}

// QuotaExceeded is the error for a request that would exceed a quota of an organization.
func QuotaExceeded(org OrgSlug, key QuotaKey, limit, used, more int64) error {
	return Errorf(CodeExhausted, ReasonQuota,
		"organization %q is over its quota of %s: %d asked, %d of %d used; an administrator raises it with `hangar orgs quota set %s %s=%s`",
		org, key, more, used, limit, org, key, fmt.Sprint(used+more))
}
