// Package victoria runs the storage, ingestion and query engines of VictoriaMetrics in this
// process and serves a part of their HTTP API. It is the only package that imports
// VictoriaMetrics, whose packages promise no stable API and end the process on damaged data:
// only cmd/hangar-metrics links it.
//
// Handler lets through remote writes and the paths of the query API that the gateway offers, all
// of them only with a first extra_label that names a tenant. A path of its own takes remote writes
// of several tenants, of which each series has to name its own. Every other path of VictoriaMetrics,
// such as deletion, export and statistics over all tenants, answers 404.
//
// A process has at most one store, because VictoriaMetrics keeps it in package variables.
package victoria

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/VictoriaMetrics/VictoriaMetrics/app/vminsert"
	"github.com/VictoriaMetrics/VictoriaMetrics/app/vmselect"
	"github.com/VictoriaMetrics/VictoriaMetrics/app/vmselect/promql"
	"github.com/VictoriaMetrics/VictoriaMetrics/app/vmstorage"
	"github.com/VictoriaMetrics/VictoriaMetrics/lib/buildinfo"
	"github.com/VictoriaMetrics/VictoriaMetrics/lib/logger"
	"github.com/VictoriaMetrics/VictoriaMetrics/lib/storage"
	"github.com/VictoriaMetrics/metricsql"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/flock"
	"github.com/hangar-platform/hangar/metrics"
)

// Config of a store. Zero values are refused, except for MinFreeBytes.
type Config struct {
	Dir          string        // has the data; made if missing
	Retention    time.Duration // at least a day; older samples are ignored and removed
	MemoryBytes  int64         // that the process may use; caches and queries get 60 % of it
	MinFreeBytes int64         // of the disk, below which writes answer 503
	Queries      int           // that run at the same time
}

// flushInterval is how often samples leave memory. One takes several such steps to the disk, up to
// twenty seconds, which is what a kill -9 may lose: see package store.
const flushInterval = 5 * time.Second

// ParseFlags sets the flags of VictoriaMetrics, which are read from many of its packages. It is
// called once, before Open.
func ParseFlags(c Config) error {
	if c.Dir == "" || c.Retention < 24*time.Hour || c.MemoryBytes <= 0 || c.MinFreeBytes < 0 || c.Queries <= 0 {
		return fmt.Errorf("incomplete configuration of the metrics store: %+v", c)
	}
	allowed := c.MemoryBytes * 6 / 10
	flags := map[string]string{
		"storageDataPath":      c.Dir,
		"retentionPeriod":      strconv.FormatInt(int64(c.Retention/time.Hour), 10) + "h",
		"memory.allowedBytes":  strconv.FormatInt(allowed, 10),
		"loggerLevel":          "ERROR", // warnings repeat the queries of tenants
		"loggerFormat":         "json",
		"maxConcurrentInserts": "4",

		"storage.minFreeDiskSpaceBytes": strconv.FormatInt(c.MinFreeBytes, 10),
		// It counts queries of a metric's name over all tenants, and status/tsdb shows it.
		"storage.trackMetricNamesStats": "false",

		// Scrapes arrive complete, so that nothing newer has to be hidden.
		"search.latencyOffset":               "1s",
		"search.maxConcurrentRequests":       strconv.Itoa(c.Queries),
		"search.maxMemoryPerQuery":           strconv.FormatInt(allowed/4, 10),
		"search.maxQueryDuration":            "60s",
		"search.maxLabelsAPIDuration":        "30s",
		"search.maxStatusRequestDuration":    "30s",
		"search.maxUniqueTimeseries":         "300000",
		"search.maxSamplesPerQuery":          "300000000",
		"search.maxResponseSeries":           "20000",
		"search.maxFederateSeries":           "100000",
		"search.maxTSDBStatusSeries":         "1000000",
		"search.maxQueryLen":                 "64KiB",
		"search.logSlowQueryDuration":        "0",
		"search.queryStats.lastQueriesCount": "0",
	}
	args := make([]string, 0, len(flags))
	for name, value := range flags {
		args = append(args, "-"+name+"="+value)
	}
	if err := flag.CommandLine.Parse(args); err != nil {
		return err
	}
	debug.SetGCPercent(30) // as VictoriaMetrics does by itself: it allocates little
	debug.SetMemoryLimit(c.MemoryBytes * 9 / 10)
	buildinfo.Init()
	logger.Init()
	return nil
}

