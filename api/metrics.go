package api

import (
	"bytes"
	"net/http"

	"github.com/prometheus/common/expfmt"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/router"
)

func (s *server) metricsRoutes() {
	if s.Metrics == nil {
		return
	}
	s.Handle("GET /metrics", s.readMetrics, router.Operation{
		ID: "readMetrics", Tag: "Platform", Summary: "Get the metrics of this server",
		Text:   "In the text format of Prometheus. " + forAdmins,
		Answer: "# TYPE hangar_volume_snapshots_total counter\nhangar_volume_snapshots_total{result=\"created\"} 12\n", Media: router.MediaText,
	})
}

// readMetrics answers all counters at once; the server has few of them.
func (s *server) readMetrics(r *http.Request) (router.Answer, error) {
	p, err := hangar.PrincipalFrom(r.Context())
	if err != nil {
		return router.Answer{}, err
	}
	if err := p.NeedAdministrator("read the counters of the server"); err != nil {
		return router.Answer{}, err
	}
	families, err := s.Metrics.Gather()
	if err != nil {
		return router.Answer{}, hangar.Errorf(hangar.CodeInternal, "", "gather the counters: %w", err)
	}
	var text bytes.Buffer
	format := expfmt.NewFormat(expfmt.TypeTextPlain)
	encoder := expfmt.NewEncoder(&text, format)
	for _, f := range families {
		if err := encoder.Encode(f); err != nil {
			return router.Answer{}, hangar.Errorf(hangar.CodeInternal, "", "encode the counters: %w", err)
		}
	}
	return router.Answer{Raw: text.Bytes(), Media: string(format)}, nil
}
