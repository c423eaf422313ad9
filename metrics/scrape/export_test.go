package scrape

import (
	"context"
	"sync"
)

// Round scrapes each target once, with some at a time.
func (s *Scraper) Round(ctx context.Context, atOnce int) {
	s.list(ctx)
	all := make(chan *target)
	var work sync.WaitGroup
	for range atOnce {
		work.Go(func() {
			for t := range all {
				s.scrape(ctx, t)
			}
		})
	}
	for _, t := range s.targets {
		all <- t
	}
	close(all)
	work.Wait()
}

// Drop closes the connections of all targets.
func (s *Scraper) Drop() { s.drop() }
