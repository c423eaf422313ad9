package delivery

// Kill ends a Dispatcher as the end of its process would: what is not on the disk is lost.
func (d *Dispatcher) Kill() error {
	d.work.Stop()
	d.store.writing.Lock() // a transaction is committed, or not begun
	d.store.mu.Lock()
	d.store.outcomes, d.store.closed = nil, true
	d.store.mu.Unlock()
	err := d.store.db.Close()
	d.store.writing.Unlock()
	d.work.Wait()
	return err
}

// WindowSize is windowSize.
const WindowSize = windowSize
