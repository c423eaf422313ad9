package api

import (
	"bytes"
	"net/http"

	"github.com/prometheus/common/expfmt"

	"github.com/hangar-platform/hangar"
)

func (s *server) metricsRoutes() {
	if s.Metrics == nil {
		return
	}
	s.handle("GET /metrics", s.readMetrics, operation{
		ID: "readMetrics", Tag: "Platform", Summary: "Read the counters of this server",
		Text:   "In the text format of Prometheus. " + forAdmins,
		Answer: "# TYPE hangar_volume_snapshots_total counter\nhangar_volume_snapshots_total{result=\"created\"} 12\n", Media: mediaText,
	})
}

// readMetrics answers all counters at once; the server has few of them.
func (s *server) readMetrics(r *http.Request) (answer, error) {
	p, err := hangar.PrincipalFrom(r.Context())
	if err != nil {
		return answer{}, err
	}
	if !p.Admin {
		return answer{}, hangar.Errorf(hangar.CodeForbidden, "", "Only an administrator may read the counters of the server")
	}
	families, err := s.Metrics.Gather()
	if err != nil {
		return answer{}, hangar.Errorf(hangar.CodeInternal, "", "gather the counters: %w", err)
	}
	var text bytes.Buffer
	format := expfmt.NewFormat(expfmt.TypeTextPlain)
	encoder := expfmt.NewEncoder(&text, format)
	for _, f := range families {
		if err := encoder.Encode(f); err != nil {
			return answer{}, hangar.Errorf(hangar.CodeInternal, "", "encode the counters: %w", err)
		}
	}
	return answer{raw: text.Bytes(), media: string(format)}, nil
}
