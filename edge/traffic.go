package edge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"time"

	"github.com/hangar-platform/hangar"
)

// colour distinguishes the counts of one run of the edge from those of the run before: a counter
// that begins again is another series.
type colour string

const (
	blue  colour = "blue"
	green colour = "green"
)

// colourFile has the colour of the latest run, in the directory of the edge.
const colourFile = "colour"

// nextColour returns the colour of this run, which is not that of the run before, however that
// has ended. The file is written over in place, which a disk without room allows.
func nextColour(file string) (next colour, err error) {
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return "", fmt.Errorf("the colour of the edge: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	before, err := io.ReadAll(f)
	if err != nil {
		return "", fmt.Errorf("read the colour of the edge: %w", err)
	}
	next = blue
	if colour(bytes.TrimSpace(before)) == blue {
		next = green
	}
	if _, err := f.WriteAt(fmt.Appendf(nil, "%-*s", len(green), next), 0); err != nil {
		return "", fmt.Errorf("record the colour of the edge: %w", err)
	}
	return next, f.Sync()
}

// sweepEvery is how often counts of Apps are forgotten that have gone.
const sweepEvery = time.Minute

// sweepTraffic forgets the counts of Apps that have gone, until ctx ends.
func (e *Edge) sweepTraffic(ctx context.Context) error {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			e.traffic.Sweep(e.knows)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (e *Edge) knows(app hangar.AppID) bool {
	_, ok := e.routes.App(app)
	return ok
}

// Metrics implements hangar.MetricSource: series of Apps, and of the Machines to which this edge
// has passed something on, or that run on its own host. It may be called once Open has returned.
func (e *Edge) Metrics() iter.Seq[hangar.Metric] {
	return func(yield func(hangar.Metric) bool) {
		s := series{colour: e.colour, yield: yield}
		for _, a := range e.traffic.Apps() {
			s.app, s.machine = a.ID(), ""
			a.Emit(s.emit)
		}
		for _, m := range e.balancer.Traffic() {
			s.app, s.machine = m.Machine.AppID, m.Machine.ID
			if m.InFlight > 0 || m.Started && (m.Counts != nil || m.Host == e.o.Host) {
				s.emit("app_concurrency", float64(m.InFlight))
			}
			if m.Counts != nil {
				m.Counts.Emit(s.emit)
			}
			if s.over {
				return
			}
		}
	}
}

// series yields those of one App or Machine after another.
type series struct {
	app     hangar.AppID
	machine hangar.MachineID
	colour  colour
	yield   func(hangar.Metric) bool
	over    bool // yield has returned false
}

func (s *series) emit(name string, value float64, labels ...hangar.MetricLabel) {
	if s.over {
		return
	}
	own := make([]hangar.MetricLabel, 0, len(labels)+1)
	own = append(append(own, labels...), hangar.MetricLabel{Name: "proxy_id", Value: string(s.colour)})
	s.over = !s.yield(hangar.Metric{App: s.app, Machine: s.machine, Name: name, Labels: own, Value: value})
}
