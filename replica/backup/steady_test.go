package backup

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"
)

// slow is a store that lets time pass before each step of a request. Every object has three bytes.
type slow struct{ step time.Duration }

func (s slow) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(s.step):
		return nil
	}
}

func (slow) String() string { return "slow" }

func (s slow) List(ctx context.Context, _ string, each func(string, int64) error) error {
	for range 3 {
		if err := errors.Join(s.wait(ctx), each("name", 3)); err != nil {
			return err
		}
	}
	return s.wait(ctx)
}

func (s slow) Put(ctx context.Context, _ string, r io.Reader, _ int64) error {
	_, err := io.Copy(io.Discard, slowBody{s, ctx, r})
	return err
}

func (s slow) Get(ctx context.Context, _ string) (io.ReadCloser, error) {
	return io.NopCloser(slowBody{s, ctx, bytes.NewReader(make([]byte, 3))}), s.wait(ctx)
}

func (s slow) Remove(ctx context.Context, _ string) error { return s.wait(ctx) }

type slowBody struct {
	slow

	ctx context.Context
	r   io.Reader
}

func (b slowBody) Read(to []byte) (int, error) {
	if err := b.wait(b.ctx); err != nil {
		return 0, err
	}
	return b.r.Read(to[:1])
}

// TestSilentStore: requests end when the store does nothing, and take as long as they need while it does something.
func TestSilentStore(t *testing.T) {
	requests := map[string]func(context.Context, Store) error{
		"list": func(ctx context.Context, s Store) error {
			return s.List(ctx, "", func(string, int64) error { return nil })
		},
		"put": func(ctx context.Context, s Store) error {
			return s.Put(ctx, "name", bytes.NewReader(make([]byte, 3)), 3)
		},
		"remove": func(ctx context.Context, s Store) error { return s.Remove(ctx, "name") },
		"get": func(ctx context.Context, s Store) error {
			r, err := s.Get(ctx, "name")
			if err != nil {
				return err
			}
			_, err = io.ReadAll(r)
			return errors.Join(err, r.Close())
		},
	}
	for name, request := range requests {
		for step, want := range map[time.Duration]error{9 * time.Minute: nil, 1000 * time.Hour: errSilent} {
			t.Run(name+","+step.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					begun := time.Now()
					err := request(t.Context(), New(Options{Store: slow{step}}).o.Store)
					if took := time.Since(begun); !errors.Is(err, want) || err != nil && took > time.Hour {
						t.Errorf("%v after %s", err, took)
					}
				})
			})
		}
	}
}
