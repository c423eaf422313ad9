package latency

import (
	"net/http"
	"time"
)

// Writer remembers the status of an answer, and when it began.
type Writer struct {
	http.ResponseWriter

	status int
	at     time.Time
}

// NewWriter returns a Writer that writes to w.
func NewWriter(w http.ResponseWriter) *Writer { return &Writer{ResponseWriter: w} }

// Status is the status of the answer; 0: there is none yet.
func (w *Writer) Status() int { return w.status }

// Since is the time from then until the answer began, or until now if it has not.
func (w *Writer) Since(then time.Time) time.Duration {
	if w.status == 0 {
		return time.Since(then)
	}
	return w.at.Sub(then)
}

func (w *Writer) begin(status int) {
	if w.status == 0 {
		w.status, w.at = status, time.Now()
	}
}

// WriteHeader implements http.ResponseWriter.
func (w *Writer) WriteHeader(status int) {
	w.begin(status)
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *Writer) Write(p []byte) (int, error) {
	w.begin(http.StatusOK)
	return w.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController find deadlines, flushing and hijacking.
func (w *Writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }
