package remote

import (
	"bytes"
	"encoding/json"
	"errors"
	"sync"
)

// maxBatch bounds pending frames, in bytes. A peer that accepts so little is as good as gone.
const maxBatch = 1 << 20

// batch sends the frames of goroutines that do not wait, as many at once as have come.
type batch struct {
	out  *frameWriter
	head []byte // frames that run sends first, however many; owned by run once that is called

	mu     sync.Mutex // guards what follows
	some   *sync.Cond
	queue  bytes.Buffer
	closed bool
}

func newBatch(out *frameWriter) *batch {
	b := &batch{out: out}
	b.some = sync.NewCond(&b.mu)
	return b
}

var errBatchEnded = errors.New("the peer takes nothing any more")

// add adds a frame. It fails when the batch is closed or the peer accepts too little.
func (b *batch) add(k kind, v any) error {
	payload, err := json.Marshal(v)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.queue.Len()+len(payload) > maxBatch {
		return errBatchEnded
	}
	b.some.Signal()
	return writeFrame(&b.queue, k, payload)
}

// waiting is the size of pending frames, in bytes.
func (b *batch) waiting() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.queue.Len()
}

// run sends until the batch is closed or a write fails.
func (b *batch) run() {
	defer b.close()
	for {
		frames, ok := b.take()
		if !ok || b.out.raw(frames) != nil {
			return
		}
	}
}

// take waits for frames.
func (b *batch) take() ([]byte, bool) {
	if head := b.head; len(head) > 0 {
		b.head = nil
		return head, true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.queue.Len() == 0 && !b.closed {
		b.some.Wait()
	}
	if b.closed {
		return nil, false
	}
	frames := bytes.Clone(b.queue.Bytes())
	b.queue.Reset()
	return frames, true
}

// close ends run. It may be repeated.
func (b *batch) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.some.Broadcast()
}
