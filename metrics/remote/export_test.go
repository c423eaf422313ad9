package remote

import "runtime"

// Gone waits until no samples are in memory.
func (w *Writer) Gone() {
	for w.counts.pending.Load() > 0 {
		runtime.Gosched()
	}
}
