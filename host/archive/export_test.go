package archive

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content"
)

// Intercept has wrap stand between an open archive that is not in use and its storage.
func (a *Archive) Intercept(wrap func(blob.Storage) blob.Storage) {
	a.store.Storage = wrap(a.store.Storage)
}

// LeaseTerm is how long the lease to collect garbage lasts.
const LeaseTerm = leaseFor

// PutLease stores the lease of another process.
func (a *Archive) PutLease(ctx context.Context, holder string, until time.Time) error {
	b, err := json.Marshal(leaseRecord{Holder: holder, Until: until})
	if err != nil {
		return err
	}
	return a.store.PutBlob(ctx, leaseBlob, plain(b), blob.PutOptions{})
}

// LeaseHolder returns who has the lease; empty: no one.
func (a *Archive) LeaseHolder(ctx context.Context) (string, error) {
	held, err := a.holder(ctx)
	return held.Holder, err
}

// Storage is where the blobs are.
func (a *Archive) Storage() blob.Storage { return a.store }

// Touch changes the index, as another session does.
func (a *Archive) Touch(ctx context.Context) error {
	_, w, err := a.rep.NewDirectWriter(ctx, repo.WriteSessionOptions{})
	if err != nil {
		return err
	}
	if _, err := put(ctx, w, "", []byte("touched")); err != nil {
		return err
	}
	return errors.Join(w.Flush(ctx), w.Close(ctx))
}

// Contents returns what the index has, garbage as well.
func (a *Archive) Contents(ctx context.Context) (all []content.Info, err error) {
	err = a.rep.ContentReader().IterateContents(ctx, content.IterateOptions{IncludeDeleted: true}, func(i content.Info) error {
		all = append(all, i)
		return nil
	})
	return all, err
}

// Merge merges the manifests.
func (a *Archive) Merge(ctx context.Context) error { return a.merge(ctx) }

// Session is a writer of the archive.
type Session struct{ s *session }

// Begin begins a session that ends with the test.
func (a *Archive) Begin(tb testing.TB) Session {
	tb.Helper()
	s, err := a.begin(tb.Context(), "test")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.end)
	return Session{s}
}

// Store stores bytes in segments, which are in files when there are enough of them.
func (s Session) Store(ctx context.Context, b []byte) error {
	for segment := range slices.Chunk(b, segmentSize) {
		if _, err := s.s.put(ctx, "", segment); err != nil {
			return err
		}
	}
	return nil
}

// Flush writes the index.
func (s Session) Flush(ctx context.Context) error { return s.s.w.Flush(ctx) }

// SetPatience sets for how long the files of a store may fail to be listed.
func (a *Archive) SetPatience(d time.Duration) { a.store.patience = d }
