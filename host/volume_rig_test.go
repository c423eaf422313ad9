package host_test

import (
	"context"
	"sync"

	"github.com/hangar-platform/hangar"
)

// volumeRows is what the cluster state has of volumes.
type volumeRows struct {
	mu  sync.Mutex
	has map[hangar.VolumeRef]hangar.VolumeRow
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
	delete(p.has, ref)
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
