package fake

import (
	"context"
	"iter"

	"github.com/hangar-platform/hangar"
)

// edgeLog is what the edge of the platform has done.
type edgeLog struct {
	lines     []logLine
	followers map[hangar.AppName]int
}

// Request makes a request to a Machine of an App, as the edge tells of it, once somebody
// follows what the edge does for the App.
func (s *Service) Request(ctx context.Context, app hangar.AppName, id hangar.MachineID, r hangar.EdgeRequest) error {
	for {
		s.mu.Lock()
		if s.edge.followers[app] > 0 {
			s.edge.lines = append(s.edge.lines, logLine{app, r.Entry(s.now(), id, s.region)})
			s.wake()
			s.mu.Unlock()
			return nil
		}
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// followEdge is FollowLogs of hangar.LogQuery.Edge.
func (s *Service) followEdge(ctx context.Context, app hangar.AppName, q hangar.LogQuery) iter.Seq2[hangar.LogEntry, error] {
	return func(yield func(hangar.LogEntry, error) bool) {
		s.mu.Lock()
		_, err := s.appFor(ctx, hangar.ActionRead, hangar.MachineRef{App: app, ID: q.Instance})
		at := len(s.edge.lines)
		if err == nil {
			if s.edge.followers == nil {
				s.edge.followers = map[hangar.AppName]int{}
			}
			s.edge.followers[app]++
			s.wake()
		}
		s.mu.Unlock()
		if err != nil {
			yield(hangar.LogEntry{}, err)
			return
		}
		defer func() {
			s.mu.Lock()
			s.edge.followers[app]--
			s.mu.Unlock()
		}()
		for {
			s.mu.Lock()
			lines, changed := s.edge.lines[at:], s.changed
			s.mu.Unlock()
			for _, l := range lines {
				at++
				if l.app != app || q.Instance != "" && q.Instance != l.Instance || q.Region != "" && q.Region != l.Region {
					continue
				}
				if !yield(l.LogEntry, nil) {
					return
				}
			}
			select {
			case <-ctx.Done():
				return
			case <-changed:
			}
		}
	}
}
