package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/bench/harness"
	"github.com/hangar-platform/hangar/metrics/remote"
	"github.com/hangar-platform/hangar/metrics/scrape"
)

// scraperCommand makes this program what the daemon has to scrape Machines: a Scraper and a
// Writer, and nothing else.
const scraperCommand = "scraper"

// The queries of a scraper.
const (
	lineScrape = "scrape" // to begin
	lineCounts = "counts"
)

// counts is what a scraper has done so far.
type counts struct {
	Good, Bad     int // scrapes
	Sent, Dropped int // samples
}

// scraping is a Scraper and a Writer.
type scraping struct {
	scraper *scrape.Scraper
	writer  *remote.Writer
	running sync.WaitGroup
}

// runScraper scrapes the Machines at the address in its third argument and writes to the store
// whose socket is in its second one. It ends with its standard input.
func runScraper(ctx context.Context) (err error) {
	if len(os.Args) != 4 {
		return errors.New("not for people")
	}
	var undo harness.Undo
	defer func() { err = errors.Join(err, undo.Run()) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := &scraping{writer: remote.New(remote.Options{
		Store: dial(os.Args[2]), Dir: filepath.Join(filepath.Dir(os.Args[2]), "spool"), Log: slog.New(slog.DiscardHandler),
	})}
	if err := s.writer.Open(); err != nil {
		return err
	}
	undo.Add(s.writer.Close)
	undo.Add(func() error { cancel(); s.running.Wait(); return nil })
	return answerLines("ready", func(line string) (any, error) {
		switch line {
		case lineScrape:
			s.begin(ctx, os.Args[3])
			return counts{}, nil
		case lineCounts:
			return s.counts()
		}
		return nil, errors.New("no such question: " + line)
	})
}

// begin scrapes until ctx ends.
func (s *scraping) begin(ctx context.Context, address string) {
	list := make([]scrape.Target, machineTargets)
	for i := range list {
		list[i] = scrape.Target{
			Machine: hangar.MachineRef{App: hangar.AppName(appName(i)), ID: hangar.MachineID(fmt.Sprintf("%014x", i))},
			Tenant:  tenant(i % targetOrgs), Region: "ams", Host: "0a7b", Port: 9091, Path: "/metrics",
		}
	}
	s.scraper = scrape.New(scrape.Options{
		Targets: func() iter.Seq[scrape.Target] { return slices.Values(list) },
		Dial: func(ctx context.Context, _ hangar.MachineRef, network string, _ int) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		},
		Writer: s.writer, Tell: func(hangar.MachineRef, string, string) {},
	})
	s.running.Go(func() { s.writer.Run(ctx) })
	s.running.Go(func() { s.scraper.Run(ctx) })
}

func (s *scraping) counts() (c counts, err error) {
	r := prometheus.NewPedanticRegistry()
	if err := errors.Join(r.Register(s.writer), r.Register(s.scraper)); err != nil {
		return c, err
	}
	families, err := r.Gather()
	if err != nil {
		return c, err
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			n := int(m.GetCounter().GetValue())
			switch f.GetName() {
			case "hangar_scrape_scrapes_total":
				if m.GetLabel()[0].GetValue() == "ok" {
					c.Good += n
				} else {
					c.Bad += n
				}
			case "hangar_remote_sent_samples_total":
				c.Sent += n
			case "hangar_remote_dropped_samples_total":
				c.Dropped += n
			}
		}
	}
	return c, nil
}
