package image_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/image"
)

func TestGC(t *testing.T) {
	u := serve(t)
	dir := t.TempDir()
	var mu sync.Mutex
	used := map[string]bool{}
	s := open(t, image.Options{Dir: dir, InUse: func() map[string]bool {
		mu.Lock()
		defer mu.Unlock()
		return used
	}})
	var digests []string
	for i := range 3 {
		img := imageOf(t, files(t, map[string]string{"f": strings.Repeat(fmt.Sprint(i), 1000)}))
		digests = append(digests, digest(t, img))
		pull(t, s, u.push(t, fmt.Sprintf("app%d:v1", i), img))
	}
	used[digests[0]] = true
	wantError(t, s.Remove(t.Context(), digests[0]), hangar.CodeFailedPrecondition, "image_in_use", "used by a Machine")
	if list, err := s.List(); err != nil || !list[0].InUse || list[1].InUse {
		t.Errorf("%+v, %v", list, err)
	}
	if freed, err := s.GC(t.Context(), image.Policy{MaxAge: time.Hour, MinFreeBytes: 1 << 62}); err != nil || freed != 0 {
		t.Errorf("freed %d bytes of what was just used, %v", freed, err)
	}
	// A week later the second is used again.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	past := time.Now().Add(-7 * 24 * time.Hour)
	for _, d := range digests {
		if err := os.Chtimes(filepath.Join(dir, "images", strings.TrimPrefix(d, "sha256:")+".json"), past, past); err != nil {
			t.Fatal(err)
		}
	}
	s = open(t, image.Options{Dir: dir, InUse: func() map[string]bool { return used }})
	if _, err := s.Get(digests[1]); err != nil {
		t.Fatal(err)
	}
	freed, err := s.GC(t.Context(), image.Policy{MaxAge: time.Hour})
	if err != nil || freed != 1000 {
		t.Errorf("freed %d bytes, %v", freed, err)
	}
	if list, _ := s.List(); len(list) != 2 {
		t.Errorf("%+v", list)
	}
	for _, d := range digests[:2] {
		if img, err := s.Get(d); err != nil {
			t.Error(err)
		} else if _, err := os.Stat(filepath.Join(img.Layers[0], "f")); err != nil {
			t.Error(err)
		}
	}
	if n, tmp := left(t, dir); n != 2 || tmp != 0 {
		t.Errorf("%d layers, %d half-made things", n, tmp)
	}
}

// TestGCOfUnreadImages: while the record of an image that a Machine uses cannot be read, the collector
// removes no layers. A record that can be read again is back; a damaged one of no use is removed.
func TestGCOfUnreadImages(t *testing.T) {
	u := serve(t)
	dir := t.TempDir()
	used := map[string]bool{}
	opts := image.Options{Dir: dir, InUse: func() map[string]bool { return used }}
	s := open(t, opts)
	img := imageOf(t, files(t, map[string]string{"f": "content"}))
	held := pull(t, s, u.push(t, "app:v1", img))
	record := filepath.Join(dir, "images", strings.TrimPrefix(held.Ref.Digest, "sha256:")+".json")
	text, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	used[held.Ref.Digest] = true
	collect := func() {
		t.Helper()
		s = open(t, opts)
		if _, err := s.GC(t.Context(), image.Policy{}); err != nil {
			t.Error(err)
		}
	}
	for name, damage := range map[string]func() error{
		"unreadable": func() error { return os.Mkdir(record, 0o700) },
		"damaged":    func() error { return os.WriteFile(record, []byte("{"), 0o600) },
	} {
		if err := errors.Join(os.RemoveAll(record), damage()); err != nil {
			t.Fatal(err)
		}
		collect()
		if _, err := os.Stat(filepath.Join(held.Layers[0], "f")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := errors.Join(os.RemoveAll(record), os.WriteFile(record, text, 0o600)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.GC(t.Context(), image.Policy{}); err != nil {
			t.Error(err)
		}
		if _, err := s.Get(held.Ref.Digest); err != nil {
			t.Errorf("%s, now readable: %v", name, err)
		}
	}
	if err := os.WriteFile(record, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	delete(used, held.Ref.Digest)
	collect()
	if n, _ := left(t, dir); n != 0 {
		t.Errorf("%d layers of an image that no Machine uses", n)
	}
	if _, err := os.Stat(record); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its damaged record: %v", err)
	}
}

// TestGCBesidePulls: an image that Pull returned and that is in use stays complete during any
// collection.
func TestGCBesidePulls(t *testing.T) {
	u := serve(t)
	base := files(t, map[string]string{"base": "1"})
	var refs, digests []string
	for i := range 4 {
		img := imageOf(t, base, files(t, map[string]string{"own": fmt.Sprint(i)}))
		refs, digests = append(refs, u.push(t, fmt.Sprintf("app%d:v1", i), img)), append(digests, digest(t, img))
	}
	var mu sync.Mutex
	used := map[string]bool{}
	s := open(t, image.Options{InUse: func() map[string]bool {
		mu.Lock()
		defer mu.Unlock()
		snapshot := map[string]bool{}
		for d := range used {
			snapshot[d] = true
		}
		return snapshot
	}})
	ctx, cancel := context.WithCancel(t.Context())
	var collector, machines sync.WaitGroup
	collector.Go(func() {
		for ctx.Err() == nil {
			if _, err := s.GC(ctx, image.Policy{MaxAge: 1}); err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
		}
	})
	for i := range refs {
		machines.Go(func() {
			for range 5 {
				mu.Lock()
				used[digests[i]] = true
				mu.Unlock()
				img, err := s.Pull(t.Context(), tenant, refs[i], nil)
				if err != nil {
					t.Error(err)
					return
				}
				for _, l := range img.Layers {
					if entries, err := os.ReadDir(l); err != nil || len(entries) != 1 {
						t.Errorf("layer %s: %v, %v", l, entries, err)
					}
				}
				mu.Lock()
				delete(used, digests[i])
				mu.Unlock()
			}
		})
	}
	machines.Wait()
	cancel()
	collector.Wait()
}
