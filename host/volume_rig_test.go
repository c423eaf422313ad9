package host_test

import (
	"context"
	"maps"
	"sync"

	"github.com/hangar-platform/hangar"
)

// volumeRows is what the cluster state has of volumes.
type volumeRows struct {
	mu  sync.Mutex
	has map[hangar.VolumeRef]hangar.VolumeRow

	refuse  func(row *hangar.VolumeRow) error // called with mu held; nil: nothing is refused
	claimed []hangar.VolumeRow
}

func (p *volumeRows) PublishVolume(_ context.Context, row hangar.VolumeRow) error {
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

func (p *volumeRows) RetractVolume(_ context.Context, _ hangar.HostID, ref hangar.VolumeRef) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.has, func(known hangar.VolumeRef, _ hangar.VolumeRow) bool {
		return known.AppID == ref.AppID && known.ID == ref.ID
	})
	return nil
}

func (p *volumeRows) PublishedVolumes(context.Context, hangar.HostID) (map[hangar.VolumeRef]uint64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	seqs := make(map[hangar.VolumeRef]uint64)
	for ref, row := range p.has {
		seqs[ref] = row.Seq
	}
	return seqs, nil
}

func (p *volumeRows) row(ref hangar.VolumeRef) (hangar.VolumeRow, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	row, ok := p.has[ref]
	return row, ok
}

// ClaimVolume refuses what the test says, and notes the rest.
func (p *volumeRows) ClaimVolume(_ context.Context, row hangar.VolumeRow) error {
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

// answer has claims refused.
func (p *volumeRows) answer(refuse func(row *hangar.VolumeRow) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = refuse
}

// sizes are those that were claimed, in GiB.
func (p *volumeRows) sizes() (list []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, row := range p.claimed {
		list = append(list, row.Volume.SizeGB)
	}
	return list
}