// Store is the open store of this process.
type Store struct{ lock *os.File }

// Open opens the store of the directory that ParseFlags was given, and recovers it after a crash.
// While another process has it open, such as one that is stopping, Open waits until ctx ends.
// Damaged data ends the process.
func Open(ctx context.Context, c Config) (*Store, error) {
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, err
	}
	lock, err := lockFile(ctx, filepath.Join(c.Dir, "hangar.lock"))
	if err != nil {
		return nil, err
	}
	storage.SetDedupInterval(time.Millisecond)
	storage.SetDataFlushInterval(flushInterval)
	vmstorage.Init(promql.ResetRollupResultCacheIfNeeded)
	vmselect.Init()
	vminsert.Init()
	return &Store{lock: lock}, nil
}

func lockFile(ctx context.Context, name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := flock.Wait(ctx, f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Close writes to disk what is in memory, and closes the store. No request may be in Handler.
func (s *Store) Close() error {
	vminsert.Stop()
	vmstorage.Stop()
	vmselect.Stop()
	return s.lock.Close()
}

// readPath are the paths of queries, below a prefix that VictoriaMetrics has in its cluster, too.
var readPath = regexp.MustCompile(
	"^/prometheus(" + strings.ReplaceAll(strings.Join(hangar.SeriesPaths(), "|"), "{label}", "[^/]+") + ")$")

const (
	writePath = "/prometheus/api/v1/write"
	// sharedPath takes remote writes with samples of several tenants; see writeShared.
	sharedPath = "/tenants/write"
	readyPath  = "/ready"
)

// Handler serves remote writes of one tenant and of several, queries, and /ready, which answers 204.
func (s *Store) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch path := r.URL.Path; {
		case path == readyPath:
			w.WriteHeader(http.StatusNoContent)
		case path == writePath && tenantOf(r) == "", readPath.MatchString(path) && tenantOf(r) == "":
			http.Error(w, "the request names no tenant", http.StatusBadRequest)
		case path == sharedPath && r.Method == http.MethodPost:
			writeShared(w, r)
		case path == writePath && r.Method == http.MethodPost && vminsert.RequestHandler(w, r):
		case readPath.MatchString(path):
			if err := checkQuery(r); err != nil {
				refuse(w, err)
			} else if !vmselect.RequestHandler(w, r) {
				http.NotFound(w, r)
			}
		default:
			http.NotFound(w, r)
		}
	})
}

// maxQuoted bounds what is quoted of an error of the parser, which may repeat the query, in bytes.
const maxQuoted = 300

// checkQuery parses the expressions of a request, to distinguish errors in them from others:
// VictoriaMetrics wraps them in the parameters that the gateway has set.
func checkQuery(r *http.Request) error {
	if err := r.ParseForm(); err != nil {
		return err
	}
	for _, text := range slices.Concat(r.Form["query"], r.Form["match[]"]) {
		if _, err := metricsql.Parse(text); err != nil {
			said := strings.ToValidUTF8(err.Error(), "")
			if len(said) > maxQuoted {
				said = strings.ToValidUTF8(said[:maxQuoted], "") + "…"
			}
			return fmt.Errorf("the query cannot be parsed: %s", said)
		}
	}
	return nil
}

// refuse answers in the form that Prometheus has. The type of the error is none that
// VictoriaMetrics answers with.
func refuse(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusBadRequest)
	_ = json.NewEncoder(w).Encode(map[string]string{ // an error means that the client has gone
		"status": "error", "errorType": "bad_data", "error": err.Error(),
	})
}

// tenantOf returns the tenant that the URL of a request confines it to, or "". That there is only
// one makes it the one that counts.
func tenantOf(r *http.Request) string {
	found := ""
	for _, label := range r.URL.Query()["extra_label"] {
		if org, ok := strings.CutPrefix(label, metrics.OrgLabel+"="); ok {
			if found != "" {
				return ""
			}
			found = org
		}
	}
	return found
}
