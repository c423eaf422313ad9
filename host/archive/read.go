package archive

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	"github.com/kopia/kopia/repo/object"

	"github.com/hangar-platform/hangar"
)

// Read writes the content of a snapshot to dst, and returns its entry. It writes all that was
// ever written to the volume, zeros as well, and nothing else: no program has seen the rest.
// WriteAt is called by several goroutines at once. progress is called as by Write; of its total,
// zeros are done sooner than the rest.
//
// Each segment is checked before it is written. The file of a damaged one is marked, so that Write
// stores again what it needs of it. After ErrCorrupt, with a *CorruptError,
// ErrNotFound or any other error, the content of dst cannot be used.
func (a *Archive) Read(ctx context.Context, id hangar.SnapshotID, dst io.WriterAt, progress func(hangar.Progress)) (_ Entry, err error) {
	ctx, done := a.operation(ctx)
	defer done(&err)
	t, err := a.getTree(ctx, id)
	if err != nil {
		return Entry{}, fmt.Errorf("read snapshot: %w", err)
	}
	report := newReporter(progress, t.size)
	err = t.each(ctx, func(ctx context.Context, g int, buf []byte) error {
		return a.readGroup(ctx, t, g, dst, buf, report)
	})
	if err != nil {
		return Entry{}, fmt.Errorf("read snapshot: %w", err)
	}
	return t.Entry, nil
}

func (a *Archive) readGroup(ctx context.Context, t *tree, g int, dst io.WriterAt, buf []byte, report *reporter) error {
	if t.groups[g].sum == sumOf(t.zeroTable(g)) && len(within(t.written, t.span(g))) == 0 {
		report.add(t.span(g).Length)
		return nil
	}
	parts, sums, err := t.getGroup(ctx, a.rep, g)
	if err != nil {
		return a.damaged(ctx, t.ID, t.span(g).Offset, err)
	}
	for first := 0; first < len(parts); first += runSize / segmentSize {
		run, err := a.readRun(ctx, t, g, first, parts[first:min(first+runSize/segmentSize, len(parts))], sums[first:], buf)
		if err != nil {
			return err
		}
		if err := t.writeWritten(dst, run, t.segment(g, first).Offset); err != nil {
			return fmt.Errorf("write the volume: %w", err)
		}
		report.add(int64(len(run)))
	}
	return nil
}

// readRun reads consecutive segments into the buffer and verifies them.
func (a *Archive) readRun(ctx context.Context, t *tree, g, first int, parts []object.ID, sums []sum, buf []byte) ([]byte, error) {
	run := buf[:0]
	for i, part := range parts {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		where := t.segment(g, first+i)
		if sums[i] == t.zeroSum(where.Length) {
			run = run[:len(run)+int(where.Length)]
			clear(run[len(run)-int(where.Length):])
			continue
		}
		b, err := get(ctx, a.rep, part)
		if err == nil && sha256.Sum256(b) != sums[i] {
			err = errors.New("its SHA-256 has changed")
		}
		if err != nil {
			return nil, a.damaged(ctx, t.ID, where.Offset, err)
		}
		run = append(run, b...)
	}
	return run, nil
}
