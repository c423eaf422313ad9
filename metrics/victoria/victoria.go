// Package victoria runs the storage, ingestion and query engines of VictoriaMetrics in this
// process and serves a part of their HTTP API. It is the only package that imports
// VictoriaMetrics, whose packages promise no stable API and end the process on damaged data:
// only cmd/hangar-metrics links it.
//
// Handler accepts remote writes and the paths of the query API that the gateway offers, but only with
// an extra_label that names a tenant. Another path accepts remote writes of several tenants, in which
// each series must name its own. Every other path of VictoriaMetrics, such as deletion, export and
// statistics over all tenants, gets 404.
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

// Config of a store. Zero values are invalid, except for MinFreeBytes.
type Config struct {
	Dir          string        // of the data; made if missing
	Retention    time.Duration // at least a day; older samples are ignored and removed
	MemoryBytes  int64         // limit of the process; caches and queries get 60 % of it
	MinFreeBytes int64         // of free disk space, below which writes get 503
	Queries      int           // that run concurrently
}

// flushInterval is how often samples leave memory. A sample takes several such steps to reach the
// disk, up to twenty seconds; a kill -9 may lose samples of that time: see package store.
const flushInterval = 5 * time.Second

// ParseFlags sets the flags of VictoriaMetrics, which many of its packages read. Call it once, before
// Open.
func ParseFlags(c Config) error {
	if c.Dir == "" || c.Retention < 24*time.Hour || c.MemoryBytes <= 0 || c.MinFreeBytes < 0 || c.Queries <= 0 {
		return fmt.Errorf("incomplete configuration of the metrics store: %+v", c)
	}
	allowed := c.MemoryBytes * 6 / 10
	flags := map[string]string{
		"storageDataPath": c.Dir,
		// All samples were taken by servers. One that is later than the clock shows that the clock is
		// wrong, for example before it was synchronized.
		"futureRetention":      "100y",
		"retentionPeriod":      strconv.FormatInt(int64(c.Retention/time.Hour), 10) + "h",
		"memory.allowedBytes":  strconv.FormatInt(allowed, 10),
		"loggerLevel":          "ERROR", // warnings repeat the queries of tenants
		"loggerFormat":         "json",
		"maxConcurrentInserts": "4",

		"storage.minFreeDiskSpaceBytes": strconv.FormatInt(c.MinFreeBytes, 10),
		// It counts queries by metric name over all tenants, which status/tsdb would show.
		"storage.trackMetricNamesStats": "false",

		// Scrapes arrive complete, so no recent samples need to be hidden.
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
	debug.SetGCPercent(30) // the value of VictoriaMetrics's own main program
	debug.SetMemoryLimit(c.MemoryBytes * 9 / 10)
	buildinfo.Init()
	logger.Init()
	return nil
}

// Store is the open store of this process.
type Store struct{ lock *os.File }

// Open opens the store in the directory that was passed to ParseFlags, and recovers it after a crash.
// While another process has it open, such as one that is stopping, Open waits until ctx ends. Damaged
// data ends the process.
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

// readPath matches the paths of queries, below a prefix that VictoriaMetrics also has in its cluster.
var readPath = regexp.MustCompile(
	"^/prometheus(" + strings.ReplaceAll(strings.Join(hangar.SeriesPaths(), "|"), "{label}", "[^/]+") + ")$")

const (
	writePath = "/prometheus/api/v1/write"
	// sharedPath accepts remote writes with samples of several tenants; see writeShared.
	sharedPath = "/tenants/write"
	readyPath  = "/ready"
)

// Handler serves remote writes of one tenant and of several, queries, and /ready, which responds with
// 204.
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

// maxQuoted bounds how much of a parser's error is quoted, in bytes. The error may repeat the query.
const maxQuoted = 300

// checkQuery parses the expressions of a request, to distinguish errors in them from other errors:
// VictoriaMetrics wraps them together with the gateway's parameters.
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

// refuse responds in the form of Prometheus, with a type of error that VictoriaMetrics does not use.
func refuse(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusBadRequest)
	_ = json.NewEncoder(w).Encode(map[string]string{ // fails only if the client has disconnected
		"status": "error", "errorType": "bad_data", "error": err.Error(),
	})
}

// tenantOf returns the only tenant in the URL of a request, or "" if it does not name exactly one.
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
