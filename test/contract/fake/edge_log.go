package fake

import (
	"context"
	"iter"

	"github.com/hangar-platform/hangar"
)

// followEdge is FollowLogs of hangar.LogQuery.Edge. The edge does nothing.
func (s *Service) followEdge(ctx context.Context, app hangar.AppName, q hangar.LogQuery) iter.Seq2[hangar.LogEntry, error] {
	return func(yield func(hangar.LogEntry, error) bool) {
		s.mu.Lock()
		_, err := s.appFor(ctx, hangar.ActionRead, hangar.MachineRef{App: app, ID: q.Instance})
		s.mu.Unlock()
		if err != nil {
			yield(hangar.LogEntry{}, err)
			return
		}
		<-ctx.Done()
	}
}
