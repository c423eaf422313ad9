package remote

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"time"

	"github.com/klauspost/compress/snappy"
)

const (
	maxRequest     = 1 << 20 // bytes of a request before compression
	requestTimeout = 30 * time.Second
	maxReply       = 64 << 10 // bytes of an answer that are read, so that its connection is used again
	maxFailures    = 10       // of a batch that the store does not take while it takes others
	userAgent      = "hangar-metrics"
)

// outcome is how a request ended.
type outcome string

const (
	taken2xx outcome = "ok"
	invalid  outcome = "invalid" // 4xx: it will never be taken
	failed   outcome = "failed"  // the store has answered that it cannot
	away     outcome = "away"    // there was no answer
)

// sender sends one request at a time.
type sender struct {
	w    *Writer
	body []byte // of the last request; its room is used again
}

// turn sends the oldest samples of a queue and gives it its next turn.
func (s *sender) turn(ctx context.Context, q *queue) {
	w := s.w
	q.mu.Lock()
	t, err := q.take()
	q.mu.Unlock()
	if err != nil {
		w.counts.complain(w.o.Log, err)
		q.pause = longer(q.pause)
		w.served(q, time.Now().Add(q.pause), "")
		return
	}
	if t.samples == 0 {
		w.served(q, time.Now(), "")
		return
	}
	result := s.send(ctx, q, t.request)
	if ctx.Err() != nil && result != taken2xx {
		w.served(q, time.Now(), "") // whether the store is away is not known
		return
	}
	w.counts.requests.WithLabelValues(string(result)).Inc()
	if result == failed && q.hopeless(w.takenSoFar()) {
		result = invalid
	}
	due := time.Now()
	q.mu.Lock()
	switch result {
	case taken2xx:
		w.counts.sent.Add(float64(t.samples))
		q.done(t)
		q.pause, q.failures = 0, 0
	case invalid:
		w.counts.drop(reasonInvalid, t.samples)
		q.done(t)
		q.failures = 0
	case failed:
		q.pause = longer(q.pause)
		due = due.Add(q.pause)
		q.spill()
	case away:
		q.spill()
	}
	q.mu.Unlock()
	w.served(q, due, result)
	if result == away {
		w.spillAll()
	}
}

// hopeless counts a failure of the batch at the head. It reports true for one that the store
// refuses again and again while it takes others, so that it would block its queue.
func (q *queue) hopeless(written uint64) bool {
	if q.failures++; q.failures == 1 {
		q.written = written
	}
	return q.failures >= maxFailures && written > q.written
}

func longer(pause time.Duration) time.Duration { return min(max(minPause, 2*pause), maxPause) }

// takenSoFar is how many requests the store has taken.
func (w *Writer) takenSoFar() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.written
}

// served ends the turn of a queue and notes what it says of the store.
func (w *Writer) served(q *queue, due time.Time, result outcome) {
	w.mu.Lock()
	defer w.mu.Unlock()
	q.serving = false
	w.probing = false
	switch result {
	case taken2xx, invalid, failed:
		if w.away {
			w.o.Log.Info("the store of metrics answers again")
		}
		w.away, w.pause = false, 0
		if result == taken2xx {
			w.written++
		}
	case away:
		if !w.away {
			w.o.Log.Warn("the store of metrics does not answer: samples go to the spool")
		}
		w.away = true
		w.pause = longer(w.pause)
		w.until = time.Now().Add(w.pause)
	}
	q.notBefore = due
	w.schedule(q)
	w.signal()
}

// spillAll moves what memory holds of all tenants to disk.
func (w *Writer) spillAll() {
	w.mu.Lock()
	var all []*queue
	for _, q := range w.tenants {
		if q.size.Load() > 0 {
			q.users++
			all = append(all, q)
		}
	}
	w.mu.Unlock()
	for _, q := range all {
		q.mu.Lock()
		q.spill()
		q.mu.Unlock()
		w.leave(q)
	}
	w.enforce()
}

// send sends one request and says how it ended.
func (s *sender) send(ctx context.Context, q *queue, request []byte) outcome {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	s.body = snappy.Encode(s.body[:cap(s.body)], request)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.w.o.Store.WriteURL(q.tenant), bytes.NewReader(s.body))
	if err != nil {
		s.w.counts.complain(s.w.o.Log, err)
		return failed
	}
	req.Header.Set("Content-Encoding", "snappy")
	req.Header.Set("Content-Type", "application/x-protobuf")
	req.Header.Set("X-Prometheus-Remote-Write-Version", "0.1.0")
	req.Header.Set("User-Agent", userAgent)
	resp, err := s.w.o.Store.Client().Do(req)
	if err != nil {
		s.w.counts.complain(s.w.o.Log, err)
		return away
	}
	defer func() { _ = resp.Body.Close() }() // the status has said everything
	_, _ = io.CopyN(io.Discard, resp.Body, maxReply)
	switch code := resp.StatusCode; {
	case code/100 == 2:
		return taken2xx
	case code == http.StatusTooManyRequests, code == http.StatusRequestTimeout, code/100 != 4:
		return failed
	default:
		return invalid
	}
}
