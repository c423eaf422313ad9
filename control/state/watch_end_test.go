package state

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// endingWatcher ends its first watches without an error, as the client does with one that was not waiting when its
// stream was lost.
type endingWatcher struct {
	clientv3.Watcher
	left atomic.Int64
}

func (w *endingWatcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	if w.left.Add(-1) >= 0 {
		ended := make(chan clientv3.WatchResponse)
		close(ended)
		return ended
	}
	return w.Watcher.Watch(ctx, key, opts...)
}

// TestWatchEndsWithoutAReason: the store is not closed then, and a Mirror goes on.
func TestWatchEndsWithoutAReason(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	s, err := OpenEtcd(t.Context(), EtcdConfig{Dir: t.TempDir(), NoSync: true, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	ending := &endingWatcher{Watcher: s.client.Watcher}
	ending.left.Store(2)
	s.client.Watcher = ending
	for _, err := range s.Watch(t.Context(), "/", 1) {
		if err == nil || errors.Is(err, ErrClosed) {
			t.Errorf("the watch ends with %v", err)
		}
	}
	m := NewMirror(MirrorConfig{Store: s, Log: log})
	if err := m.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	if _, err := m.Txn(t.Context(), Txn{Then: []Op{Put("/k", nil)}}); err != nil {
		t.Error(err)
	}
	if ending.left.Load() >= 0 {
		t.Error("the watch of the mirror did not end")
	}
}
