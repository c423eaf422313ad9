package volumestest

import (
	"context"
	"maps"
	"sync"

	"github.com/hangar-platform/hangar"
)

// Rows is what the cluster state has of volumes.
type Rows struct {
	mu  sync.Mutex
	has map[hangar.VolumeRef]hangar.VolumeRow

	refuse  func(row *hangar.VolumeRow) error // called with mu held; nil: nothing is refused
	claimed []hangar.VolumeRow
}

// PublishVolume implements hangar.VolumePublisher.
func (p *Rows) PublishVolume(_ context.Context, row hangar.VolumeRow) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.has == nil {
		p.has = make(map[hangar.VolumeRef]hangar.VolumeRow)
	}
	if ref := row.Volume.Ref(); row.Seq > p.has[ref].Seq {
		p.has[ref] = row
	}
	return nil
}

// RetractVolume implements hangar.VolumePublisher.
func (p *Rows) RetractVolume(_ context.Context, _ hangar.HostID, ref hangar.VolumeRef) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.has, func(known hangar.VolumeRef, _ hangar.VolumeRow) bool {
		return known.AppID == ref.AppID && known.ID == ref.ID
	})
	return nil
}

// PublishedVolumes implements hangar.VolumePublisher.
func (p *Rows) PublishedVolumes(context.Context, hangar.HostID) (map[hangar.VolumeRef]uint64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	seqs := make(map[hangar.VolumeRef]uint64)
	for ref, row := range p.has {
		seqs[ref] = row.Seq
	}
	return seqs, nil
}

// Row is the one that was published of a volume.
func (p *Rows) Row(ref hangar.VolumeRef) (hangar.VolumeRow, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	row, ok := p.has[ref]
	return row, ok
}

// ClaimVolume refuses what the test says, and notes the rest.
func (p *Rows) ClaimVolume(_ context.Context, row hangar.VolumeRow) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse != nil {
		if err := p.refuse(&row); err != nil {
			return err
		}
	}
	p.claimed = append(p.claimed, row)
	return nil
}

// Answer has claims refused.
func (p *Rows) Answer(refuse func(row *hangar.VolumeRow) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = refuse
}

// OverQuota refuses a claim as the ledger of an organization does.
func OverQuota(row *hangar.VolumeRow) error {
	return hangar.QuotaExceeded(row.Org, hangar.QuotaVolumeGB, 1, 1, 1)
}

// Sizes are those that were claimed, in GiB.
func (p *Rows) Sizes() (list []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, row := range p.claimed {
		list = append(list, row.Volume.SizeGB)
	}
	return list
}
