package remote

import "runtime"

// Gone waits until memory holds nothing.
func (w *Writer) Gone() {
	for w.counts.pending.Load() > 0 {
		runtime.Gosched()
	}
}
