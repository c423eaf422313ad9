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
	unknown  outcome = ""        // nothing was sent, or the Writer ends
)

// sender sends one request at a time.
type sender struct {
	w *Writer
	// Of the last request, of several tenants and compressed; their room is used again.
	request, body []byte
	parts         []part
}

// part is what a request of several tenants has of one.
type part struct {
	q *queue
	taken
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
		w.served(unknown, time.Now().Add(q.pause), false, q)
		return
	}
	if t.samples == 0 {
		w.served(unknown, time.Now(), false, q)
		return
	}
	result := s.send(ctx, w.o.Store.WriteURL(q.tenant), t.request)
	if ctx.Err() != nil && result != taken2xx {
		w.served(unknown, time.Now(), false, q) // whether the store is away is not known
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

// sendTogether sends the oldest samples of several queues in one request, and gives each its next
// turn. If the store does not take the request, that turn is of each by itself, which shows whose
// samples it does not take: until then none are dropped, and none go to the disk.
func (s *sender) sendTogether(ctx context.Context, list []*queue) {
	w := s.w
	s.request, s.parts = s.request[:0], s.parts[:0]
	for _, q := range list {
		var t taken
		q.mu.Lock()
		if len(s.request) <= maxRequest { // it may have grown
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

// countRefusal counts a failure of the batch at the head. It reports true for one that the store
// refuses again and again while it takes others, so that it would block its queue.
func (q *queue) countRefusal(written uint64) bool {
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

// served ends the turn of queues, which have sent a request that was shared or not, and notes what
// that says of the store.
func (w *Writer) served(result outcome, due time.Time, shared bool, list ...*queue) {
	w.mu.Lock()
	defer w.mu.Unlock()
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
	case unknown:
	}
	for _, q := range list {
		w.sending -= q.sending
		q.serving, q.sending, q.notBefore = false, 0, due
		switch result {
		case taken2xx:
			q.alone = false
		case invalid:
			q.alone = shared // else its samples are dropped
		case failed:
			q.alone = true
		case away, unknown:
		}
		w.schedule(q)
	}
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

// send sends one request to a URL and says how it ended.
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
