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
	maxReply       = 64 << 10 // bytes of a response that are read, so that its connection can be reused
	maxFailures    = 10       // of a batch that the store rejects while it accepts others
	userAgent      = "hangar-metrics"
)

// outcome is the result of a request.
type outcome string

const (
	taken2xx outcome = "ok"
	invalid  outcome = "invalid" // 4xx: repeating it does not help
	failed   outcome = "failed"  // the store has responded with an error
	away     outcome = "away"    // no response
	unknown  outcome = ""        // nothing was sent, or the Writer is ending
)

// sender sends one request at a time.
type sender struct {
	w *Writer
	// Buffers of the last request, shared and compressed; they are reused.
	request, body []byte
	parts         []part
}

// part is one tenant's part of a shared request.
type part struct {
	q *queue
	taken
}

// turn sends the oldest samples of a queue and schedules its next turn.
func (s *sender) turn(ctx context.Context, q *queue) {
	w := s.w
	q.mu.Lock()
	t, err := q.take()
	q.mu.Unlock()
	if err != nil {
		w.counts.complain(w.o.Log, err)
		q.pause = longer(q.pause)
		w.served(unknown, time.Now().Add(q.pause), false, q)
		return
	}
	if t.samples == 0 {
		w.served(unknown, time.Now(), false, q)
		return
	}
	result := s.send(ctx, w.o.Store.WriteURL(q.tenant), t.request)
	if ctx.Err() != nil && result != taken2xx {
		w.served(unknown, time.Now(), false, q) // this says nothing about the store
		return
	}
	w.counts.requests.WithLabelValues(string(result)).Inc()
	if result == failed && q.countRefusal(w.takenSoFar()) {
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
	case unknown:
	}
	q.mu.Unlock()
	w.served(result, due, false, q)
	if result == away {
		w.spillAll()
	}
}

// sendTogether sends the oldest samples of several queues in one request, and schedules the next turn
// of each. If the store rejects the request, each queue has its next turn alone, which shows whose
// samples are rejected. Until then no samples are dropped or moved to disk.
func (s *sender) sendTogether(ctx context.Context, list []*queue) {
	w := s.w
	s.request, s.parts = s.request[:0], s.parts[:0]
	for _, q := range list {
		var t taken
		q.mu.Lock()
		if len(s.request) <= maxRequest { // the queues may have grown
			s.request, t = q.takeInto(s.request)
		}
		q.mu.Unlock()
		if t.samples == 0 {
			w.served(unknown, time.Now(), false, q)
			continue
		}
		s.parts = append(s.parts, part{q, t})
	}
	defer func() { clear(s.parts) }()
	if len(s.parts) == 0 {
		return
	}
	result := s.send(ctx, w.shared, s.request)
	if ctx.Err() != nil && result != taken2xx {
		result = unknown
	} else {
		w.counts.requests.WithLabelValues(string(result)).Inc()
	}
	served := make([]*queue, len(s.parts))
	for i, p := range s.parts {
		served[i] = p.q
		if result != taken2xx {
			continue
		}
		w.counts.sent.Add(float64(p.samples))
		p.q.mu.Lock()
		p.q.done(p.taken)
		p.q.pause, p.q.failures = 0, 0
		p.q.mu.Unlock()
	}
	w.served(result, time.Now(), true, served...)
	if result == away {
		w.spillAll()
	}
}

// countRefusal counts a failure of the batch at the head. It reports true if the store rejects the
// batch repeatedly while it accepts others, so that the batch would block its queue.
func (q *queue) countRefusal(written uint64) bool {
	if q.failures++; q.failures == 1 {
		q.written = written
	}
	return q.failures >= maxFailures && written > q.written
}

func longer(pause time.Duration) time.Duration { return min(max(minPause, 2*pause), maxPause) }

// takenSoFar is the number of requests that the store has accepted.
func (w *Writer) takenSoFar() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.written
}

// served ends the turn of queues after a request, which was shared or not, and records what the
// result says about the store.
func (w *Writer) served(result outcome, due time.Time, shared bool, list ...*queue) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.probing = false
	switch result {
	case taken2xx, invalid, failed:
		if w.away {
			w.o.Log.Info("the store of metrics responds again")
		}
		w.away, w.pause = false, 0
		if result == taken2xx {
			w.written++
		}
	case away:
		if !w.away {
			w.o.Log.Warn("the store of metrics does not respond: samples go to the spool")
		}
		w.away = true
		w.pause = longer(w.pause)
		w.until = time.Now().Add(w.pause)
	case unknown:
	}
	for _, q := range list {
		w.sending -= q.sending
		q.serving, q.sending, q.notBefore = false, 0, due
		switch result {
		case taken2xx:
			q.alone = false
		case invalid:
			q.alone = shared // otherwise its samples are dropped
		case failed:
			q.alone = true
		case away, unknown:
		}
		w.schedule(q)
	}
	w.signal()
}

// spillAll moves the samples in memory of all tenants to disk.
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

// send sends one request to a URL and returns its result.
func (s *sender) send(ctx context.Context, url string, request []byte) outcome {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	s.body = snappy.Encode(s.body[:cap(s.body)], request)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(s.body))
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
	defer func() { _ = resp.Body.Close() }() // only the status matters
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
