package fake

import (
	"context"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/hangar-platform/hangar"
)

type logLine struct {
	app hangar.AppName
	hangar.LogEntry
}

// log adds a line. The caller holds mu.
func (s *Service) log(m *machine, from hangar.LogProvider, text string) {
	s.logs = append(s.logs, logLine{m.App, hangar.LogEntry{
		Time: s.now().UTC(), Message: text, Level: "info", Provider: from, Instance: m.ID, Region: m.Region,
	}})
	s.wake()
}

// Logs implements hangar.LogService. A token is the number of lines before it.
func (s *Service) Logs(ctx context.Context, app hangar.AppName, q hangar.LogQuery) (hangar.LogPage, error) {
	if q.Edge {
		return hangar.LogPage{}, hangar.Errorf(hangar.CodeInvalid, "", "invalid edge: what the edge does is not kept; follow the log to see it")
	}
	page, _, err := s.page(ctx, app, q)
	return page, err
}

func (s *Service) page(ctx context.Context, app hangar.AppName, q hangar.LogQuery) (hangar.LogPage, <-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.appFor(ctx, hangar.ActionRead, hangar.MachineRef{App: app, ID: q.Instance}); err != nil {
		return hangar.LogPage{}, nil, err
	}
	limit := q.Limit
	if limit == 0 {
		limit = hangar.DefaultLogLimit
	}
	from := 0
	if q.Token != "" {
		n, err := strconv.Atoi(q.Token)
		if err != nil || n < 0 || n > len(s.logs) {
			return hangar.LogPage{}, nil, hangar.Errorf(hangar.CodeInvalid, "", "invalid next_token: %q", q.Token)
		}
		from = n
	}
	page := hangar.LogPage{Next: strconv.Itoa(len(s.logs))}
	for i, l := range s.logs[from:] {
		if l.app != app || q.Instance != "" && q.Instance != l.Instance || q.Region != "" && q.Region != l.Region {
			continue
		}
		if q.Token != "" && len(page.Entries) == limit {
			page.Next = strconv.Itoa(from + i)
			break
		}
		page.Entries = append(page.Entries, l.LogEntry)
	}
	if q.Token == "" && len(page.Entries) > limit {
		page.Entries = page.Entries[len(page.Entries)-limit:]
	}
	return page, s.changed, nil
}

// FollowLogs implements hangar.LogService.
func (s *Service) FollowLogs(ctx context.Context, app hangar.AppName, q hangar.LogQuery) iter.Seq2[hangar.LogEntry, error] {
	if q.Edge {
		return s.followEdge(ctx, app, q)
	}
	return func(yield func(hangar.LogEntry, error) bool) {
		for {
			page, changed, err := s.page(ctx, app, q)
			if err != nil {
				yield(hangar.LogEntry{}, err)
				return
			}
			for _, e := range page.Entries {
				if !yield(e, nil) {
					return
				}
			}
			q.Token = page.Next
			if len(page.Entries) > 0 {
				continue
			}
			select {
			case <-ctx.Done():
				return
			case <-changed:
			}
		}
	}
}

// Images implements hangar.ImageService.
func (s *Service) Images(ctx context.Context) ([]hangar.Image, error) {
	if err := admin(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var images []hangar.Image
	for _, i := range s.images {
		i.InUse = s.used(i.Ref.Digest)
		images = append(images, i)
	}
	slices.SortFunc(images, func(a, b hangar.Image) int { return strings.Compare(a.Ref.String(), b.Ref.String()) })
	return images, nil
}

// RemoveImage implements hangar.ImageService.
func (s *Service) RemoveImage(ctx context.Context, digest string) error {
	if err := admin(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch _, ok := s.images[digest]; {
	case !ok:
		return hangar.Errorf(hangar.CodeNotFound, hangar.ReasonImageNotFound, "image %s not found", digest)
	case s.used(digest):
		return hangar.Errorf(hangar.CodeFailedPrecondition, "", "image %s is used by a machine", digest)
	}
	delete(s.images, digest)
	return nil
}

func (s *Service) used(digest string) bool {
	for _, m := range s.machines {
		if m.ImageRef.Digest == digest && m.State != hangar.MachineDestroyed {
			return true
		}
	}
	return false
}
