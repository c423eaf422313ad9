package registry

import (
	"net/http"
	"time"
)

// pacedWriter ends an answer whose client takes it too slowly: a connection, a file and a
// goroutine are held for as long as it lasts.
type pacedWriter struct {
	http.ResponseWriter
	rate  int           // bytes a second, on the average since the first
	stall time.Duration // for which nothing may be taken

	began time.Time // of the first byte
	bytes int64     // since then
}

// Unwrap lets http.ResponseController find deadlines.
func (w *pacedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Write implements http.ResponseWriter. A writer without deadlines is not bounded.
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

// atRate is how long n bytes take that are taken as slowly as is allowed.
func (w *pacedWriter) atRate(n int64) time.Duration {
	return time.Duration(float64(n) / float64(w.rate) * float64(time.Second))
}
