package image_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hangar-platform/hangar/host/image"
)

// TestPullsAreCounted: one image that is pulled, one that is held, one that shares a layer, and one
// that does not exist.
func TestPullsAreCounted(t *testing.T) {
	u := serve(t)
	base := files(t, map[string]string{"base": strings.Repeat("b", 10000)})
	one, two := files(t, map[string]string{"one": "1"}), files(t, map[string]string{"two": "2"})
	a, b := u.push(t, "same:one", imageOf(t, base, one)), u.push(t, "same:two", imageOf(t, base, two))
	s := open(t, image.Options{})
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(s)
	expect := func(want map[string]float64) {
		t.Helper()
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				key := strings.TrimPrefix(f.GetName(), "hangar_image_")
				for _, l := range m.GetLabel() {
					key += " " + l.GetValue()
				}
				got := m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
				if got != want[key] {
					t.Errorf("%s is %v, want %v", key, got, want[key])
				}
				delete(want, key)
			}
		}
		for key := range want {
			t.Errorf("%s is not there", key)
		}
	}
	bytes := func(layers ...interface{ Size() (int64, error) }) (sum float64) {
		t.Helper()
		for _, l := range layers {
			n, err := l.Size()
			if err != nil {
				t.Fatal(err)
			}
			sum += float64(n)
		}
		return sum
	}
	expect(map[string]float64{
		"pulls_total held": 0, "pulls_total pulled": 0, "pulls_total failed": 0, "layers_total held": 0, "layers_total transferred": 0,
		"transferred_bytes_total": 0, "pull_duration_seconds": 0, "images": 0, "open_pulls": 0, "waiting_pulls": 0,
	})
	pull(t, s, a)
	pull(t, s, a)
	pull(t, s, b)
	if _, err := s.Pull(t.Context(), tenant, u.host+"/same:none", nil); err == nil {
		t.Error("an image that is not there was pulled")
	}
	expect(map[string]float64{
		"pulls_total held": 1, "pulls_total pulled": 2, "pulls_total failed": 1, "layers_total held": 1, "layers_total transferred": 3,
		"transferred_bytes_total": bytes(base, one, two), "pull_duration_seconds": 2, "images": 2, "open_pulls": 0, "waiting_pulls": 0,
	})
}
