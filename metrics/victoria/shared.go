package victoria

import (
	"errors"
	"net/http"

	"github.com/VictoriaMetrics/VictoriaMetrics/app/vminsert/common"
	"github.com/VictoriaMetrics/VictoriaMetrics/lib/httpserver"
	"github.com/VictoriaMetrics/VictoriaMetrics/lib/prompb"
	"github.com/VictoriaMetrics/VictoriaMetrics/lib/protoparser/promremotewrite/stream"

	"github.com/hangar-platform/hangar/metrics"
)

// errWhose: a series of a request does not name one tenant.
var errWhose = errors.New("a series does not have exactly one label that names its tenant")

// writeShared handles a remote write with samples of several tenants, in which each series has
// exactly one metrics.OrgLabel. It stores all of a request, or nothing, unless the disk is full. Like
// app/vminsert/promremotewrite, it responds with 400 to an invalid request and with 503 if it cannot
// store the samples now.
func writeShared(w http.ResponseWriter, r *http.Request) {
	err := stream.Parse(r.Body, false, func(list []prompb.TimeSeries, _ []prompb.MetricMetadata) error {
		for i := range list {
			if !ownedByOne(list[i].Labels) {
				return errWhose
			}
		}
		return insert(list)
	})
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	status := http.StatusBadRequest
	if e, ok := errors.AsType[*httpserver.ErrorWithStatusCode](err); ok {
		status = e.StatusCode
	}
	http.Error(w, err.Error(), status)
}

// ownedByOne reports whether labels name exactly one tenant.
func ownedByOne(labels []prompb.Label) bool {
	found := 0
	for i := range labels {
		if l := &labels[i]; l.Name == metrics.OrgLabel {
			if l.Value == "" {
				return false
			}
			found++
		}
	}
	return found == 1
}

// insert stores series.
func insert(list []prompb.TimeSeries) error {
	ctx := common.GetInsertCtx()
	defer common.PutInsertCtx(ctx)
	rows := 0
	for i := range list {
		rows += len(list[i].Samples)
	}
	ctx.Reset(rows)
	for i := range list {
		ctx.Labels = ctx.Labels[:0]
		for _, l := range list[i].Labels {
			ctx.AddLabel(l.Name, l.Value)
		}
		if !ctx.TryPrepareLabels(false) {
			continue
		}
		var name []byte
		var err error
		for _, s := range list[i].Samples {
			if name, err = ctx.WriteDataPointExt(name, ctx.Labels, s.Timestamp, s.Value); err != nil {
				return err
			}
		}
	}
	return ctx.FlushBufs()
}
