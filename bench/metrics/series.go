package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hangar-platform/hangar/internal/pause"
	"github.com/hangar-platform/hangar/metrics"
	"github.com/hangar-platform/hangar/metrics/builtin"
)

// machinesPerApp is how many Machines each App has.
const machinesPerApp = 2

// hour is what queries of a range span.
const hour = time.Hour

// prefix of the names of series, as the platform writes them.
const prefix = "platform_"

// values are those that labels of the reference have in the benchmark: what an App with a web
// server and a volume has.
var values = map[string][]string{
	"status": {"200", "404", "500"}, "proxy_id": {"blue"}, "servername": {"www.example.com"}, "version": {"TLSv1.3"},
	"minutes": {"1", "5", "15"}, "cpu_id": {"all"}, "mode": {"user", "system", "idle"}, "mount": {"/"},
	"id":     {"vol_4o7mx2r0pk9qy1ld"},
	"device": {"eth0"}, // of disks it is another
	"le":     {"0.001", "0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1", "2.5", "5", "10", "30", "+Inf"},
}

// shape is the labels of a series without those that say whose it is.
type shape struct {
	labels   []metrics.Label // sorted, as metrics.Sample has them
	instance bool            // it is of a Machine
	counter  bool
}

// shapes are the series of an App, and those of each of its Machines.
func shapes() (app, machine []shape) {
	for _, f := range builtin.Reference() {
		if f.Absent != "" {
			continue
		}
		for _, name := range f.Series() {
			labels := f.Labels
			if strings.HasSuffix(name, "_bucket") {
				labels = append(slices.Clone(labels), "le")
			}
			of := shape{
				labels:   []metrics.Label{{Name: metrics.NameLabel, Value: prefix + name}},
				instance: !strings.HasPrefix(name, "edge_") && !strings.HasPrefix(name, "volume_"),
				counter:  f.Type != builtin.Gauge,
			}
			if of.instance {
				machine = append(machine, combinations(of, labels)...)
			} else {
				app = append(app, combinations(of, labels)...)
			}
		}
	}
	return app, machine
}

// combinations returns a shape with each combination of the values of labels.
func combinations(of shape, labels []string) []shape {
	list := []shape{of}
	for _, name := range labels {
		var longer []shape
		for _, s := range list {
			for _, value := range values[name] {
				if name == "device" && strings.Contains(s.labels[0].Value, "_disk_") {
					value = "vdb"
				}
				more := s
				more.labels = append(slices.Clone(s.labels), metrics.Label{Name: name, Value: value})
				longer = append(longer, more)
			}
		}
		list = longer
	}
	return list
}

// apps are the series of many Apps, which belong to organizations that have equally many of them:
// the first Apps to the first.
type apps struct {
	of    []shape // one App's: its own, then those of each Machine
	own   int     // how many of them are its own
	count int     // Apps
	orgs  int
}

// newApps returns as many Apps as have so many series, or a few more.
func newApps(series, orgs int) *apps {
	own, machine := shapes()
	a := &apps{of: own, own: len(own), orgs: orgs}
	for range machinesPerApp {
		a.of = append(a.of, machine...)
	}
	a.count = max(orgs, (series+len(a.of)-1)/len(a.of))
	return a
}

func (a *apps) series() int { return a.count * len(a.of) }

// org is the number of the organization that has an App.
func (a *apps) org(app int) int { return app * a.orgs / a.count }

func appName(app int) string { return fmt.Sprintf("app%05d", app) }

// labels returns the labels of all series of an App.
func (a *apps) labels(app int) [][]metrics.Label {
	perMachine := (len(a.of) - a.own) / machinesPerApp
	list := make([][]metrics.Label, len(a.of))
	for i, s := range a.of {
		labels := append(slices.Clone(s.labels),
			metrics.Label{Name: "app", Value: appName(app)}, metrics.Label{Name: "host", Value: "0a7b"}, metrics.Label{Name: "region", Value: "ams"})
		if s.instance {
			machine := app*machinesPerApp + (i-a.own)/perMachine
			labels = append(labels, metrics.Label{Name: "instance", Value: fmt.Sprintf("%014x", machine)})
		}
		slices.SortFunc(labels, func(x, y metrics.Label) int { return strings.Compare(x.Name, y.Name) })
		list[i] = labels
	}
	return list
}

