package e2e

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/common/model"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
)

// TestPostgreSQLSeries: an exporter beside a database, as docs/metrics.md has it, makes series of
// the organization that follow what the database does.
func TestPostgreSQLSeries(t *testing.T) {
	p := start(t)
	recipe := postgres().recipe
	recipe.Packages = append(recipe.Packages, "prometheus-postgres-exporter")
	m := p.run(t, "database", hangar.MachineConfig{
		Image: p.push(t, build(t, recipe), "measured-postgres:1"), Guest: &hangar.Guest{MemoryMB: 512},
		Processes: []hangar.ProcessConfig{
			{Cmd: []string{"serve"}},
			{
				Cmd: []string{"prometheus-postgres-exporter"},
				Env: map[string]string{"DATA_SOURCE_NAME": "postgresql://postgres@localhost:5432/postgres?sslmode=disable"},
			},
		},
		Metrics: &hangar.Metrics{Port: 9187, Path: "/metrics"},
	})
	m.answersQueries(t)
	// value waits until an expression has one that is right.
	value := func(expr string, right func(float64) bool) {
		t.Helper()
		until(t, expr, func() error {
			time.Sleep(time.Second) // not more often than an organization may ask
			vector, err := p.c.QueryMetrics(t.Context(), client.MetricsQuery{Org: hangar.OrgPersonal, Apps: []hangar.AppName{app}, Expr: expr}, time.Time{})
			switch {
			case err != nil:
				return err
			case len(vector) != 1:
				return fmt.Errorf("%d series", len(vector))
			case !right(float64(vector[0].Value)):
				return fmt.Errorf("it is %v", vector[0].Value)
			case vector[0].Metric["instance"] != model.LabelValue(m.ref.ID):
				return errors.New("of " + vector[0].Metric.String())
			}
			return nil
		})
	}
	value("pg_up", func(v float64) bool { return v == 1 })
	value(`pg_stat_database_numbackends{datname="postgres"}`, func(v float64) bool { return v >= 1 })
	m.exec(t, "pg", "createdb", "bench")
	m.exec(t, "pg", "pgbench", "--quiet", "--initialize", "bench")
	const transactions = 500
	m.exec(t, "pg", "pgbench", "--client", "1", "--transactions", fmt.Sprint(transactions), "--no-vacuum", "bench")
	value(`pg_stat_database_xact_commit{datname="bench"}`, func(v float64) bool { return v >= transactions })
	value(`pg_database_size_bytes{datname="bench"}`, func(v float64) bool { return v > 16<<20 })
}
