package archive

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/kopia/kopia/repo/blob"

	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/internal/pause"
)

const (
	// leaseBlob names the daemon that collects the garbage of a bucket.
	leaseBlob blob.ID = "hangar.collector"
	leaseFor          = 15 * time.Minute
	// leaseSettles is how long a process that takes the lease waits for competitors. If a slow
	// request makes two processes believe that they hold it, they slow each other down but do no
	// harm: the library's minimum ages are much longer.
	leaseSettles = time.Second
	// releasing bounds the end of a lease.
	releasing = time.Minute
)

type leaseRecord struct {
	Holder string    `json:"holder"`
	Until  time.Time `json:"until"` // by the holder's clock; each renewal changes it
}

// lease acquires the right to collect garbage. It lasts as long as the returned context, and end
// releases it. If another process has the lease, the context is nil.
func (a *Archive) lease(ctx context.Context) (mine context.Context, end func(), err error) {
	me := rand.Text()
	switch held, err := a.holder(ctx); {
	case err != nil:
		return nil, nil, err
	case held.Holder != "" && a.held(held):
		return nil, nil, nil
	}
	defer func() {
		if mine == nil {
			a.release(ctx, me)
		}
	}()
	if err := a.hold(ctx, me); err != nil {
		return nil, nil, err
	}
	if err := pause.For(ctx, leaseSettles); err != nil {
		return nil, nil, err
	}
	switch held, err := a.holder(ctx); {
	case err != nil:
		return nil, nil, err
	case held.Holder != me:
		return nil, nil, nil
	}
	mine, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for pause.For(mine, leaseFor/3) == nil {
			held, err := a.holder(mine)
			if err == nil && held.Holder != me {
				err = errors.New("another process collects the garbage")
			}
			if err == nil {
				err = a.hold(mine, me)
			}
			if err != nil {
				cancel(err)
			}
		}
	}()
	return mine, func() {
		cancel(nil)
		<-done
		a.release(ctx, me)
	}, nil
}

// release ends the lease of a holder, if it is still in force.
func (a *Archive) release(ctx context.Context, holder string) {
	err := finish.Do(ctx, releasing, func(ctx finish.Context) error {
		held, err := a.holder(ctx)
		if err != nil || held.Holder != holder {
			return err
		}
		return a.store.DeleteBlob(ctx, leaseBlob)
	})
	if err != nil {
		a.opts.Log.WarnContext(ctx, "The lease of the archive's garbage collection was not released and expires.", "error", err)
	}
}

// held reports whether a lease that was read may still be in force. Its holder's clock may differ from
// this one, so that Until decides nothing: a lease has ended once this process has not seen it renewed
// for leaseFor.
func (a *Archive) held(lease leaseRecord) bool {
	now := a.opts.Now()
	if lease.Holder != a.seen.Holder || !lease.Until.Equal(a.seen.Until) {
		a.seen, a.seenAt = lease, now
	}
	return now.Sub(a.seenAt) < leaseFor
}

func (a *Archive) holder(ctx context.Context) (held leaseRecord, err error) {
	var b output
	switch err := a.store.GetBlob(ctx, leaseBlob, 0, -1, &b); {
	case errors.Is(err, blob.ErrBlobNotFound):
		return leaseRecord{}, nil
	case err != nil:
		return leaseRecord{}, err
	}
	if err := json.Unmarshal(b.Bytes(), &held); err != nil {
		a.opts.Log.WarnContext(ctx, "The lease of the archive's garbage collection is unreadable, replacing it", "error", err)
		held = leaseRecord{}
	}
	return held, nil
}

func (a *Archive) hold(ctx context.Context, who string) error {
	b, err := json.Marshal(leaseRecord{Holder: who, Until: a.opts.Now().Add(leaseFor)})
	if err != nil {
		return err
	}
	return a.store.PutBlob(ctx, leaseBlob, plain(b), blob.PutOptions{})
}

// plain implements blob.Bytes.
type plain []byte

// WriteTo writes all of them.
func (p plain) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(p)
	return int64(n), err
}

// Length is how many there are.
func (p plain) Length() int { return len(p) }

// Reader reads them.
func (p plain) Reader() io.ReadSeekCloser { return plainReader{bytes.NewReader(p)} }

type plainReader struct{ *bytes.Reader }

func (plainReader) Close() error { return nil }
