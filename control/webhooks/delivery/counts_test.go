package delivery_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// valueOf sums the samples of a family.
func valueOf(t *testing.T, c prometheus.Collector, name string) (sum float64) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return sum
}
