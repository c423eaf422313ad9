// Package metrics keeps the time series of organizations and answers queries of them.
//
// A series belongs to one organization, its Tenant. Samples come from two places: the
// platform measures Apps and Machines (metrics/builtin asks hangar.MetricSource), and Machines
// expose metrics of their own (metrics/scrape reads them). Both write to a Store, by the remote
// write protocol of Prometheus: to the store that the daemon runs (metrics/store), or to a
// cluster of VictoriaMetrics. Queries come to metrics/gateway, which confines each to its tenant.
package metrics