// samples appends a value of each series of an App at a time.
func (a *apps) samples(list []metrics.Sample, labels [][]metrics.Label, at time.Time) []metrics.Sample {
	for i, l := range labels {
		value := float64((at.Unix()/int64(metrics.Interval/time.Second)*7919 + int64(i)) % 1000)
		if a.of[i].counter {
			value = float64(at.Unix()-at.Truncate(24*time.Hour).Unix()) * float64(i+1)
		}
		list = append(list, metrics.Sample{Labels: l, Value: value, Time: at.UnixMilli()})
	}
	return list
}

// askedSeries is how many series have a value at each interval of the hour that is queried. The others
// have one at its end alone: they are what is to be found past, and a million series with all
// values would take longer to write than all else together.
const askedSeries = 20_000

// asked is how many Apps, the first ones, have all values.
func (a *apps) asked() int { return min(a.count, (askedSeries+len(a.of)-1)/len(a.of)) }

// fill writes all series past all that hangar has in front of the store, and waits until they are
// found. It returns how long it took to write the first value of each.
func (a *apps) fill(ctx context.Context, k *kept, end time.Time) (time.Duration, error) {
	const perWrite = 10 // intervals
	began := time.Now()
	err := eachOf(ctx, a.count, func(ctx context.Context, app int) error {
		return k.bare.Write(ctx, tenant(a.org(app)), a.samples(nil, a.labels(app), end))
	})
	took := time.Since(began)
	if err != nil {
		return took, err
	}
	err = eachOf(ctx, a.asked(), func(ctx context.Context, app int) error {
		labels := a.labels(app)
		for at := end.Add(-hour - metrics.Interval*perWrite); at.Before(end); {
			var list []metrics.Sample
			for ; at.Before(end) && len(list) < perWrite*len(labels); at = at.Add(metrics.Interval) {
				list = a.samples(list, labels, at)
			}
			if err := k.bare.Write(ctx, tenant(a.org(app)), list); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return took, err
	}
	for app := range a.asked() {
		values := fmt.Sprintf(`sum(count_over_time(%sinstance_up{app="%s",UNIQUE}[1h]))`, prefix, appName(app))
		if err := k.found(ctx, tenant(a.org(app)), values, end, machinesPerApp*int(hour/metrics.Interval)); err != nil {
			return took, err
		}
	}
	last := a.org(a.count - 1)
	first := a.count - 1
	for first > 0 && a.org(first-1) == last {
		first--
	}
	err = k.found(ctx, tenant(last), countUp, end, (a.count-first)*machinesPerApp)
	return took, errors.Join(err, k.settled(ctx))
}

// countUp counts Machines.
const countUp = "count(" + prefix + "instance_up{UNIQUE})"

// findWithin is how long it may take until what was written is found.
const findWithin = time.Minute

// found waits until a query of a tenant has a value at a time. The store remembers for some seconds
// which series a filter selects: UNIQUE in the query is replaced by a condition that all series meet
// and that is another one each time.
func (k *kept) found(ctx context.Context, t metrics.Tenant, query string, at time.Time, want int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, findWithin, fmt.Errorf("%s of %s is not %d", query, t.Org, want))
	defer cancel()
	for {
		text := strings.ReplaceAll(query, "UNIQUE", fmt.Sprintf(`asked!="%d"`, time.Now().UnixNano()))
		body, err := k.bare.ask(ctx, t, question{text: text}, at)
		if err != nil {
			return err
		}
		if strings.Contains(string(body), strconv.Quote(strconv.Itoa(want))) {
			return nil
		}
		if pause.For(ctx, 50*time.Millisecond) != nil {
			return context.Cause(ctx)
		}
	}
}
