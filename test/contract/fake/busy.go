package fake

import (
	"context"
	"time"

	"github.com/hangar-platform/hangar"
)

// KeepMachineBusy implements hangar.MachineBusier. Nothing is ever stopped for being idle.
func (s *Service) KeepMachineBusy(ctx context.Context, ref hangar.MachineRef, ttl time.Duration) (hangar.MachineBusy, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.findFor(ctx, hangar.ActionWrite, ref)
	if err == nil {
		err = hangar.CheckBusy(ttl)
	}
	if err == nil {
		_, _, err = m.ask(hangar.VerbExec)
	}
	if err != nil || ttl == 0 {
		return hangar.MachineBusy{}, err
	}
	return hangar.MachineBusy{Until: s.now().UTC().Add(ttl)}, nil
}
