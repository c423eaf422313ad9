package registry

import (
	"net/http"
	"time"
)

// pacedWriter ends a response that the client reads too slowly: the response occupies a connection,
// a file and a goroutine.
type pacedWriter struct {
	http.ResponseWriter
	rate  int           // bytes a second, on average since the first write
	stall time.Duration // longest time without progress

	began time.Time // time of the first write
	bytes int64     // since then
}

// Unwrap implements the interface of http.ResponseController.
func (w *pacedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Write implements http.ResponseWriter. It does not limit a writer without deadlines.
func (w *pacedWriter) Write(p []byte) (int, error) {
	now := time.Now()
	if w.began.IsZero() {
		w.began = now
	}
	w.bytes += int64(len(p))
	by := w.began.Add(w.stall + w.atRate(w.bytes))
	if soon := now.Add(w.stall + w.atRate(int64(len(p)))); soon.Before(by) {
		by = soon
	}
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(by)
	return w.ResponseWriter.Write(p)
}

// atRate is how long n bytes take at the minimum rate.
func (w *pacedWriter) atRate(n int64) time.Duration {
	return time.Duration(float64(n) / float64(w.rate) * float64(time.Second))
}
