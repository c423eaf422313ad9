// Package scrape reads the metrics that Machines of one host expose, and writes them to the
// series of their organizations.
//
// Each running Machine with metrics in its config is scraped every metrics.Interval, at an offset of
// its own. Its response is in the text format of Prometheus or in OpenMetrics. The platform sets the
// labels app, region, host and instance, which replace those of the Machine; labels that begin with
// two underscores and timestamps of the Machine are ignored. A series gets a marker of its end when
// it is missing in a response, or when its Machine does not respond or run any more. The beginning of
// a series has no marker, and there are no series about the scraping.
//
// Promises. Scraping neither wakes a Machine nor keeps it awake: only Options.Dial reaches a Machine.
// A hostile Machine does not harm others. Limits bound what is read. A response beyond them is
// dropped completely, and its Machine is scraped less and less often. Organizations take turns, and
// the memory for one leaves as much for others. The App's log says, once for each change, why the
// metrics of a Machine cannot be read; that text contains nothing of the Machine's response.
//
// Concurrency. Run keeps the schedule in one goroutine. A scrape has a goroutine while it lasts, and
// a Machine has at most one.
//
// The package keeps nothing on disk: series of Machines that end while no daemon runs get no
// marker.
package scrape

import (
	"cmp"
	"context"
	"iter"
	"net"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/connlimit"
	"github.com/hangar-platform/hangar/internal/fairsem"
	"github.com/hangar-platform/hangar/internal/pqueue"
	"github.com/hangar-platform/hangar/metrics"
)

// Target is a running Machine that exposes metrics.
type Target struct {
	Machine hangar.MachineRef
	Tenant  metrics.Tenant // the owner of the series
	Region  hangar.Region
	Host    string // the label of the host: four lowercase hexadecimal characters
	Port    int
	Path    string // begins with a slash; may have a query
	HTTPS   bool   // with any certificate
	// Generation changes with every boot of the Machine: its connections have ended, and its problem
	// may be over.
	Generation uint64
}

// Limits bound the work that Machines can cause. Zero fields mean the defaults.
type Limits struct {
	Body       int64 // bytes of an answer, after decompression; default 16 MiB
	Series     int   // of a Machine; default 20,000
	Labels     int   // of a series, without the platform's; default 30
	LabelName  int   // bytes, and of the name of a metric; default 256
	LabelValue int   // bytes; default 1024
	// AtOnce is the number of concurrent scrapes; default 128. Each has up to SmallBody bytes of a
	// response in memory.
	AtOnce int
	// Large is how many concurrent scrapes may have more than that, up to Body; default 4. With the
	// parsed samples, one takes about three times the size of its response.
	Large int
	// OrgBytes is how many bytes the Machines of an organization may send in metrics.Interval; default
	// 128 MiB.
	OrgBytes int64
	// SeriesBytes bounds the memory for the names and labels of the last scrapes, about 80 bytes for
	// each series; default 256 MiB. One organization gets at most as much as it leaves for others.
	SeriesBytes int
}

// SmallBody is how many bytes of a response every scrape may have in memory.
const SmallBody = 128 << 10

func (l Limits) orDefault() Limits {
	return Limits{
		Body: cmp.Or(l.Body, 16<<20), Series: cmp.Or(l.Series, 20_000),
		Labels: cmp.Or(l.Labels, 30), LabelName: cmp.Or(l.LabelName, 256), LabelValue: cmp.Or(l.LabelValue, 1024),
		AtOnce: cmp.Or(l.AtOnce, 128), Large: cmp.Or(l.Large, 4),
		OrgBytes: cmp.Or(l.OrgBytes, 128<<20), SeriesBytes: cmp.Or(l.SeriesBytes, 256<<20),
	}
}

// timeout bounds a scrape from its first byte to its last.
const timeout = 10 * time.Second

// lookAgain is the interval at which the targets are listed.
const lookAgain = time.Second

// maxPenalty is the most intervals that pass before a Machine that exceeded bounds is scraped again.
// The first time it is two.
const maxPenalty = 16

// Options of a Scraper.
type Options struct {
	// Targets yields the current targets, each Machine once. It is called every second.
	Targets func() iter.Seq[Target]
	// Dial connects to a TCP port of a Machine over "tcp4" or "tcp6". It fails for a Machine that does
	// not run. It must neither wake the Machine nor count as a use of it.
	Dial func(ctx context.Context, machine hangar.MachineRef, network string, port int) (net.Conn, error)
	// Writer receives the samples.
	Writer metrics.Writer
	// Tell writes a line to the log of the App; level is as in hangar.LogEntry. It must not block.
	Tell   func(machine hangar.MachineRef, level, message string)
	Limits Limits
}

// Scraper scrapes the Machines of a host. Use New, then Run.
type Scraper struct {
	o       Options
	limits  Limits
	slots   *fairsem.Semaphore[hangar.OrgID] // of all scrapes
	large   *fairsem.Semaphore[hangar.OrgID] // of scrapes with large responses
	kept    *connlimit.Count[hangar.OrgID]   // bytes of target.last
	scratch sync.Pool                        // of *scratch
	counts  counts
	wake    chan struct{} // buffered 1: the head of the queue may have changed
	work    sync.WaitGroup

	mu      sync.Mutex // guards what follows, and the schedule of targets
	targets map[hangar.MachineID]*target
	orgs    map[hangar.OrgID]*org
	queue   *pqueue.Queue[*target]
	look    uint64 // number of times that the targets were listed
}

// org is the state of an organization while it has targets.
type org struct {
	targets int
	bytes   *rate.Limiter // of answers
}

// target is a Machine that is scraped.
type target struct {
	org *org

	// Guarded by Scraper.mu.
	spec    Target
	seen    uint64 // the last look that listed it
	due     time.Time
	place   pqueue.Place
	running bool               // it has a goroutine
	cancel  context.CancelFunc // of that
	gone    bool               // it must end

	// Only the goroutine that scrapes or ends it uses these.
	scraped Target // as it was at the last scrape
	conn    net.Conn
	request []byte // the request for conn
	network string // the network that has worked last
	last    seriesSet
	penalty int // in intervals
	problem problem
}

// New returns a Scraper that scrapes nothing yet.
func New(o Options) *Scraper {
	l := o.Limits.orDefault()
	s := &Scraper{
		o: o, limits: l,
		slots: fairsem.New[hangar.OrgID](l.AtOnce), large: fairsem.New[hangar.OrgID](l.Large),
		kept:    connlimit.NewCount[hangar.OrgID](l.SeriesBytes, l.SeriesBytes),
		counts:  newCounts(),
		wake:    make(chan struct{}, 1),
		targets: make(map[hangar.MachineID]*target), orgs: make(map[hangar.OrgID]*org),
		queue: pqueue.New(
			func(a, b *target) bool { return a.due.Before(b.due) },
			func(t *target) *pqueue.Place { return &t.place },
		),
	}
	s.scratch.New = func() any { return newScratch(l) }
	return s
}
